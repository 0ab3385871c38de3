"""One node of a world: the real core, and a driver that carries out its Readies as the server does.

Inputs wait in an inbox and are taken once per turn, messages before the tick. The disk works beside it, one batch at a
time, in steps; a crash may fall between any two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from chaos.sim.disk import SimDisk
from raft.core import Proposed, RaftCore
from raft.ready import Fetch, Ready, SyncBatch, SyncQueue
from raft.types import Entry, HardState, NodeId, Now

if TYPE_CHECKING:
    from chaos.sim.world import World

Input = Callable[[RaftCore, Now], None]
"""Something to tell the core."""

RARE = 40
"""How much likelier a crash is at a step that comes only with elections: there are far fewer of them."""


class Crashed(Exception):
    """The process dies here."""


class Replica:
    """One node: its disk outlives its process."""

    __slots__ = (
        "applied_entries",
        "clock_base_us",
        "core",
        "disk",
        "inbox",
        "is_paused",
        "life",
        "node",
        "pending",
        "queue",
        "reads",
        "syncing",
        "timer_us",
        "turn_is_due",
        "wall_ms",
        "world",
    )

    def __init__(self, world: World, node: NodeId, disk: SimDisk) -> None:
        self.world = world
        self.node = node
        self.disk = disk
        self.core: RaftCore | None = None
        self.life = 0  # counts starts and crashes: an event of an earlier life is void
        self.wall_ms = 1_700_000_000_000 + world.random.randint(-3_600_000, 3_600_000)
        self.clock_base_us = 0
        self.is_paused = False
        self._forget()

    def _forget(self) -> None:
        self.queue = SyncQueue()
        self.inbox: list[Input] = []
        self.pending: dict[int, tuple[int, int]] = {}  # entry index -> (term, write)
        self.reads: dict[int, int] = {}  # context -> what the read must at least see
        self.syncing: Iterator[int] | None = None
        self.turn_is_due = False
        self.timer_us = 0
        self.applied_entries = 0

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin from what is durable."""
        world, disk = self.world, self.disk
        self.life += 1
        self._forget()
        self.clock_base_us = world.now_us - world.random.randrange(10_000_000)
        before = disk.hard_state
        disk.hard_state = HardState(before.term, before.vote, before.boot + 1)
        base = max(disk.snapshot.index, world.first.index)
        self.applied_entries = world.witness.position_after(base)
        self.core = RaftCore(
            self.node, world.swarm.options, hard_state=disk.hard_state, log=disk.log_start(world.swarm.tail_kept),
            configuration=world.configuration, configuration_index=world.first.index, commit=base, applied=base,
            random=world.random.randint, now=self.now(),
        )  # fmt: skip
        world.note(self.node, "starts", before.term, disk.ends[-1])
        world.witness.started(self.core)
        self.wake()

    def crash(self, why: str) -> None:
        """Die: what is in memory is gone, and of what was not synced a part."""
        world = self.world
        self.life += 1
        self.core = None
        self.is_paused = False
        self._forget()
        self.disk.crash()
        world.note(self.node, "crashes", why, self.disk.ends[-1])
        world.crashed(self.node)

    def now(self) -> Now:
        """This node's clocks, which drift and jump."""
        elapsed_us = self.world.now_us - self.clock_base_us
        elapsed_ms = elapsed_us * (1_000 + self.world.drift[self.node]) // 1_000_000
        return Now(elapsed_ms, self.wall_ms + elapsed_ms)

    def _due_us(self, monotonic_ms: int) -> int:
        """When this node's monotonic clock will show that."""
        return self.clock_base_us - (-monotonic_ms * 1_000_000 // (1_000 + self.world.drift[self.node]))

    # -- inputs ------------------------------------------------------------------------------------------------

    def tell(self, what: Input) -> None:
        """Put an input into the inbox; a turn follows soon."""
        if self.core is None:
            return
        self.inbox.append(what)
        self.wake()

    def wake(self) -> None:
        """Have a turn soon, with whatever else arrives by then."""
        if not self.turn_is_due and not self.is_paused and self.core is not None:
            self.turn_is_due = True
            self.world.after(self.world.random.choice((0, 0, 50, 300)), self._turn, self.life)

    def _turn(self, life: int) -> None:
        if life != self.life:
            return
        self.turn_is_due = False
        core = self.core
        if self.is_paused or core is None:
            return
        try:
            self._take_turn(core)
        except Crashed as crash:
            self.crash(str(crash))

    def _take_turn(self, core: RaftCore) -> None:
        now = self.now()
        witness, disks = self.world.witness, self.world.disks
        inbox, self.inbox = self.inbox, []
        for what in inbox:
            what(core, now)
            witness.stepped(core, disks)
        if now.monotonic_ms >= core.next_deadline_ms():
            core.tick(now)
            witness.stepped(core, disks)
        while (ready := core.ready()) is not None:
            self._carry_out(core, ready)
            witness.stepped(core, disks)
        if self.syncing is None and not self.queue.is_empty:
            self.syncing = self._sync(core, self.queue.take())
            self._advance_sync()
        self._set_timer(core)

    def _set_timer(self, core: RaftCore) -> None:
        due_us = max(self._due_us(core.next_deadline_ms()), self.world.now_us + 1)
        if self.timer_us <= self.world.now_us or due_us < self.timer_us:
            self.timer_us = due_us
            self.world.at(due_us, self._timer, self.life)

    def _timer(self, life: int) -> None:
        if life != self.life or self.core is None or self.is_paused:
            return
        if self._due_us(self.core.next_deadline_ms()) <= self.world.now_us:
            self.wake()
        else:
            self._set_timer(self.core)

    # -- carrying out ------------------------------------------------------------------------------------------

    def _carry_out(self, core: RaftCore, ready: Ready) -> None:
        world = self.world
        world.witness.appended(self.node, ready.entries)
        for event in ready.events:
            world.happened(self.node, event)
        for message in ready.messages:
            world.send(message)
            world.may_crash("sending")
        self.queue.add(ready)
        for fetch in ready.fetches:
            world.after(world.random.randint(50, 3_000), self._fetched, self.life, fetch)
        for read in ready.reads:
            world.read_done(self.node, self.reads.pop(read.context), read.index)
        for failed in ready.reads_failed:
            del self.reads[failed.context]
        if ready.committed:
            world.may_crash("before applying")
            for entry in ready.committed:
                self._apply(entry)
            world.may_crash("before applied")
            core.applied(ready.committed[-1].index)

    def _apply(self, entry: Entry) -> None:
        world = self.world
        world.witness.applied(self.node, self.applied_entries, entry)
        self.applied_entries += 1
        term, write = self.pending.pop(entry.index, (0, 0))
        if term == entry.term:
            world.write_done(self.node, write, entry)

    def _fetched(self, life: int, fetch: Fetch) -> None:
        if life != self.life:
            return
        fails = self.world.random.randrange(50) == 0 and not self.world.is_healed
        entries = () if fails else self.disk.read(fetch.after, fetch.to, fetch.bytes_max)
        self.tell(lambda core, now: core.fetched(fetch, entries, now))

    def _sync(self, core: RaftCore, batch: SyncBatch) -> Iterator[int]:
        """Carry out one batch in steps, giving the microseconds until the next."""
        world, disk = self.world, self.disk
        if batch.hard_state is not None:
            world.may_crash("before the hard state", RARE)
            yield world.sync_us()
            disk.hard_state = batch.hard_state
            world.may_crash("after the hard state", RARE)
        if batch.cut_after is not None:
            yield world.sync_us()
            disk.cut(batch.cut_after)
            world.may_crash("after the cut", RARE)
        for entry in batch.entries:
            disk.write(entry)
            world.may_crash("between entries")
        if batch.entries:
            yield world.sync_us()
            disk.sync()
            world.may_crash("after the sync")
        for message in batch.messages:
            world.send(message)
            world.may_crash("sending what was promised")
        last = batch.last
        if last is not None:
            world.may_crash("before persisted")
            # told within the turn that follows, as the server does
            self.inbox.insert(0, lambda core, now: core.persisted(last.term, last.index, now))

    def _sync_step(self, life: int) -> None:
        if life != self.life:
            return
        try:
            self._advance_sync()
        except Crashed as crash:
            self.crash(str(crash))

    def _advance_sync(self) -> None:
        assert self.syncing is not None
        delay_us = next(self.syncing, None)
        if delay_us is None:
            self.syncing = None
            if self.inbox or not self.queue.is_empty:
                self.wake()
        else:
            self.world.after(delay_us, self._sync_step, self.life)

    # -- clients -----------------------------------------------------------------------------------------------

    def propose(self, write: int, count: int, data: bytes) -> None:
        """A client's write arrives here."""

        def ask(core: RaftCore, now: Now) -> None:
            proposed = self.world.attempt(self.node, lambda: core.propose(self.world.commands, count, data, now))
            if isinstance(proposed, Proposed):
                self.pending[proposed.last] = (proposed.term, write)

        self.tell(ask)

    def read(self, context: int, floor: int) -> None:
        """A client's linearizable read arrives here; it must see at least the end `floor`."""

        def ask(core: RaftCore, now: Now) -> None:
            self.reads[context] = floor
            if self.world.attempt(self.node, lambda: core.read(context, now)) is False:
                del self.reads[context]

        self.tell(ask)
