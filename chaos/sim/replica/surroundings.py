"""Defines what a simulated process needs of its world, and what its parts need of their node.

`raftlog.chaos.sim.world.world.World` and `raftlog.chaos.sim.replica.node.Node` are these protocols. The rooms below
them use the protocols as types, so that every import leads downwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.ground.clocks import Clock
from raftlog.chaos.sim.ground.loop import SimLoop, Timeline
from raftlog.chaos.sim.ground.machines import Host
from raftlog.chaos.sim.ground.swarm import Swarm
from raftlog.chaos.sim.ground.trace import Trace
from raftlog.chaos.sim.invariants import Witness
from raftlog.chaos.sim.replica.hello import Hello
from raftlog.cluster.config.settings import Settings
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.messages import Message
from raftlog.raft.ready import Ready
from raftlog.raft.types import Entry, Mark, NodeId
from raftlog.statemachine.commands import LogEntry
from raftlog.statemachine.effects import Effects
from raftlog.statemachine.machine import StateMachine


class BulkLinks(Protocol):
    """The bulk connections between nodes (`raftlog.chaos.sim.network.links`)."""

    def is_up(self, sender: NodeId, to: NodeId) -> bool:
        """Whether that connection can be written to."""

    def send(self, sender: NodeId, to: NodeId, frame: bytes) -> bool:
        """Writes a frame; False if there is no connection."""


class ConsensusLinks(Protocol):
    """The consensus connections between nodes (`raftlog.chaos.sim.network.dials`)."""

    def is_down(self, sender: NodeId, to: NodeId) -> bool:
        """Whether a message that `sender` sends there is lost because no connection is up."""


class World(Timeline, Protocol):
    """What a node and its process need of the world around them."""

    swarm: Swarm
    trace: Trace
    witness: Witness
    settings: Settings
    yours: Host | None
    machine_class: type[StateMachine]
    knows: dict[NodeId, int]
    is_healed: bool
    breach: Exception | None
    acknowledged: int
    point_entries: int
    scrub_us: int

    @property
    def replicas(self) -> Mapping[NodeId, OtherNode]:
        """All nodes."""

    @property
    def links(self) -> BulkLinks:
        """The bulk connections."""

    @property
    def dials(self) -> ConsensusLinks:
        """The consensus connections."""

    @property
    def send(self) -> Callable[[Message], None]:
        """Sends a consensus message."""

    def random_of(self, purpose: str) -> Random:
        """A source of chance for one purpose."""

    def sync_us(self) -> int:
        """How long one write with its sync takes."""

    def may_crash(self, step: str, weight: int = 1) -> None:
        """Raises ProcessEnded now and then."""

    def step_cuts_power(self) -> bool:
        """Whether a crash at a step is a power cut."""

    def count(self, what: str) -> None:
        """Adds one to a counter of the run."""

    def sometimes(self, what: str) -> None:
        """Notes that the world reached a state of `SOMETIMES`."""

    def note(self, node: NodeId, *words: object) -> None:
        """Writes one line of the trace."""

    def started(self, replica: SeenNode, notices: Sequence[str]) -> None:
        """A process began; `notices` list the repairs of its recovery."""

    def refused(self, replica: SeenNode, reason: str) -> None:
        """A process did not start, because its disk could not be opened."""

    def crashed(self, replica: SeenNode, why: str) -> None:
        """A process died."""

    def state_replaced(self, replica: SeenNode) -> None:
        """The state of that node is gone, or comes from its disk or from a leader."""

    def fenced(self, replica: SeenNode, error: object) -> None:
        """A process found that its state is wrong, and ends. Raises Failure where the state is right."""

    def took(self, replica: SeenNode, ready: Ready) -> None:
        """A replica took a Ready, and carries it out next."""

    def applied(self, replica: SeenNode, entry: Entry, command: LogEntry, effects: Effects) -> None:
        """A state machine applied an entry."""

    def answered(self, node: NodeId, index: int, done: Callable[[Any], None], answer: object) -> None:
        """A node answers a client."""

    def read_done(self, node: NodeId, floor: int, index: int) -> None:
        """A node may answer a read as of `index`."""


class SeenNode(Protocol):
    """One node, as its world sees it."""

    node: NodeId
    disk: SimDisk
    clock: Clock
    hello: Hello
    life: int
    core: RaftCore | None
    corrupted: int

    @property
    def machine(self) -> Any:
        """Its state machine; None while it is down."""

    @property
    def mark(self) -> Mark:
        """The end of the entry that it applied last."""


class OtherNode(SeenNode, Protocol):
    """One node, as another one that connects to it sees it."""

    greeted: dict[NodeId, Hello]

    def refusal_of(self, sender: NodeId, said: Hello) -> str | None:
        """Why this process does not take what a process of `sender` says that said so of itself; None: it does."""

    def greet(self, sender: NodeId, said: Hello) -> bool:
        """A process of `sender` connected and said so of itself; whether it is taken."""

    def link_closed(self, peer: NodeId) -> None:
        """The connection of that peer closed."""

    def bulk_believed(self, peer: NodeId) -> None:
        """That peer believes this node's bulk link now."""


class SimNode(SeenNode, Protocol):
    """One node, as the parts of its process see it."""

    loop: SimLoop | None
    greeted: dict[NodeId, Hello]
    dialled: dict[NodeId, str]
    strangers: dict[NodeId, Member]
    heard_us: dict[NodeId, int]
    random: Random
    scrub_random: Random
    is_paused: bool
    is_behind: bool
    sending: str

    @property
    def world(self) -> World:
        """The world around it."""

    @property
    def snapshot_index(self) -> int:
        """Where its newest snapshot ends."""

    @property
    def applies_slowly(self) -> bool:
        """Whether it applies one entry at a time."""

    def must_apply_later(self) -> bool:
        """Whether the entry before is still being applied."""

    def is_this_life(self, disk: object) -> bool:
        """Whether that disk is the one of the process that runs."""

    def crash(self, why: str, *, power: bool = True) -> None:
        """Ends the process as a crash does."""

    def may_crash(self, step: str, weight: int = 1) -> None:
        """Ends the process here now and then. Raises ProcessEnded."""

    def posted_failed(self, error: Exception) -> None:
        """A job of the disk failed, and no code waits for its result."""

    def dial(self, nodes: Mapping[NodeId, str]) -> None:
        """Dials exactly these nodes from now on."""

    def sends(self, message: Message) -> None:
        """A consensus message leaves."""

    def stepped(self, core: RaftCore) -> None:
        """The core took an input."""

    def read_began(self, context: int) -> None:
        """The core began a round of heartbeats for reads."""

    def took(self, ready: Ready) -> None:
        """The replica took a Ready."""

    def applied(self, entry: Entry, command: LogEntry, effects: Effects) -> None:
        """The state machine applied an entry."""

    def trims(self, before: int) -> None:
        """The retention policy asks for a trim."""

    def restored(self, mark: Mark) -> None:
        """A leader's snapshot replaced the state."""

    def installed(self, mark: Mark, before: tuple[int, int], had: bool, configuration: Configuration) -> None:
        """The core took a leader's snapshot."""

    def saved(self, mark: Mark, data: bytes) -> None:
        """A snapshot was saved under its final name."""

    def compacted(self, mark: Mark) -> None:
        """The core's log may begin after `mark`."""

    def looks_at_others(self) -> None:
        """The server asks for a digest point, to see whether all other nodes are healthy."""
