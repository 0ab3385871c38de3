"""Holds a seeded world: nodes under one virtual clock, a bad network, bad disks, and a witness of every step.

`raftlog.chaos.sim.seed.run` runs a world from its first fault to its last check. Every event goes to a trace; the
digest of the trace is equal for equal seeds, on every run and with every hash seed of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raftlog.chaos.judge.history import History
from raftlog.chaos.sim.disk.disk import SimDisk, first_entry
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.machines import Host, ShippedMachine, load_machine
from raftlog.chaos.sim.ground.outcome import Fault, Outcome
from raftlog.chaos.sim.ground.swarm import Swarm, quiet
from raftlog.chaos.sim.ground.trace import Trace
from raftlog.chaos.sim.invariants import Witness
from raftlog.chaos.sim.network.cluster import Cluster
from raftlog.chaos.sim.network.dials import Dials
from raftlog.chaos.sim.network.links import Links
from raftlog.chaos.sim.network.network import Network
from raftlog.chaos.sim.network.wires import Wires
from raftlog.chaos.sim.replica.answers import settings_of, url_of
from raftlog.chaos.sim.replica.life import Life
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.world.atlas import Atlas
from raftlog.chaos.sim.world.coverage import Coverage
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.state import IMPOSSIBLE
from raftlog.raft.events import BecameLeader, ConflictTruncated, Event, MessageIgnored
from raftlog.raft.ready import Ready
from raftlog.raft.types import Entry, NodeId
from raftlog.raft.wal.formats import LogIdentity
from raftlog.statemachine.commands import LogEntry, Operation
from raftlog.statemachine.effects import Effects

__all__ = ["Failure", "Fault", "Outcome", "World", "quiet"]

MACHINE = "raftlog.statemachine.machine:StateMachine"


class World(Cluster):
    """The nodes, and what clients saw."""

    links: Links
    dials: Dials

    def __init__(
        self,
        seed: int,
        swarm: Swarm | None = None,
        trace: Trace | None = None,
        *,
        skip: frozenset[int] = frozenset(),
        machine: str = MACHINE,
    ) -> None:
        super().__init__(seed, swarm, trace, skip)
        found = load_machine(machine)
        self.yours = found if isinstance(found, Host) else None
        self.machine_class = ShippedMachine if isinstance(found, Host) else found
        self.settings = settings_of(self, self.random_of("points").choice((5, 20, 50)))
        nodes = tuple(range(1, self.swarm.nodes + 1))
        for node in nodes:
            self.trace.state(0, node, None)
        members = tuple(Member(node, self.incarnation_of(node), f"node-{node}:7001", url_of(node)) for node in nodes)
        self.configuration = Configuration(members, nodes)
        self.first = first_entry(self.configuration)
        self.network_random = self.random_of("network")
        self.links = Links(self)
        self.dials = Dials(self, self.links)
        self.wires = Wires(self, self.dials)
        self.send = self.wires.send
        self.network = Network(self.network_random, self.swarm.network, self.wires.carry)
        self.disks = {node: self._formatted(node) for node in nodes}
        self.coverage = Coverage(self)
        self.witness = Witness(self.configuration, self.first)
        self.replicas = {node: Node(self, node, self.disks[node]) for node in nodes}
        self._atlas = Atlas(self.disks, self.configuration)
        self.clients: Any = None  # `raftlog.chaos.sim.clients.clients.Clients`
        self.acknowledged = 0  # the highest index that a client knows to be committed

    def _formatted(self, node: NodeId) -> SimDisk:
        """A new disk for that node; the first entry of the log names the first members."""
        return SimDisk(
            node,
            LogIdentity(self.seed.to_bytes(16, "big")),
            self.first,
            incarnation=self.incarnation_of(node),
            random=self.random_of(f"disk {node}"),
            segment_bytes=self.swarm.segment_bytes,
        )

    def newcomer(self) -> Member:
        node = max(self.replicas) + 1
        return Member(node, self.incarnation_of(node), f"node-{node}:7001", url_of(node))

    def start(self) -> None:
        """Every node starts."""
        for replica in self.replicas.values():
            replica.start()

    def join(self, member: Member) -> None:
        """A new machine with a new disk starts, and waits until a leader adds it as a member."""
        node = member.node
        self.disks[node] = self._formatted(node)
        self.replicas[node] = Node(self, node, self.disks[node])
        self.replicas[node].start()

    def retire(self, node: NodeId) -> None:
        """That node, no member any more, is stopped for good."""
        replica = self.replicas[node]
        if not replica.is_retired:
            replica.is_retired = True
            self.sometimes("a removed node was stopped")
            if replica.core is not None:
                replica.crash("retired", power=False)

    def incarnation_of(self, node: NodeId) -> str:
        """The incarnation that `raftlog format` would have made for that node."""
        return f"{node:032x}"

    # -- what the nodes use ------------------------------------------------------------------------------------

    def started(self, replica: Life, notices: Sequence[str]) -> None:
        """A process began; `notices` list the repairs of its recovery."""
        core = replica.core
        assert core is not None
        self.state_replaced(replica)
        self.trace.line(self.now_us, replica.node, "starts", core.state.term, core.state.log.last.index)
        self.witness.states.restored(replica.node, replica.mark, replica.machine)
        self.witness.started(core, replica.disk)
        self.coverage.started(replica, notices)
        self.links.started(replica.node)
        self.dials.started(replica.node)

    def refused(self, replica: Life, reason: str) -> None:
        """A disk refused to be opened: that node is down for good, and says why."""
        self.sometimes("a node stops loudly")
        if replica.disk.has_note:  # its note says that the state was wrong: the node is beyond repair
            self.atlas.hit(replica.node, "state", reason)
            self.sometimes("a wrong state cannot be rebuilt")
        self.trace.line(self.now_us, replica.node, "refuses", reason)
        self.trace.state(self.now_us, replica.node, None)

    def crashed(self, replica: Life, why: str) -> None:
        """A process died: its connections close, which its peers hear, and it comes back later."""
        self.count("crashes")
        self.coverage.crashed(replica.node, why)
        self.trace.line(self.now_us, replica.node, "crashes", why)
        self.trace.state(self.now_us, replica.node, None)
        self.witness.crashed(replica.node)
        self.links.ended(replica.node)
        self.dials.ended(replica.node)
        self.dials.closed(replica.node)
        if self.clients is not None:
            self.clients.ended(replica.node)
        self.after(self.crash_random.randint(1_000, self.swarm.down_max_us), self.restart, replica.node)

    def state_replaced(self, replica: Life) -> None:
        """That node has another state than before: none, or one from its disk or from a leader."""
        replica.corrupted = 0
        if not replica.disk.has_note:  # else its next start may be refused
            self.atlas.unsound.pop(replica.node, None)
        self.witness.diverged.began(replica.node)

    def fenced(self, replica: Life) -> None:
        """A process found that its state is wrong, and ends. Raises Failure where the state is right."""
        if not replica.corrupted:
            raise Failure("only a wrong state is fenced", f"node {replica.node}")
        self.sometimes("a wrong state was found out")
        if self.leading() is replica:
            self.sometimes("a leader's wrong state was found out")
        self.note(replica.node, "fenced", "")

    def restart(self, node: NodeId) -> None:
        replica = self.replicas[node]
        if replica.core is None and not (replica.disk.refused or replica.is_retired or replica.is_held):
            replica.start()

    def took(self, replica: Life, ready: Ready) -> None:
        """A replica took a Ready, and carries it out next."""
        self.coverage.ready(replica, ready)
        if ready.entries:
            self.witness.appended(replica.node, ready.entries)
        for event in ready.events:
            self.happened(replica.node, event)
        for read in ready.reads:
            self.witness.reads.ready(replica.node, read.context, read.index)

    def applied(self, replica: Life, entry: Entry, command: LogEntry, effects: Effects) -> None:
        self.witness.states.applied(replica.node, entry, effects, replica.machine, is_sound=not replica.corrupted)
        self.coverage.applied(entry, command.requests, effects)
        if self.clients is not None:
            self.clients.applied(entry, effects, replica.machine.oldest)

    def happened(self, node: NodeId, event: Event) -> None:
        self.coverage.happened(node, event)
        match event:
            case BecameLeader():
                self.count("leaders")
            case ConflictTruncated():
                self.count("conflicts cut")
            case MessageIgnored(reason=reason) if reason.startswith(IMPOSSIBLE) or "header CRC" in reason:
                raise Failure("messages between healthy nodes make sense", f"node {node}: {event}")
        self.trace.line(self.now_us, node, repr(event))

    # -- clients -----------------------------------------------------------------------------------------------

    def answered(self, node: NodeId, index: int, done: Callable[[Any], None], answer: object) -> None:
        """A node answers a client: from now on a client knows the log up to `index`."""
        self.acknowledged = max(self.acknowledged, index)
        self.witness.answers(node, index)
        self.trace.line(self.now_us, node, "answers", index)
        self.after(0, done, answer)

    def read_done(self, node: NodeId, floor: int, index: int) -> None:
        """A read may be answered as of `index`, `floor` was known outside before it began."""
        self.count("reads answered")
        if index < floor:
            raise Failure(
                "reads are linearizable", f"node {node}: read as of {index}, {floor} was known before it began"
            )

    def write(self) -> None:
        """Sends a write to the leader, in the name of no client."""
        replica = self.leading() or self.random.choice(list(self.replicas.values()))
        replica.ask([BlockRecord(Operation.APPEND, None, b"written")], plain=True)

    def leading(self) -> Node | None:
        """The node that believes itself the leader of the newest term."""
        newest, leading = 0, None
        for replica in self.replicas.values():
            state = replica.core.state if replica.core is not None else None
            if state is not None and state.leader == replica.node and state.term > newest:
                newest, leading = state.term, replica
        return leading

    def statuses(self) -> dict[NodeId, object]:
        """What each core says of itself; None of a node that is down."""
        return {node: replica.core and replica.core.status() for node, replica in self.replicas.items()}

    def end(self) -> None:
        """The world ends: no process goes on."""
        for replica in (*self.replicas.values(), *self.dials.behind.values()):
            replica.vanish()

    def outcome(self) -> Outcome:
        self.coverage.finished()
        stats = self.stats | {
            "checks": self.witness.checks,
            "messages sent": self.network.sent,
            "messages lost": self.network.lost,
            "messages doubled": self.network.doubled,
            "messages replayed": self.network.replayed,
            "nodes": self.swarm.nodes,
            "simulated ms": self.now_us // 1_000,
        }
        return Outcome(self.seed, self.trace.digest(), dict(sorted(stats.items())), tuple(self.faults), self.history)

    @property
    def history(self) -> History | None:
        """What the clients asked and were answered; None without clients."""
        return None if self.clients is None else self.clients.history

    # -- agreement ---------------------------------------------------------------------------------------------

    @property
    def atlas(self) -> Atlas:
        """Which disks may be hit, as of the configurations that may be in force now."""
        self._atlas.configured(*self.witness.known.possible())
        return self._atlas

    def has_agreed(self, least: int) -> bool:
        """Whether every member that can run does, and has applied one and the same index, at least `least`."""
        leading = self.leading()
        if leading is None or leading.core is None:
            return False
        is_partial = any(replica.is_held for replica in self.replicas.values())
        if not is_partial and leading.core.status().is_changing:
            return False  # a node that is held may be cut off from the leader, or down
        applied: list[int] = []
        configuration = leading.core.state.configuration
        for member in configuration.members:
            replica = self.replicas[member.node]
            if replica.disk.refused or replica.is_held or replica.is_retired:
                continue
            if replica.core is None or replica.core.state.recall.floor:
                return False
            log = replica.core.state.log
            if log.applied != log.last.index:
                return False
            applied.append(log.applied)
        return min(applied, default=0) == max(applied, default=0) >= least
