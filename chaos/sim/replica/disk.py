"""Gives a simulated process its disk: the methods of `raftlog.cluster.disk.disk.Disk`, in steps of virtual time.

Errors are those of the server. The operations are those of `raftlog.chaos.sim.disk.disk.SimDisk`.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from raftlog.chaos.sim.disk import snapshots as disk_snapshots
from raftlog.chaos.sim.disk.errors import DiskFull
from raftlog.chaos.sim.disk.reading import read_entries
from raftlog.chaos.sim.replica.fetched import FillFiles, FillSurroundings, FillWorker
from raftlog.chaos.sim.replica.scrubbing import ScrubbedFiles, Scrubbing
from raftlog.chaos.sim.replica.threads import Steps, Thread
from raftlog.chaos.sim.replica.watching import Watching
from raftlog.cluster.disk.disk import FINISH_S, DiskStatistics, OnAnswer
from raftlog.cluster.disk.older_segments import Backfill
from raftlog.cluster.files.errors import DiskFenced, NoSpace, ReadDamaged
from raftlog.cluster.files.findings import FileHealth, Finding
from raftlog.cluster.files.scrub import Looker, derived, mended_for_free
from raftlog.cluster.files.snapshot_files import Chunks, each
from raftlog.raft.configuration import Configuration
from raftlog.raft.ready import SnapshotWrite, SyncBatch
from raftlog.raft.types import Entry, Mark
from raftlog.raft.wal import snapshot_files
from raftlog.raft.wal.divergence import NOTE, DivergenceNote
from raftlog.raft.wal.formats import segment_name
from raftlog.raft.wal.journal import ImpossibleBatch
from raftlog.raft.wal.reading import RawSlice
from raftlog.raft.wal.recovery import Damage
from raftlog.raft.wal.retention import SegmentFiles, may_go, piece_of, trailing_end
from raftlog.raft.wal.snapshot_files import Pieces, StoredSnapshot
from raftlog.raft.wal.storage import StepKind
from raftlog.statemachine.effects import decode_effects_header

T = TypeVar("T")

RARE: Final = 40
"""How much likelier a crash is at a step that comes only with elections: there are far fewer of them."""

QUEUE_BYTES: Final = 4_000
"""Effects that wait for the next trip to the disk; beyond it `write_effects` makes a trip of its own. Small: most
worlds reach it; where background jobs take long, a tenth of it."""

FLUSH_US: Final = 20_000
"""Effects are written in that time or less, in microseconds, where background jobs take long."""

FAILS_ONE_IN: Final = 50
"""A read of entries fails that often, while there is trouble."""


class NodeDisk:
    """The disk as one process uses it. It ends with the process, and its futures belong to the process's loop."""

    def __init__(self, node: Watching, snapshot_bytes: int) -> None:
        self._node, self._disk = node, node.disk
        self._journal, self._storage = node.disk.running().journal, node.disk.running()
        self._write, self._read = Thread(node), Thread(node)
        self.reserve = node.disk.reserve
        self.snapshot_bytes = snapshot_bytes
        self._older_bytes = snapshot_files.bytes_below(self._disk.files, max(self._disk.snapshots(), default=0))
        self.reserve.keep(self._journal.active.size, snapshot_bytes, self._older_bytes, may_make=True)
        files: Any = FillFiles(node)
        around: Any = FillSurroundings(node)
        worker: Any = FillWorker(node, self._read)
        self.backfill = Backfill(
            self._journal,
            files,
            files,
            worker,
            around,
            around,
            free=lambda: self._disk.files.free,
            begin_worker=lambda: worker,
        )
        self._queued_bytes = self._effects_last = 0
        is_slow = bool(node.world.swarm.save_us)
        self._queue_bytes, self._flush_us = (QUEUE_BYTES // 10, FLUSH_US) if is_slow else (QUEUE_BYTES, 0)
        self._finish_timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        self._write.close()
        self._read.close()

    def _check(self) -> None:
        if self._disk.failed is not None:
            raise DiskFenced(str(self._disk.failed))

    async def _look(self, read: Callable[[], T]) -> T:
        """Reads in the thread that reads."""

        def steps() -> Steps:
            yield "read"
            return read()

        found: T = await self._read.run(steps)
        return found

    # -- what must be durable

    def carry_out(self, batch: SyncBatch, answered: OnAnswer | None = None) -> asyncio.Future[None]:
        future = self._begin(batch)
        if answered is not None:
            future.add_done_callback(answered)
        return future

    def _begin(self, batch: SyncBatch) -> asyncio.Future[None]:
        if batch.hard_state is None and batch.cut_after is None and not batch.entries:
            return self._write.run(partial(_nothing, self._disk))
        job = partial(self._carry_out, batch)
        if batch.hard_state is not None or batch.cut_after is not None:
            self._queued_bytes = 0
            return self._write.run(job, self._disk.finish, RARE)
        if self._finish_timer is None:
            self._finish_timer = asyncio.get_running_loop().call_later(FINISH_S, self._finish)
        return self._write.run(job)

    def _carry_out(self, batch: SyncBatch) -> Steps:
        try:
            yield from self._disk.carry_out(batch)
        except DiskFull:
            self._node.world.sometimes("a full disk waits for room")
            raise
        yield "after the sync"

    def _finish(self) -> None:
        self._finish_timer = None
        self._queued_bytes = 0
        self._write.post(self._disk.finish)

    def write_effects(self, frames: Sequence[bytes]) -> asyncio.Future[None]:
        self._check()
        for frame in frames:
            index = decode_effects_header(frame, 0).index
            self._storage.frames.append((index, frame))
            self._effects_last = max(self._effects_last, index)
            self._queued_bytes += len(frame)
        if self._queued_bytes > self._queue_bytes:
            self._node.world.sometimes("effects were applied and not yet written")
            return self._flush()
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    def _flush(self) -> asyncio.Future[None]:
        self._queued_bytes = 0
        return self._write.run(self._flushing)

    def _flushing(self) -> Steps:
        if self._flush_us:
            yield self._node.random.randint(0, self._flush_us)
        yield from self._disk.flush()

    async def write_mark(self) -> None:
        if self._journal.marked != self._journal.last.index or self._storage.has_frames:
            self._queued_bytes = 0
            await self._write.run(self._disk.mark, self._disk.finish)

    async def write_divergence(self, note: DivergenceNote) -> None:
        self._disk.damaged[NOTE] = "the state was wrong"  # explains a refusal; gone with the note
        await self._write.run(partial(self._noting, self._storage.diverged(note)))

    def _noting(self, steps: Any) -> Steps:
        self._disk.check()
        for name in self._disk.steps(steps):
            yield f"noting: {name}"

    # -- damage

    def scrub(
        self,
        found: Callable[[list[Finding]], None],
        failed: Callable[[Exception], None],
        *,
        bytes_per_second: int,
        pause_s: float,
    ) -> Scrubbing:
        return Scrubbing(
            self._node, Looker(ScrubbedFiles(self._disk.files), self._journal, self._storage.ledger), found
        )

    async def look_closer(self, damage: Damage) -> list[Finding]:
        looker = Looker(ScrubbedFiles(self._disk.files), self._journal, self._storage.ledger)
        found = await asyncio.to_thread(looker.closer, damage.file)
        return found or [Finding(damage.file, FileHealth.DAMAGED, damage.reason, None, damage.index)]

    async def mended_for_free(self, findings: Sequence[Finding]) -> list[Finding]:
        snapshots = await self._look(self._disk.snapshots)
        return mended_for_free(findings, self._disk.first_index, snapshots)

    async def leave_to_start(self, findings: Sequence[Finding]) -> None:
        await self._write.run(partial(self._noting, self._storage.leave_to_start(derived(findings))))

    # -- snapshots

    async def save_snapshot(
        self, mark: Mark, configuration: Configuration, chunks: Chunks, configuration_index: int = 0
    ) -> None:
        node, world = self._node, self._node.world
        if node.corrupted:  # what a snapshot of a wrong state does to others: docs/decisions/0010
            raise NoSpace(f"node {node.node}: its state is wrong, so it keeps none")
        await self._flush()
        reached = min(self._journal.indexed, self._storage.ledger.last)
        if reached < mark.index:
            raise ImpossibleBatch(f"a snapshot of {mark.index}: log and ledger reach {reached}")
        disk, kept = self._disk, []
        pace_us = 0 if world.is_healed else node.random.choice((0, world.swarm.save_us))

        async def step(do: Callable[[], Steps]) -> None:
            if pace_us:
                await asyncio.sleep(node.random.randint(0, pace_us) / 1e6)
            await self._read.run(do)

        plan = snapshot_files.SnapshotPlan(disk.log, mark.index)
        try:
            await step(partial(disk.steps, self._storage.sync_ledgers()))
            await step(partial(disk.execute, StepKind.SPARES, plan.begin()))
            async for chunk in each(chunks):
                kept.append(chunk)
                await step(partial(disk.execute, StepKind.SPARES, plan.add(chunk)))
            disk.view.snapshots[mark.index] = mark
            await step(lambda: disk_snapshots.name(disk, plan, mark, configuration, configuration_index))
        except NoSpace:
            world.sometimes("no room for a snapshot")
            disk.files.execute(plan.abandon())
            raise
        except asyncio.CancelledError:
            if self._node.is_this_life(self):
                world.sometimes("a save was overtaken by an install")
                disk.files.execute(plan.abandon())
            raise
        self._older_bytes, self.snapshot_bytes = self.snapshot_bytes, sum(map(len, kept))
        if configuration.outgoing:
            world.sometimes("snapshot during a joint configuration")
        node.saved(mark, b"".join(kept))

    async def read_snapshot(self, index: int, term: int, offset: int, bytes_max: int) -> tuple[int, bytes]:
        read = partial(snapshot_files.read_piece, self._disk.files, self._disk.log, index, term, offset, bytes_max)
        return await self._look(read)

    async def check_snapshot(self, index: int) -> None:
        await self._look(partial(snapshot_files.open_snapshot, self._disk.files, self._disk.log, index))

    async def write_pieces(self, writes: Sequence[SnapshotWrite]) -> None:
        self._check()
        for write in writes:
            await self._read.run(partial(disk_snapshots.write_piece, self._disk, write.index, write.offset, write.data))

    async def check_received(self, index: int) -> tuple[Pieces, StoredSnapshot]:
        return await self._look(partial(disk_snapshots.check_received, self._disk, index))

    async def received_chunks(self, stored: StoredSnapshot) -> AsyncIterator[bytes]:
        chunks = self._disk.chunks(stored)
        while chunk := await self._look(partial(next, chunks, b"")):
            yield chunk

    async def install(self, received: Pieces, stored: StoredSnapshot) -> None:
        await self._flush()
        await self._write.run(lambda: self._installing(received, stored))
        self._older_bytes, self.snapshot_bytes = 0, stored.size
        self._effects_last = stored.mark.index
        self.backfill.kept.may_exist = True

    def _installing(self, received: Pieces, stored: StoredSnapshot) -> Steps:
        for name in disk_snapshots.install(self._disk, received, stored.mark):
            self._node.world.may_crash(f"installing: {name}", RARE)
            yield name

    # -- segments

    async def pieces(self) -> list[SegmentFiles]:
        return await self._look(self._pieces)

    async def end_before(self, index: int, bytes_kept: int) -> int:
        def look() -> int:
            return trailing_end(self._pieces(), self._journal.segments[0].previous.index, index, bytes_kept)

        return await self._look(look)

    def _pieces(self) -> list[SegmentFiles]:
        return [piece_of(self._disk.files, each) for each in self._journal.segments]

    async def compact(self, oldest: int, needed: int) -> int:
        if self._journal.segments[0].last.index >= min(oldest, needed) or len(self._journal.segments) == 1:
            return 0
        before = len(self._journal.segments)
        keep_after = may_go(oldest, needed, self._disk.snapshots())
        await self._write.run(partial(disk_snapshots.compact, self._disk, keep_after))
        return before - len(self._journal.segments)

    def has_trimmed(self, oldest: int) -> bool:
        return len(self._journal.segments) > 1 and self._journal.segments[0].last.index < oldest

    def keep_reserve(self, grown: int = 0, *, may_make: bool = True) -> None:
        sizes = self._journal.active.size, self.snapshot_bytes, self._older_bytes, grown
        self.reserve.keep(*sizes, may_make=may_make)

    # -- reading

    async def read_entries(self, after: int, to: int, bytes_max: int) -> tuple[Entry, ...]:
        node = self._node
        if node.random.randrange(FAILS_ONE_IN) == 0 and not node.world.is_healed:
            await asyncio.sleep(0.001)
            raise OSError(errno.EIO, "the read fails")
        if to > self._journal.indexed:
            await self._flush()
        return await self._look(partial(read_entries, self._disk, after, to, bytes_max))

    async def read_raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        if self._storage.ledger.last < min(to_index, self._effects_last):
            await self._flush()
        return await self._look(partial(self._disk.reader().raw, from_index, to_index, bytes_max))

    async def find_time(self, time_ms: int) -> int:
        if self._journal.last.index > self._journal.indexed:
            await self._flush()
        return await self._look(partial(self._disk.reader().find_time, time_ms))

    def damaged_at(self, index: int, error: ValueError) -> ReadDamaged:
        segments = self._journal.segments
        first = next((each.first for each in segments if each.first <= index <= each.last.index), 0)
        return ReadDamaged(Damage(segment_name(first), 0, index - 1, str(error)))

    # -- state

    @property
    def oldest(self) -> int:
        return self._journal.first

    @property
    def segment_bytes(self) -> int:
        return sum(segment.size for segment in self._journal.segments)

    @property
    def is_fenced(self) -> bool:
        return self._disk.failed is not None

    def stalled_ms(self) -> int:
        since_us = self._write.since_us
        return 0 if since_us < 0 else (self._node.world.now_us - since_us) // 1_000

    def statistics(self) -> DiskStatistics:
        write = self._write
        return DiskStatistics(write.syncs, write.sync_us / 1e6, len(self._journal.segments), rolls=0)


def _nothing(disk: Any) -> Steps:
    disk.check()
    yield "nothing"
