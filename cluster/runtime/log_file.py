"""Writes the node's own log, and its audit log, to standard error or to files that are rotated by size.

A full disk loses lines. `raftlog.cluster.runtime.logging` and `raftlog.cluster.http.request_log` write the node's own
log, from the event loop and from a thread. Its file replaces standard error, so that it also gets the traceback of a
crash. `raftlog.cluster.http.audit` has a file of its own.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOST: Final = b'{"event":"log_lines_lost","lines":%d,"level":"warning"}\n'
_STDERR: Final = 2


class LogSink:
    """One for each log. `write` never raises: lost lines are counted in `lost`, and a later line reports them."""

    def __init__(self) -> None:
        self.lost = 0  # lines, since the start of the process
        self._untold = 0  # lost lines that no line of the log reports yet
        self._is_cut = False  # the newest line was written only in part
        self._path: Path | None = None
        self._to = _STDERR  # the open file
        self._size = self._bytes_max = self._kept = 0
        self._lock = threading.Lock()

    def open(self, path: Path, bytes_max: int, kept: int, *, is_stderr: bool = True) -> None:
        """Sends lines to this file from now on, and standard error too if `is_stderr`. Raises OSError.

        At `bytes_max` bytes the file is renamed to `path`.1 and a new one begun; `kept` older files are kept.
        """
        with self._lock:
            self._path, self._bytes_max, self._kept = path, bytes_max, kept
            self._to = _STDERR if is_stderr else os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            self._begin()

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._path is not None and self._size and self._size + len(data) > self._bytes_max:
                with suppress(OSError):
                    self._rotate(self._path)
            self._put(data)

    def _rotate(self, path: Path) -> None:
        for number in range(self._kept, 0, -1):
            older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
            with suppress(FileNotFoundError):
                older.replace(path.with_name(f"{path.name}.{number}"))
        if not self._kept:
            path.unlink(missing_ok=True)
        self._begin()

    def _begin(self) -> None:
        assert self._path is not None
        mode = 0o644 if self._to == _STDERR else 0o600
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            os.dup2(descriptor, self._to, inheritable=self._to == _STDERR)
            self._size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def _put(self, data: bytes) -> None:
        lines = data.count(b"\n")
        if self._path is not None and self._size + len(data) > 2 * self._bytes_max:
            self._lose(lines)  # it cannot be rotated: lost lines are better than a full disk
            return
        if self._untold:
            data = _LOST % self._untold + data
        if self._is_cut:
            data = b"\n" + data
        written = 0
        try:
            descriptor = self._to if self._path is not None else sys.stderr.fileno()
        except (OSError, ValueError):  # a test may have replaced standard error
            sys.stderr.write(data.decode("utf-8", "replace"))
            return
        try:
            while written < len(data):
                written += os.write(descriptor, data[written:] if written else data)
        except OSError:
            self._is_cut = self._is_cut if not written else data[written - 1 : written] != b"\n"
            self._lose(lines)
        else:
            self._untold, self._is_cut = 0, False
        self._size += written

    def close(self) -> None:
        if self._to != _STDERR:
            os.close(self._to)
            self._to, self._path = _STDERR, None

    def _lose(self, lines: int) -> None:
        self.lost += lines
        self._untold += lines


sink: Final = LogSink()
"""The sink of the node's own log."""
