"""Runs tests with a mutant planted in their process: `python -m tests.planted MUTANT TESTS …`.

The exit code is that of pytest. So a test that needs fixtures can be the story of a mutant
(tests/sim/invariants/test_mutants.py), which asks a `Planter`: that starts one process for many such runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.chaos.sim.mutants import plant

ROOT = Path(__file__).resolve().parent.parent


def main(words: list[str]) -> int:
    """Plants the mutant and runs the tests."""
    name, *tests = words
    with plant(name):
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))


class Planter:
    """A process that forks for each run, so that only the first one pays for the imports."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.planted"], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, name: str, test: str, out: Path) -> int:
        """The exit code of pytest; what it prints goes to `out`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\t{test}\t{out}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def _serve() -> None:
    """Runs what each line of the standard input names, and prints the exit code."""
    import raftlog.cluster.node.host
    import raftlog.cluster.node.process  # noqa: F401  # most of what stories import

    for line in sys.stdin:
        name, test, out = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            file = os.open(out, os.O_WRONLY | os.O_CREAT)
            for stream in (1, 2):
                os.dup2(file, stream)
            code = main([name, test])
            sys.stdout.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main(sys.argv[1:]))
    _serve()
