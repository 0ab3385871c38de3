"""Tracks pending requests, and settles each exactly once.

`raftlog.cluster.replica.parts.writes` drives it. A request is queued. Then this node proposes it (a `Batch`, one per
entry) or sends it to the leader (a `Flight`, one per frame). Its outcome is known when this node applies the index that
it got. With the same term there, the request was applied; with another term it never will be. A request that is still
queued can fail as `not_applied`. Afterwards only `unknown` is honest (pitfall 30: pending proposals reported as
failed). Futures, not tasks: one pass settles all requests of an entry.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from raftlog.cluster.api.errors import ERRORS, ApiError, Code, Outcome
from raftlog.cluster.protocol.request import NEVER, Batch, Flight, Inflight, PeerReply, RequestResult
from raftlog.raft.codec.block import BLOCK_SIZE
from raftlog.raft.types import NodeId
from raftlog.statemachine import commands
from raftlog.statemachine.commands import Result
from raftlog.statemachine.effects import Effects, RequestEffect

if TYPE_CHECKING:
    from raftlog.cluster.config.settings import LimitSettings
    from raftlog.cluster.runtime.metrics import Metrics

_APPLIED: Final = str(Outcome.APPLIED)
_new: Final = tuple.__new__  # a NamedTuple without the cost of its constructor
NUMBER_BITS: Final = 32
"""Bits of a request's number below the boot counter of its process."""
DEPOSED_S: Final = 0.05
"""Seconds that a deposed leader gets for its last answers; they take milliseconds, on a busy machine longer."""


