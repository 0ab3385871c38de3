"""Where the lines of the node's own log go: standard error, or a file that is rotated by size; a full disk loses lines.

`cluster.logging` and `cluster.request_log` write here, from the event loop and from a thread. The file takes the place
of standard error, so that a traceback of a crash is in it, too.
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
    """One per process. Never raises where it writes: what cannot be written is counted in `lost`, and said later."""

    def __init__(self) -> None:
        self.lost = 0  # lines, since the start of the process
        self._untold = 0  # of these, those that no line in the log tells of yet
        self._is_cut = False  # the newest line was written in part
        self._path: Path | None = None
        self._size = self._bytes_max = self._kept = 0
        self._lock = threading.Lock()

    def open(self, path: Path, bytes_max: int, kept: int) -> None:
        """Lines go to this file from now on, and so does standard error. At `bytes_max` bytes it is renamed to
        `path`.1 and a new one begun; `kept` of the older ones are kept. Raises OSError."""
        with self._lock:
            self._path, self._bytes_max, self._kept = path, bytes_max, kept
            self._begin()

    def write(self, data: bytes) -> None:
        """Whole lines."""
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
            self._lose(lines)  # it cannot be rotated: better no lines than a full disk
            return
        if self._untold:
            data = _LOST % self._untold + data
        if self._is_cut:
            data = b"\n" + data
        written = 0
        try:
            descriptor = _STDERR if self._path is not None else sys.stderr.fileno()
        except (OSError, ValueError):  # what a test put there
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
"""That of this process."""
