"""Writes the node's own log to standard error or to a file that is rotated by size; a full disk loses lines.

`raftlog.cluster.runtime.logging` and `raftlog.cluster.http.request_log` write here, from the event loop and from a
thread. The file replaces standard error, so that it also gets the traceback of a crash.
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
    """One per process. `write` never raises: lost lines are counted in `lost`, and a later line reports them."""

    def __init__(self) -> None:
        self.lost = 0  # lines, since the start of the process
        self._untold = 0  # lost lines that no line of the log reports yet
        self._is_cut = False  # the newest line was written only in part
        self._path: Path | None = None
        self._size = self._bytes_max = self._kept = 0
        self._lock = threading.Lock()

    def open(self, path: Path, bytes_max: int, kept: int) -> None:
        """Sends lines and standard error to this file from now on. Raises OSError.

        At `bytes_max` bytes the file is renamed to `path`.1 and a new one begun; `kept` older files are kept.
        """
        with self._lock:
            self._path, self._bytes_max, self._kept = path, bytes_max, kept
            self._begin()

    def write(self, data: bytes) -> None:
        """Writes whole lines."""
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
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.dup2(descriptor, _STDERR)
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
            descriptor = _STDERR if self._path is not None else sys.stderr.fileno()
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

    def _lose(self, lines: int) -> None:
        self.lost += lines
        self._untold += lines


sink: Final = LogSink()
"""The sink of this process."""
