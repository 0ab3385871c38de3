"""What the writing thread does: executes what `raft.storage` decides for a batch, and what may follow the promise.

The first error of a write or sync fences the disk for good: the kernel may have dropped the pages, so a retry that
succeeds would lie (fsyncgate; Rebello et al., ATC'20). Only running out of space before a byte of an entry is written,
or in files that can be made anew, is back-pressure; it gives up what is kept in reserve (`cluster.disk_reserve`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NoReturn

from cluster.clock import monotonic
from cluster.disk_background import Background
from cluster.disk_errors import DiskFenced, NoSpace, ReadDamaged, SnapshotDamaged, is_full
from cluster.disk_files import ShardFiles
from cluster.disk_reserve import Reserve
from raft import storage_snapshots
from raft.divergence import Note
from raft.operations import Delete, Operation
from raft.ready import SyncBatch
from raft.recovery import Damaged
from raft.retention import may_go
from raft.storage import Part, Step, Storage
from raft.storage_snapshots import Received

SYNC_BUCKETS_S: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


@dataclass(slots=True)
class Counters:
    """What the writing thread did so far."""

    batches: int = 0
    entries: int = 0
    entry_bytes: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    sync_slowest_s: float = 0.0


class Writer:
    """The writing side of a disk. Everything but `fence` and the counters belongs to the writing thread."""

    def __init__(self, storage: Storage, files: ShardFiles, background: Background, reserve: Reserve) -> None:
        self._storage, self._files = storage, files
        self._background, self._reserve = background, reserve
        self.fence: DiskFenced | None = None
        self.counters = Counters()
        self.buckets = [0] * (len(SYNC_BUCKETS_S) + 1)
        files.on_sync = self._sync
        background.on_error = self.fence_quietly

    def carry_out(self, batch: SyncBatch) -> None:
        """Makes a batch durable. Raises DiskFenced, NoSpace, ImpossibleBatch or ReadDamaged.

        After NoSpace the very same batch may be carried out again: what was done of it is not done twice.
        """
        self.check()
        is_cutting = is_rolling = False  # their locks are held to the end of the batch
        background, execute = self._background, self._files.execute
        part = Part.ENTRIES
        try:
            for part, operations in self._storage.carry_out(batch):
                if part == Part.CUT and not is_cutting:
                    is_cutting = background.structure.acquire()
                if part == Part.SPARES:
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
        counters = self.counters
        counters.batches += 1
        if batch.entries:
            counters.entries += len(batch.entries)
            counters.entry_bytes += sum([entry.size for entry in batch.entries])
            self._background.look()  # a segment may be needed before `finish` is asked for

    def finish(self) -> None:
        """What may follow the promise; never raises. What finds no space is tried again before the next batch."""
        if self.fence is not None:
            return
        try:
            self._execute(self._storage.finish())
            self._background.look()
        except NoSpace:
            pass
        except Exception as error:  # also an entry that cannot be indexed: nobody waits for what is raised here
            self.fence_quietly(error)

    def flush(self) -> None:
        """Rows and effects are in their files. Raises NoSpace or DiskFenced."""
        self.check()
        self._execute(self._storage.flush())

    def mark(self) -> None:
        """A durable mark behind the newest entry. Raises DiskFenced or NoSpace."""
        self.check()
        self._execute(self._storage.mark())

    def compact(self, oldest: int, needed: int) -> list[Sequence[Operation]]:
        """Forgets the segments that `raft.retention.may_go` lets go of: the operations that delete them, one row for
        each. None while a sealed segment is being finished: ask again. Raises DiskFenced."""
        self.check()
        structure = self._background.structure
        if not structure.acquire(blocking=False):  # an append must not wait for that
            return []
        try:
            keep_after = may_go(oldest, needed, storage_snapshots.list_snapshots(self._files))
            rows = [operations for _, operations in self._storage.compact(keep_after)]
        finally:
            structure.release()
        for operation in chain.from_iterable(rows):
            if isinstance(operation, Delete):
                self._files.close(operation.name)  # else the space of what is deleted is not free
        return rows

    def diverged(self, note: Note) -> None:
        """Leaves a note for the next start: the state was wrong. Raises DiskFenced or NoSpace."""
        self.check()
        self._execute(self._storage.diverged(note))

    def leave_to_start(self, names: Sequence[str]) -> None:
        """Removes files that were made from others, so that the next start reads those; a mark behind the newest entry
        first: damage below it is then no torn tail. Raises DiskFenced or NoSpace."""
        self.check()
        self._execute(self._storage.leave_to_start(names))

    def install(self, received: Received) -> None:
        """Makes a snapshot from a leader the newest one and drops the whole log for it. Raises DiskFenced, NoSpace (the
        log is as it was), SnapshotDamaged or ImpossibleBatch."""
        self.check()
        background, part = self._background, Part.SPARES
        try:
            with background.structure, background.spare:
                background.reserve(self._files, ())  # the file that is being made becomes the new log's first
                for part, operations in self._storage.install(received):  # noqa: B007 - named where it fails
                    self._files.execute(operations)
                background.rolled()
        except OSError as error:
            self._failed(part, error)
        except storage_snapshots.SnapshotDamaged as error:
            raise SnapshotDamaged(str(error)) from error

    def check(self) -> None:
        """Raises DiskFenced once anything has failed."""
        if self.fence is not None:
            raise self.fence

    def fail(self, error: OSError) -> NoReturn:
        """Fences the disk, for good."""
        self.fence = _fenced(error)
        raise self.fence from error

    def no_room(self) -> None:
        """Gives the reserve up: who found no room, and tries again, may find some. May be called from any thread."""
        try:
            self._reserve.give_up()
        except OSError as error:
            self.fail(error)

    def _execute(self, steps: Iterable[Step]) -> None:
        part, execute = Part.MARK, self._files.execute
        try:
            for part, operations in steps:  # noqa: B007 - named where it fails
                execute(operations)
        except OSError as error:
            self._failed(part, error)

    def _failed(self, part: int, error: OSError) -> NoReturn:
        if not self._storage.is_final(part, is_full=is_full(error)):
            self.no_room()
            raise NoSpace(f"the disk is full ({error}): writes wait until there is room") from error
        self.fail(error)

    def fence_quietly(self, error: Exception) -> None:
        """The next write is refused: work on the files failed in a way that nothing waits for."""
        self.fence = self.fence or _fenced(error)

    def _sync(self, name: str) -> None:
        started = monotonic()
        self._files.sync(name)
        seconds = monotonic() - started
        counters = self.counters
        counters.syncs += 1
        counters.sync_seconds += seconds
        counters.sync_slowest_s = max(counters.sync_slowest_s, seconds)
        for i, bound in enumerate(SYNC_BUCKETS_S):
            if seconds <= bound:
                self.buckets[i] += 1
                return
        self.buckets[-1] += 1


def _fenced(error: Exception) -> DiskFenced:
    where = f" ({os.fspath(error.filename)})" if isinstance(error, OSError) and error.filename else ""
    return DiskFenced(
        f"the disk failed{where}: {error}; this process writes no more, because a retry could claim what was lost. "
        "Look at the disk, then start the node again"
    )
