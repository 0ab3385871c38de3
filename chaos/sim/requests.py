"""What a node does for its clients: propose or forward, ask for read indexes, settle, expire, commit clock entries.

Waiting requests, readers and the frames between nodes are the server's own values (`cluster.pending`, `waiting`,
`forwarding`, `recent`). What is done with them follows cluster/node_requests.py, the end of a turn in cluster/node.py
and the housekeeping in cluster/node_end.py, less metrics and awaiting. Times are seconds of the node's own clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from chaos.sim.point_work import PointWork
from cluster.forwarding import (
    answer_frames,
    decode_answers,
    decode_forward,
    decode_read,
    decode_read_reply,
    encode_forward,
    encode_read,
    encode_read_reply,
    frames_of,
)
from cluster.pending import Pending
from cluster.recent import Recent
from cluster.requests import Request, Settled
from cluster.waiting import IndexWaiters, Reader, Reads
from cluster.wire import ERRORS, ApiError, Code, LeaderHint, Problem
from raft.codec import FRAME_FORWARD, FRAME_FORWARD_REPLY, FRAME_POINTS, FRAME_READ, Frame
from raft.core import RaftCore
from raft.ready import Ready
from raft.refusals import Refused
from raft.roles import Leader
from raft.types import NOBODY, Entry, EntryKind, Mark, NodeId, Now
from statemachine import commands
from statemachine.effects import Effects, RequestEffect

if TYPE_CHECKING:
    from chaos.sim.replica import Replica

READ_RETRY_S: Final = 0.02
HOUSEKEEPING_US: Final = 50_000


def url_of(node: NodeId) -> str:
    """The URL that a node advertises."""
    return f"http://node-{node}:7000"


class Applied(NamedTuple):
    """This node applied the request: its indexes, the entry's term, and what it did (which may be nothing)."""

    first: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on it
    term: int
    effect: RequestEffect


Answer = Applied | Problem
"""What a client is told of a write."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Those of `cluster.settings.LimitSettings` that matter here, small enough to be reached now and then."""

    inbox_requests_max: int = 64
    inbox_bytes_max: int = 64 << 10
    inflight_requests_max: int = 256
    batch_bytes_max: int = 1_900  # below `Options.entry_bytes_max` of the swarm
    batch_records_max: int = 64
    batch_eager_bytes: int = 1_000
    recent_bytes_max: int = 32 << 10
    waiters_max: int = 256


class Counts:
    """Takes the place of `cluster.metrics.Metrics` in Pending."""

    __slots__ = ("batch_requests", "outcomes")

    def __init__(self) -> None:
        self.outcomes = self.batch_requests = self

    def labels(self, *_: str) -> Counts:
        """Every series is the same to the simulator."""
        return self

    def inc(self, number: int) -> None:
        """Nothing."""

    def observe(self, number: int) -> None:
        """Nothing."""


Value = TypeVar("Value")


class Waiting(Generic[Value]):
    """A client that waits: `cluster.requests.Promise` with a callback, called once, in an event of its own."""

    __slots__ = ("_is_done", "_settle", "floor")

    def __init__(self, settle: Callable[[Value | ApiError], None]) -> None:
        self._settle = settle
        self._is_done = False
        self.floor = 0

    def done(self) -> bool:
        """Whether it was told."""
        return self._is_done

    def set_result(self, result: Value, /) -> None:
        """It worked."""
        self._is_done = True
        self._settle(result)

    def set_exception(self, exception: BaseException, /) -> None:
        """It did not."""
        assert isinstance(exception, ApiError)
        self._is_done = True
        self._settle(exception)


