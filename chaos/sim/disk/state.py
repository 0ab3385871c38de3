"""Holds the files of a simulated disk, and carries out the server's operations on them, one at a time.

`raftlog.chaos.sim.disk.disk.SimDisk` is the whole disk. The modules that damage it, read it and keep its snapshots need
no more than this part.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterator, Sequence
from random import Random

from raftlog.chaos.sim.disk.errors import DiskFailed, DiskFull
from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.chaos.sim.disk.view import View
from raftlog.cluster.files.reserve import Reserve
from raftlog.cluster.files.shard_files import needed
from raftlog.raft.types import Entry, NodeId
from raftlog.raft.wal.formats import HARD_STATE, LOG_FOLDER, LogIdentity, segment_firsts
from raftlog.raft.wal.operations import Delete, DeleteFolder, FileOperation, Rename, Sync
from raftlog.raft.wal.reading import WalReader
from raftlog.raft.wal.snapshot_files import Received
from raftlog.raft.wal.storage import Storage, WorkStep

SEGMENT_BYTES = 16_384

_MOVES = (Delete, Rename)


class SimSpace:
    """The reserve of a disk: a number beside its files (`raftlog.cluster.files.reserve.Space`)."""

    __slots__ = ("_disk",)

    def __init__(self, disk: DiskState) -> None:
        self._disk = disk

    def size(self) -> int:
        return self._disk.files.reserved

    def free(self) -> int:
        return self._disk.files.free

    def resize(self, size: int) -> None:
        files = self._disk.files
        files.take("reserve", size - files.reserved)
        files.reserved = size


class DiskState:
    """The files of one disk, the damage that was done to them, and what the process that runs has open."""

    __slots__ = (
        "_fail",
        "_reader",
        "_storage",
        "damaged",
        "failed",
        "files",
        "first",
        "incarnation",
        "is_busy",
        "is_half_repaired",
        "log",
        "met",
        "node",
        "old_hard_state",
        "random",
        "received",
        "refused",
        "reserve",
        "segment_bytes",
        "slow_us",
        "view",
        "was_hit",
        "watch",
    )
    view: View
    """The durable entries, for the checks; `SimDisk.format` makes it."""

    def __init__(
        self,
        node: NodeId,
        log: LogIdentity,
        first: Entry,
        *,
        incarnation: str,
        random: Random,
        segment_bytes: int = SEGMENT_BYTES,
        torn_percent: int = 90,
    ) -> None:
        self.node, self.log, self.first, self.random = node, log, first, random
        self.incarnation = incarnation
        self.segment_bytes = segment_bytes
        self.files = MemoryFiles(torn_percent=torn_percent)
        self.damaged: dict[str, str] = {}  # file -> damage that was not repaired; "" is the whole disk
        self.was_hit = False  # since a start found nothing wrong
        self.is_half_repaired = False  # the newest start with damage did not come to its end
        self.old_hard_state = b""  # the file as it was before the newest change
        self.refused = ""  # why the last opening failed
        self.slow_us = 0  # how much longer a sync takes: the replica's to obey
        self.watch: Callable[[int, FileOperation], None] | None = None  # sees what a process renames and deletes
        self._fail: list[str] = []  # kinds of operations that are to fail
        self.reserve = Reserve(SimSpace(self), segment_bytes)
        self.forget()

    def forget(self) -> None:
        """The process is gone, and what it knew."""
        self.failed: DiskFailed | None = None
        self._storage: Storage | None = None
        self._reader: WalReader | None = None
        self.received: Received | None = None  # a snapshot that is being written aside
        self.is_busy = False
        self.met: set[str] = set()  # damaged files that a reader met
        self._fail.clear()

    # -- operations

    def check(self) -> None:
        """Raises DiskFailed once anything has failed."""
        if self.failed is not None:
            raise self.failed

    def running(self) -> Storage:
        assert self._storage is not None, "the disk was not opened"
        return self._storage

    def steps(self, steps: Iterator[WorkStep]) -> Generator[str, None, None]:
        for part, operations in steps:
            yield from self.execute(part, operations)

    def execute(self, part: int, operations: Sequence[FileOperation]) -> Generator[str, None, None]:
        for operation in operations:
            yield type(operation).__name__
            self.carry_out_one(part, operation)

    def carry_out_one(self, part: int, operation: FileOperation) -> None:
        try:
            if self._fail:
                self._may_fail(operation)
            try:
                self.files.carry_out(operation)
            except OSError as error:
                self._carry_out_again(operation, error)
            if self.damaged:
                self.carried_out(operation)
            if self.watch is not None and type(operation) in _MOVES and self._storage is not None:
                self.watch(part, operation)
        except OSError as error:
            is_full = error.errno == errno.ENOSPC
            if self._storage is not None and not self._storage.is_final(part, is_full=is_full):
                raise DiskFull(f"node {self.node}: {error}") from error
            raise self.fence(error) from error

    def _carry_out_again(self, operation: FileOperation, error: OSError) -> None:
        """As `raftlog.cluster.files.shard_files.ShardFiles` does."""
        while error.errno == errno.ENOSPC and self.reserve.give(needed(operation)):
            try:
                return self.files.carry_out(operation)
            except OSError as again:
                error = again
        raise error

    def _may_fail(self, operation: FileOperation) -> None:
        kind = "sync" if type(operation).__name__.startswith("Sync") else "write"
        if self.must_fail(kind):
            if type(operation) is Sync:
                self.files.fail_sync(operation.name)
            raise OSError(errno.EIO, f"the {kind} fails", operation.name)

    def fence(self, error: Exception) -> DiskFailed:
        """Nothing is written any more, for that error."""
        self.failed = DiskFailed(f"node {self.node}: {error}")
        return self.failed

    def carried_out(self, operation: FileOperation) -> None:
        """Damage is gone with its file: after a cut, a compaction, an installation or a repair."""
        if isinstance(operation, Delete | DeleteFolder | Rename):
            self.damaged.pop(operation.name, None)
            for name in [name for name in self.damaged if name.startswith(f"{operation.name}/")]:
                del self.damaged[name]

    def flush(self) -> Generator[str, None, None]:
        """Brings rows and effects to their files. Raises DiskFailed or DiskFull."""
        self.check()
        yield from self.steps(self.running().flush())

    # -- reading

    def reader(self) -> WalReader:
        """Reads the log of the process that runs on this disk."""
        assert self._reader is not None, "the disk was not opened"
        return self._reader

    def must_fail(self, kind: str) -> bool:
        """Whether the next operation of that kind is to fail: see `fail_next`."""
        if kind not in self._fail:
            return False
        self._fail.remove(kind)
        return True

    def fail_next(self, kind: str) -> None:
        """The next "read", "write" or "sync" of this process fails with EIO."""
        assert kind in ("read", "write", "sync"), kind
        self._fail.append(kind)

    # -- damage and segments

    @property
    def is_hurt(self) -> bool:
        """Whether damage may keep a node from starting. Only a log that begins at 1 can make effects again."""
        harmless = (".idx", ".ledger") if self.first_index == 1 else (".idx",)
        return any(not name.endswith(harmless) and name != HARD_STATE for name in self.damaged)

    @property
    def segment_firsts(self) -> list[int]:
        """The first index of each segment, sorted."""
        return segment_firsts(self.files.names(LOG_FOLDER))  # others are spare, or being fetched

    @property
    def first_index(self) -> int:
        """The oldest index on disk."""
        return min(self.segment_firsts, default=0)
