"""Runs the server's `raftlog.cluster.disk.disk.Disk` on a simulated disk: its threads work in steps of virtual time.

The simulator has its own only of what the server does in several threads or in one call of the operating system: here
a process may die between two operations. Errors are those of the server. The operations are those of
`raftlog.chaos.sim.disk.disk.SimDisk`.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from raftlog.chaos.sim.disk import snapshots as disk_snapshots
from raftlog.chaos.sim.disk.reading import read_entries
from raftlog.chaos.sim.replica.fetched import FillFiles, FillWorker
from raftlog.chaos.sim.replica.scrubbing import ScrubbedFiles, Scrubbing
from raftlog.chaos.sim.replica.threads import ReadThread, Steps, Thread
from raftlog.chaos.sim.replica.watching import Watching
from raftlog.cluster.disk.disk import Disk, DiskStatistics
from raftlog.cluster.disk.older_segments import Backfill
from raftlog.cluster.files.errors import DiskFenced, NoSpace
from raftlog.cluster.files.findings import FileHealth, Finding
from raftlog.cluster.files.scrub import Looker
from raftlog.cluster.files.snapshot_files import Chunks, each
from raftlog.raft.configuration import Configuration
from raftlog.raft.ready import SnapshotWrite, SyncBatch
from raftlog.raft.types import Entry, Mark
from raftlog.raft.wal import snapshot_files
from raftlog.raft.wal.divergence import NOTE, DivergenceNote
from raftlog.raft.wal.journal import ImpossibleBatch
from raftlog.raft.wal.recovery import Damage
from raftlog.raft.wal.retention import may_go
from raftlog.raft.wal.snapshot_files import Pieces, StoredSnapshot
from raftlog.raft.wal.storage import StepKind, WorkStep

RARE: Final = 40
"""How much likelier a crash is at a step that comes only with elections: there are far fewer of them."""

QUEUE_BYTES: Final = 4_000
"""Effects that wait for the next trip to the disk; beyond it `write_effects` makes a trip of its own. Small: most
worlds reach it; where background jobs take long, a tenth of it."""

FLUSH_US: Final = 20_000
"""Effects are written in that time or less, in microseconds, where background jobs take long."""

FAILS_ONE_IN: Final = 50
"""A read of entries fails that often, while there is trouble."""


class SimWriter:
    """The work of the writing thread, step by step: `raftlog.cluster.disk.writer.Writer`."""

    def __init__(self, node: Watching) -> None:
        self._node, self._disk, self._storage = node, node.disk, node.disk.running()
        self._flush_us = FLUSH_US if node.world.swarm.save_us else 0
        self.structure: AbstractContextManager[None] = nullcontext()
        self.reader = node.disk.reader()
        self.check, self.finish, self.mark = node.disk.check, node.disk.finish, node.disk.mark

    @property
    def fence(self) -> DiskFenced | None:
        return self._disk.process.failed

    def fail(self, error: OSError) -> NoReturn:
        raise self._disk.fence(error)

    def carry_out(self, batch: SyncBatch) -> Steps:
        weight = 1 if batch.hard_state is None and batch.cut_after is None else RARE
        try:
            for name in self._disk.carry_out(batch):
                yield name, weight
        except NoSpace:
            self._node.world.sometimes("a full disk waits for room")
            raise
        yield "after the sync", weight

    def flush(self) -> Steps:
        if self._flush_us:
            yield self._node.random.randint(0, self._flush_us)
        yield from self._disk.flush()

    def diverged(self, note: DivergenceNote) -> Steps:
        yield from self._noting(self._storage.diverged(note))

    def leave_to_start(self, names: Sequence[str]) -> Steps:
        yield from self._noting(self._storage.leave_to_start(names))

    def _noting(self, steps: Iterator[WorkStep]) -> Steps:
        self._disk.check()
        for name in self._disk.steps(steps):
            yield f"noting: {name}"


class NodeDisk(Disk):
    """The disk as one process uses it. It ends with the process, and its futures belong to the process's loop."""

    def __init__(self, node: Watching, snapshot_bytes: int) -> None:
        disk, storage = node.disk, node.disk.running()
        write, read, writer = Thread(node), ReadThread(node), SimWriter(node)
        self._node, self._disk, self._threads = node, disk, (write, read)
        self._journal, self._ledger, self._storage = storage.journal, storage.ledger, storage
        parts: Any = SimpleNamespace(
            write=write,
            read=read,
            writer=writer,
            files=disk.files,
            reader=SimpleNamespace(
                entries=partial(read_entries, disk), raw=writer.reader.raw, find_time=writer.reader.find_time
            ),
            incoming=SimpleNamespace(check=partial(disk_snapshots.check_received, disk), chunks=disk.chunks),
            filled=FillFiles(node),
            filler=FillWorker(node, read),
        )
        self._write_worker, self._read_worker, self._writer = parts.write, parts.read, parts.writer
        self._reading, self._reader, self._incoming = parts.files, parts.reader, parts.incoming
        self.reserve = disk.reserve
        self.snapshot_bytes = snapshot_bytes
        self._older_bytes = snapshot_files.bytes_below(disk.files, max(disk.snapshots(), default=0))
        self.keep_reserve()
        self.backfill = Backfill(
            self._journal,
            parts.filled,
            parts.filled,
            parts.filler,
            parts.writer,
            parts.writer,
            free=lambda: disk.files.free,
            begin_worker=lambda: parts.filler,
        )
        self._queued_bytes = self._effects_last = 0
        self._queue_bytes = QUEUE_BYTES // 10 if node.world.swarm.save_us else QUEUE_BYTES
        self._finish_timer = None

    def end(self) -> None:
        for thread in self._threads:
            thread.close()

    def write_effects(self, frames: Sequence[bytes]) -> asyncio.Future[None]:
        taken = super().write_effects(frames)
        if self._queued_bytes > self._queue_bytes:
            self._node.world.sometimes("effects were applied and not yet written")
            return self._flush()
        return taken

    async def write_divergence(self, note: DivergenceNote) -> None:
        self._disk.damaged[NOTE] = "the state was wrong"  # explains a refusal; gone with the note
        await super().write_divergence(note)

    def scrub(
        self,
        found: Callable[[list[Finding]], None],
        failed: Callable[[Exception], None],
        *,
        bytes_per_second: int,
        pause_s: float,
    ) -> Any:
        return Scrubbing(self._node, self._looker(), found)

    def _looker(self) -> Looker:
        return Looker(ScrubbedFiles(self._disk.files), self._journal, self._ledger)

    async def look_closer(self, damage: Damage) -> list[Finding]:
        found = await asyncio.to_thread(self._looker().closer, damage.file)
        return found or [Finding(damage.file, FileHealth.DAMAGED, damage.reason, None, damage.index)]

    async def save_snapshot(
        self, mark: Mark, configuration: Configuration, chunks: Chunks, configuration_index: int = 0
    ) -> None:
        node, world = self._node, self._node.world
        if node.corrupted:  # what a snapshot of a wrong state does to others: docs/decisions/0010
            raise NoSpace(f"node {node.node}: its state is wrong, so it keeps none")
        await self._flush()
        reached = min(self._journal.indexed, self._ledger.last)
        if reached < mark.index:
            raise ImpossibleBatch(f"a snapshot of {mark.index}: log and ledger reach {reached}")
        disk, kept = self._disk, []
        pace_us = 0 if world.is_healed else node.random.choice((0, world.swarm.save_us))

        async def step(do: Callable[[], Steps]) -> None:
            if pace_us:
                await asyncio.sleep(node.random.randint(0, pace_us) / 1e6)
            await self._threads[1].run_steps(do)

        plan = snapshot_files.SnapshotPlan(disk.log, mark.index)
        try:
            await step(partial(disk.steps, self._storage.sync_ledgers()))
            await step(partial(disk.execute, StepKind.SPARES, plan.begin()))
            async for chunk in each(chunks):
                kept.append(chunk)
                await step(partial(disk.execute, StepKind.SPARES, plan.add(chunk)))
            disk.view.snapshots[mark.index] = mark
            size = sum(map(len, kept))
            await step(lambda: self._naming(plan, mark, configuration, configuration_index, size))
        except NoSpace:
            world.sometimes("no room for a snapshot")
            disk.files.execute(plan.abandon())
            raise
        except asyncio.CancelledError:
            if self._node.is_this_life(self):
                world.sometimes("a save was overtaken by an install")
                disk.files.execute(plan.abandon())
            raise
        self._older_bytes, self.snapshot_bytes = self.snapshot_bytes, size
        if configuration.outgoing:
            world.sometimes("snapshot during a joint configuration")
        node.saved(mark, b"".join(kept))

    def _naming(
        self, plan: snapshot_files.SnapshotPlan, mark: Mark, configuration: Configuration, index: int, size: int
    ) -> Steps:
        yield from disk_snapshots.name(self._disk, plan, mark, configuration, index)
        self._take_back(self._older_bytes, size, self.snapshot_bytes)

    async def check_snapshot(self, index: int) -> None:
        await self._read_worker.run(partial(snapshot_files.open_snapshot, self._disk.files, self._disk.log, index))

    async def write_pieces(self, writes: Sequence[SnapshotWrite]) -> None:
        self._writer.check()
        for write in writes:
            await self._threads[1].run_steps(
                partial(disk_snapshots.write_piece, self._disk, write.index, write.offset, write.data)
            )

    async def install(self, received: Pieces, stored: StoredSnapshot) -> None:
        await self._flush()
        await self._write_worker.run(lambda: self._installing(received, stored))
        self._older_bytes, self.snapshot_bytes = 0, stored.size
        self._effects_last = stored.mark.index
        self.backfill.kept.may_exist = True

    def _installing(self, received: Pieces, stored: StoredSnapshot) -> Steps:
        for name in disk_snapshots.install(self._disk, received, stored.mark):
            self._node.world.may_crash(f"installing: {name}", RARE)
            yield name
        self._take_back(self._older_bytes, stored.size, 0)

    async def compact(self, oldest: int, needed: int) -> int:
        if self._journal.segments[0].last.index >= min(oldest, needed) or len(self._journal.segments) == 1:
            return 0
        before = len(self._journal.segments)
        keep_after = may_go(oldest, needed, self._disk.snapshots())
        await self._write_worker.run(partial(disk_snapshots.compact, self._disk, keep_after))
        return before - len(self._journal.segments)

    def keep_reserve(self, grown: int = 0, *, may_fill: bool = True) -> None:
        sizes = self._journal.active.size, self.snapshot_bytes, self._older_bytes, grown
        self.reserve.keep(*sizes, may_fill=may_fill)

    async def read_entries(self, after: int, to: int, bytes_max: int) -> tuple[Entry, ...]:
        node = self._node
        if node.random.randrange(FAILS_ONE_IN) == 0 and not node.world.is_healed:
            await asyncio.sleep(0.001)
            raise OSError(errno.EIO, "the read fails")
        return await super().read_entries(after, to, bytes_max)

    def statistics(self) -> DiskStatistics:
        write = self._threads[0]
        return DiskStatistics(write.syncs, write.sync_us / 1e6, len(self._journal.segments), rolls=0)
