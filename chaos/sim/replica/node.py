"""Runs one node of a world: the server's own replica on a simulated loop, disk and network.

`raftlog.cluster.replica` is what serves clients, follows peers and writes files; this module is the process around it,
as `raftlog.cluster.node.host` is on a real machine. `life` counts starts and ends: an event of an earlier life is void.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from raftlog.chaos.sim.disk.disk import DiskRefused, SimDisk
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.loop import SimLoop
from raftlog.chaos.sim.ground.stage import ProcessEnded
from raftlog.chaos.sim.replica.disk import NodeDisk
from raftlog.chaos.sim.replica.hello import Hello
from raftlog.chaos.sim.replica.life import Surroundings
from raftlog.chaos.sim.replica.links import NodeLinks
from raftlog.chaos.sim.replica.serving import Serving
from raftlog.chaos.sim.replica.stand_ins import SimLogger, SimMetrics
from raftlog.chaos.sim.replica.watched import WatchedApplier, WatchedCore, WatchedReplica
from raftlog.chaos.sim.replica.watching import LOGGED
from raftlog.cluster.files.errors import DiskFenced
from raftlog.cluster.files.folder import DiskIdentity, recovered_from
from raftlog.cluster.replica.opening import ReplicaParts
from raftlog.cluster.replica.parts import link_events
from raftlog.cluster.replica.replica import HOUSEKEEPING_S, Replica
from raftlog.cluster.replica.state import ReplicaEnd
from raftlog.cluster.replica.upkeep import snapshots
from raftlog.raft.codec.checks import INDEX_MAX
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.types import NodeId, Now
from raftlog.raft.wal.opening import OpenedShard

Input = Callable[[RaftCore, Now], object]
"""Something to ask a core."""
TICK_US: Final = 5_000
"""How often a process ticks where requests wait, in microseconds; else it ticks when something is due."""

STOP_S: Final = 5.0
"""How long a process that ends waits for what it still writes, in seconds."""


class Node(Serving):
    """One node of a world."""

    def __init__(self, world: Surroundings, node: NodeId, disk: SimDisk, copy: str = "") -> None:
        super().__init__(world, node, disk, copy)
        self._core_random = world.random_of(f"core {node}{copy}")
        self._run_random = world.random_of(f"run {node}{copy}")
        self.metrics: Any = SimMetrics(lambda: world.count("forwards"))

    def twin(self, disk: SimDisk, name: str) -> Node:
        """Another process of this node, on a copy of its disk."""
        return Node(self.world, self.node, disk, name)

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
        except DiskFenced as error:
            self.crash(f"cannot open: {error}", power=False)
            return
        self.loop = SimLoop(world, self, self.random)
        self._early = []
        self.loop.run_in_process(self._begin, opened)

    def _begin(self, opened: OpenedShard) -> None:
        world, disk = self.world, self.disk
        run = self._run_random.randrange(1, INDEX_MAX)
        tail = opened.log.tail[-world.swarm.tail_kept :] if world.swarm.tail_kept else ()
        snapshot: Any = None  # as `raftlog.cluster.files.snapshot_files.RecoveredSnapshot`
        if (stored := opened.snapshot) is not None:
            snapshot = SimpleNamespace(stored=stored, mark=stored.mark, chunks=partial(disk.chunks, stored))
        identity = DiskIdentity(disk.log.log_id.hex(), self.node, disk.incarnation)
        recovered = replace(recovered_from(identity, opened, snapshot), tail=tail)
        self.hello = Hello(disk.incarnation, opened.hard_state.boot, recovered.start(run))
        own: Any = NodeDisk(self, 0 if stored is None else stored.size)
        logger: Any = SimLogger(self._logged, LOGGED)
        replica = WatchedReplica(
            world.settings,
            own,
            recovered,
            process=self,
            links=NodeLinks(self),
            run=run,
            logger=logger,
            making=ReplicaParts(
                core=WatchedCore,
                applier=WatchedApplier,
                machine=world.machine_class,
                random=self._core_random,
            ),
        )
        core, applier = replica.state.core, replica.state.applier
        assert isinstance(core, WatchedCore)
        assert isinstance(applier, WatchedApplier)
        core.node = applier.node = replica.node = self
        self.replica = replica
        self._follow_yours()
        self.shown.point = applier.machine.point
        world.started(self, opened.notices)
        replica.spawn(self._open(replica))

    async def _open(self, replica: Replica) -> None:
        await replica.begin()
        replica.start()
        assert self.loop is not None
        early, self._early = self._early, None
        for callback, arguments in early or ():
            self.loop.call_soon(callback, *arguments)

    def broken(self, error: BaseException) -> None:
        """A callback of the loop raised that. Raises it, unless the process died in it."""
        if not isinstance(error, ProcessEnded):
            raise error

    # -- what the replica asks of its process ------------------------------------------------------------------------

    def call_soon(self, run: Callable[[], None]) -> None:
        if self.loop is not None:
            self.loop.call_soon(run)

    def call_later(self, delay_s: float, run: Callable[[], None]) -> None:
        if self.loop is not None:
            self.loop.call_later(delay_s, run)

    def tick_soon(self) -> None:
        """`ran` sets the next tick after every run of the loop."""

    def replica_ended(self, replica: Replica) -> None:
        world, ending = self.world, replica.state.life.ending
        match ending:
            case ReplicaEnd.FENCED:
                world.sometimes("a node fences itself")
            case ReplicaEnd.DIVERGED:
                self._check(world.fenced, self)
            case ReplicaEnd.DAMAGED:
                self._check(self._check_end_for_damage)
            case _ if world.breach is None:
                self._breach(Failure("a replica does not fail", f"node {self.node}: {ending}"))
        assert self.loop is not None
        self.loop.create_task(self._end(replica, ending))

    async def _end(self, replica: Replica, ending: ReplicaEnd | None) -> None:
        if ending is not ReplicaEnd.FENCED:
            await replica.close(STOP_S)
        if ending is ReplicaEnd.DAMAGED:
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
            self.clockwork.went_on_us = self.world.now_us
            self.loop.go_on()
            self._set_timer()

    def save_snapshot(self) -> None:
        if self.core is not None and not self.is_paused and not self.corrupted:
            self._input(self._save)

    def _save(self) -> None:
        if self.applied_index > self.state.snapshots.index:
            snapshots.save(self.state)

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
        if shown != self.shown.state:
            self.shown.state = shown
            world.trace.state(world.now_us, self.node, core)
        self._set_timer()

    def _set_timer(self) -> None:
        core, replica = self.core, self.replica
        if core is None or replica is None or self._early is not None or replica.state.life.is_over:
            return  # the host cancels its ticker when a replica ends
        world, state = self.world, replica.state
        now_us = world.now_us
        due_us = min(
            self.clock.due_us(core.next_deadline_ms()), self.clockwork.housekept_us + int(HOUSEKEEPING_S * 1e6) + 1_000
        )
        if state.reads.rounds.waiting or state.writes.pending.queue or state.applier.waiting:
            due_us = min(due_us, now_us + TICK_US)
        if due_us <= now_us:
            due_us = now_us + 1
        if self.clockwork.timer_us <= now_us or due_us < self.clockwork.timer_us:
            self.clockwork.timer_us = due_us
            world.at(due_us, self._timer, self.life, due_us)

    def _timer(self, life: int, due_us: int) -> None:
        loop = self.loop
        if life != self.life or loop is None or self.is_paused or self.is_behind or due_us != self.clockwork.timer_us:
            return
        self.clockwork.timer_us = 0
        loop.run_in_process(self._tick)
        if self.life == life:
            self.ran()

    def _tick(self) -> None:
        assert self.replica is not None
        now_us = self.world.now_us
        if now_us - self.clockwork.housekept_us >= HOUSEKEEPING_S * 1e6:
            self.clockwork.housekept_us = now_us
            for each in self.hellos.refused.due(now_us / 1_000_000):
                link_events.hello_refused(self.state, *each)
        self.replica.tick(self.now(), self.clock.monotonic_us(now_us) / 1e6)
