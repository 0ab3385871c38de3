"""The node's disk as the event loop sees it: awaits what must be durable, reads it back, never blocks.

Each SyncBatch is one job of the writing thread, answered as soon as it is durable (`cluster.disk_write`). Reads, the
making of new segments and snapshots are jobs of the reading thread. Decisions about files are `raft.storage`'s.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Final, TypeVar

from cluster.disk_background import Background
from cluster.disk_errors import NoSpace, ReadDamaged, is_full
from cluster.disk_files import ShardFiles
from cluster.disk_open import Identity, Opened, Recovered, format_node, open_node
from cluster.disk_snapshots import SnapshotWriter
from cluster.disk_worker import Worker
from cluster.disk_write import SYNC_BUCKETS_S, Writer
from raft.configuration import Configuration
from raft.journal import SEGMENT_BYTES, ImpossibleBatch
from raft.ready import SyncBatch
from raft.recovery import Damaged
from raft.storage import Storage
from raft.storage_open import TAIL_BYTES_MAX
from raft.storage_read import RawSlice, Reader
from raft.types import Entry, Mark

__all__ = ["SYNC_BUCKETS_S", "Disk", "DiskStatistics", "Identity", "RawSlice", "Recovered", "format_node"]

T = TypeVar("T")

LEDGER_QUEUE_BYTES: Final = 1 << 20
"""Effects that wait in memory for the next trip to the disk; beyond it `write_effects` makes a trip of its own."""
STOP_TIMEOUT_S: Final = 5.0
_EFFECTS_INDEX: Final = Struct("<8xQ")  # statemachine.effects: the index of the entry


@dataclass(frozen=True, slots=True)
class DiskStatistics:
    """What the disk did since it was opened. `sync_buckets[i]`: syncs up to SYNC_BUCKETS_S[i] s; the last: slower."""

    batches: int
    entries: int
    entry_bytes: int
    syncs: int
    sync_seconds: float
    sync_slowest_s: float
    sync_buckets: tuple[int, ...]
    segments: int
    rolls: int
    cuts: int


class Disk:
    """One node's data folder, open and locked. What is awaited belongs to the event loop."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        journal, ledger, files = opened.journal, opened.ledger, opened.files
        self._journal, self._ledger = journal, ledger
        self._storage = Storage(journal, ledger, files, Reader(journal, ledger, files, files.close))
        self._reading = ShardFiles(opened.shard)
        self._reader = Reader(journal, ledger, self._reading, self._reading.close)
        self._write_worker, self._read_worker = Worker("disk-write"), Worker("disk-read")
        self._background = Background(self._storage, self._reader, self._reading, self._read_worker)
        self._writer = Writer(self._storage, files, self._background)
        self._queued_bytes = 0
        self._effects_last = 0  # newest entry whose effects were given
        self._is_saving = False
        self._is_open = True

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        log_id: str | None = None,
        node: int | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        tail_bytes_max: int = TAIL_BYTES_MAX,
    ) -> tuple[Disk, Recovered]:
        """Opens a folder that `format_node` made; blocks. Where `log_id` and `node` are given they must be its own.

        Raises FolderMissing, FolderLocked, FolderForeign, FolderReadOnly, FolderDamaged, FormatUnknown, NoSpace or
        DiskError; each message says what to do.
        """
        opened = open_node(
            directory, log_id=log_id, node=node, segment_bytes=segment_bytes, tail_bytes_max=tail_bytes_max
        )
        return cls(opened), opened.recovered

    # -- what must be durable

    async def carry_out(self, batch: SyncBatch) -> None:
        """Makes a batch durable, in one trip to the writing thread. One batch at a time.

        Raises DiskFenced (final); NoSpace: no byte of an entry was written, and the very same batch may be tried again;
        ImpossibleBatch: it cannot follow what is there.
        """
        if batch.hard_state is None and batch.cut_after is None and not batch.entries:
            self._writer.check()
            return
        self._queued_bytes = 0
        await self._write_worker.run(partial(self._writer.carry_out, batch), self._writer.finish)

    async def write_effects(self, frames: Sequence[bytes]) -> None:
        """Takes the effects of entries in order, one frame of `statemachine.effects.encode_effects` for each.

        They reach their ledger with the next trip to the disk, and are not synced before a snapshot. Those that the
        ledger has already (replay) are dropped. Raises DiskFenced, or NoSpace when many wait: they are kept, do not
        give them again.
        """
        self._writer.check()
        for frame in frames:
            index = _EFFECTS_INDEX.unpack_from(frame)[0]
            self._storage.frames.append((index, frame))
            self._effects_last = max(self._effects_last, index)
            self._queued_bytes += len(frame)
        if self._queued_bytes > LEDGER_QUEUE_BYTES:
            await self._flush()

    async def write_mark(self) -> None:
        """Writes and syncs a durable mark where there is none yet: after a short idle time, and at a clean stop."""
        if self._journal.marked != self._journal.last.index or self._storage.has_frames:
            self._queued_bytes = 0
            await self._write_worker.run(self._writer.mark, self._writer.finish)

    async def save_snapshot(
        self, mark: Mark, configuration: Configuration, chunks: Iterable[bytes], configuration_index: int = 0
    ) -> None:
        """Keeps the state after the entry of `mark`: `chunks` are pulled one by one on the event loop.

        The ledger is synced first, and the log holds the entry durably; the two newest snapshots are kept. Raises
        ImpossibleBatch where log or ledger do not reach `mark` yet, NoSpace (nothing is left behind) or DiskFenced.
        """
        if self._is_saving:
            raise ImpossibleBatch("a snapshot is being saved already")
        self._is_saving = True
        try:
            await self._flush()
            log, ledger = self._journal.indexed, self._ledger.last
            if min(log, ledger) < mark.index:
                raise ImpossibleBatch(f"a snapshot of {mark.index}: the log reaches {log}, the ledger {ledger}")
            await self._read_worker.run(self._sync_ledgers)
            await self._write_snapshot(mark, configuration, chunks, configuration_index)
        except OSError as error:
            if is_full(error):
                raise NoSpace(f"the disk is full ({error}): there is no room for a snapshot of {mark.index}") from error
            self._writer.fail(error)
        finally:
            self._is_saving = False

    async def _write_snapshot(
        self, mark: Mark, configuration: Configuration, chunks: Iterable[bytes], configuration_index: int
    ) -> None:
        run = self._read_worker.run
        writer = SnapshotWriter(self._reading, self._journal.log, mark.index)
        try:
            await run(writer.begin)
            for chunk in chunks:
                await run(partial(writer.add, chunk))
            await run(partial(writer.finish, mark, configuration, configuration_index))
        finally:
            await run(writer.abandon)

    def _sync_ledgers(self) -> None:
        self._reader.refresh()
        for _, operations in self._storage.sync_ledgers():
            self._reading.execute(operations)

    async def _flush(self) -> None:
        self._queued_bytes = 0
        await self._write_worker.run(self._writer.flush)

    # -- reading

    async def read_entries(self, after: int, to: int, bytes_max: int) -> tuple[Entry, ...]:
        """Consecutive entries after the end `after` up to the end `to`: at least one, about `bytes_max`; () if none.

        Raises ReadDamaged.
        """
        if to > self._journal.indexed:
            await self._flush()
        return await self._read(partial(self._reader.entries, after, to, bytes_max))

    async def read_raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        """Whole entries of one segment from the one that holds `from_index` up to the one that holds `to_index`.

        At least one, about `bytes_max` of the segment, with their rows and effects; empty (`first == next`) where
        there is none with effects yet. Raises ReadDamaged.
        """
        if self._ledger.last < min(to_index, self._effects_last):
            await self._flush()  # effects that wait in memory, or are on their way
        return await self._read(partial(self._reader.raw, from_index, to_index, bytes_max))

    async def find_time(self, time_ms: int) -> int:
        """First index of the first entry of that time or later; last + 1 where there is none. Raises ReadDamaged."""
        return await self._read(partial(self._reader.find_time, time_ms))

    async def _read(self, job: Callable[[], T]) -> T:
        try:
            return await self._read_worker.run(job)
        except Damaged as error:
            raise ReadDamaged(error.damage) from error

    # -- state

    @property
    def oldest(self) -> int:
        """The oldest index on disk."""
        return self._journal.first

    @property
    def is_fenced(self) -> bool:
        """Whether a write or sync has failed: nothing is written any more."""
        return self._writer.fence is not None

    def stalled_ms(self) -> int:
        """For how long the writing thread has been at its current job; 0 when idle. May be asked from any thread."""
        return self._write_worker.busy_ms()

    def statistics(self) -> DiskStatistics:
        """Counts and times since the start."""
        counters = self._writer.counters
        return DiskStatistics(
            counters.batches, counters.entries, counters.entry_bytes, counters.syncs, counters.sync_seconds,
            counters.sync_slowest_s, tuple(self._writer.buckets), len(self._journal.segments), self._background.rolls,
            self._journal.cuts,
        )  # fmt: skip

    async def close(self) -> None:
        """A clean stop: a durable mark, threads ended, lock released. A disk that hangs is left behind."""
        if not self._is_open:
            return
        self._is_open = False
        if not self.is_fenced:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self.write_mark()
            except (NoSpace, TimeoutError):
                pass  # what has no mark yet is checked at the next start
        self._background.stop()
        for worker in (self._read_worker, self._write_worker):
            if not await asyncio.to_thread(worker.stop, STOP_TIMEOUT_S):
                return
        self._reading.close()
        self._opened.files.close()
        os.close(self._opened.lock)
