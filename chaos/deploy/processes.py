"""Starts processes that never outlive the harness, and signals them by pid.

Every process is in a session of its own: Ctrl-C reaches only the harness, which then ends the processes in order. Each
writes to a log file. A guard (`raftlog.chaos.deploy.process_guard`) knows each process, and kills it if the harness
dies suddenly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from raftlog.chaos.deploy import process_guard
from raftlog.cluster.node.local_cluster import wait_stopped

_TAIL_BYTES: Final = 4_096
_PAUSE_S: Final = 30.0


class ProcessError(RuntimeError):
    """A process that did not react as expected; the message has the end of its log."""


class Process:
    """One running (or ended) process. Its log file is appended to."""

    def __init__(self, processes: Processes, name: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.pid = popen.pid
        self.log = log
        self._processes = processes
        self._popen = popen

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; a stopped one runs."""
        return self._ended() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal. Raises ProcessError if it has ended."""
        if not self.is_running:
            raise ProcessError(f"{self.name} cannot get {number.name}: it has ended\n{self.tail()}")
        os.kill(self.pid, number)  # not reaped yet, so the number is still its own

    def pause(self) -> None:
        """SIGSTOP; none of its threads runs when this returns. Raises ProcessError if that does not happen."""
        self.signal(signal.SIGSTOP)
        if not wait_stopped(self.pid, _PAUSE_S):
            raise ProcessError(f"{self.name} still runs {_PAUSE_S:g} s after SIGSTOP\n{self.tail()}")

    def kill(self) -> None:
        """kill -9, and waits until it is gone; nothing if it has ended."""
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(30)

    def wait(self, timeout_s: float) -> int:
        """Its exit code (minus the signal that ended it). Raises ProcessError if it does not end in that time."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{self.name} did not end within {timeout_s:g} s\n{self.tail()}") from None
        code = self._ended()
        assert code is not None
        return code

    def tail(self) -> str:
        """The end of its log, for a message."""
        data = self.log.read_bytes()[-_TAIL_BYTES:]
        return f"--- end of {self.log.name}\n{data.decode('utf-8', 'replace')}"

    def _ended(self) -> int | None:
        code = self._popen.poll()
        if code is not None:
            self._processes.forget(self)
        return code


class Processes:
    """All processes of one harness; a context manager that ends them."""

    def __init__(self) -> None:
        self._running: dict[int, Process] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Process:
        """Starts `argv`; `environment` is added to the harness's own."""
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                start_new_session=True,
            )
        process = Process(self, name, popen, log)
        self._running[popen.pid] = process
        self.watch(popen.pid)
        return process

    def watch(self, pid: int) -> None:
        """Has the guard kill this child, which somebody else here started, if the harness dies."""
        if self._guard is None:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", process_guard.__file__], stdin=subprocess.PIPE, start_new_session=True
            )
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the guard was killed by hand: close() ends the started processes
            self._guard.stdin.write(b"%d\n" % pid)
            self._guard.stdin.flush()

    def forget(self, process: Process) -> None:
        """A process of this harness has ended and was waited for."""
        self._running.pop(process.pid, None)

    def close(self) -> None:
        """Kills what still runs, then the guard has nothing to do and ends too."""
        for process in list(self._running.values()):
            if process.is_running:
                os.kill(process.pid, signal.SIGKILL)
        for process in list(self._running.values()):
            process.wait(30)
        if self._guard is not None:
            guard, self._guard = self._guard, None
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait(30)


def waited_s(pids: Iterable[int]) -> float:
    """How long the main threads of these processes were ready to run and waited for a core, together, in seconds."""
    waited_ns = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            waited_ns += int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    return waited_ns / 1e9