class Requests:
    """One process's requests; gone with it."""

    def __init__(self, replica: Replica, limits: Limits, boot: int) -> None:
        self.replica = replica
        self.limits = limits
        counts: Any = Counts()
        server_limits: Any = limits
        self.pending = Pending(server_limits, counts, replica.node, boot)
        self.reads = Reads(boot)
        self.waiters = IndexWaiters()
        self.recent = Recent(limits.recent_bytes_max)
        self.peer_reads: list[tuple[NodeId, int]] = []
        self.contexts: dict[int, tuple[NodeId, int]] = {}
        self.reads_not_before = 0.0
        self.context = 0
        self.clock_proposed = 0
        self.points = PointWork(replica)
        self.housekept_us = 0
        self.seen_leadership = (0, NOBODY)

    # -- the face ----------------------------------------------------------------------------------------------

    def submit(
        self, block: bytes, count: int, session: int, sequence: int, deadline_us: int, done: Callable[[Answer], None]
    ) -> None:
        """See `Replica.submit`."""

        def settle(result: Settled | ApiError) -> None:
            if isinstance(result, Settled):
                self.replica.world.answered(self.replica.node, result.last, done, Applied(*result))
            else:
                self.replica.world.answered(self.replica.node, 0, done, self.problem(result))

        waiting = Waiting[Settled](settle)
        try:
            self._check()
            self.pending.submit(Request(block, count, self._seconds(deadline_us), session, sequence, waiting))
        except ApiError as error:
            waiting.set_exception(error)

    def read_barrier(self, done: Callable[[int | Problem], None], deadline_us: int) -> None:
        """See `Replica.read_barrier`."""
        world = self.replica.world
        floor = world.acknowledged

        def settle(result: int | ApiError) -> None:
            if isinstance(result, ApiError):
                world.answered(self.replica.node, 0, done, self.problem(result))
            else:
                world.read_done(self.replica.node, floor, result)
                world.answered(self.replica.node, result, done, result)

        waiting = Waiting[int](settle)
        try:
            self.points.check()
        except ApiError as error:
            waiting.set_exception(error)
            return
        if len(self.reads) >= self.limits.waiters_max:
            waiting.set_exception(ApiError(Code.BUSY, f"node {self.replica.node}: too many readers wait"))
        else:
            self.reads.waiting.append(Reader(waiting, self._seconds(deadline_us)))

    def _check(self) -> None:
        if not self.replica.work.has_space:
            raise ApiError(Code.BUSY, f"node {self.replica.node} has no space left on its disk")
        self.points.check()

    def problem(self, error: ApiError) -> Problem:
        """The error as its client sees it."""
        replica = self.replica
        core = replica.core
        leader = core.state.leader if core is not None else NOBODY
        hint = LeaderHint(leader, url_of(leader)) if leader != NOBODY else None
        row = ERRORS[error.code]
        index = core.state.log.applied if core is not None else None
        return Problem(
            code=error.code, message=error.message, status=row.status, outcome=row.outcome, retryable=row.retryable,
            request_id="", node=replica.node, leader=hint, index=index,
            term=core.state.term if core is not None else None,
        )  # fmt: skip

    def _seconds(self, deadline_us: int) -> float:
        """A deadline in world time by this node's clock: a request says how long is left, not until when."""
        replica = self.replica
        now_us = replica.world.now_us
        return (replica.clock.monotonic_us(now_us) + deadline_us - now_us) / 1e6

    def _mono(self) -> float:
        replica = self.replica
        return replica.clock.monotonic_us(replica.world.now_us) / 1e6

    # -- a turn ------------------------------------------------------------------------------------------------

    def begin_turn(self, core: RaftCore, now: Now) -> None:
        """Propose or forward what waits, and start rounds for readers."""
        if self.pending.queued:
            self._propose_or_forward(core, now)
        if self.reads.waiting or self.peer_reads:
            self._start_reads(core, now)

    def end_turn(self, core: RaftCore) -> bool:
        """What follows from a change of leadership, and answers for peers; whether another turn is wanted."""
        state = core.state
        self.points.follow(core, self._mono())
        leadership = (state.term, state.leader)
        is_changed = leadership != self.seen_leadership
        if is_changed:
            before = self.seen_leadership[1]
            self.seen_leadership = leadership
            self.pending.leadership_changed()
            if state.leader != NOBODY:
                self.pending.leader_is(state.leader, self._mono(), self.replica.is_answering)
            if before != state.leader:
                self.reads.lost(before)
        if self.pending.answers:
            answers, self.pending.answers = self.pending.answers, []
            for peer, frame in answer_frames(answers, state.term):
                self._send(peer, frame)
        return is_changed

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything."""
        return self.pending.is_empty and self.reads.is_empty and not self.points.points.is_open

    def housekeeping(self, core: RaftCore, now: Now) -> None:
        """Deadlines, and clock entries: if something falls due on an idle log, the leader commits one."""
        self.housekept_us = self.replica.world.now_us
        leader = core.state.leader
        if not self.is_idle:
            mono = self._mono()
            self.pending.expire(mono, leader=leader)
            if not self.reads.is_empty:
                self.reads.expire(mono, f"node {self.replica.node}: no read index", has_leader=leader != NOBODY)
        is_leader = isinstance(core.state.role, Leader)
        self.points.housekeeping(core, now, self._mono(), is_leader=is_leader)
        if is_leader:
            due_ms = self.replica.next_expiry_ms()
            log = core.state.log
            clock_ms = log.last.clock_ms + max(0, now.monotonic_ms - log.appended_ms)
            if due_ms is not None and clock_ms >= due_ms and self.clock_proposed <= log.applied:
                try:
                    self.clock_proposed = core.propose(EntryKind.CLOCK, 1, b"", now).last
                    self.replica.world.count("clock entries")
                except Refused:
                    pass

    # -- writes ------------------------------------------------------------------------------------------------

    def _propose_or_forward(self, core: RaftCore, now: Now) -> None:
        pending = self.pending
        if isinstance(core.state.role, Leader):
            if self.replica.work.syncing is None or pending.queued_bytes >= self.limits.batch_eager_bytes:
                self._propose(core, now)
            return
        leader = core.state.leader
        if leader == NOBODY:
            return
        pending.refuse_forwarded(f"node {self.replica.node} does not lead any more")
        if self.replica.world.links.is_up(self.replica.node, leader):
            self._forward(leader)

    def _propose(self, core: RaftCore, now: Now) -> None:
        pending = self.pending
        mono = self._mono()
        while requests := pending.take(mono, joining=True):
            data = b"".join([request.block for request in requests])
            count = sum([request.count for request in requests])
            try:
                proposed = core.propose(EntryKind.COMMANDS, count, data, now)
            except Refused as refusal:
                self.replica.world.count(f"refused {type(refusal).__name__}")
                pending.put_back(requests)
                return
            pending.proposed(requests, proposed.term, proposed.first)

    def _forward(self, leader: NodeId) -> None:
        pending = self.pending
        mono = self._mono()
        while requests := pending.take(mono, joining=False):
            self.replica.world.count("forwards")
            for run in frames_of(requests):
                number = pending.forwarding(run, leader)
                if not self._send(leader, encode_forward(number, run, mono)):
                    for request in run:
                        pending.refused(request.number, Code.BUSY, f"node {self.replica.node}: no link to {leader}")

    def applied(self, entry: Entry, requests: tuple[commands.Request, ...], effects: Effects, frame: bytes) -> None:
        """This node applied that entry."""
        self.recent.add(entry, effects, len(frame), entry.index)
        self.pending.applied(entry.index, entry.term, requests, effects)

    def skipped(self, mark: Mark) -> None:
        """The state up to there came with a snapshot."""
        self.recent = Recent(self.limits.recent_bytes_max)
        self.pending.skipped(mark.index, mark.term)
        self.waiters.applied(mark.index)

    # -- reads -------------------------------------------------------------------------------------------------

    def _start_reads(self, core: RaftCore, now: Now) -> None:
        mono = self._mono()
        node, state = self.replica.node, core.state
        is_leader = isinstance(state.role, Leader)
        for peer, number in self.peer_reads:
            if is_leader:
                self._register(core, now, peer, number)
            else:
                self._send(peer, encode_read_reply(number, 0))
        self.peer_reads.clear()
        heartbeat_s = state.options.heartbeat_ms / 1_000
        if mono < self.reads_not_before or not self.reads.may_start(mono, heartbeat_s):
            return
        leader = state.leader
        if is_leader:
            self._register(core, now, node, self.reads.start(node, mono))
        elif leader != NOBODY and self.replica.world.links.is_up(node, leader):
            number = self.reads.start(leader, mono)
            if not self._send(leader, encode_read(number)):
                self._read_again(number)

    def _register(self, core: RaftCore, now: Now, peer: NodeId, number: int) -> None:
        self.context += 1
        try:
            core.read(self.context, now)
        except Refused:
            self._answer_read(peer, number, 0)
        else:
            self.contexts[self.context] = (peer, number)
            self.replica.world.witness.read_began(node=self.replica.node, context=self.context)

    def finish_reads(self, ready: Ready) -> None:
        """Rounds that a majority confirmed, or that came to nothing."""
        for read in ready.reads:
            self._answer_read(*self.contexts.pop(read.context), read.index)
        for failed in ready.reads_failed:
            self._answer_read(*self.contexts.pop(failed.context), 0)

    def _answer_read(self, peer: NodeId, number: int, index: int) -> None:
        if peer != self.replica.node:
            self._send(peer, encode_read_reply(number, index))
        elif index:
            for reader in self.reads.take(number):
                self.waiters.add(index, reader.future, index)
            if self.replica.applied_index >= index:
                self.waiters.applied(index)
        else:
            self._read_again(number)

    def _read_again(self, number: int) -> None:
        self.reads.again(number)
        self.reads_not_before = self._mono() + READ_RETRY_S

    # -- peers -------------------------------------------------------------------------------------------------

    def _send(self, peer: NodeId, frame: bytes) -> bool:
        return self.replica.world.links.send(self.replica.node, peer, frame)

    def link_closed(self, peer: NodeId) -> None:
        """What was sent there and not answered may or may not have arrived."""
        self.pending.link_lost(peer, f"the link to node {peer} closed")
        self.reads.lost(peer)

    def take_frame(self, core: RaftCore, peer: NodeId, frame: Frame) -> None:
        """A frame of the bulk link."""
        pending, node = self.pending, self.replica.node
        if frame.kind == FRAME_FORWARD:
            for request in decode_forward(frame, peer, self._mono()):
                if not isinstance(core.state.role, Leader):
                    pending.refuse(request, Code.NO_LEADER, "")
                    continue
                try:
                    self._check()
                    pending.submit(request)
                except ApiError as error:
                    pending.refuse(request, error.code, "")
        elif frame.kind == FRAME_FORWARD_REPLY:
            answers = decode_answers(frame)
            for number, first in answers.placed:
                late = pending.answered(number, first, answers.term)
                if late is not None:
                    pending.settle_late(late, answers.term, *self.recent.effect_of(late.last))
            for number, code in answers.refused:
                pending.refused(number, code, f"node {peer}, asked as the leader by node {node}: {code}")
        elif frame.kind == FRAME_READ:
            self.peer_reads.append((peer, decode_read(frame)))
        elif frame.kind == FRAME_POINTS:
            self.points.take(core, peer, frame)
        else:
            number, index = decode_read_reply(frame)
            self._answer_read(node, number, index)
