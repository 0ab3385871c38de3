"""Runs tests with a mutant planted in their process: `python -m tests.planted MUTANT TESTS …`.

The exit code is that of pytest. So a test that needs fixtures can be the story of a mutant
(tests/sim/invariants/test_mutants.py).
"""

from __future__ import annotations

import sys

import pytest

from raftlog.chaos.sim.mutants import plant


def main(words: list[str]) -> int:
    """Plants the mutant and runs the tests."""
    name, *tests = words
    with plant(name):
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
