"""Keeps disk space in a reserve file, for the work that must go on when the disk is full: trims, snapshots, elections.

The files of the data folder call `give` where an operation finds no disk space
(`raftlog.cluster.files.shard_files`). The reserve gets smaller by what that operation needs, and the operation is tried
again at once. So another program that fills the disk gets no more than the rest of a slice. From then on the node
rejects every write except those that free space (`raftlog.cluster.replica.upkeep.disk_space`), until the file is whole
again. The file has room for two segments and two snapshots of the present state, less the older snapshot on the disk.
The segments are as large as the newest one: the first segment of a new log is small, and no trim could free it.
Two segments, because the requests queued for the log (raft.uncommitted_bytes_max, a segment at most) go to a new
segment and may need a second. Two snapshots, because trimmed files go once two snapshots cover them, and each one is
written before an older one is deleted.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

from raftlog.cluster.runtime.file_errors import PRIVATE_FILE

RESERVE: Final = "reserve"
"""Name of the file in the data folder. Its content is never read."""
RESERVE_SEGMENTS: Final = 2
SLICES: Final = 128
"""The least that the reserve gives is a segment divided by this: half a megabyte. Rows, effects and snapshots grow in
small steps."""
STEPS: Final = 8
"""The state's growth changes the file in steps of a segment divided by this; up to a step is in the two segments."""


class Space(Protocol):
    """The file, and the disk that it is on."""

    def size(self) -> int:
        """Bytes that the file has; 0 if it does not exist."""

    def resize(self, size: int) -> None:
        """Makes the file that large, without it if 0. Raises OSError, and then it has the size from before."""

    def free(self) -> int:
        """Bytes that the disk has free. Raises OSError."""


class ReserveFile:
    """The file on the disk of a data folder."""

    __slots__ = ("_path",)

    def __init__(self, folder: Path) -> None:
        self._path = folder / RESERVE

    def size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def free(self) -> int:
        system = os.statvfs(self._path.parent)
        return system.f_bavail * system.f_frsize

    def resize(self, size: int) -> None:
        if not size:
            self._path.unlink(missing_ok=True)
            return
        before = self.size()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            os.ftruncate(descriptor, min(size, before))
            if size > before:
                os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.ftruncate(descriptor, before)
            if not before:
                self._path.unlink()
            raise
        finally:
            os.close(descriptor)


class Reserve:
    """The reserve of one data folder. Any thread may use it."""

    __slots__ = ("_lock", "_space", "bytes", "free_bytes", "is_asked", "is_used", "lacks_bytes", "segment_bytes")

    def __init__(self, space: Space, segment_bytes: int) -> None:
        """Raises OSError."""
        self._space, self.segment_bytes = space, segment_bytes
        self._lock = Lock()
        self.bytes = space.size()
        self.is_used = True  # something was taken from it, or it was never whole: the disk is full
        self.is_asked = False  # a thread was asked to call `keep`
        self.free_bytes = 0  # free bytes on the disk beside it, as last measured
        self.lacks_bytes = 0  # bytes missing until it is whole, as last measured; 0: it is, or they are free

    def wanted(self, segment: int, newest: int, older: int = 0, grown: int = 0) -> int:
        """The size that it should have. `segment` has the bytes of the newest segment, `newest` and `older` those of
        the two snapshots on the disk, 0 where there is none. By at most `grown` bytes the state is larger than the
        newest."""
        segment = min(segment, self.segment_bytes)  # one for a single large entry has more
        state = newest + grown - grown % (segment // STEPS)
        return RESERVE_SEGMENTS * segment + max(state, 2 * state - older)

    def keep(self, segment: int, newest: int, older: int = 0, grown: int = 0, *, may_fill: bool) -> None:
        """Makes the file as large as it should be (see `wanted`), then measures the free space. Where the missing part
        does not fit, the disk is full.

        `may_fill` is false while the work that took from it is under way: that may need as much again, so the file is
        made only where as much stays free. May block. Never raises.
        """
        self.is_asked = False
        wanted = self.wanted(segment, newest, older, grown)
        with self._lock, suppress(OSError):  # counts as no space: the next call tries again
            if may_fill or self._space.free() >= 2 * wanted - self.bytes:
                self._make(wanted)
            self.free_bytes = self._space.free()
            self.lacks_bytes = max(0, wanted - self.bytes - self.free_bytes) if self.is_used else 0

    def _make(self, wanted: int) -> None:
        is_enough = wanted <= self.bytes <= wanted + RESERVE_SEGMENTS * self.segment_bytes
        if not is_enough:  # small changes of the state's size do not change the file
            if self._space.free() < wanted - self.bytes:
                self.is_used = True  # not even tried: for a moment no other write would find space
                return
            self._space.resize(wanted)
            self.bytes = wanted
        self.is_used = False

    def take_back(self, freed: int, wanted: int) -> None:
        """Takes of the `freed` bytes of files that this node has just deleted what the file lacks to `wanted`: another
        program would take them before the next `keep`. May block. Never raises."""
        with self._lock, suppress(OSError):  # another program was quicker
            more = min(freed, wanted - self.bytes, self._space.free())
            if self.is_used and more > 0:
                self._space.resize(self.bytes + more)
                self.bytes += more

    def give(self, size: int) -> bool:
        """Makes the file smaller, for an operation that needs `size` bytes and found no space. Returns whether there
        was something to give: then the operation is worth another try. Raises OSError."""
        with self._lock:
            self.is_used = True
            if not self.bytes:
                return False
            left = max(0, self.bytes - max(size, self.segment_bytes // SLICES))
            self._space.resize(left)
            self.lacks_bytes += self.bytes - left
            self.bytes = left
            return True
