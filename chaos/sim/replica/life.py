"""Holds one node of a world and its process: what others see of it, how it ends, and how breaches are noted.

`raftlog.chaos.sim.replica.node` starts the process. The node's disk outlives it. `life` counts starts and ends: an
event of an earlier life is void.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.ground.clocks import Clock
from raftlog.chaos.sim.ground.loop import SimLoop
from raftlog.chaos.sim.ground.machines import Host
from raftlog.chaos.sim.ground.stage import ProcessEnded, Stage
from raftlog.chaos.sim.invariants import Witness
from raftlog.chaos.sim.replica.hello import NOBODY_YET, Hellos
from raftlog.cluster.config.settings import Settings
from raftlog.cluster.files.errors import DiskFenced
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.replica.state import ReplicaState
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.messages import Message
from raftlog.raft.ready import Ready
from raftlog.raft.types import GENESIS, NOBODY, Entry, Mark, NodeId, Now
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


class Surroundings(Stage):
    """What a node has around it, and reports to (`raftlog.chaos.sim.world.world.World` does all of it)."""

    witness: Witness
    settings: Settings
    yours: Host | None
    machine_class: type[StateMachine]
    acknowledged: int
    replicas: Mapping[NodeId, Any]
    links: BulkLinks
    dials: ConsensusLinks
    send: Callable[[Message], None]

    def started(self, replica: Life, notices: Sequence[str]) -> None: ...
    def refused(self, replica: Life, reason: str) -> None: ...
    def crashed(self, replica: Life, why: str) -> None: ...
    def state_replaced(self, replica: Life) -> None: ...
    def fenced(self, replica: Life) -> None: ...
    def took(self, replica: Life, ready: Ready) -> None: ...
    def applied(self, replica: Life, entry: Entry, command: LogEntry, effects: Effects) -> None: ...
    def answered(self, node: NodeId, index: int, done: Callable[[Any], None], answer: object) -> None: ...
    def read_done(self, node: NodeId, floor: int, index: int) -> None: ...


@dataclass(slots=True)
class Clockwork:
    """When what happens next in a process, in world time."""

    timer_us: int = 0
    housekept_us: int = 0
    apply_due_us: int = 0
    went_on_us: int = 0  # when it last went on after a pause


@dataclass(slots=True)
class ShownState:
    """What the world was shown of a process."""

    state: tuple[Any, ...] = ()
    point: tuple[int, bytes] | None = None  # the newest digest point
    yours: Any = None  # the state machine of your own
    ill: Mapping[NodeId, int] | None = None  # the others that were down or healing at the newest look, with their lives


class Life:
    """One node, and its process while it runs."""

    def __init__(self, world: Surroundings, node: NodeId, disk: SimDisk, copy: str = "") -> None:
        """`copy` names a process beside another one of that node, for chance and lives of its own."""
        self.world = world
        self.node = node
        self.disk = disk
        self.random = world.random_of(f"replica {node}{copy}")
        self.scrub_random = world.random_of(f"scrub {node}{copy}")
        drift = self.random.randint(-world.swarm.drift, world.swarm.drift)
        self.clock = Clock(rate=1_000 + drift, wall_ms=1_700_000_000_000 + self.random.randint(-1_000, 1_000))
        self.life = 0
        self.is_behind = False  # stands still: another process of this node is reached in its place
        self.is_paused = False
        self.is_retired = False  # stopped for good: it is no member any more
        self.is_held = False  # kept down while others have to go on without it
        self.loop: SimLoop | None = None
        self._forget()

    def _forget(self) -> None:
        """Whatever a process knows is gone with it."""
        self.replica: Replica | None = None
        self.hello = NOBODY_YET
        self.hellos = Hellos()
        self.corrupted = 0  # the state in memory was damaged after this index; 0: it was not
        self._early: list[tuple[Callable[..., object], tuple[Any, ...]]] | None = None  # before the replica began
        self._inbox: list[tuple[str, Message]] | None = None
        self.clockwork = Clockwork()
        self.shown = ShownState()

    # -- what others see of it ---------------------------------------------------------------------------------------

    @property
    def core(self) -> RaftCore | None:
        return None if self.replica is None else self.replica.state.core

    @property
    def state(self) -> ReplicaState:
        assert self.replica is not None, f"node {self.node} is down"
        return self.replica.state

    @property
    def machine(self) -> Any:
        """Its state machine; None while it is down."""
        if self.replica is None:
            return None
        return self.shown.yours or self.replica.state.applier.machine

    @property
    def mark(self) -> Mark:
        return GENESIS if self.replica is None else self.replica.state.applier.mark

    @property
    def applied_index(self) -> int:
        """Up to here the state machine has everything."""
        return self.mark.index

    @property
    def leader(self) -> NodeId:
        """The leader, as far as this process believes; 0 while it is down."""
        return self.core.state.leader if self.core is not None else NOBODY

    def now(self) -> Now:
        return self.clock.read(self.world.now_us)

    def _breach(self, error: Exception) -> None:
        """Notes the first breach of a rule: the server's own code may catch the exception."""
        if self.world.breach is None:
            self.world.breach = error
        raise error

    def _check(self, check: Callable[..., None], *arguments: Any, **named: Any) -> None:
        try:
            check(*arguments, **named)
        except Exception as error:
            self._breach(error)

    def _input(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._inbox = None
        if self._early is not None:
            self._early.append((callback, arguments))
        elif self.loop is not None:
            self.loop.call_soon(callback, *arguments)

    # -- how it ends -------------------------------------------------------------------------------------------------

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
        loop, replica, self.loop = self.loop, self.replica, None
        self._forget()
        if replica is not None:
            files: Any = replica.state.disk
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

    def posted_failed(self, error: Exception) -> None:
        """A job of the disk failed that nothing waits for: the disk is fenced then, and the next batch fails."""
        if not isinstance(error, DiskFenced):
            self.world.count(f"disk jobs not done: {type(error).__name__}")

    def is_this_life(self, disk: object) -> bool:
        """Whether that disk is the one of the process that runs."""
        return self.replica is not None and self.replica.state.disk is disk
