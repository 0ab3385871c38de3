"""Room that is kept on a node's disk, as a file, for what must go on when it is full: trims, snapshots, elections.

The first write that finds no room gives it up, and goes on in what that frees; from then on the node takes nothing but
what makes room (`cluster.node_room`), until the file is made again. It holds as much as two segments, because what was
in the log's queue already (raft.uncommitted_bytes_max, a segment at most) goes to a new one and may need a second, and
as much as the newest snapshot, because the next one is written before an older one goes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

RESERVE: Final = "reserve"
"""Its name in the data folder. What is in it is never read."""
RESERVE_SEGMENTS: Final = 2


class Reserve:
    """One data folder's. May be used from any thread."""

    __slots__ = ("_lock", "_path", "_segments_bytes", "bytes", "free_bytes", "is_asked", "lacks_bytes")

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._path = folder / RESERVE
        self._segments_bytes = RESERVE_SEGMENTS * segment_bytes
        self._lock = Lock()
        self.bytes = 0  # that it keeps; 0: it was given up, or never found room
        self.is_asked = False  # a thread is asked to call `keep`
        self.free_bytes = 0  # on the disk beside it, as last measured
        self.lacks_bytes = 0  # to be made, as last measured; 0: it is there, or could be made

    def wanted(self, snapshot_bytes: int) -> int:
        """How large it should be beside a snapshot of that size."""
        return self._segments_bytes + snapshot_bytes

    def keep(self, snapshot_bytes: int, *, may_make: bool) -> None:
        """Makes it as large as it should be by now where there is room, unless what was given up is for others; then
        measures the room. May block. Never raises."""
        self.is_asked = False
        if may_make:
            self.make(snapshot_bytes)
        with suppress(OSError):
            self.free_bytes = self._free()
            self.lacks_bytes = 0 if self.bytes else max(0, self.wanted(snapshot_bytes) - self.free_bytes)

    def _free(self) -> int:
        system = os.statvfs(self._path.parent)
        return system.f_bavail * system.f_frsize

    def make(self, snapshot_bytes: int) -> None:
        """Makes it, or makes it larger or smaller, where there is room; else it stays as it is. Never raises."""
        with self._lock:
            wanted = self.wanted(snapshot_bytes)
            if wanted <= self.bytes <= wanted + self._segments_bytes:
                return  # a state that shrinks and grows a little does not move it
            with suppress(OSError):  # as if there were no room: it is tried again
                self._resize(wanted)

    def _resize(self, wanted: int) -> None:
        there = self._path.stat().st_size if self._path.exists() else 0
        if there < wanted and self._free() < wanted - self.bytes:
            return  # not even tried: for a moment nobody else would find room
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if there > wanted:
                os.ftruncate(descriptor, wanted)
            os.posix_fallocate(descriptor, 0, wanted)
            self.bytes = wanted
        except OSError:
            os.ftruncate(descriptor, self.bytes)
            if not self.bytes:
                self._path.unlink()
            raise
        finally:
            os.close(descriptor)

    def give_up(self) -> None:
        """Its room is for whoever asks first. Raises OSError."""
        with self._lock:
            self.bytes = 0
            self._path.unlink(missing_ok=True)
