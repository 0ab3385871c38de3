"""Runs in the writer thread: executes the operations of a batch, and then the work that may follow the promise.

`raftlog.cluster.disk.disk` hands it each batch. The first error of a write or sync fences the disk for good. The kernel
may have dropped the pages, so a retry that succeeds would lie (fsyncgate; Rebello et al., ATC'20). Two cases are only
back-pressure: no space before a byte of an entry is written, and no space in files that can be made again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NoReturn

from raftlog.cluster.disk.segment_chores import SPARE_FROM, Background
from raftlog.cluster.files.errors import DiskFenced, NoSpace, ReadDamaged, StoredSnapshotDamaged, is_full
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.raft.ready import SyncBatch
from raftlog.raft.wal import snapshot_files
from raftlog.raft.wal.divergence import DivergenceNote
from raftlog.raft.wal.operations import Delete, FileOperation
from raftlog.raft.wal.recovery import Damaged
from raftlog.raft.wal.retention import may_go
from raftlog.raft.wal.snapshot_files import Pieces
from raftlog.raft.wal.storage import StepKind, Storage, WorkStep


class Writer:
    """The writing side of a disk. Everything but `fence` belongs to the writer thread."""

    def __init__(self, storage: Storage, files: ShardFiles, background: Background) -> None:
        self._storage, self._files, self._background = storage, files, background
        self.fence: DiskFenced | None = None
        background.on_error = self.fence_quietly

    def carry_out(self, batch: SyncBatch) -> None:
        """Makes a batch durable. Raises DiskFenced, NoSpace, ImpossibleBatch or ReadDamaged.

        After NoSpace the same batch may be carried out again: finished parts are not repeated.
        """
        if self.fence is not None:
            raise self.fence
        is_cutting = is_rolling = False  # their locks are held to the end of the batch
        background, execute = self._background, self._files.execute
        part = StepKind.ENTRIES
        try:
            for part, operations in self._storage.carry_out(batch):
                if part == StepKind.CUT and not is_cutting:
                    is_cutting = background.structure.acquire()
                if part == StepKind.SPARES:
                    is_rolling = background.spare.acquire()
                    background.reserve(self._files, operations)
                else:
                    execute(operations)
            if is_rolling:
                background.rolled()
        except OSError as error:
            self._failed(part, error)
        except Damaged as error:
            raise ReadDamaged(error.damage) from error
        finally:
            if is_cutting:
                background.structure.release()
            if is_rolling:
                background.spare.release()
        storage, active = self._storage, self._storage.journal.segments[-1]
        if active.end > active.size // SPARE_FROM or storage.unsealed or storage.unclosed:
            background.look()  # a segment may be needed before `finish` is called

    def finish(self) -> None:
        """Does the work that may follow the promise. Never raises. Work without space is repeated before the next
        batch."""
        if self.fence is not None:
            return
        try:
            self._execute(self._storage.finish())
            self._background.look()
        except NoSpace:
            pass
        except Exception as error:  # also an entry that cannot be indexed: no caller waits for an error here
            self.fence_quietly(error)

    def flush(self) -> None:
        """Writes rows and effects to their files. Raises NoSpace or DiskFenced."""
        self.check()
        self._execute(self._storage.flush())

    def mark(self) -> None:
        """Writes a durable mark after the newest entry. Raises DiskFenced or NoSpace."""
        self.check()
        self._execute(self._storage.mark())

    def compact(self, oldest: int, needed: int) -> list[Sequence[FileOperation]]:
        """Forgets the segments that may go (`raftlog.raft.wal.retention.may_go`), and returns how to delete them.

        One row of operations for each segment. Empty while a sealed segment is being finished: the caller asks again.
        Raises DiskFenced.
        """
        self.check()
        structure = self._background.structure
        if not structure.acquire(blocking=False):  # an append must not wait for the finishing
            return []
        try:
            keep_after = may_go(oldest, needed, snapshot_files.list_snapshots(self._files))
            rows = [operations for _, operations in self._storage.compact(keep_after)]
            assert not rows or self._storage.journal.first <= min(oldest, needed), (keep_after, oldest, needed)
        finally:
            structure.release()
        for operation in chain.from_iterable(rows):
            if isinstance(operation, Delete):
                self._files.close(operation.name)  # an open file would keep its space after the deletion
        return rows

    def diverged(self, note: DivergenceNote) -> None:
        """Leaves a note for the next start that the state was wrong. Raises DiskFenced or NoSpace."""
        self.check()
        self._execute(self._storage.diverged(note))

    def leave_to_start(self, names: Sequence[str]) -> None:
        """Removes derived files, so that the next start reads the files that they were made from.

        A mark after the newest entry comes first, so that damage below it does not count as a torn tail. Raises
        DiskFenced or NoSpace.
        """
        self.check()
        self._execute(self._storage.leave_to_start(names))

    def install(self, received: Pieces) -> None:
        """Makes a leader's snapshot the newest one, and begins the log again after it. Raises DiskFenced, NoSpace
        (the log is as it was), StoredSnapshotDamaged or ImpossibleBatch."""
        self.check()
        background, part = self._background, StepKind.SPARES
        try:
            with background.structure, background.spare:
                background.reserve(self._files, ())  # the file in the making becomes the first of the new log
                for part, operations in self._storage.install(received):  # noqa: B007 - named where it fails
                    self._files.execute(operations)
                background.rolled()
        except OSError as error:
            self._failed(part, error)
        except snapshot_files.SnapshotDamaged as error:
            raise StoredSnapshotDamaged(str(error)) from error

    def check(self) -> None:
        """Raises DiskFenced once anything has failed."""
        if self.fence is not None:
            raise self.fence

    def fail(self, error: OSError) -> NoReturn:
        """Fences the disk, for good."""
        self.fence = _fenced(error)
        raise self.fence from error

    def _execute(self, steps: Iterable[WorkStep]) -> None:
        part, execute = StepKind.MARK, self._files.execute
        try:
            for part, operations in steps:  # noqa: B007 - named where it fails
                execute(operations)
        except OSError as error:
            self._failed(part, error)

    def _failed(self, part: int, error: OSError) -> NoReturn:
        if not self._storage.is_final(part, is_full=is_full(error)):
            raise NoSpace(f"the disk is full ({error}): writes wait until there is disk space") from error
        self.fail(error)

    def fence_quietly(self, error: Exception) -> None:
        """Fences the disk after work that no caller waits for failed: the next write raises the error."""
        self.fence = self.fence or _fenced(error)


def _fenced(error: Exception) -> DiskFenced:
    where = f" ({os.fspath(error.filename)})" if isinstance(error, OSError) and error.filename else ""
    return DiskFenced(
        f"the disk failed{where}: {error}; this process writes no more, because a retry could acknowledge lost data. "
        "Look at the disk, then start the node again"
    )
