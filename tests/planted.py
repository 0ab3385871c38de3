"""Runs tests with a mutant planted in their process: `python -m tests.planted MUTANT TESTS …`.

The exit code is that of pytest. So a test that needs fixtures can be the story of a mutant
(tests/sim/invariants/test_mutants.py), which asks a `Planter`: that starts one process for many such runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import NoReturn

import pytest

from raftlog.chaos.sim.mutants import plant
from tests.support import Patience

SHARE_PLANTED = 0.15
"""Part of each deadline that counts while a mutant is planted: many a condition then stays false. Without a mutant the
stories that wait longest passed with it, with seven runnable threads for each core."""

ROOT = Path(__file__).resolve().parent.parent


def main(words: list[str]) -> int:
    """Plants the mutant and runs the tests."""
    name, *tests = words
    Patience.share = SHARE_PLANTED
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
    with redirect_stdout(sys.stderr):  # loads the plugins and most of what stories import
        pytest.main(
            ["-q", "--collect-only", "-p", "no:cacheprovider", "tests/cluster/peers", "tests/cluster/http/test_node.py"]
        )
    for line in sys.stdin:
        name, test, out = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            _run_and_exit(name, test, out)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run_and_exit(name: str, test: str, out: str) -> NoReturn:
    """Ends this process with the exit code of pytest, or with another one if pytest could not run."""
    code = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        file = os.open(out, os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(file, stream)
        code = main([name, test])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main(sys.argv[1:]))
    _serve()
