"""Gives the event loop a disk that never blocks it: awaitable writes, syncs and reads of one data folder.

The syncer, the log reader and the upkeep of a replica call it. Each SyncBatch is one job of the writer thread, answered
as soon as it is durable (`raftlog.cluster.disk.writer`). Reads, new segments and snapshots are jobs of the reading
thread. `raftlog.raft.wal.storage` decides what happens to the files.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Final, TypeVar

from raftlog.cluster.disk.incoming_snapshot import IncomingSnapshot
from raftlog.cluster.disk.older_segments import Backfill
from raftlog.cluster.disk.scrubber import CountedFiles, OnFailure, OnFindings, Scrub
from raftlog.cluster.disk.segment_chores import Background
from raftlog.cluster.disk.worker import Worker
from raftlog.cluster.disk.writer import Writer
from raftlog.cluster.files.errors import NoSpace, ReadDamaged, is_full
from raftlog.cluster.files.findings import FileHealth, Finding
from raftlog.cluster.files.folder import OpenedFolder, RecoveredFolder, open_node
from raftlog.cluster.files.scrub import UNREADABLE, Looker, derived, mended_for_free
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.cluster.files.snapshot_files import Chunks, SnapshotWriter, check_snapshot, each
from raftlog.raft.configuration import Configuration
from raftlog.raft.ready import SnapshotWrite, SyncBatch
from raftlog.raft.types import Entry, Mark
from raftlog.raft.wal.divergence import DivergenceNote
from raftlog.raft.wal.formats import segment_name
from raftlog.raft.wal.journal import SEGMENT_BYTES, ImpossibleBatch, Segment
from raftlog.raft.wal.opening import TAIL_BYTES_MAX
from raftlog.raft.wal.reading import RawSlice, WalReader
from raftlog.raft.wal.recovery import Damage, Damaged
from raftlog.raft.wal.retention import SegmentFiles, piece_of, trailing_end
from raftlog.raft.wal.snapshot_files import Pieces, StoredSnapshot, bytes_below, list_snapshots, read_piece
from raftlog.raft.wal.storage import Storage

__all__ = ["Disk", "DiskStatistics", "RawSlice", "RecoveredFolder"]

T = TypeVar("T")
OnAnswer = Callable[[asyncio.Future[None]], None]

LEDGER_QUEUE_BYTES: Final = 1 << 20
"""Bytes of effects that may wait for the next call of the disk; above, `write_effects` makes a call itself."""
FINISH_S: Final = 0.01
"""Seconds between two writes of rows and effects: each call of the thread costs more than the writing."""
STOP_TIMEOUT_S: Final = 5.0
_EFFECTS_INDEX: Final = Struct("<8xQ")  # raftlog.statemachine.effects: the index of the entry


@dataclass(frozen=True, slots=True)
class DiskStatistics:
    """What the disk did since it was opened."""

    syncs: int
    sync_seconds: float
    segments: int
    rolls: int


class Disk:
    """One node's data folder, open and locked. Its coroutines and futures belong to the event loop."""

    def __init__(self, opened: OpenedFolder) -> None:
        self._opened = opened
        journal, ledger, files = opened.journal, opened.ledger, opened.files
        self._journal, self._ledger = journal, ledger
        self._storage = Storage(journal, ledger, files, WalReader(journal, ledger, files, files.close))
        self.reserve = opened.reserve
        self._reading = ShardFiles(opened.shard, give=self.reserve.give)
        self._reader = WalReader(journal, ledger, self._reading, self._reading.close)
        self._write_worker, self._read_worker = Worker("disk-write"), Worker("disk-read")
        self._background = Background(self._storage, self._reader, self._reading, self._read_worker)
        self._writer = Writer(self._storage, files, self._background)
        self._queued_bytes = 0
        self._finish_timer: asyncio.TimerHandle | None = None
        self._effects_last = 0  # newest entry whose effects were handed over
        self._is_saving = False
        self._is_open = True
        self._incoming = IncomingSnapshot(self._reading, journal.log)
        fill, begin = ShardFiles(opened.shard), partial(Worker, "disk-fill")
        around = self._read_worker, self._background, self._writer
        self.backfill = Backfill(journal, fill, self._reading, *around, begin_worker=begin)
        self._scrub: Scrub | None = None
        snapshot = opened.recovered.snapshot
        self.snapshot_bytes = snapshot.stored.size if snapshot is not None else 0  # of the newest snapshot
        self._older_bytes = bytes_below(opened.files, 0 if snapshot is None else snapshot.mark.index)
        self.size_bytes = shutil.disk_usage(opened.shard).total  # of the disk that the folder is on, when it was opened
        self.reserve.keep(journal.active.size, self.snapshot_bytes, self._older_bytes, may_fill=True)

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        log_id: str | None = None,
        node: int | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        tail_bytes_max: int = TAIL_BYTES_MAX,
    ) -> tuple[Disk, RecoveredFolder]:
        """Opens a folder that `format_node` made; blocks. `log_id` and `node`, if given, must be those of the folder.

        Raises FolderMissing, FolderLocked, FolderForeign, FolderReadOnly, FolderDamaged, FormatUnknown, NoSpace or
        DiskError; each message says what to do.
        """
        opened = open_node(
            directory, log_id=log_id, node=node, segment_bytes=segment_bytes, tail_bytes_max=tail_bytes_max
        )
        return cls(opened), opened.recovered

    # -- durable writes

    def carry_out(self, batch: SyncBatch, answered: OnAnswer | None = None) -> Awaitable[None]:
        """Makes a batch durable, in one call of the writer thread. One batch at a time.

        Returns a future, not a task, because every write waits for it. `answered` is called with the settled future, a
        turn of the event loop before the future's own callbacks. The future fails with DiskFenced (final); NoSpace: no
        byte of an entry was written, and the same batch may be tried again; ImpossibleBatch: the batch does not follow
        the log on disk.
        """
        if batch.hard_state is None and batch.cut_after is None and not batch.entries:
            return self._write_worker.run(self._writer.check, None, answered)
        job = partial(self._writer.carry_out, batch)
        if batch.hard_state is not None or batch.cut_after is not None:
            self._queued_bytes = 0
            return self._write_worker.run(job, self._writer.finish, answered)
        if self._finish_timer is None:
            self._finish_timer = asyncio.get_running_loop().call_later(FINISH_S, self._finish)
        return self._write_worker.run(job, None, answered)

    def _finish(self) -> None:
        self._finish_timer = None
        self._queued_bytes = 0
        self._write_worker.post(self._writer.finish)

    def write_effects(self, frames: Sequence[bytes]) -> asyncio.Future[None]:
        """Takes the effects of entries in order, one frame of `raftlog.statemachine.effects.encode_effects` for each.

        They reach their ledger with the next call of the disk, and are not synced before a snapshot. Effects that the
        ledger has already (replay) are dropped. The future is done at once, unless many frames wait: then they make a
        call of their own. Raises DiskFenced; so does the future, or NoSpace: do not hand the frames over again.
        """
        if self._writer.fence is not None:
            raise self._writer.fence
        for frame in frames:
            index = _EFFECTS_INDEX.unpack_from(frame)[0]
            self._storage.frames.append((index, frame))
            self._effects_last = max(self._effects_last, index)
            self._queued_bytes += len(frame)
        if self._queued_bytes > LEDGER_QUEUE_BYTES:
            return self._flush()
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    async def write_mark(self) -> None:
        """Writes and syncs a durable mark if there is none yet: after a short idle time, and at a clean stop."""
        if self._journal.marked != self._journal.last.index or self._storage.has_frames:
            self._queued_bytes = 0
            await self._write_worker.run(self._writer.mark, self._writer.finish)

    async def write_divergence(self, note: DivergenceNote) -> None:
        """Leaves a note that the next start must build the state again. Raises DiskFenced or NoSpace."""
        await self._write_worker.run(partial(self._writer.diverged, note))

    # -- damage

    def scrub(self, found: OnFindings, failed: OnFailure, *, bytes_per_second: int, pause_s: float) -> Scrub:
        """Begins to read all files, in rounds until the disk is closed. Call it once. Another thread calls `found` with
        damaged places, and `failed` with the error of a round that ended early."""
        assert self._scrub is None, "one is enough"
        looker = Looker(CountedFiles(self._opened.shard), self._journal, self._ledger)
        self._scrub = Scrub(
            looker,
            found,
            lambda: self._write_worker.is_busy,
            failed,
            bytes_per_second=bytes_per_second,
            pause_s=pause_s,
        )
        return self._scrub

    async def look_closer(self, damage: Damage) -> list[Finding]:
        """The damaged places of a segment that a reader could not read, and of the files beside it.

        The newest segment is still written, so it is not checked. Without a finding: the damage that the reader met.
        """
        looker = Looker(CountedFiles(self._opened.shard), self._journal, self._ledger)
        try:
            found = await asyncio.to_thread(looker.closer, damage.file)
        except OSError as error:
            found = [Finding(damage.file, FileHealth.DAMAGED, str(error), mend=UNREADABLE)]
        finally:
            looker.files.close()
        return found or [Finding(damage.file, FileHealth.DAMAGED, damage.reason, None, damage.index)]

    async def mended_for_free(self, findings: Sequence[Finding]) -> list[Finding]:
        """The findings that a start repairs without dropping older history. Raises OSError."""
        snapshots = await self._read_worker.run(partial(list_snapshots, self._reading))
        return mended_for_free(findings, self._journal.first, snapshots)

    async def leave_to_start(self, findings: Sequence[Finding]) -> None:
        """Makes the next start read and repair the damaged files. Raises DiskFenced or NoSpace."""
        await self._write_worker.run(partial(self._writer.leave_to_start, derived(findings)))

    async def save_snapshot(
        self, mark: Mark, configuration: Configuration, chunks: Chunks, configuration_index: int = 0
    ) -> None:
        """Saves the state after the entry of `mark`. The chunks are pulled one by one on the event loop.

        The ledger is synced first, and the log holds the entry durably. The two newest snapshots are kept. Raises
        ImpossibleBatch if log or ledger do not reach `mark` yet, NoSpace (nothing is left behind) or DiskFenced.
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
        self, mark: Mark, configuration: Configuration, chunks: Chunks, configuration_index: int
    ) -> None:
        run = self._read_worker.run
        writer = SnapshotWriter(self._reading, self._journal.log, mark.index)
        try:
            await run(writer.begin)
            async for chunk in each(chunks):
                await run(partial(writer.add, chunk))
            await run(lambda: self._name(writer, mark, configuration, configuration_index))
            self._older_bytes, self.snapshot_bytes = self.snapshot_bytes, writer.size
        finally:
            await run(writer.abandon)

    def _name(self, writer: SnapshotWriter, mark: Mark, configuration: Configuration, configuration_index: int) -> None:
        writer.finish(mark, configuration, configuration_index, self._incoming.aside)
        self._take_back(self._older_bytes, writer.size, self.snapshot_bytes)

    # -- a snapshot for a follower, or from a leader

    async def read_snapshot(self, index: int, term: int, offset: int, bytes_max: int) -> tuple[int, bytes]:
        """The size of the snapshot (index, term), and some of its bytes from `offset` on, for a follower. (0, b"") if
        the disk does not have it. Raises OSError."""
        log = self._journal.log
        return await self._read_worker.run(partial(read_piece, self._reading, log, index, term, offset, bytes_max))

    async def check_snapshot(self, index: int) -> None:
        """Reads that whole snapshot, beside other reads. Raises SnapshotDamaged or OSError."""
        await asyncio.to_thread(check_snapshot, self._opened.shard, self._journal.log, index)

    async def write_pieces(self, writes: Sequence[SnapshotWrite]) -> None:
        """Writes a leader's pieces aside, in order. Raises SnapshotDamaged, NoSpace or DiskFenced."""
        self._writer.check()
        await self._receive(partial(self._incoming.write, writes))

    async def check_received(self, index: int) -> tuple[Pieces, StoredSnapshot]:
        """Checks every byte that was written aside. Raises SnapshotDamaged or DiskFenced."""
        return await self._receive(partial(self._incoming.check, index))

    async def received_chunks(self, stored: StoredSnapshot) -> AsyncIterator[bytes]:
        """The chunks of a received snapshot, read one by one. Raises SnapshotDamaged or DiskFenced."""
        chunks = self._incoming.chunks(stored)
        while chunk := await self._receive(partial(next, chunks, b"")):
            yield chunk

    async def install(self, received: Pieces, stored: StoredSnapshot) -> None:
        """Makes the received snapshot the newest one: the log now begins after the snapshot.

        The older log is kept beside it for the backfill. A crash before the snapshot has its name leaves the log as it
        was. After a later crash the next start finishes it. All effects were written before. Raises SnapshotDamaged,
        NoSpace, ImpossibleBatch or DiskFenced.
        """
        await self._flush()
        try:
            await self._write_worker.run(partial(self._install, received, stored.size))
        except NoSpace:
            await self._read_worker.run(self._incoming.drop)  # the leader sends it again from its first byte
            raise
        self._older_bytes, self.snapshot_bytes = 0, stored.size
        self._effects_last = stored.mark.index
        self.backfill.kept.may_exist = True
        await self._read_worker.run(self._incoming.installed)

    def _install(self, received: Pieces, size: int) -> None:
        self._writer.install(received)
        self._take_back(self._older_bytes, size, 0)

    async def _receive(self, job: Callable[[], T]) -> T:
        try:
            return await self._read_worker.run(job)
        except OSError as error:
            if not is_full(error):
                self._writer.fail(error)
            await self._read_worker.run(self._incoming.drop)
            raise NoSpace(f"the disk is full ({error}): there is no room for a snapshot from the leader") from error

    async def pieces(self) -> list[SegmentFiles]:
        """The segments with their bytes on disk, in order. Entries are appended to the last one."""
        return await self._read_worker.run(lambda: self._pieces(self._segments()))

    async def end_before(self, index: int, bytes_kept: int) -> int:
        """See `raftlog.raft.wal.retention.trailing_end`."""

        def look() -> int:
            segments = self._segments()
            return trailing_end(self._pieces(segments), segments[0].previous.index, index, bytes_kept)

        return await self._read_worker.run(look)

    def _pieces(self, segments: list[Segment]) -> list[SegmentFiles]:
        return [piece_of(self._reading, each) for each in segments]

    def _segments(self) -> list[Segment]:
        return list(self._journal.segments)

    async def compact(self, oldest: int, needed: int) -> int:
        """Deletes the whole segments that may go (`raftlog.raft.wal.retention.may_go`), oldest first, beside all other
        work. Returns their number. A crash during it leaves some of them. Raises DiskFenced."""
        if self._journal.segments[0].last.index >= min(oldest, needed) or len(self._journal.segments) == 1:
            return 0
        rows = await self._write_worker.run(partial(self._writer.compact, oldest, needed))
        for operations in rows:
            try:
                await self._read_worker.run(partial(self._reading.execute, operations))
            except OSError as error:
                self._writer.fail(error)
        return len(rows)

    def has_trimmed(self, oldest: int) -> bool:
        """Whether a whole segment holds only records below `oldest`, and could be deleted."""
        return len(self._journal.segments) > 1 and self._journal.segments[0].last.index < oldest

    def begun_after(self, index: int) -> int:
        """How many segments begin after that index."""
        return sum([segment.first > index for segment in self._segments()])

    # -- disk space

    def keep_reserve(self, grown: int = 0, *, may_fill: bool = True) -> None:
        if not self.reserve.is_asked:
            self.reserve.is_asked = True
            sizes = self._journal.active.size, self.snapshot_bytes, self._older_bytes, grown
            self._read_worker.post(partial(self.reserve.keep, *sizes, may_fill=may_fill))

    def _take_back(self, freed: int, newest: int, older: int) -> None:
        """Gives the reserve back what snapshots have left that were just deleted; `newest` and `older` are the sizes of
        those that are left."""
        self.reserve.take_back(freed, self.reserve.wanted(self._journal.active.size, newest, older))

    def _sync_ledgers(self) -> None:
        for _, operations in self._storage.sync_ledgers():
            self._reader.refresh()  # after the segment list changed: file names may be used again
            self._reading.execute(operations)

    def _flush(self) -> asyncio.Future[None]:
        self._queued_bytes = 0
        return self._write_worker.run(self._writer.flush)

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

        At least one entry, about `bytes_max` of the segment, with rows and effects. Empty (`first == next`) if there is
        none with effects yet. Raises ReadDamaged.
        """
        if self._ledger.last < min(to_index, self._effects_last):
            await self._flush()  # effects that wait in memory, or are being written
        return await self._read(partial(self._reader.raw, from_index, to_index, bytes_max))

    async def find_time(self, time_ms: int) -> int:
        """First index of the first entry of that time or later; last + 1 if there is none. Raises ReadDamaged."""
        if self._journal.last.index > self._journal.indexed:
            await self._flush()
        return await self._read(partial(self._reader.find_time, time_ms))

    async def _read(self, job: Callable[[], T]) -> T:
        try:
            return await self._read_worker.run(job)
        except Damaged as error:
            raise ReadDamaged(error.damage) from error

    def damaged_at(self, index: int, error: ValueError) -> ReadDamaged:
        """The error for data of the entry that holds `index`, which failed its check."""
        first = next((each.first for each in self._segments() if each.first <= index <= each.last.index), 0)
        return ReadDamaged(Damage(segment_name(first), 0, index - 1, str(error)))

    # -- state

    @property
    def oldest(self) -> int:
        """The oldest index on disk."""
        return self._journal.first

    @property
    def segment_bytes(self) -> int:
        """Bytes of the segment files, without the files beside them."""
        return sum([segment.size for segment in self._segments()])

    @property
    def is_fenced(self) -> bool:
        """Whether a write or sync has failed: the disk never writes again."""
        return self._writer.fence is not None

    def stalled_ms(self) -> int:
        """How long the writer thread has been at its current job; 0 when idle. Any thread may ask."""
        return self._write_worker.busy_ms()

    def statistics(self) -> DiskStatistics:
        """Counts and times since the start."""
        files, segments = self._opened.files, len(self._journal.segments)
        return DiskStatistics(files.syncs, files.sync_seconds, segments, self._background.rolls)

    async def close(self) -> None:
        """Stops cleanly: writes a durable mark, ends the threads, releases the lock. Leaves a hanging disk."""
        if not self._is_open:
            return
        self._is_open = False
        if self._finish_timer is not None:
            self._finish_timer.cancel()
        if not self.is_fenced:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self.write_mark()
                    await self._write_worker.run(self._writer.finish)  # sealed segments get their footers
            except (NoSpace, TimeoutError):
                pass  # the next start checks entries without a mark
        if not await asyncio.to_thread(self._background.stop, STOP_TIMEOUT_S):
            return
        if self._scrub is not None:
            await asyncio.to_thread(self._scrub.stop, STOP_TIMEOUT_S)
        if not await asyncio.to_thread(self.backfill.stop, STOP_TIMEOUT_S):
            return
        for worker in (self._read_worker, self._write_worker):
            if not await asyncio.to_thread(worker.stop, STOP_TIMEOUT_S):
                return
        self._reading.close()
        self._opened.files.close()
        if self._opened.lock is not None:
            os.close(self._opened.lock)