class Pending:
    """All requests of one node. Not thread-safe: belongs to the node's event loop."""

    def __init__(self, limits: LimitSettings, metrics: Metrics, node: NodeId, boot: int = 0) -> None:
        """`boot` counts the starts of this node. It keeps its numbers apart from those of an earlier process, whose
        requests the leader may still answer."""
        self._limits = limits
        self._metrics = metrics
        self._outcomes = metrics.counts["raftlog_submits_total"]
        self._name = f"node {node}"
        self.queue: deque[Inflight] = deque()  # requests that wait to be proposed or forwarded
        self.queued_bytes = 0
        self._queue_deadline_min = NEVER
        self._batches: deque[Batch] = deque()
        self._flights: dict[int, Flight] = {}  # by their first number
        self._deposed: dict[NodeId, float] = {}  # former leaders, and until when they may still answer
        self._sent: dict[int, Inflight] = {}  # forwarded requests without an answer
        self._expected: list[tuple[int, int, int, Inflight]] = []  # heap of (last index, number, term, request)
        self._open: dict[tuple[int, int], Inflight] = {}  # (session, sequence) proposed in this term, not applied
        self._number = boot << NUMBER_BITS
        self._batched = 0
        self._applied = (0, 0)  # index and term of the newest entry applied here
        self.answers: list[PeerReply] = []  # for peers, since the last turn
        self.outcomes = 0  # requests whose outcome came with an applied entry, since the start

    @property
    def inflight(self) -> int:
        """Requests that were proposed or forwarded and whose outcome is not known."""
        return self._batched + len(self._sent) + len(self._expected)

    @property
    def is_empty(self) -> bool:
        """Whether no request waits here."""
        return not (self.queue or self.inflight)

    # -- the queue ------------------------------------------------------------------------------------------------

    def submit(self, request: Inflight) -> None:
        """Queues a request. Raises ApiError busy at the named limits; limits.keepalives_max keepalives fit beyond."""
        limits, queued = self._limits, len(self.queue)
        size = self.queued_bytes + len(request.block)
        if queued >= limits.inbox_requests_max:
            if queued >= limits.inbox_requests_max + limits.keepalives_max or not request.is_keepalive:
                waiting = f"{limits.inbox_requests_max} writes wait already (limits.inbox_requests_max)"
                raise ApiError(Code.BUSY, f"{self._name}: {waiting}")
        elif self.queued_bytes and size > limits.inbox_bytes_max and not request.is_keepalive:
            waiting = f"{self.queued_bytes} bytes of writes wait already (limits.inbox_bytes_max)"
            raise ApiError(Code.BUSY, f"{self._name}: {waiting}")
        self.queue.append(request)
        self.queued_bytes = size
        if request.deadline < self._queue_deadline_min:
            self._queue_deadline_min = request.deadline

    def take(self, now: float, *, joining: bool) -> tuple[list[Inflight], list[bytes], int]:
        """Takes the next batch of requests, in order: the requests, their blocks, and the number of their records.
        Returns none only if no request can be taken now.

        Requests past their deadline are refused. `joining` (on the leader): a repetition of a session's sequence that
        is proposed and not yet applied joins the first request instead of being taken. If its bytes differ, it is
        taken, and refused when it is applied.
        """
        taken: list[Inflight] = []
        blocks: list[bytes] = []
        size = records = 0
        queue = self.queue
        room = self._limits.inflight_requests_max - self._batched - len(self._sent) - len(self._expected)
        bytes_max, records_max = self._limits.batch_bytes_max, self._limits.batch_records_max
        while queue and len(taken) < room:
            request = queue[0]
            length = len(request.block)
            if taken and (size + length > bytes_max or records + request.count > records_max):
                break
            queue.popleft()
            self.queued_bytes -= length
            if request.future is not None and request.future.done():
                continue  # the client went away before its request was in any log
            if request.deadline <= now:
                self.refuse(request, Code.DEADLINE, "the deadline passed before the write was taken up")
                continue
            if joining and request.session and self._joins(request):
                continue
            taken.append(request)
            blocks.append(request.block)
            size += length
            records += request.count
        return taken, blocks, records

    def put_back(self, requests: Sequence[Inflight]) -> None:
        """Queues requests of `take` that could not be proposed again, in front; repetitions follow their first."""
        for request in reversed(requests):
            self._forget(request)
            again, request.joined = [request, *(request.joined or ())], None
            self.queue.extendleft(reversed(again))
            self.queued_bytes += sum(len(each.block) for each in again)

    def _joins(self, request: Inflight) -> bool:
        key = (request.session, request.sequence)
        primary = self._open.setdefault(key, request)
        if primary is request or primary.block[BLOCK_SIZE:] != request.block[BLOCK_SIZE:]:
            return False
        if primary.joined is None:
            primary.joined = []
        primary.joined.append(request)
        if primary.first:
            self._place(request, primary.first)
            term = self._batches[-1].term  # batches of earlier terms may wait with higher indexes
            batch = next(batch for batch in self._batches if batch.term == term and batch.last >= primary.last)
            batch.deadline_min = min(batch.deadline_min, request.deadline)
        return True

    def _place(self, request: Inflight, first: int) -> None:
        request.first = first
        if request.future is None:
            self.answers.append(PeerReply(request.peer, request.number, first))

    def _forget(self, request: Inflight) -> None:
        if request.session and self._open.get(key := (request.session, request.sequence)) is request:
            del self._open[key]

    # -- proposed by this node ------------------------------------------------------------------------------------

    def proposed(self, requests: Sequence[Inflight], term: int, first: int) -> None:
        """`requests` became the entry whose first record has the index `first`."""
        deadline_min = NEVER
        for request in requests:
            request.first = first
            if request.future is None:
                self.answers.append(PeerReply(request.peer, request.number, first))
            for repetition in request.joined or ():
                self._place(repetition, first)
                deadline_min = min(deadline_min, repetition.deadline)
            first += request.count
            if request.deadline < deadline_min:
                deadline_min = request.deadline
        self._batches.append(Batch(term, first - 1, requests, deadline_min))
        self._batched += len(requests)
        self._metrics.histograms["raftlog_batch_requests"].observe(len(requests))

    def leadership_changed(self) -> None:
        """Forgets the open sequences: a repetition must not join a request of another term."""
        self._open.clear()

    # -- forwarded to the leader ----------------------------------------------------------------------------------

    def forwarding(self, requests: Sequence[Inflight], peer: NodeId) -> int:
        """Notes that `requests` are sent to `peer` in one frame. Returns the number of the first of them."""
        number = self._number + 1
        flight = Flight(peer, requests, min(request.deadline for request in requests), len(requests))
        for request in requests:
            self._number += 1
            request.number = self._number
            request.flight = flight
            self._sent[request.number] = request
        self._flights[number] = flight
        return number

    def is_asked(self, number: int, peer: NodeId) -> bool:
        """Whether `peer` was sent the request of that number, and has not answered."""
        return (sent := self._sent.get(number)) is not None and sent.flight is not None and sent.flight.peer == peer

    def answered(self, number: int, first: int, term: int) -> Inflight | None:
        """The leader of `term` gave the forwarded request its indexes. Returns the request if this node has applied
        them already (the answer was slower than the commit): the caller looks the effect up for `settle_late`."""
        request = self._sent.pop(number, None)
        if request is None:
            return None
        if request.is_settled:
            self._landed(request)
            return None
        request.first = first
        if request.last <= self._applied[0]:
            return request
        if term < self._applied[1]:
            self._overwritten(request, self._applied[1])
            self._landed(request)
        else:
            heapq.heappush(self._expected, (request.last, number, term, request))
        return None

    def settle_late(self, request: Inflight, term: int, effect: RequestEffect | None, applied_term: int) -> None:
        """Settles a request that `answered` returned, which got its indexes in `term`. This node applied an entry of
        `applied_term` there (0: it is not in memory any more), with this effect."""
        if applied_term == term and effect is not None:
            request.settle(term, effect)
            self._outcomes[_APPLIED] += 1
        elif applied_term not in {term, 0}:
            self._overwritten(request, applied_term)
        else:
            where = f"the write got index {request.last}, which is no longer in memory; read the log there"
            self.fail(request, Code.TIMEOUT, f"{self._name}: {where}")
        self._landed(request)

    def refused(self, number: int, code: Code, message: str) -> None:
        """The leader refused the request, or it was never sent: it changed nothing and never will."""
        request = self._sent.pop(number, None)
        if request is not None:
            self.fail(request, code, message)
            self._landed(request)

    def link_lost(self, peer: NodeId, reason: str) -> None:
        """No answer will come any more for requests that were sent to that peer: their outcome is unknown."""
        for number, request in list(self._sent.items()):
            if self.is_asked(number, peer):
                del self._sent[number]
                message = f"{self._name}: {reason} before the outcome of the write was known"
                self.fail(request, Code.LEADER_LOST, message)
                self._landed(request)

    def leader_is(self, leader: NodeId, now: float, is_answering: Callable[[NodeId], bool]) -> None:
        """Another node leads now. A live former leader, as after a clean stop, answers within `DEPOSED_S`. For a silent
        one nothing waits: the outcomes of its requests are unknown."""
        self._deposed.pop(leader, None)
        for peer in sorted({flight.peer for flight in self._flights.values()} - {leader}):
            if is_answering(peer):
                self._deposed.setdefault(peer, now + DEPOSED_S)
            else:
                self._leadership_lost(peer)

    def _leadership_lost(self, peer: NodeId) -> None:
        self._deposed.pop(peer, None)
        self.link_lost(peer, f"node {peer} lost the leadership")

    def _landed(self, request: Inflight) -> None:
        flight = request.flight
        if flight is not None:
            request.flight = None
            flight.open -= 1
            if not flight.open:
                del self._flights[flight.requests[0].number]

    # -- outcomes -------------------------------------------------------------------------------------------------

    def applied(self, index: int, term: int, requests: Sequence[commands.RequestBlock], effects: Effects) -> None:
        """This node applied the entry that ends at `index` and holds `requests`.

        Terms only rise along the log. So a request that waits for an index of an older term will never be applied,
        wherever that index is.
        """
        is_new_term = term > self._applied[1]
        self._applied = (index, term)
        batches = self._batches
        while batches and (batches[0].last <= index or batches[0].term < term):
            batch = batches.popleft()
            self._batched -= len(batch.requests)
            self.outcomes += len(batch.requests)
            if batch.term == term:
                assert batch.last == index, (batch.last, index, term)
                self._settle(batch, effects)
            else:
                for request in batch.requests:
                    self._overwritten(request, term)
        if self._expected and self._expected[0][0] <= index:
            self._applied_expected(index, term, [request.count for request in requests], effects)
        if is_new_term and self._expected:
            self._expected_overwritten(term)

    def skipped(self, index: int, term: int) -> None:
        """A leader's snapshot replaced the state up to `index`: outcomes of requests before it cannot be learned."""
        self._applied = (index, term)
        message = f"{self._name}: a snapshot up to index {index} took the place of the log before the outcome was known"
        while self._batches and self._batches[0].last <= index:
            self._batched -= len((batch := self._batches.popleft()).requests)
            for request in batch.requests:
                self._fail_copies(request, Code.LEADER_LOST, message)
        while self._expected and self._expected[0][0] <= index:
            request = heapq.heappop(self._expected)[3]
            self.fail(request, Code.LEADER_LOST, message)
            self._landed(request)

    def _settle(self, batch: Batch, effects: Effects) -> None:
        """Settles the requests of an applied entry, each with its effect, in one pass; their repetitions too."""
        term, requests = batch.term, batch.requests
        each: Sequence[RequestEffect] = effects.requests
        if effects.is_plain:
            each = [RequestEffect(Result.APPLIED, effects.revision)] * len(requests)
        own = 0  # requests of this node's clients
        for request, effect in zip(requests, each, strict=True):
            future = request.future
            if future is not None:
                own += 1
                if not future.done():
                    first = request.first
                    future.set_result(_new(RequestResult, (first, first + request.count - 1, term, effect)))
            if request.session:
                for repetition in request.joined or ():
                    repetition.settle(term, effect)
                self._forget(request)
        self._outcomes[_APPLIED] += own

    def _applied_expected(self, index: int, term: int, sizes: list[int], effects: Effects) -> None:
        expected = self._expected
        effect_of: dict[int, RequestEffect] = {}
        plain = RequestEffect(Result.APPLIED, effects.revision)
        end = index - sum(sizes)
        for position, size in enumerate(sizes):
            end += size
            effect_of[end] = plain if effects.is_plain else effects.requests[position]
        settled = 0
        while expected and expected[0][0] <= index:
            last, _, expected_term, request = heapq.heappop(expected)
            self.outcomes += 1
            if expected_term == term and last in effect_of:  # else the leader named another index
                request.settle(term, effect_of[last])
                settled += 1
            else:
                self._overwritten(request, term)
            self._landed(request)
        self._outcomes[_APPLIED] += settled

    def _expected_overwritten(self, term: int) -> None:
        for _, _, expected_term, request in self._expected:
            if expected_term < term:
                self._overwritten(request, term)
                self._landed(request)
                self.outcomes += 1
        self._expected = [each for each in self._expected if each[2] >= term]
        heapq.heapify(self._expected)

    def _overwritten(self, request: Inflight, term: int) -> None:
        message = f"{self._name}: an entry of term {term} was committed in its place"
        self._fail_copies(request, Code.OVERWRITTEN, message)

    def expire(self, now: float, *, leader: NodeId) -> None:
        """Fails requests past their deadline, or unanswered by former leaders: queued ones as not_applied."""
        for peer in [peer for peer, until in self._deposed.items() if until <= now]:
            self._leadership_lost(peer)
        if self._queue_deadline_min <= now:
            code = Code.DEADLINE if leader else Code.NO_LEADER
            reason = "could not be taken up" if leader else "found no leader"
            self._refuse_those(lambda request: request.deadline <= now, code, f"the write {reason} within its deadline")
            self._queue_deadline_min = min((request.deadline for request in self.queue), default=NEVER)
        for batch in self._batches:
            if batch.deadline_min <= now:
                repeated = [each for request in batch.requests for each in request.joined or ()]
                batch.deadline_min = self._expire([*batch.requests, *repeated], now)
        for flight in list(self._flights.values()):
            if flight.deadline_min <= now:
                flight.deadline_min = self._expire(flight.requests, now)
                for request in flight.requests:
                    if request.is_settled and self._sent.pop(request.number, None) is not None:
                        self._landed(request)

    def _expire(self, requests: Iterable[Inflight], now: float) -> float:
        """Fails the due requests as unknown. Returns the earliest deadline of the others."""
        earliest = NEVER
        for request in requests:
            if request.is_settled:
                continue
            if request.deadline <= now:
                message = f"{self._name}: the write was queued, and its outcome was not known by the deadline"
                self.fail(request, Code.TIMEOUT, message)
            else:
                earliest = min(earliest, request.deadline)
        return earliest

    def take_answers(self) -> list[PeerReply]:
        """The answers for peers since the last call."""
        answers, self.answers = self.answers, []
        return answers

    def refuse(self, request: Inflight, code: Code, message: str) -> None:
        """Fails a request that is in no log and will not be in one."""
        if request.future is None:
            self.answers.append(PeerReply(request.peer, request.number, 0, code))
        else:
            self.fail(request, code, f"{self._name}: {message}")

    def refuse_forwarded(self, message: str) -> None:
        """Refuses queued requests that peers forwarded: a request is forwarded only once."""
        if any(request.future is None for request in self.queue):
            self._refuse_those(lambda request: request.future is None, Code.NO_LEADER, message)

    def refuse_queued(self, code: Code, message: str) -> None:
        """Refuses all requests that were not proposed or forwarded yet."""
        self._refuse_those(lambda _: True, code, message)

    def _refuse_those(self, is_meant: Callable[[Inflight], bool], code: Code, message: str) -> None:
        """Refuses queued requests; the others stay in their order."""
        queue, self.queue = self.queue, deque()
        for request in queue:
            if is_meant(request):
                self.queued_bytes -= len(request.block)
                self.refuse(request, code, message)
            else:
                self.queue.append(request)

    def fail_all(self, queued: Code, inflight: Code, message: str) -> None:
        """Fails all requests: this node ends and will learn no more outcomes."""
        self.refuse_queued(queued, message)
        for batch in self._batches:
            for request in batch.requests:
                self._fail_copies(request, inflight, f"{self._name}: {message}")
        for request in [*(each[3] for each in self._expected), *self._sent.values()]:
            self.fail(request, inflight, f"{self._name}: {message}")
        for waiting in (self._batches, self._expected, self._sent, self._flights, self._open):
            waiting.clear()
        self._batched = 0

    def _fail_copies(self, request: Inflight, code: Code, message: str) -> None:
        """Fails a request and the repetitions that joined it. No other may join it any more."""
        self._forget(request)
        for each in (request, *(request.joined or ())):
            self.fail(each, code, message)

    def fail(self, request: Inflight, code: Code, message: str) -> None:
        """Fails a request and counts the outcome."""
        if not request.is_settled:
            request.fail(code, message)
            self._outcomes[ERRORS[code].outcome] += 1
