"""Runs one node of a world: the server's own replica on a simulated loop, disk and network.

`raftlog.cluster.replica` is what serves clients, follows peers and writes files; this module is the process around it,
as `raftlog.cluster.node.host` is on a real machine. `life` counts starts and ends: an event of an earlier life is void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.disk.errors import DiskFailed, DiskRefused
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.loop import ProcessEnded, SimLoop
from raftlog.chaos.sim.replica.disk import NodeDisk
from raftlog.chaos.sim.replica.hello import Hello
from raftlog.chaos.sim.replica.links import NodeLinks
from raftlog.chaos.sim.replica.stand_ins import SimLogger
from raftlog.chaos.sim.replica.watched import WatchedApplier, WatchedCore, WatchedReplica
from raftlog.chaos.sim.replica.watching import LOGGED, Watching
from raftlog.cluster.files.folder import DiskIdentity, Recovered
from raftlog.cluster.peers.refused_hellos import RefusedHello
from raftlog.cluster.protocol.forward_frames import decode_points
from raftlog.cluster.replica.opening import Making
from raftlog.cluster.replica.parts import link_events
from raftlog.cluster.replica.replica import HOUSEKEEPING_S, Replica
from raftlog.cluster.replica.state import Ending
from raftlog.cluster.replica.upkeep import snapshots
from raftlog.raft import hello
from raftlog.raft.codec.checks import INDEX_MAX
from raftlog.raft.codec.frame import FRAME_FORWARD, FRAME_POINTS, FRAME_READ, FrameDecoder
from raftlog.raft.configuration import Member
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.hello import Met
from raftlog.raft.messages import Message
from raftlog.raft.types import NOBODY, NodeId, Now
from raftlog.raft.wal.opening import OpenedShard
from raftlog.raft.wal.snapshot_files import StoredSnapshot
from raftlog.statemachine.versions import CLUSTER_VERSION

Input = Callable[[RaftCore, Now], None]
"""Something to ask a core."""
TICK_US: Final = 5_000
"""How often a process ticks where requests wait, in microseconds; else it ticks when something is due."""

DIALLED_US: Final = 20_000
CLOSED_US: Final = 5_000
"""Longest times in microseconds until a new connection is up, and until the other side hears that one closed."""

STOP_S: Final = 5.0
"""How long a process that ends waits for what it still writes, in seconds."""


class Stored:
    """The newest snapshot of a disk, as `raftlog.cluster.files.snapshot_files.RecoveredSnapshot`."""

    def __init__(self, disk: SimDisk, stored: StoredSnapshot) -> None:
        self._disk, self.stored, self.mark = disk, stored, stored.mark

    def chunks(self) -> Iterator[bytes]:
        """Its chunks in order."""
        return self._disk.chunks(self.stored)


class Node(Watching):
    """One node of a world."""

    def twin(self, disk: SimDisk, name: str) -> Node:
        """Another process of this node, on a copy of its disk."""
        return Node(self.world, self.node, disk, name)

    def is_this_life(self, disk: object) -> bool:
        """Whether that disk is the one of the process that runs."""
        return self.replica is not None and self.replica.state.disk is disk

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins from the durable files. A disk that refuses to be opened ends it: the node is down for good."""
        world, disk = self.world, self.disk
        self.life += 1
        self._forget()
        disk.watch = self.file_moved
        self.clock.boot(world.now_us, self.random.randrange(10_000_000))
        opening = disk.opening()
        try:
            while True:
                world.may_crash(f"opening: {next(opening)}")
        except StopIteration as stop:
            opened: OpenedShard = stop.value
        except ProcessEnded as end:
            self.crash(str(end), power=world.step_cuts_power())
            return
        except DiskRefused as refusal:
            world.refused(self, str(refusal))
            return
        except DiskFailed as error:
            self.crash(f"cannot open: {error}", power=False)
            return
        self.loop = SimLoop(world, self, self.random)
        self._early = []
        self.loop.run_in_process(self._begin, opened)

    def _begin(self, opened: OpenedShard) -> None:
        world, disk = self.world, self.disk
        run = self.run_random.randrange(1, INDEX_MAX)
        tail = opened.log.tail[-world.swarm.tail_kept :] if world.swarm.tail_kept else ()
        snapshot: Any = None if opened.snapshot is None else Stored(disk, opened.snapshot)
        log = opened.log
        recovered = Recovered(
            identity=DiskIdentity(disk.log.log_id.hex(), self.node, disk.incarnation),
            hard_state=opened.hard_state,
            first=log.first,
            base=log.base,
            runs=log.runs,
            last=log.last,
            tail=tail,
            configuration=opened.configuration,
            configuration_index=opened.configuration_index,
            earlier=opened.earlier,
            snapshot=snapshot,
            ledger_last=opened.ledger_last,
            committed=opened.committed,
            notices=opened.notices,
            floor=opened.floor,
            kept=opened.kept,
        )
        self.hello = Hello(disk.incarnation, opened.hard_state.boot, recovered.start(run))
        own: Any = NodeDisk(self, 0 if opened.snapshot is None else opened.snapshot.size)
        self._files = own
        logger: Any = SimLogger(self._logged, LOGGED)
        replica = WatchedReplica(
            world.settings,
            own,
            recovered,
            process=self,
            links=NodeLinks(self),
            run=run,
            logger=logger,
            making=Making(
                core=WatchedCore,
                applier=WatchedApplier,
                machine=world.machine_class,
                random=self.core_random,
            ),
        )
        core, applier = replica.state.core, replica.state.applier
        assert isinstance(core, WatchedCore)
        assert isinstance(applier, WatchedApplier)
        core.node = applier.node = replica.node = self
        self.replica, self.core = replica, core
        self._follow_yours()
        self._point = applier.machine.point
        world.started(self, opened.notices)
        replica.spawn(self._open(replica))

    async def _open(self, replica: Replica) -> None:
        await replica.begin()
        replica.start()
        assert self.loop is not None
        early, self._early = self._early, None
        for callback, arguments in early or ():
            self.loop.call_soon(callback, *arguments)

    def crash(self, why: str, *, power: bool = True) -> None:
        """Dies and loses its memory; with `power` also a part of the unsynced writes."""
        world = self.world
        if self.replica is not None and self.disk.running().has_frames:
            world.sometimes("a crash between applied and written")
        self.vanish()
        world.state_replaced(self)
        self.is_paused = False
        self.disk.crash(power)
        world.crashed(self, why)

    def vanish(self) -> None:
        """The process is gone, and no peer or client learns of it."""
        self.life += 1
        loop, files, self.loop = self.loop, self._files, None
        self._forget()
        if files is not None:
            files.end()
        if loop is not None:
            loop.close()

    def may_crash(self, step: str, weight: int = 1) -> None:
        """Dies here now and then. Raises ProcessEnded."""
        try:
            self.world.may_crash(step, weight)
        except ProcessEnded as end:
            self.crash(str(end), power=self.world.step_cuts_power())
            raise

    def broken(self, error: BaseException) -> None:
        """A callback of the loop raised that. Raises it, unless the process died in it."""
        if not isinstance(error, ProcessEnded):
            raise error

    def posted_failed(self, error: Exception) -> None:
        """A job of the disk failed that nothing waits for: the disk is fenced then, and the next batch fails."""
        if not isinstance(error, DiskFailed):
            self.world.count(f"disk jobs not done: {type(error).__name__}")

    # -- what the replica asks of its process ------------------------------------------------------------------------

    def call_soon(self, run: Callable[[], None]) -> None:
        if self.loop is not None:
            self.loop.call_soon(run)

    def call_later(self, delay_s: float, run: Callable[[], None]) -> None:
        if self.loop is not None:
            self.loop.call_later(delay_s, run)

    def replica_ended(self, replica: Replica) -> None:
        world, ending = self.world, replica.state.life.ending
        match ending:
            case Ending.FENCED:
                world.sometimes("a node fences itself")
            case Ending.DIVERGED:
                self._check(world.fenced, self, self._why)
            case Ending.DAMAGED:
                self._check(self._check_end_for_damage)
            case _ if world.breach is None:
                self._breach(Failure("a replica does not fail", f"node {self.node}: {ending}"))
        assert self.loop is not None
        self.loop.create_task(self._end(replica, ending))

    async def _end(self, replica: Replica, ending: Ending | None) -> None:
        if ending is not Ending.FENCED:
            await replica.close(STOP_S)
        if ending is Ending.DAMAGED:
            self.world.sometimes("a node ended for damage, the others being well")
        self.crash(f"{ending.name.lower() if ending else 'ended'}", power=False)

    def tell(self, what: Input) -> None:
        """Asks the core of a process that runs; a turn follows."""
        if self.core is not None:
            self._input(self._ask, what)

    def _ask(self, what: Input) -> None:
        assert self.core is not None
        what(self.core, self.now())
        assert self.replica is not None
        self.replica.wake()

    def wake(self) -> None:
        """It goes on after a pause."""
        if self.loop is not None and not self.is_paused and not self.is_behind:
            self.went_on_us = self.world.now_us
            self.loop.go_on()
            self._set_timer()

    def save_snapshot(self) -> None:
        """Keeps the state as it is now."""
        if self.core is not None and not self.is_paused and not self.corrupted:
            self._input(self._save)

    def _save(self) -> None:
        if self.applied_index > self.snapshot_index:
            snapshots.save(self.state)

    # -- peers -------------------------------------------------------------------------------------------------------

    def refusal_of(self, sender: NodeId, said: Hello) -> str | None:
        """Why this process does not take what a process of `sender` says that said so of itself; None: it does."""
        core = self.core
        if core is None:
            return "it is down"
        return hello.refusal(
            sender=sender,
            boot=said.boot,
            knows=CLUSTER_VERSION,
            node=self.node,
            met=self.met.get((sender, said.incarnation), hello.NEVER_MET),
            version=core.state.configuration.version,
            run=said.run,
            is_removed=core.state.has_removed(NOBODY, said.incarnation),
        )

    def greet(self, sender: NodeId, said: Hello) -> bool:
        """A process of `sender` connected and said so of itself; whether it is taken."""
        if self.core is None:
            return False
        if self.refusal_of(sender, said) is not None:
            self.world.count("hellos refused")
            refused = RefusedHello(sender, said.incarnation, said.start)
            self.refused_hellos.refuse(refused, is_proved=self._proves(sender, said))
            for each in self.refused_hellos.due(self.world.now_us / 1_000_000):
                self._input(link_events.hello_refused, self.state, *each)
            return False
        self.greeted[sender] = said
        self.believed.pop(sender, None)
        if self._proves(sender, said):
            self._believe(sender, said)
        named = self.core.state.configuration.member(sender)
        is_named = named is not None and named.incarnation == said.incarnation
        if not is_named and self.dialled.get(sender, said.incarnation) == said.incarnation:
            self.strangers[sender] = Member(sender, said.incarnation, f"node-{sender}:7001", "")
        return True

    def _proves(self, sender: NodeId, said: Hello) -> bool:
        """Whether the process at the address that this one dials shows that the hello is its own."""
        if self.dialled.get(sender) != said.incarnation:
            return False
        listener = self.world.replicas[sender]
        return listener.hello == said and listener.refusal_of(self.node, self.hello) is None  # else it says nothing

    def _believe(self, sender: NodeId, said: Hello) -> None:
        """The node at the address that this one dials has shown that the hello is its own."""
        self.world.witness.believes((self.node, self.life), (sender, said.incarnation), said.boot, said.run)
        self.believed[sender] = said
        self.refused_hellos.believed(sender)
        self.met[sender, said.incarnation] = Met(said.boot, said.run)
        self._input(link_events.link_opened, self.state, sender, said.incarnation, CLUSTER_VERSION, said.start)

    def dial(self, nodes: Mapping[NodeId, str]) -> None:
        """Dials exactly these nodes from now on: each with the disk that is expected there."""
        world, before = self.world, self.dialled
        self.dialled = dict(nodes)
        self.refused_hellos.keep(nodes)
        for peer, said in list(self.greeted.items()):
            if self.state.core.state.has_removed(NOBODY, said.incarnation):
                self.link_closed(peer)
        for peer in before:
            if peer not in nodes:
                world.after(self.random.randint(0, CLOSED_US), world.replicas[peer].link_closed, self.node)
        for peer, disk in nodes.items():
            if before.get(peer) != disk:
                world.after(self.random.randint(0, DIALLED_US), self._reached, self.life, peer, disk)

    def _reached(self, life: int, peer: NodeId, disk: str) -> None:
        """The connection to a node that is dialled since a moment is up, unless one of the two ends is down."""
        world, other = self.world, self.world.replicas[peer]
        if self.life != life or self.core is None or other.core is None or self.dialled.get(peer) != disk:
            return
        if world.replicas[self.node] is self and not world.dials.is_down(self.node, peer):
            if other.greeted.get(self.node) == self.hello or other.greet(self.node, self.hello):
                self.link_dialled(peer)
                if world.links.is_up(self.node, peer):
                    self.bulk_opened(peer)
        said = self.greeted.get(peer)
        if said is not None and said.incarnation == disk and self.believed.get(peer) != said:
            self._believe(peer, said)
        if peer in self.unproved and other.hello.incarnation == disk:
            self.unproved.discard(peer)
            other.bulk_believed(self.node)

    def link_closed(self, peer: NodeId) -> None:
        """The connection of that peer closed: the next one begins with its hello."""
        self.greeted.pop(peer, None)
        self.strangers.pop(peer, None)
        if self.believed.pop(peer, None) is not None and self.core is not None:
            self._input(link_events.link_closed, self.state, peer)

    def link_dialled(self, peer: NodeId) -> None:
        """This node's consensus link to that peer is up."""
        if self.core is not None and peer in self.dialled:
            self._input(partial(link_events.link_dialled, self.state, peer, is_bulk=False))

    def link_refused(self, peer: NodeId) -> None:
        """No process listens at that peer."""
        if self.core is not None and peer in self.dialled:
            self._input(link_events.link_refused, self.state, peer)

    def bulk_opened(self, peer: NodeId) -> None:
        """This node's bulk link to that peer is up."""
        if self.core is not None and peer in self.dialled:
            self._input(partial(link_events.link_dialled, self.state, peer, is_bulk=True))

    def bulk_believed(self, peer: NodeId) -> None:
        """That peer believes this node's bulk link now."""
        if self.core is not None and peer in self.dialled:
            self._input(link_events.bulk_link_believed, self.state, peer)

    def bulk_closed(self, life: int, peer: NodeId) -> None:
        """This node's bulk link to that peer closed."""
        if life == self.life and self.core is not None and peer in self.dialled:
            self._input(link_events.bulk_link_closed, self.state, peer)

    def deliver(self, disk: str, message: Message) -> None:
        """A message of a peer with that disk arrives; messages that come before the loop runs are taken together."""
        if message.sender in self.believed:
            self.heard_us[message.sender] = self.world.now_us
        if self._inbox is None:
            inbox = [(disk, message)]
            self._input(self._take, inbox)
            self._inbox = inbox
        else:
            self._inbox.append((disk, message))

    def _take(self, inbox: list[tuple[str, Message]]) -> None:
        if self._inbox is inbox:
            self._inbox = None
        link_events.take_messages(self.state, inbox)

    def take_bulk(self, peer: NodeId, data: bytes) -> None:
        """A frame of the bulk link arrives."""
        if self.core is not None:
            self._input(self._take_bulk, peer, data)

    def _take_bulk(self, peer: NodeId, data: bytes) -> None:
        frames = FrameDecoder().feed(data)
        disk = self.world.replicas[peer].hello.incarnation
        if self.dialled.get(peer) != disk:  # its hello is not proved
            self.unproved.add(peer)
            frames = [frame for frame in frames if frame.kind in (FRAME_FORWARD, FRAME_READ)]
        if not self.state.life.is_over:
            for frame in frames:
                if frame.kind == FRAME_POINTS:
                    self.world.witness.point_told(self.node, peer, decode_points(frame)[2])
        link_events.take_frames(self.state, peer, disk, frames)

    # -- time --------------------------------------------------------------------------------------------------------

    def ran(self) -> None:
        """The loop has run: traces the core's state, and sets the next tick. Raises the first breach of a property."""
        world, core = self.world, self.core
        if world.breach is not None:
            raise world.breach
        if core is None:
            return
        state = core.state
        log = state.log
        shown = (state.role, state.term, state.vote, log.last, log.persisted, log.committed, log.applied)
        if shown != self._shown:
            self._shown = shown
            world.trace.state(world.now_us, self.node, core)
        self._set_timer()

    def _set_timer(self) -> None:
        core, replica = self.core, self.replica
        if core is None or replica is None or self._early is not None:
            return
        world, state = self.world, replica.state
        now_us = world.now_us
        due_us = min(self.clock.due_us(core.next_deadline_ms()), self._housekept_us + int(HOUSEKEEPING_S * 1e6) + 1_000)
        if state.reads.rounds.waiting or state.writes.pending.queue or state.applier.waiting:
            due_us = min(due_us, now_us + TICK_US)
        if due_us <= now_us:
            due_us = now_us + 1
        if self._timer_us <= now_us or due_us < self._timer_us:
            self._timer_us = due_us
            world.at(due_us, self._timer, self.life, due_us)

    def _timer(self, life: int, due_us: int) -> None:
        loop = self.loop
        if life != self.life or loop is None or self.is_paused or self.is_behind or due_us != self._timer_us:
            return
        self._timer_us = 0
        loop.run_in_process(self._tick)
        if self.life == life:
            self.ran()

    def _tick(self) -> None:
        assert self.replica is not None
        now_us = self.world.now_us
        if now_us - self._housekept_us >= HOUSEKEEPING_S * 1e6:
            self._housekept_us = now_us
            for each in self.refused_hellos.due(now_us / 1_000_000):
                link_events.hello_refused(self.state, *each)
        self.replica.tick(self.now(), self.clock.monotonic_us(now_us) / 1e6)

    def sends(self, message: Message) -> None:
        """A message leaves."""
        self._check(self.world.send, message)
        self.may_crash(self.sending)
