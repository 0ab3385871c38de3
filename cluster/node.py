"""The one owner of RaftCore and StateMachine: batches what came in, carries out each Ready, and answers.

Everything runs on the event loop, in turns: a turn drains the inbox (requests, peer messages, ticks), asks the core
what it wants done, does it, applies a slice, and writes to each peer once. One sync is under way at a time; the next
batch forms meanwhile. `raft.ready` says in which order a Ready is carried out; DESIGN section 5 follows one write.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from cluster import clock, node_end, node_explain, node_members, node_points, node_requests, node_snapshots, node_status
from cluster.applier import Applier
from cluster.cluster_file import ClusterFile, split_address
from cluster.disk import Disk
from cluster.disk_open import Recovered
from cluster.gather import Gather
from cluster.log_reader import LogReader
from cluster.logging import Logger
from cluster.metrics import Metrics
from cluster.node_apply import apply_due
from cluster.node_backfill import BackfillWork
from cluster.node_damage import DamageWork
from cluster.node_fetches import Fetches
from cluster.node_links import LinkNews
from cluster.node_members import Membership
from cluster.node_requests import Look
from cluster.node_retention import RetentionWork
from cluster.node_room import RoomWork
from cluster.node_snapshots import SnapshotWork
from cluster.peer_log import PeerLog
from cluster.pending import Pending
from cluster.recent import Applied
from cluster.requests import Request, Settled
from cluster.settings import NodeExit, Settings
from cluster.snapshots import restore
from cluster.syncer import Syncer
from cluster.transport import Identity, Transport
from cluster.waiting import Reads
from cluster.wire import LeaderHint, Members, Status
from cluster.wire_explain import NodeView
from raft import invariants
from raft.changes import Change
from raft.codec import Frame
from raft.configuration import Configuration
from raft.core import RaftCore
from raft.log import LogStart
from raft.messages import Message
from raft.ready import SyncBatch
from raft.roles import Leader
from raft.storage_read import RawSlice
from raft.types import GENESIS, NOBODY, Entry, Mark, NodeId
from statemachine.machine import StateMachine
from statemachine.versions import CLUSTER_VERSION

TICK_S: Final = 0.005
HOUSEKEEPING_S: Final = 0.05  # deadlines of requests, silent peers, clock entries, snapshots
LATE_S: Final = 0.1  # a tick that comes later finds messages waiting: they go first (pitfall 14)


class Node(LinkNews):
    """One member of the cluster. Made on the event loop; `start`, then `stop`. `ended` tells how it ended.

    What other modules of this package do to it (`node_requests`, `node_status`, `node_end`) they do as plain functions.
    """

    def __init__(
        self, settings: Settings, disk: Disk, recovered: Recovered, *, metrics: Metrics, logger: Logger,
        cluster: ClusterFile | None = None,
    ) -> None:  # fmt: skip
        """Restores the newest snapshot, which blocks; raises as `cluster.snapshots.restore`. `cluster` is its file."""
        now = clock.read()
        identity = recovered.identity
        self.settings, self.options = settings, settings.options()
        self.disk = disk
        self.metrics, self.logger = metrics, logger
        self.node_id: NodeId = identity.node
        self.log_id, self.incarnation = identity.log_id, identity.incarnation
        self.started_at = clock.monotonic()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[NodeExit] = self._loop.create_future()

        self.damage = DamageWork(self)
        snapshot = recovered.snapshot
        machine, last_user = restore(snapshot.chunks()) if snapshot else (StateMachine(), 0)
        mark = snapshot.mark if snapshot else GENESIS
        self.core = RaftCore(
            identity.node, self.options, hard_state=recovered.hard_state,
            log=LogStart(recovered.first, recovered.runs, recovered.last, recovered.tail, mark, recovered.base),
            configuration=recovered.configuration, configuration_index=recovered.configuration_index,
            earlier=recovered.earlier, commit=mark.index, applied=mark.index, random=random.Random().randint, now=now,
            incarnation=identity.incarnation, floor=recovered.floor, knows=CLUSTER_VERSION,
        )  # fmt: skip
        self.membership = Membership(cluster)
        self.pending = Pending(settings.limits, metrics, self.node_id, recovered.hard_state.boot)
        self.pending.skipped(mark.index, mark.term)
        self.applier = Applier(
            machine, disk, self.pending, limits=settings.limits, applied=mark, last_user=last_user,
            ledger_last=recovered.ledger_last, failed=self.fail, wake=self.wake)  # fmt: skip
        self.syncer = Syncer(disk, synced=self._synced, failed=self.fail, metrics=metrics, logger=logger)
        self.peer_log = PeerLog(self, recovered.hard_state.boot)
        self.reader = LogReader(self.node_id, disk, self.applier, self.damage.met, self.peer_log)
        self.reads = Reads(recovered.hard_state.boot)
        self.peer_reads: list[tuple[NodeId, int]] = []  # asked by followers, for the next round
        self.contexts: dict[int, tuple[NodeId, int]] = {}  # read rounds at the core: whose, and their number there
        self.reads_not_before = 0.0
        self.context = 0  # the newest number given to a read at the core
        self.transport = Transport(
            Identity(log=self.log_id, node=self.node_id, incarnation=self.incarnation, boot=recovered.hard_state.boot),
            self, peer=settings.peer, limits=settings.limits, dial=settings.dial,
            silence_ms=2 * self.options.election_timeout_max_ms, metrics=metrics, logger=logger,
        )  # fmt: skip
        self.start_index = recovered.last.index  # `is_ready` once this much is applied
        self.is_stopping = self.is_fenced = False
        self.is_muted = False  # the disk hangs, and nobody took the leadership over: stop sounding like a leader
        self.snapshots = SnapshotWork(self, mark.index)
        self.retention, self.backfill = RetentionWork(self), BackfillWork(self)
        self.room = RoomWork(self)
        self.watch = node_points.PointWatch.of(self.node_id)
        self.clock_proposed = 0  # index of the newest clock entry proposed here
        self.appended: list[tuple[int, float]] = []  # (index, when) of newest proposals: how far behind a follower is
        self.fetches = Fetches(self)
        self.writes_gather, self.reads_gather = Gather(), Gather()
        self._is_scheduled, self.seen_leadership = False, (0, NOBODY)
        self._must_turn = False  # what is scheduled is a whole turn, whatever clients ask
        self._observed = invariants.observe(self.core.state)
        self._ticker, self._housekeeping_at = clock.Ticker(TICK_S, self._tick), 0.0
        node_status.register_gauges(self)

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listens for peers, dials them, and begins to tick. Raises OSError when the address is taken."""
        host, port = split_address(self.settings.peer.listen, "peer.listen")
        await self.snapshots.begin()
        await self.transport.start(host, port)
        node_members.begin(self)
        self._ticker.start()
        self.damage.start()
        self.wake()

    async def stop(self) -> None:
        """Hands leadership over, lets what waits be answered, writes a durable mark, and closes everything."""
        await node_end.stop(self)

    def close_inputs(self) -> None:
        """No further tick, no further sync."""
        self._ticker.stop()
        self.syncer.close()

    def fail(self, error: BaseException) -> None:
        """Something that the node cannot go on after: it says so, answers everyone, and `ended` is set."""
        node_end.fail(self, error)

    # -- the face ---------------------------------------------------------------------------------------------------

    def submit(
        self, block: bytes, count: int, *, deadline: float, session: int = 0, sequence: int = 0
    ) -> asyncio.Future[Settled]:
        """Takes a request block of `count` records; the future is settled once this node has applied it.

        `deadline` is in seconds of `clock.monotonic`. The future, or this call itself, fails with ApiError.
        """
        node_requests.check(self, block)
        future: asyncio.Future[Settled] = self._loop.create_future()
        self.pending.submit(Request(block, count, deadline, session, sequence, future))
        if not self._is_scheduled:
            self.look_soon()
        return future

    def read_barrier(self, deadline: float) -> asyncio.Future[int]:
        """See `node_requests.read_index`."""
        return node_requests.read_index(self, deadline)

    async def wait_applied(self, index: int, deadline: float) -> None:
        """Returns once `index` is applied here. Raises ApiError future_index when it is not by then."""
        await node_requests.wait_applied(self, index, deadline)

    async def wait_beyond(self, index: int, deadline: float) -> None:
        """Returns once something after `index` is applied here, or at the deadline."""
        await node_requests.wait_for(self, index + 1, deadline)

    async def read_log(self, from_index: int, limit: int, bytes_max: int) -> list[Applied]:
        """See `LogReader.entries`."""
        return await self.reader.entries(from_index, limit, bytes_max)

    async def read_raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        """See `LogReader.raw`."""
        return await self.reader.raw(from_index, to_index, bytes_max)

    async def find_time(self, time_ms: int) -> int:
        """See `LogReader.find_time`."""
        return await self.reader.find_time(time_ms)

    def state_mark(self) -> tuple[Mark, int, Configuration]:
        """See `node_snapshots.state_mark`."""
        return node_snapshots.state_mark(self)

    def status(self) -> Status:
        """This node's view, for `/v1/status`."""
        return node_status.status(self)

    def view(self) -> NodeView:
        """What explains a missing leader, for `/v1/explain/leaderless`."""
        return node_explain.view(self)

    def members(self) -> Members:
        """The cluster as its configuration says, for `/v1/members`."""
        return node_status.members(self)

    async def change_members(self, change: Change, deadline: float) -> int:
        """See `node_members.change`."""
        return await node_members.change(self, change, deadline)

    async def first_entry(self) -> Entry:
        """See `node_members.first_entry`."""
        return await node_members.first_entry(self)

    async def transfer(self, to: NodeId, deadline: float) -> float:
        """See `node_members.transfer`."""
        return await node_members.transfer(self, to, deadline)

    def leader_hint(self) -> LeaderHint | None:
        """Where the leader was last seen."""
        return node_status.leader_hint(self)

    @property
    def machine(self) -> StateMachine:
        """The state; it changes under whoever waits."""
        return self.applier.machine

    @property
    def term(self) -> int:
        """The current term."""
        return self.core.state.term

    @property
    def oldest(self) -> int:
        """The oldest index that can be read: one fact of the cluster, whatever is on this disk."""
        return self.machine.oldest

    @property
    def committed(self) -> int:
        """The commit index as known here."""
        return self.core.state.log.committed

    @property
    def applied(self) -> int:
        """Up to here the state machine has everything."""
        return self.applier.applied

    @property
    def last_user_index(self) -> int:
        """Index of the newest applied user record."""
        return self.applier.last_user_index

    @property
    def is_leader(self) -> bool:
        """Whether this node believes that it leads."""
        return isinstance(self.core.state.role, Leader)

    @property
    def is_ready(self) -> bool:
        """Whether it knows a leader and has caught up."""
        return node_status.is_ready(self)

    # -- what peers send --------------------------------------------------------------------------------------------

    def peer_messages(self, peer: NodeId, messages: Sequence[Message]) -> None:
        """Consensus messages: taken at once, in one turn."""
        if self.ended.done():
            return
        try:
            now = clock.read()
            for message in messages:
                self.core.step(message, now)
        except Exception as error:
            self.fail(error)
        self.turn()

    def peer_requests(self, peer: NodeId, frames: Sequence[Frame]) -> None:
        """Forwards, read indexes and answers. Raises Corrupt for what makes no sense."""
        if not self.ended.done():
            for frame in frames:
                node_requests.take_frame(self, peer, frame)
            self.turn()

    def peer_link_opened(self, peer: NodeId, incarnation: str, knows: int) -> None:
        """Who is connected counts for the cluster version."""
        if not self.ended.done():
            self.core.link_opened(peer, incarnation, knows, clock.read())
            self.wake()

    def peer_link_closed(self, peer: NodeId) -> None:
        """A closed link is news (DESIGN section 3)."""
        if not self.ended.done():
            self.core.link_closed(peer, clock.read())
            self.wake()

    # -- turns ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """A turn will come after what is ready on the loop now."""
        self._must_turn = True
        self.look_soon()

    def look_soon(self) -> None:
        """So will a look whether clients have asked enough for a turn: that is how requests gather."""
        if not self._is_scheduled and not self.ended.done():
            self._is_scheduled = True
            self._loop.call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._is_scheduled = False
        if self._must_turn or (look := node_requests.look(self)) is Look.GO:
            self.turn()
            return
        if look is Look.AGAIN:
            self.look_soon()
        if self.applier.waiting:
            self._second_half()

    def turn(self) -> None:
        """One turn of the node."""
        if self.ended.done():
            return
        self._must_turn = False
        try:
            if self.pending.queued:
                node_requests.propose_or_forward(self)
            if self.reads.waiting or self.peer_reads:
                node_requests.start_reads(self)
            self._carry_out()
            self._check()
            self._leave()
        except Exception as error:
            self.fail(error)
        self._second_half()

    def _second_half(self) -> None:
        """What follows from what is committed: nothing that the core would have to be asked about."""
        if self.ended.done():
            return
        try:
            if self.applier.waiting and apply_due(self):
                self.wake()
            node_points.follow(self)
            if self.pending.answers:
                node_requests.send_answers(self)
            self.transport.flush()
        except Exception as error:
            self.fail(error)

    def _leave(self) -> None:
        """What was decided goes to the peers, and then to the disk, whose thread needs the interpreter next."""
        self.transport.flush()
        while (batch := self.syncer.start()) is not None:
            self._send(batch.messages)
            self.transport.flush()

    def _carry_out(self) -> None:
        """Takes every Ready of the core."""
        core = self.core
        while (ready := core.ready()) is not None:
            self._send(ready.messages)
            self.syncer.add(ready)
            if ready.snapshot_fetches or ready.snapshot_writes or ready.snapshot_install is not None:
                self.snapshots.carry_out(ready)
            if ready.committed:
                self.applier.add(ready.committed)
            if ready.reads or ready.reads_failed:
                node_requests.finish_reads(self, ready)
            for fetch in ready.fetches:
                self.fetches.begin(fetch)
            if ready.events:
                node_status.tell_events(self, ready.events)

    def _check(self) -> None:
        """The invariants that cost little, and what follows from a change of leadership."""
        state = self.core.state
        observed = invariants.observe(state)
        invariants.check_state(state)
        invariants.check_step(self.node_id, self._observed, observed)
        self._observed = observed
        node_members.follow(self)
        node_requests.follow_leader(self)

    # -- the disk ---------------------------------------------------------------------------------------------------

    def _synced(self, batch: SyncBatch) -> None:
        self._send(batch.messages)
        if batch.last is not None:
            try:
                self.core.persisted(batch.last.term, batch.last.index, clock.read())
            except Exception as error:
                self.fail(error)
                return
        log, out = self.core.state.log, self.core.state.out
        if log.committed > log.given or not out.is_empty:
            self.turn()
            return
        self._leave()  # nothing follows from it but that
        if self.applier.waiting:
            self.look_soon()

    def _send(self, messages: Sequence[Message]) -> None:
        if not self.is_muted:
            for message in messages:
                self.transport.send(message)

    # -- time -------------------------------------------------------------------------------------------------------

    def _tick(self, lag: float) -> None:
        self.metrics.loop_lag.observe(lag)
        if lag > LATE_S:
            self._loop.call_later(TICK_S, self.look_at_clock)
        else:
            self.look_at_clock()

    def look_at_clock(self) -> None:
        """Does what is due, of the core and of the housekeeping."""
        if self.ended.done():
            return
        now = clock.read()
        try:
            is_due = now.monotonic_ms >= self.core.next_deadline_ms()
            if is_due:
                self.core.tick(now)
            mono = clock.monotonic()
            if mono >= self._housekeeping_at:
                self._housekeeping_at = mono + HOUSEKEEPING_S
                node_end.housekeeping(self, now, mono)
                is_due = True
        except Exception as error:
            self.fail(error)
        if is_due or self.reads.waiting or self.pending.queued or self.applier.waiting:
            self.turn()
