"""One node of a world: the real core and state machine, and a driver that carries out Readies as cluster/node.py does.

Inputs wait in an inbox and are taken once per turn, messages before the tick. The disk works beside it, one batch at a
time, operation by operation; a crash may fall between any two of them, and before or after anything is sent or applied.
What is done for clients is in `chaos.sim.requests`, the order of a Ready in `raft.ready`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chaos.sim.clocks import Clock
from chaos.sim.damage_work import DamageWork
from chaos.sim.disk import DiskFailed, DiskFull, DiskRefused, SimDisk
from chaos.sim.disk_work import Crashed, DiskWork
from chaos.sim.failure import Failure
from chaos.sim.nemesis import states
from chaos.sim.point_work import leave_note
from chaos.sim.requests import HOUSEKEEPING_US, Answer, Requests
from chaos.sim.snapshot_work import SnapshotWork
from chaos.sim.wires import NOBODY_YET, Hello
from cluster.apply import last_user_index, log_entry
from cluster.points import Diverged
from cluster.snapshots import decode_preamble
from cluster.wire import Problem
from raft import hello
from raft.codec import Frame, FrameDecoder, UnknownVersion, entry_mark
from raft.core import RaftCore
from raft.divergence import Note
from raft.hello import Met, Start
from raft.messages import Message
from raft.ready import Fetch, Ready
from raft.types import GENESIS, NOBODY, Entry, NodeId, Now
from statemachine.effects import encode_effects

if TYPE_CHECKING:
    from chaos.sim.world import World

Input = Callable[[RaftCore, Now], None]
"""Something to tell the core."""

WAKE_US = (0, 0, 50, 300)
"""How long after an input its turn comes: what arrives meanwhile is taken with it."""


class Replica:
    """One node: its disk outlives its process. `life` counts starts and crashes: an event of an earlier one is void."""

    def __init__(self, world: World, node: NodeId, disk: SimDisk) -> None:
        self.world = world
        self.node = node
        self.disk = disk
        self.random = world.random_of(f"replica {node}")
        self.scrub_random = world.random_of(f"scrub {node}")
        self.core_random = world.random_of(f"core {node}")
        self.run_random = world.random_of(f"run {node}")
        drift = self.random.randint(-world.swarm.drift, world.swarm.drift)
        self.clock = Clock(rate=1_000 + drift, wall_ms=1_700_000_000_000 + self.random.randint(-3_600_000, 3_600_000))
        self.core: RaftCore | None = None
        self.machine: Any = None
        self.life = 0
        self.hello = NOBODY_YET
        self.is_paused = False
        self.is_retired = False  # stopped for good: it is no member any more
        self.is_held = False  # kept down while others have to go on without it
        self._forget()

    def _forget(self) -> None:
        self.inbox: list[Message | Input] = []
        self.work = DiskWork(self)
        self.snapshots = SnapshotWork(self)
        self.damage = DamageWork(self)
        self.requests = Requests(self, self.world.limits, 0)
        self.greeted: dict[NodeId, Hello] = {}  # the newest hello of each connected peer that was taken
        self.met: dict[tuple[NodeId, str], Met] = {}  # the newest process of each disk
        self.heard_us: dict[NodeId, int] = {}
        self.deadline_ms = 0
        self.shown: tuple[Any, ...] = ()  # what the trace was told last
        self.turn_is_due = False
        self.timer_us = 0
        self.mark = GENESIS
        self.last_user = 0
        self.corrupted = 0  # the state in memory was damaged after this index; 0: it was not

    @property
    def wall_ms(self) -> int:
        """What this node's wall clock shows when its monotonic one shows 0."""
        return self.clock.wall_ms

    @wall_ms.setter
    def wall_ms(self, wall_ms: int) -> None:
        self.clock.wall_ms = wall_ms

    @property
    def applied_index(self) -> int:
        """Up to here the state machine has everything."""
        return self.mark.index

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin from what is durable. A disk that refuses to be opened ends it: the node is down for good."""
        world, disk = self.world, self.disk
        self.life += 1
        self._forget()
        self.clock.boot(world.now_us, self.random.randrange(10_000_000))
        opening = disk.opening()
        try:
            while True:
                world.may_crash(f"opening: {next(opening)}")
        except StopIteration as stop:
            opened = stop.value
        except Crashed as crash:
            self.crash(str(crash), power=world.step_cuts_power())
            return
        except DiskRefused as refusal:
            world.refused(self, str(refusal))
            return
        except DiskFailed as error:
            self.crash(f"cannot open: {error}", power=False)
            return
        start = Start(
            run=self.run_random.randrange(1, 1 << 64), last_index=opened.log.last.index,
            last_term=opened.log.last.term, term=opened.hard_state.term, floor=opened.floor,
        )  # fmt: skip
        self.hello = Hello(disk.incarnation, opened.hard_state.boot, world.knows[self.node], start)
        self.requests = Requests(self, world.limits, opened.hard_state.boot)
        snapshot = opened.snapshot
        if snapshot is not None:
            chunks = disk.chunks(snapshot)
            self.last_user = decode_preamble(next(chunks))
            self.machine = world.restore_machine(chunks)
            self.mark = snapshot.mark
            self.snapshots.index = snapshot.mark.index
        else:
            self.machine = world.new_machine()
        self.requests.skipped(self.mark)
        tail = opened.log.tail[-world.swarm.tail_kept :] if world.swarm.tail_kept else ()
        self.core = RaftCore(
            self.node, world.swarm.options, hard_state=opened.hard_state, log=replace(opened.log, tail=tail),
            configuration=opened.configuration, configuration_index=opened.configuration_index, earlier=opened.earlier,
            commit=self.mark.index, applied=self.mark.index, random=self.core_random.randint, now=self.now(),
            incarnation=disk.incarnation, floor=opened.floor, knows=self.hello.knows,
        )  # fmt: skip
        world.started(self, opened.notices)
        self.damage.start()
        self.wake()

    def crash(self, why: str, *, power: bool = True) -> None:
        """Die: what is in memory is gone; with `power` also of what was not synced a part."""
        world = self.world
        self.life += 1
        self.core = None
        self.machine = None
        states.sound(world, self)
        self.hello = NOBODY_YET
        self.is_paused = False
        self._forget()
        self.disk.crash(power)
        world.crashed(self, why)

    def now(self) -> Now:
        """This node's clocks."""
        return self.clock.read(self.world.now_us)

    def next_expiry_ms(self) -> int | None:
        """The cluster clock at which the state machine needs an entry; None: never."""
        due_ms: int | None = getattr(self.machine, "next_expiry_ms", None)
        return due_ms

    def is_answering(self, peer: NodeId) -> bool:
        """Whether that peer was heard lately."""
        within_us = 500 * self.world.swarm.options.election_timeout_min_ms
        return self.world.now_us - self.heard_us.get(peer, -within_us) < within_us

    # -- inputs ------------------------------------------------------------------------------------------------

    def submit(
        self, block: bytes, count: int, session: int, sequence: int, deadline_us: int, done: Callable[[Answer], None]
    ) -> None:
        """A client's request block of `count` records arrives here. `deadline_us` is world time.

        `done` is called once, in an event of its own; never, if this process ends before.
        """
        if self.core is not None:
            arguments = (block, count, session, sequence, deadline_us, done)
            self.tell(lambda core, now: self.requests.submit(*arguments))

    def read_barrier(self, done: Callable[[int | Problem], None], deadline_us: int) -> None:
        """A client's linearizable read arrives here: `done` gets the index as of which `machine` may be read, in the
        event in which it is called. Otherwise as `submit`."""
        self.tell(lambda core, now: self.requests.read_barrier(done, deadline_us))

    def greet(self, sender: NodeId, said: Hello) -> bool:
        """Whether this process takes what a process of `sender` says that said so of itself when it connected."""
        core = self.core
        if core is None:
            return False
        disk, run = (sender, said.incarnation), said.start.run if said.start is not None else 0
        reason = hello.refusal(
            sender=sender, boot=said.boot, knows=said.knows, node=self.node, met=self.met.get(disk, hello.NEVER_MET),
            version=core.state.configuration.version, run=run,
        )  # fmt: skip
        if reason is not None:
            self.world.count("hellos refused")
            return False
        self.greeted[sender] = said
        self.met[disk] = Met(said.boot, run)
        self.tell(lambda core, now: core.link_opened(sender, said.incarnation, said.knows, now, said.start))
        return True

    def link_closed(self, peer: NodeId) -> None:
        """The connection of that peer closed: the next one begins with its hello."""
        self.greeted.pop(peer, None)
        self.tell(lambda core, now: core.link_closed(peer, now))

    def deliver(self, message: Message) -> None:
        """A peer's message arrives."""
        self.heard_us[message.sender] = self.world.now_us
        self.inbox.append(message)
        if not self.turn_is_due and not self.is_paused:
            delay_us = WAKE_US[self.random.getrandbits(2)]
            if delay_us:
                self.turn_is_due = True
                self.world.after(delay_us, self._turn, self.life)
            else:
                self._turn(self.life)

    def take_bulk(self, peer: NodeId, data: bytes) -> None:
        """A frame of the bulk link arrives."""

        def take(core: RaftCore, now: Now, frames: list[Frame]) -> None:
            for frame in frames:
                self.requests.take_frame(core, peer, frame)

        frames = FrameDecoder().feed(data)
        self.tell(lambda core, now: take(core, now, frames))

    def bulk_closed(self, life: int, peer: NodeId) -> None:
        """The bulk connection to that peer closed."""
        if life == self.life:
            self.tell(lambda core, now: self.requests.link_closed(peer))

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
            self.world.after(WAKE_US[self.random.getrandbits(2)], self._turn, self.life)

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
            self.crash(str(crash), power=self.world.step_cuts_power())
            return
        except Diverged as error:
            self._diverged(error)
            return
        except UnknownVersion as error:
            raise Failure("nobody is led into a cluster version that it does not know", error) from error
        state = core.state
        log = state.log
        shown = (state.role, state.term, state.vote, log.last, log.persisted, log.committed, log.applied)
        if shown != self.shown and self.core is not None:
            self.shown = shown
            self.world.trace.state(self.world.now_us, self.node, core)

    def _take_turn(self, core: RaftCore) -> None:
        world, requests = self.world, self.requests
        now_us = world.now_us
        now = self.clock.read(now_us)
        stepped = world.witness.stepped
        inbox, self.inbox = self.inbox, []
        for what in inbox:
            if callable(what):
                what(core, now)
            else:
                core.step(what, now)
            stepped(core)
        if now.monotonic_ms >= self.deadline_ms and now.monotonic_ms >= core.next_deadline_ms():
            core.tick(now)
            stepped(core)
        if now_us - requests.housekept_us >= HOUSEKEEPING_US:
            requests.housekeeping(core, now)
        requests.begin_turn(core, now)
        while (ready := core.ready()) is not None:
            self._carry_out(core, ready)
            stepped(core)
        if requests.end_turn(core):
            self.wake()
        self._set_timer(core)
        self.work.begin(core)

    def _diverged(self, error: Diverged) -> None:
        """This state is not a majority's: a note for the next start, and the end (cluster/node_end.py)."""
        world = self.world
        states.fenced(world, self, error)
        try:
            for name in leave_note(self.disk, Note(error.agreed, error.index)):
                world.may_crash(f"noting: {name}")
        except (Crashed, DiskFailed, DiskFull):
            world.count("fenced without a note")
        self.crash(f"fenced: {error}", power=False)

    def _set_timer(self, core: RaftCore) -> None:
        world = self.world
        now_us = world.now_us
        self.deadline_ms = core.next_deadline_ms()
        due_us = self.clock.due_us(self.deadline_ms)
        if not self.requests.is_idle:
            due_us = min(due_us, self.requests.housekept_us + HOUSEKEEPING_US)
        if due_us <= now_us:
            due_us = now_us + 1
        if self.timer_us <= now_us or due_us < self.timer_us:
            self.timer_us = due_us
            world.at(due_us, self._timer, self.life)

    def _timer(self, life: int) -> None:
        if life != self.life or self.core is None or self.is_paused:
            return
        if self.clock.due_us(self.core.next_deadline_ms()) <= self.world.now_us or not self.requests.is_idle:
            self.wake()
        else:
            self._set_timer(self.core)

    # -- carrying out ------------------------------------------------------------------------------------------

    def _carry_out(self, core: RaftCore, ready: Ready) -> None:
        world = self.world
        world.coverage.ready(self, ready)
        if ready.entries:
            world.witness.appended(self.node, ready.entries)
        for event in ready.events:
            world.happened(self.node, event)
        for message in ready.messages:
            world.send(message)
            world.may_crash("sending")
        self.work.queue.add(ready)
        for fetch in ready.fetches:
            world.after(self.random.randint(50, 3_000), self._fetched, self.life, fetch)
        if ready.snapshot_fetches or ready.snapshot_writes or ready.snapshot_install is not None:
            self.snapshots.carry_out(ready)
        if ready.reads or ready.reads_failed:
            for read in ready.reads:
                world.witness.read_ready(self.node, read.context, read.index)
            self.requests.finish_reads(ready)
        if ready.committed:
            world.may_crash("before applying")
            for entry in ready.committed:
                self._apply(entry)
            world.may_crash("before applied")
            core.applied(ready.committed[-1].index)
            self.requests.waiters.applied(self.mark.index)

    def _apply(self, entry: Entry) -> None:
        command = log_entry(entry)
        effects = self.machine.apply(command)
        if self.world.is_hosting:
            self.machine.follow(entry, effects)
        frame = encode_effects(effects)
        self.mark = entry_mark(entry)
        user = last_user_index(command, effects)
        if user is not None:
            self.last_user = user
        self.work.frames.append((entry.index, frame))
        self.world.witness.applied(self.node, entry, effects, self.machine, is_sound=not self.corrupted)
        self.world.coverage.applied(entry, command.requests, effects)
        if self.world.clients is not None:
            self.world.clients.applied(entry, effects)
        self.requests.applied(entry, command.requests, effects, frame)

    def _fetched(self, life: int, fetch: Fetch) -> None:
        if life != self.life:
            return
        fails = self.random.randrange(50) == 0 and not self.world.is_healed
        entries = () if fails else self.disk.read(fetch.after, fetch.to, fetch.bytes_max)
        self.tell(lambda core, now: core.fetched(fetch, entries, now))

    def delete_trimmed(self) -> None:
        """Delete what was trimmed from the log, as far as nobody needs it."""
        if self.core is not None and not self.is_paused:
            self.snapshots.delete(self.core)

    def save_snapshot(self) -> None:
        """Keep the state as it is now, and let the log before it go."""
        if self.core is not None and not self.is_paused:
            self.snapshots.save(self.core)

    @property
    def leader(self) -> NodeId:
        """Who leads, as far as this process believes; NOBODY while it is down."""
        return self.core.state.leader if self.core is not None else NOBODY
