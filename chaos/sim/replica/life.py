"""Holds everything about one node of a world and its process: what others see of it, and how breaches are noted.

`raftlog.chaos.sim.replica.node` starts and ends the process. The node's disk outlives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.ground.clocks import Clock
from raftlog.chaos.sim.ground.loop import SimLoop
from raftlog.chaos.sim.replica.disk import NodeDisk
from raftlog.chaos.sim.replica.hello import NOBODY_YET, Hello
from raftlog.chaos.sim.replica.stand_ins import SimMetrics
from raftlog.chaos.sim.replica.surroundings import World
from raftlog.chaos.sim.replica.watched import WatchedReplica
from raftlog.cluster.peers.refused_hellos import RefusedHellos
from raftlog.cluster.protocol.disk_reports import Why
from raftlog.cluster.replica.state import ReplicaState
from raftlog.raft.configuration import Member
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.hello import Met
from raftlog.raft.messages import Message
from raftlog.raft.types import GENESIS, NOBODY, Mark, NodeId, Now


class Life:
    """One node, and its process while it runs."""

    def __init__(self, world: World, node: NodeId, disk: SimDisk, copy: str = "") -> None:
        """`copy` names a process beside another one of that node, for chance and lives of its own."""
        self.world = world
        self.node = node
        self.disk = disk
        self.random = world.random_of(f"replica {node}{copy}")
        self.scrub_random = world.random_of(f"scrub {node}{copy}")
        self.core_random = world.random_of(f"core {node}{copy}")
        self.run_random = world.random_of(f"run {node}{copy}")
        drift = self.random.randint(-world.swarm.drift, world.swarm.drift)
        self.clock = Clock(rate=1_000 + drift, wall_ms=1_700_000_000_000 + self.random.randint(-1_000, 1_000))
        self.life = 0
        self.requests = 0  # of all its processes
        self.is_behind = False  # stands still: another process of this node is reached in its place
        self.apply_us = world.swarm.apply_us * world.random_of(f"apply {node}{copy}").getrandbits(1)
        self.is_paused = False
        self.went_on_us = 0  # when it last went on after a pause
        self.is_retired = False  # stopped for good: it is no member any more
        self.is_held = False  # kept down while others have to go on without it
        self.metrics: Any = SimMetrics(lambda: world.count("forwards"))
        self.loop: SimLoop | None = None
        self._forget()

    def _forget(self) -> None:
        self.core: RaftCore | None = None
        self.replica: WatchedReplica | None = None
        self._files: NodeDisk | None = None
        self.hello = NOBODY_YET
        self.greeted: dict[NodeId, Hello] = {}  # the newest hello of each connected peer that was taken
        self.met: dict[tuple[NodeId, str], Met] = {}  # the newest process of each disk
        self.dialled: dict[NodeId, str] = {}  # the nodes that it dials, with the disks that it expects there
        self.believed: dict[NodeId, Hello] = {}  # of `greeted`, those whose promises and answers count
        self.strangers: dict[NodeId, Member] = {}  # of `greeted`, those that no configuration here names
        self.unproved: set[NodeId] = set()  # peers whose reports were not taken: their hello was not proved
        self.refused_hellos = RefusedHellos()
        self.heard_us: dict[NodeId, int] = {}
        self.asked: dict[int, str] = {}  # what clients asked this process and it has not answered, by number
        self.sending = "sending"  # why messages leave now, for the names of crashes
        self.corrupted = 0  # the state in memory was damaged after this index; 0: it was not
        self._early: list[tuple[Callable[..., object], tuple[Any, ...]]] | None = None  # before the replica began
        self._inbox: list[tuple[str, Message]] | None = None
        self._timer_us = self._housekept_us = self._apply_due_us = 0
        self._shown: tuple[Any, ...] = ()
        self._point: tuple[int, bytes] | None = None
        self._yours: Any = None
        self._ill: dict[NodeId, int] = {}
        self._why = ""

    # -- what others see of it ---------------------------------------------------------------------------------------

    @property
    def state(self) -> ReplicaState:
        """The server's state of a process that runs."""
        assert self.replica is not None, f"node {self.node} is down"
        return self.replica.state

    @property
    def machine(self) -> Any:
        """Its state machine; None while it is down."""
        if self.replica is None:
            return None
        return self._yours or self.replica.state.applier.machine

    @property
    def mark(self) -> Mark:
        """The end of the entry that it applied last."""
        return GENESIS if self.replica is None else self.replica.state.applier.mark

    @property
    def applied_index(self) -> int:
        """Up to here the state machine has everything."""
        return self.mark.index

    @property
    def snapshot_index(self) -> int:
        """Where its newest snapshot ends."""
        return 0 if self.replica is None else self.replica.state.snapshots.index

    @property
    def is_saving(self) -> bool:
        """Whether its own state is being saved."""
        return self.replica is not None and self.replica.state.snapshots.is_saving

    @property
    def has_space(self) -> bool:
        """Whether its disk has space, as far as it knows."""
        return self.replica is None or self.replica.state.syncer.has_space

    @property
    def is_marked(self) -> bool:
        """Whether its disk has a durable mark behind the newest entry."""
        return self.core is not None and self.disk.is_marked

    def pause_left_us(self) -> int:
        """How long this process hands over no more because its disk is slow."""
        view, now = self.state.disks, self.now()
        times_ms = [at_ms for handover, at_ms in view.last_ms.items() if handover.why is Why.SLOW]
        until_ms = max(times_ms, default=-view.rules.slow_pause_ms) + view.rules.slow_pause_ms
        return max(0, 1_000 * (until_ms - now.monotonic_ms))

    @property
    def leader(self) -> NodeId:
        """The leader, as far as this process believes; 0 while it is down."""
        return self.core.state.leader if self.core is not None else NOBODY

    def is_answering(self, peer: NodeId) -> bool:
        """Whether that peer was heard lately."""
        within_us = 500 * self.world.swarm.options.election_timeout_min_ms
        return self.world.now_us - self.heard_us.get(peer, -within_us) < within_us

    @property
    def wall_ms(self) -> int:
        """What this node's wall clock shows when its monotonic one shows 0."""
        return self.clock.wall_ms

    @wall_ms.setter
    def wall_ms(self, wall_ms: int) -> None:
        self.clock.wall_ms = wall_ms

    def now(self) -> Now:
        """This node's clocks."""
        return self.clock.read(self.world.now_us)

    def read_began(self, context: int) -> None:
        """The core began a round of heartbeats for reads."""
        self.world.witness.read_began(node=self.node, context=context)

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
