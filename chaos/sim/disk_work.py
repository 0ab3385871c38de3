"""What one process does with its disk: batches one at a time, and marks; operation by operation.

Follows cluster/syncer.py and disk_write.py (finish after the promise). A crash may fall
between any two operations, a sync takes its time, a full disk is tried again, and any other failure ends the process
before it says another word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from chaos.sim.disk import DiskFailed, DiskFull
from raft.core import RaftCore
from raft.ready import SyncBatch, SyncQueue

if TYPE_CHECKING:
    from chaos.sim.replica import Replica

RARE = 40
"""How much likelier a crash is at a step that comes only with elections: there are far fewer of them."""

FULL_RETRY_US = 200_000
"""A full disk is tried again after this long (cluster/syncer.py)."""

BUSY_US = 500
"""How often one asks whether the disk is free again."""

MARK_IDLE_US = 5_000
"""A durable mark is written by itself after this long without a sync (disk.mark_idle_ms)."""


class Crashed(Exception):
    """The process dies here."""


class DiskWork:
    """Gone with its process; the disk stays."""

    __slots__ = (
        "disk", "frames", "has_space", "is_marked", "queue", "replica", "sync_began_us", "sync_us", "synced_us",
        "syncing", "syncs", "world",
    )  # fmt: skip

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.world = replica.world
        self.disk = replica.disk
        self.queue = SyncQueue()
        self.frames: list[tuple[int, bytes]] = []  # effects for the ledger
        self.syncing: Iterator[int] | None = None
        self.synced_us = 0
        self.has_space = True
        self.syncs = self.sync_us = 0  # so far, and the time that they took
        self.sync_began_us = 0  # of the one under way; 0: none is
        self.is_marked = False  # a durable mark stands behind the newest entry, or is on its way there

    @property
    def is_idle(self) -> bool:
        """Whether everything that is to be durable is."""
        return self.syncing is None and self.queue.is_empty

    def begin(self, core: RaftCore) -> None:
        """Begin the next batch, or a durable mark once nothing was synced for a while."""
        if self.syncing is not None:
            return
        if not self.queue.is_empty:
            self.syncing = self._sync(self.queue.take())
        elif not self.is_marked and self.world.now_us - self.synced_us >= MARK_IDLE_US:
            self.is_marked = True
            self.syncing = self._mark()
        else:
            return
        self._advance_sync()

    def _sync(self, batch: SyncBatch) -> Iterator[int]:
        """Carry out one batch operation by operation, giving the microseconds until the next."""
        world, disk, replica = self.world, self.disk, self.replica
        yield from self._while_busy()
        if batch.hard_state is not None or batch.cut_after is not None or batch.entries:
            weight = RARE if batch.hard_state is not None or batch.cut_after is not None else 1
            while True:
                try:
                    yield from self.stepwise(disk.carry_out(batch), weight)
                    break
                except DiskFull:
                    self.has_space = False
                    world.sometimes("a full disk waits for room")
                    yield FULL_RETRY_US
            self.has_space = True
            self.is_marked = False
            self.synced_us = world.now_us
            world.after(MARK_IDLE_US, self._mark_due, replica.life)
            world.may_crash("after the sync", weight)
        for message in batch.messages:
            world.send(message)
            world.may_crash("sending what was promised")
        last = batch.last
        if last is not None:
            world.may_crash("before persisted")
            # told within the turn that follows, as the server does
            replica.inbox.insert(0, lambda core, now: core.persisted(last.term, last.index, now))
        replica.wake()
        yield from self.stepwise(disk.finish(self.take_frames()))

    def _mark_due(self, life: int) -> None:
        if life == self.replica.life and not self.is_marked:
            self.replica.wake()

    def _mark(self) -> Iterator[int]:
        """A durable mark of its own, once nothing was synced for a while."""
        yield from self._while_busy()
        yield from self.stepwise(self.disk.finish(self.take_frames()))
        try:
            yield from self.stepwise(self.disk.mark())
        except DiskFull:
            pass
        self.synced_us = self.world.now_us

    def _while_busy(self) -> Iterator[int]:
        """A disk does one thing after the other: an install that is under way ends first."""
        while self.disk.is_busy:
            yield BUSY_US

    def take_frames(self) -> list[tuple[int, bytes]]:
        """The effects that wait, for the ledger."""
        frames, self.frames = self.frames, []
        return frames

    def stepwise(self, operations: Iterable[str], weight: int = 1) -> Iterator[int]:
        """Carry out operations one by one: a crash may fall between any two, and a sync takes its time."""
        world = self.world
        for name in operations:
            world.may_crash(name, weight)
            if name == "Sync":
                self.sync_began_us, took_us = world.now_us, world.sync_us() + self.disk.slow_us
                yield took_us
                self.syncs, self.sync_us, self.sync_began_us = self.syncs + 1, self.sync_us + took_us, 0
            elif name == "wait":
                yield 500

    def _sync_step(self, life: int) -> None:
        if life == self.replica.life:
            self._advance_sync()

    def _advance_sync(self) -> None:
        assert self.syncing is not None
        delay_us = self.advance(self.syncing)
        if delay_us is None:
            self.syncing = None
            if self.replica.inbox or not self.queue.is_empty or self.replica.requests.pending.queued:
                self.replica.wake()
        elif delay_us >= 0:
            self.world.after(delay_us, self._sync_step, self.replica.life)

    def advance(self, work: Iterator[int]) -> int | None:
        """The next step of work on the disk: microseconds until the one after, None at its end; -1: the process is
        gone. A failed write or sync fences the node: it stops at once, before it says another word."""
        try:
            return next(work, None)
        except Crashed as crash:
            self.replica.crash(str(crash), power=self.world.step_cuts_power())
        except DiskFailed as error:
            self.world.sometimes("a node fences itself")
            self.replica.crash(f"fenced: {error}", power=False)
        return -1
