"""Keeps disk space in a reserve file, for the work that must go on when the disk is full: trims, snapshots, elections.

The disk calls it. The first write that meets a full disk deletes this file and continues in the freed space. From then
on the node rejects every write except those that free space (`raftlog.cluster.replica.upkeep.disk_space`), until the
file exists again. The file is as large as two segments and the newest snapshot. Two segments, because the requests
queued for the log (raft.uncommitted_bytes_max, a segment at most) go to a new segment and may need a second. A
snapshot, because the next one is written before an older one is deleted.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from raftlog.cluster.runtime.file_errors import PRIVATE_FILE

RESERVE: Final = "reserve"
"""Name of the file in the data folder. Its content is never read."""
RESERVE_SEGMENTS: Final = 2


class Reserve:
    """The reserve of one data folder. Any thread may use it."""

    __slots__ = ("_lock", "_path", "_segments_bytes", "bytes", "free_bytes", "is_asked", "lacks_bytes")

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._path = folder / RESERVE
        self._segments_bytes = RESERVE_SEGMENTS * segment_bytes
        self._lock = Lock()
        self.bytes = 0  # size of the file; 0: it was deleted, or never found space
        self.is_asked = False  # a thread was asked to call `keep`
        self.free_bytes = 0  # free bytes on the disk beside it, as last measured
        self.lacks_bytes = 0  # bytes missing for it, as last measured; 0: it exists, or fits

    def wanted(self, snapshot_bytes: int) -> int:
        """The size that it should have beside a snapshot of that size."""
        return self._segments_bytes + snapshot_bytes

    def keep(self, snapshot_bytes: int, *, may_make: bool) -> None:
        """Makes the file as large as it should be, if there is space, then measures the free space.

        `may_make` is false while the freed space is for a waiting write. May block. Never raises.
        """
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
        """Makes the file, or changes its size, if there is space; else leaves it. Never raises."""
        with self._lock:
            wanted = self.wanted(snapshot_bytes)
            if wanted <= self.bytes <= wanted + self._segments_bytes:
                return  # small changes of the state's size do not change the file
            with suppress(OSError):  # counts as no space: the next call tries again
                self._resize(wanted)

    def _resize(self, wanted: int) -> None:
        there = self._path.stat().st_size if self._path.exists() else 0
        if there < wanted and self._free() < wanted - self.bytes:
            return  # not even tried: for a moment no other write would find space
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
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
        """Deletes the file; the next write may use its space. Raises OSError.

        Until the next measurement, the disk lacks as much as the file had.
        """
        with self._lock:
            if self.bytes:
                self.lacks_bytes, self.bytes = self.bytes, 0
            self._path.unlink(missing_ok=True)
