"""Kills the processes that a harness started when it ends, also when it dies suddenly.

A process of its own (`raftlog.chaos.deploy.process_guard`) knows each of them.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from raftlog.chaos.deploy import process_guard


class Guard:
    """Watches the processes of one harness; a context manager that kills them. The harness waits for its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def watch(self, pid: int) -> None:
        """Has this child killed when the guard is closed, or when the harness dies."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", process_guard.__file__], stdin=subprocess.PIPE, start_new_session=True
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the guard was killed by hand
            self._process.stdin.write(b"%d\n" % pid)
            self._process.stdin.flush()

    def close(self) -> None:
        """Kills what still runs, and returns when it is done."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


def waited_s(pids: Iterable[int]) -> float:
    """How long the main threads of these processes were ready to run and waited for a core, together, in seconds."""
    waited_ns = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            waited_ns += int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    return waited_ns / 1e9
