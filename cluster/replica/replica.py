"""Drives one replica, which is one Raft group on one node: takes inputs, runs turns, and answers.

The process around it calls it (`raftlog.cluster.node.host`), and has the sockets and the clock. A turn hands the
clients' requests to the core, carries out the core's Ready, applies a slice, and writes to each peer once. One sync is
under way at a time, while the next batch forms. `raftlog.raft.ready` gives the order in which a Ready is carried out.
The replica's data is `ReplicaState`; the modules in parts/ and upkeep/ are functions on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from raftlog.cluster.api.explain import NodeView
from raftlog.cluster.api.members import ClusterView, Members
from raftlog.cluster.api.status import Status
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.config.cluster_file import ClusterFile
from raftlog.cluster.config.settings import Settings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.errors import ReadDamaged
from raftlog.cluster.files.folder import RecoveredFolder
from raftlog.cluster.protocol.batching import AGAIN, GO, LATER
from raftlog.cluster.protocol.request import Inflight, RequestResult
from raftlog.cluster.protocol.step_times import WriteSteps
from raftlog.cluster.protocol.waiters import ReadWaiter
from raftlog.cluster.replica import cluster_view, explain, housekeeping, shutdown, status as node_status
from raftlog.cluster.replica.log.applier import Applied
from raftlog.cluster.replica.opening import ReplicaParts, open_state
from raftlog.cluster.replica.parts import (
    digest_exchange,
    members as node_members,
    reads,
    writes,
)
from raftlog.cluster.replica.parts.applying import apply_if_due, begin_fetch
from raftlog.cluster.replica.parts.jobs import Jobs
from raftlog.cluster.replica.ports import Links
from raftlog.cluster.replica.readiness import is_ready
from raftlog.cluster.replica.upkeep import damage, snapshots
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.logging import Logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.changes import MemberChange
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus import invariants
from raftlog.raft.messages import Message
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import NOBODY, Entry, Mark, NodeId, Now
from raftlog.raft.wal.reading import RawSlice
from raftlog.statemachine.machine import StateMachine

HOUSEKEEPING_S: Final = 0.05  # seconds between two calls: deadlines of requests, clock entries, snapshots
RESTING_S: Final = 0.1  # the same, and between two ticks, while nothing is under way: a tick costs about 0.1 ms


class Process(Protocol):
    """Methods of the process around a replica, for the replica."""

    @property
    def metrics(self) -> Metrics:
        """The metrics of the whole process."""

    @property
    def call_soon(self) -> Callable[[Callable[[], None]], object]:
        """A function that calls its argument in the next turn of the event loop."""

    def call_later(self, delay_s: float, run: Callable[[], None]) -> None:
        """Calls `run` after `delay_s` seconds."""

    def tick_soon(self) -> None:
        """A replica that had time to rest is busy now: ticks come often again."""

    def replica_ended(self, replica: Replica) -> None:
        """The replica failed. Its `state.life.ending` says why."""


class Replica:
    """One Raft group on one node: a `raftlog.cluster.replica.interface.NodeInterface`, and its parts' `Driver`."""

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        recovered: RecoveredFolder,
        *,
        process: Process,
        links: Links,
        run: int,
        logger: Logger,
        cluster: ClusterFile | None = None,
        making: ReplicaParts | None = None,
    ) -> None:
        """Restores the newest snapshot, which blocks. Raises the errors of `snapshot_stream.restore`.

        `run` names this process in its hellos. `cluster` is the node's cluster file.
        """
        self.process: Final = process
        self.metrics: Final = process.metrics
        self._call_soon: Final = process.call_soon
        self._new_future: Final = asyncio.get_running_loop().create_future
        self.state: Final = open_state(
            settings,
            disk,
            recovered,
            driver=self,
            links=links,
            run=run,
            metrics=process.metrics,
            logger=logger,
            cluster=cluster,
            making=making or ReplicaParts(),
        )
        self.node_id: Final = recovered.identity.node
        self.log_id: Final = recovered.identity.log_id
        self.is_fenced = False  # the disk failed, or the state is wrong: the node serves no requests any more
        self._jobs = Jobs(self.fail)
        self._is_scheduled, self._seen_leadership = False, (0, NOBODY)
        self._must_turn = False  # True: a whole turn is scheduled. False: only a look
        self._observed = invariants.observe(self.state.core.state)
        self._housekeeping_at = 0.0
        self._is_resting = False  # the next tick may come late, unless this replica gets busy

    # -- life -------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Before the links are up: reports the newest snapshot to the core, which then knows the log it must keep."""
        await snapshots.begin(self.state)

    def start(self) -> None:
        """Dials the members, begins to scrub the files, and takes the first turn."""
        node_members.begin(self.state)
        damage.start(self.state)
        self.wake()

    async def close(self, timeout_s: float) -> None:
        """Ends the background work. The host closes the links after it, and then calls `close_disk`."""
        self.state.syncer.close()
        await self._jobs.close(timeout_s)
        self.state.peer_log.close()

    async def close_disk(self, *, is_clean: bool) -> None:
        """Writes a last durable mark if the replica ended cleanly, and closes the disk."""
        if is_clean:
            await shutdown.write_mark(self.state)
        await self.state.disk.close()

    # -- for its parts ----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedules a turn after the callbacks that are ready on the event loop now."""
        self._must_turn = True
        self.look_soon()

    def look_soon(self) -> None:
        """Schedules a check whether clients have sent enough requests to begin a batch."""
        if not self._is_scheduled and not self.state.life.is_over:
            self._is_scheduled = True
            self._call_soon(self._scheduled)

    def spawn(self, work: Coroutine[Any, Any, None], *, must_finish: bool = False) -> asyncio.Task[None]:
        return self._jobs.spawn(work, must_finish=must_finish)

    def fail(self, error: BaseException) -> None:
        """Ends the replica: it cannot continue after this error."""
        if not self.state.life.is_over:
            shutdown.fail(self.state, error)
            self.is_fenced = self.state.life.is_fenced
            self.process.replica_ended(self)

    def read_damaged(self, error: ReadDamaged) -> None:
        """A reader of the log met damage on the disk."""
        damage.met(self.state, error)

    # -- for clients ------------------------------------------------------------------------------------------------

    def submit(
        self, block: bytes, count: int, *, deadline: float, session: int = 0, sequence: int = 0
    ) -> asyncio.Future[RequestResult]:
        state = self.state
        writes.check(state, block)
        future: asyncio.Future[RequestResult] = self._new_future()
        state.writes.pending.submit(Inflight(block, count, deadline, session, sequence, future))
        if not self._is_scheduled:
            self.look_soon()
        return future

    def read_barrier(self, deadline: float) -> asyncio.Future[int]:
        reads.check(self.state)
        future: asyncio.Future[int] = self._new_future()
        self.state.reads.rounds.waiting.append(ReadWaiter(future, deadline))
        self.look_soon()
        return future

    async def wait_applied(self, index: int, deadline: float) -> None:
        await reads.wait_applied(self.state, index, deadline)

    async def wait_beyond(self, index: int, deadline: float) -> None:
        await reads.wait_for(self.state, index + 1, deadline)

    async def read_log(self, from_index: int, limit: int, bytes_max: int) -> list[Applied]:
        return await self.state.reader.entries(from_index, limit, bytes_max)

    async def read_raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        return await self.state.reader.raw(from_index, to_index, bytes_max)

    async def find_time(self, time_ms: int) -> int:
        return await self.state.reader.find_time(time_ms)

    def state_mark(self) -> tuple[Mark, int, Configuration]:
        return snapshots.state_mark(self.state)

    def write_steps(self, index: int) -> WriteSteps | None:
        own = self.state.writes
        return None if own.steps is None else own.steps.of(index, own.appended)

    def status(self) -> Status:
        return node_status.status(self.state)

    def view(self) -> NodeView:
        return explain.view(self.state)

    def members(self) -> Members:
        return node_status.members(self.state)

    def cluster(self) -> ClusterView:
        return cluster_view.cluster(self.state)

    async def change_members(self, change: MemberChange, deadline: float) -> int:
        return await node_members.change(self.state, change, deadline)

    async def first_entry(self) -> Entry:
        return await node_members.first_entry(self.state)

    async def save_snapshot(self, deadline: float) -> int:
        return await snapshots.save_now(self.state, deadline)

    async def transfer(self, to: NodeId, deadline: float) -> float:
        return await node_members.transfer(self.state, to, deadline)

    def leader_hint(self) -> LeaderHint | None:
        return node_status.leader_hint(self.state)

    @property
    def configuration(self) -> Configuration:
        return self.state.core.state.configuration

    @property
    def machine(self) -> StateMachine:
        return self.state.applier.machine

    @property
    def term(self) -> int:
        return self.state.core.state.term

    @property
    def oldest(self) -> int:
        return self.state.applier.machine.oldest

    @property
    def committed(self) -> int:
        return self.state.core.state.log.committed

    @property
    def applied(self) -> int:
        return self.state.applier.applied

    @property
    def last_user_index(self) -> int:
        return self.state.applier.last_user_index

    @property
    def is_leader(self) -> bool:
        """Whether this node believes that it leads."""
        return self.state.is_leader

    @property
    def is_ready(self) -> bool:
        return is_ready(self.state)

    # -- turns ------------------------------------------------------------------------------------------------------

    def _scheduled(self) -> None:
        """Runs a turn if it is due: a part asked for one, or the waiting requests make a batch."""
        self._is_scheduled = False
        if not self.turn(is_due=self._must_turn) and self.state.applier.waiting:
            self._second_half()

    def turn(self, *, is_due: bool = True) -> bool:
        """Runs a whole turn if it is due, or a batch or read round is; these begin in it. Returns whether it ran."""
        state = self.state
        if state.life.is_over:
            return False
        queue, rounds, mono = state.writes.pending.queue, state.reads.rounds, clock.monotonic()
        writes_go = writes.look(state, mono) if queue else LATER
        reads_go = reads.look(state, mono) if rounds.waiting else LATER
        if not (is_due or writes_go is GO or reads_go is GO):
            if writes_go is AGAIN or reads_go is AGAIN:
                self.look_soon()
            return False
        self._must_turn = False
        try:
            if queue:
                writes.propose_or_forward(state, mono, is_due=writes_go is GO)
            if reads_go is GO or state.reads.asked:
                reads.start_reads(state, mono, is_due=reads_go is GO)
        except Exception as error:
            self.fail(error)
        self.carry_out(must_check=is_due)
        return True

    def carry_out(self, *, must_check: bool = True) -> None:
        """Carries out the wishes of the core, after it got new input.

        Peers, links and time can change everything. Own requests and a sync only extend the log and its proved part:
        then invariants, members and leadership are checked only if the core reports an event.
        """
        state = self.state
        if state.life.is_over:
            return
        try:
            if self._take_readies() or must_check:
                self._check()
            self._leave()
        except Exception as error:
            self.fail(error)
        self._second_half()

    def _second_half(self) -> None:
        """Applies committed entries and answers clients. The core has nothing new to say about either."""
        state = self.state
        if state.life.is_over:
            return
        try:
            if state.applier.waiting and apply_if_due(state):
                self.wake()
            if state.applier.machine.point is not state.watch.points.seen:
                digest_exchange.follow(state)
            if state.writes.pending.answers:
                writes.send_answers(state)
            if state.links.dirty:
                state.links.flush()
            if self._is_resting and self.is_busy:
                self._is_resting = False
                self.process.tick_soon()
        except Exception as error:
            self.fail(error)

    def _leave(self) -> None:
        """Sends the messages to the peers, and then the batch to the disk, whose thread needs the interpreter next."""
        links, syncer = self.state.links, self.state.syncer
        if links.dirty:
            links.flush()
        while syncer.has_queued and (batch := syncer.start()) is not None:
            self._send(batch.messages)
            links.flush()

    def _take_readies(self) -> bool:
        """Takes every Ready of the core. Returns whether its role, leader or members may have changed."""
        state = self.state
        core, has_news = state.core, False
        while core.state.is_touched and (ready := core.ready()) is not None:
            if ready.messages:
                self._send(ready.messages)
            if (
                ready.entries
                or ready.hard_state is not None
                or ready.messages_after_sync
                or ready.cut_after is not None
            ):
                state.syncer.add(ready)
            if ready.snapshot_fetches or ready.snapshot_writes or ready.snapshot_install is not None:
                snapshots.carry_out(state, ready)
            if ready.committed:
                state.applier.waiting += ready.committed
                if state.writes.steps is not None:
                    state.writes.steps.committed(ready.committed[-1].index, clock.monotonic())
            if ready.reads or ready.reads_failed:
                reads.finish_reads(state, ready)
            for fetch in ready.fetches:
                begin_fetch(state, fetch)
            if ready.events:
                has_news = True
                node_status.tell_events(state, ready.events)
        return has_news or core.state.configurations[-1][1] is not state.members.followed

    def _check(self) -> None:
        """Checks the cheap invariants, and reacts to a change of members or leadership."""
        state, core = self.state, self.state.core.state
        observed = invariants.observe(core)
        invariants.check_state(core)
        invariants.check_step(core.node, self._observed, observed)
        self._observed = observed
        leader = observed.leader
        node_members.follow(state, leader)
        seen, leadership = self._seen_leadership, (core.term, leader)
        if leadership != seen:
            self._seen_leadership = leadership
            writes.leadership_changed(state, leader)
            if seen[1] != leader:
                state.reads.rounds.lost(seen[1])
            self.wake()

    # -- the disk ---------------------------------------------------------------------------------------------------

    def synced(self, batch: SyncBatch) -> None:
        """That batch is durable. The syncer calls it."""
        core = self.state.core
        if batch.messages:
            self._send(batch.messages)
        if batch.entries:
            last = batch.entries[-1]
            if self.state.writes.steps is not None:
                self.state.writes.steps.synced(last.index, self.state.syncer.started, clock.monotonic())
            try:
                core.persisted(last.term, last.index, clock.read())
            except Exception as error:
                self.fail(error)
                return
        if core.state.is_touched:
            self.carry_out(must_check=False)
            return
        self._leave()
        if self.state.applier.waiting:
            self.look_soon()

    def _send(self, messages: Sequence[Message]) -> None:
        if not self.state.disks.is_muted:
            for message in messages:
                self.state.links.send(message)

    # -- time -------------------------------------------------------------------------------------------------------

    def tick_when_due(self) -> None:
        """Ticks sooner if the core's next deadline may be that of an election after a refused dial."""
        state = self.state
        due_ms = state.core.next_deadline_ms() - clock.read().monotonic_ms
        if due_ms <= state.options.link_refused_delay_max_ms:
            self.process.call_later(max(0, due_ms) / 1_000, self._tick_now)

    def _tick_now(self) -> None:
        self.tick(clock.read(), clock.monotonic())

    @property
    def is_busy(self) -> bool:
        """Whether requests, reads or entries are under way here, or no leader is known: then ticks come often. Else
        they come seldom, because each one wakes the process."""
        state = self.state
        return (
            not (state.writes.pending.is_empty and state.reads.rounds.is_empty)
            or bool(state.applier.waiting)
            or state.core.state.leader == NOBODY
        )

    def may_rest_s(self) -> float:
        """Seconds until this replica needs a tick, if it does not get busy before: to the core's next deadline, and at
        most RESTING_S. 0 while it is busy."""
        self._is_resting = not self.is_busy
        due_ms = self.state.core.next_deadline_ms() + 1 - clock.read().monotonic_ms  # + 1: timers may be early
        return min(RESTING_S, due_ms / 1_000) if self._is_resting else 0.0

    def tick(self, now: Now, mono: float) -> None:
        """Does the work that is due at `now`. `mono` is the same time in seconds of `clock.monotonic`."""
        state = self.state
        if state.life.is_over:
            return
        try:
            is_due = now.monotonic_ms >= state.core.next_deadline_ms()
            if is_due:
                state.core.tick(now)
            if mono >= self._housekeeping_at:
                self._housekeeping_at = mono + (RESTING_S if self._is_resting else HOUSEKEEPING_S)
                housekeeping.housekeeping(state, now, mono)
                is_due = True
        except Exception as error:
            self.fail(error)
            return
        if is_due or state.reads.rounds.waiting or state.writes.pending.queue or state.applier.waiting:
            self.turn()
