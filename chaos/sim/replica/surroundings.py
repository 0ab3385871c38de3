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

    def is_up(self, sender: NodeId, to: NodeId) -> bool: ...
    def send(self, sender: NodeId, to: NodeId, frame: bytes) -> bool: ...


class ConsensusLinks(Protocol):
    """The consensus connections between nodes (`raftlog.chaos.sim.network.dials`)."""

    def is_down(self, sender: NodeId, to: NodeId) -> bool: ...


class World(Timeline, Protocol):
    """What a node and its process need of the world around them."""

    swarm: Swarm
    trace: Trace
    witness: Witness
    settings: Settings
    yours: Host | None
    machine_class: type[StateMachine]
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
    def send(self) -> Callable[[Message], None]: ...
    def random_of(self, purpose: str) -> Random: ...
    def sync_us(self) -> int: ...
    def may_crash(self, step: str, weight: int = 1) -> None: ...
    def step_cuts_power(self) -> bool: ...
    def count(self, what: str) -> None: ...
    def sometimes(self, what: str) -> None: ...
    def note(self, node: NodeId, *words: object) -> None: ...
    def started(self, replica: SeenNode, notices: Sequence[str]) -> None: ...
    def refused(self, replica: SeenNode, reason: str) -> None: ...
    def crashed(self, replica: SeenNode, why: str) -> None: ...
    def state_replaced(self, replica: SeenNode) -> None: ...
    def fenced(self, replica: SeenNode, error: object) -> None: ...
    def took(self, replica: SeenNode, ready: Ready) -> None: ...
    def applied(self, replica: SeenNode, entry: Entry, command: LogEntry, effects: Effects) -> None: ...
    def answered(self, node: NodeId, index: int, done: Callable[[Any], None], answer: object) -> None: ...
    def read_done(self, node: NodeId, floor: int, index: int) -> None: ...


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
    def machine(self) -> Any: ...
    @property
    def mark(self) -> Mark: ...


class OtherNode(SeenNode, Protocol):
    """One node, as another one that connects to it sees it."""

    greeted: dict[NodeId, Hello]

    def refusal_of(self, sender: NodeId, said: Hello) -> str | None: ...
    def greet(self, sender: NodeId, said: Hello) -> bool: ...
    def link_closed(self, peer: NodeId) -> None: ...
    def bulk_believed(self, peer: NodeId) -> None: ...


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
    def snapshot_index(self) -> int: ...
    @property
    def applies_slowly(self) -> bool: ...
    def must_apply_later(self) -> bool: ...
    def is_this_life(self, disk: object) -> bool: ...
    def crash(self, why: str, *, power: bool = True) -> None: ...
    def may_crash(self, step: str, weight: int = 1) -> None: ...
    def posted_failed(self, error: Exception) -> None: ...
    def dial(self, nodes: Mapping[NodeId, str]) -> None: ...
    def sends(self, message: Message) -> None: ...
    def stepped(self, core: RaftCore) -> None: ...
    def read_began(self, context: int) -> None: ...
    def took(self, ready: Ready) -> None: ...
    def applied(self, entry: Entry, command: LogEntry, effects: Effects) -> None: ...
    def trims(self, before: int) -> None: ...
    def restored(self, mark: Mark) -> None: ...
    def installed(self, mark: Mark, before: tuple[int, int], had: bool, configuration: Configuration) -> None: ...
    def saved(self, mark: Mark, data: bytes) -> None: ...
    def compacted(self, mark: Mark) -> None: ...
    def looks_at_others(self) -> None: ...
