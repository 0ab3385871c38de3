"""Requests that wait for their fate, each settled exactly once.

A request is queued, then either proposed by this node (a `Batch`, one per entry) or sent to the leader (a `Flight`, one
per frame). Its fate is decided when this node applies the index it was given: the same term there means that it was
applied, another term that it never will be. What is still queued can fail as `not_applied`; afterwards only `unknown`
is honest (pitfall 30). Futures, not tasks: settling an entry's requests is one pass (DESIGN section 5).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from cluster.requests import Answer, Batch, Flight, Request, settle_all
from cluster.wire import ERRORS, ApiError, Code
from raft.codec import BLOCK_SIZE
from raft.types import NodeId
from statemachine import commands
from statemachine.commands import Result
from statemachine.effects import Effects, RequestEffect

if TYPE_CHECKING:
    from cluster.metrics import Metrics
    from cluster.settings import LimitSettings

NEVER: Final = float("inf")
NUMBER_BITS: Final = 32
"""A process numbers what it sends with so many bits below its boot counter."""
DEPOSED_S: Final = 0.05
"""A deposed leader's last answers take a round trip and a turn of its loop, a few ms; a busy machine stretches that."""


class Pending:
    """All requests of one node. Not thread-safe: it belongs to the node's event loop."""

    def __init__(self, limits: LimitSettings, metrics: Metrics, node: NodeId, boot: int = 0) -> None:
        """`boot` counts the starts of this node: its numbers are then never those of the process before, whose
        requests the leader may still be answering."""
        self._limits = limits
        self._metrics = metrics
        self._name = f"node {node}"
        self._queue: deque[Request] = deque()
        self.queued_bytes = 0
        self._queue_deadline_min = NEVER
        self._batches: deque[Batch] = deque()
        self._flights: dict[int, Flight] = {}  # by their first number
        self._deposed: dict[NodeId, float] = {}  # leaders that were, and until when they may still answer
        self._sent: dict[int, Request] = {}  # forwarded, no answer yet
        self._expected: list[tuple[int, int, int, Request]] = []  # heap of (last index, number, term, request)
        self._open: dict[tuple[int, int], Request] = {}  # (session, sequence) proposed in this term, not applied
        self._number = boot << NUMBER_BITS
        self._batched = 0
        self._applied = (0, 0)  # index and term of the newest entry applied here
        self.answers: list[Answer] = []  # for peers, since the last turn

    @property
    def queued(self) -> int:
        """Requests that wait to be proposed or forwarded."""
        return len(self._queue)

    @property
    def inflight(self) -> int:
        """Requests proposed or forwarded whose fate is not known."""
        return self._batched + len(self._sent) + len(self._expected)

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits here for anything."""
        return not (self._queue or self._batched or self._sent or self._expected)

    # -- the queue ------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queues it. Raises ApiError busy at the named limits; limits.keepalives_max keepalives are taken beyond."""
        limits = self._limits
        if len(self._queue) >= limits.inbox_requests_max:
            if len(self._queue) < limits.inbox_requests_max + limits.keepalives_max and request.is_keepalive:
                self._put(request)
                return
            raise ApiError(
                Code.BUSY, f"{self._name}: {limits.inbox_requests_max} writes wait already (limits.inbox_requests_max)"
            )
        size = self.queued_bytes + len(request.block)
        if self.queued_bytes and size > limits.inbox_bytes_max and not request.is_keepalive:
            raise ApiError(
                Code.BUSY, f"{self._name}: {self.queued_bytes} bytes of writes wait already (limits.inbox_bytes_max)"
            )
        self._put(request)

    def _put(self, request: Request) -> None:
        self._queue.append(request)
        self.queued_bytes += len(request.block)
        if request.deadline < self._queue_deadline_min:
            self._queue_deadline_min = request.deadline

    def take(self, now: float, *, joining: bool) -> list[Request]:
        """The next requests for one entry (or one frame), in order; never empty-handed but for want of requests.

        Past their deadline they are refused. With `joining` (on the leader) a repetition of a sequence that is
        proposed and not yet applied joins the first one instead of being taken; other bytes under the same sequence
        are taken, and refused when they are applied.
        """
        taken: list[Request] = []
        size = records = 0
        queue = self._queue
        room = self._limits.inflight_requests_max - self.inflight
        bytes_max, records_max = self._limits.batch_bytes_max, self._limits.batch_records_max
        while queue and len(taken) < room:
            request = queue[0]
            length = len(request.block)
            if taken and (size + length > bytes_max or records + request.count > records_max):
                break
            queue.popleft()
            self.queued_bytes -= length
            if request.future is not None and request.future.done():
                continue  # whoever asked went away before it was queued anywhere
            if request.deadline <= now:
                self.refuse(request, Code.DEADLINE, "the deadline passed before the write was taken up")
                continue
            if joining and request.session and self._joins(request):
                continue
            taken.append(request)
            size += length
            records += request.count
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        """What `take` gave could not be proposed: it waits again, in front, repetitions behind their first."""
        for request in reversed(requests):
            self._forget(request)
            again = [request, *(request.joined or ())]
            request.joined = None
            self._queue.extendleft(reversed(again))
            self.queued_bytes += sum(len(each.block) for each in again)

    def _joins(self, request: Request) -> bool:
        key = (request.session, request.sequence)
        primary = self._open.setdefault(key, request)
        if primary is request or primary.block[BLOCK_SIZE:] != request.block[BLOCK_SIZE:]:
            return False
        if primary.joined is None:
            primary.joined = []
        primary.joined.append(request)
        if primary.first:
            self._place(request, primary.first)
            batch = next(batch for batch in self._batches if batch.last >= primary.last)
            batch.deadline_min = min(batch.deadline_min, request.deadline)
        return True

    def _place(self, request: Request, first: int) -> None:
        request.first = first
        if request.future is None:
            self.answers.append(Answer(request.peer, request.number, first))

    def _forget(self, request: Request) -> None:
        key = (request.session, request.sequence)
        if request.session and self._open.get(key) is request:
            del self._open[key]

    # -- proposed by this node ------------------------------------------------------------------------------------

    def proposed(self, requests: Sequence[Request], term: int, first: int) -> None:
        """`requests` became the entry whose first record is `first`."""
        deadline_min = NEVER
        for request in requests:
            self._place(request, first)
            for repetition in request.joined or ():
                self._place(repetition, first)
                deadline_min = min(deadline_min, repetition.deadline)
            first += request.count
            if request.deadline < deadline_min:
                deadline_min = request.deadline
        self._batches.append(Batch(term, first - 1, requests, deadline_min))
        self._batched += len(requests)
        self._metrics.batch_requests.observe(len(requests))

    def leadership_changed(self) -> None:
        """Positions given in another term do not hold for new repetitions."""
        self._open.clear()

    # -- forwarded to the leader ----------------------------------------------------------------------------------

    def forwarding(self, requests: Sequence[Request], peer: NodeId) -> int:
        """`requests` are about to be sent to `peer` in one frame; answers the number of the first of them."""
        number = self._number + 1
        flight = Flight(peer, requests, min(request.deadline for request in requests), len(requests))
        for request in requests:
            self._number += 1
            request.number = self._number
            request.flight = flight
            self._sent[request.number] = request
        self._flights[number] = flight
        return number

    def answered(self, number: int, first: int, term: int) -> Request | None:
        """The leader of `term` gave the forwarded request its place.

        Returned is a request whose place this node has applied already (the answer was slower than the commit): the
        caller looks up what was applied there, and says so with `settle_late`.
        """
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

    def settle_late(self, request: Request, term: int, effect: RequestEffect | None, applied_term: int) -> None:
        """What `answered` returned, with the place given in `term`, finds an entry of `applied_term` there (0: nobody
        remembers) and its effect."""
        if applied_term == term and effect is not None:
            request.settle(term, effect)
            self._count("applied", 1)
        elif applied_term not in {term, 0}:
            self._overwritten(request, applied_term)
        else:
            message = (
                f"{self._name}: the write got index {request.last}, which is no longer in memory; read the log there"
            )
            self.fail(request, Code.TIMEOUT, message)
        self._landed(request)

    def refused(self, number: int, code: Code, message: str) -> None:
        """The leader did not take it, or it never left: nothing changed, and never will."""
        request = self._sent.pop(number, None)
        if request is not None:
            self.fail(request, code, message)
            self._landed(request)

    def link_lost(self, peer: NodeId, reason: str) -> None:
        """Nothing will be heard of what was sent to that peer and not answered: its fate is unknown."""
        for number, request in list(self._sent.items()):
            assert request.flight is not None
            if request.flight.peer == peer:
                del self._sent[number]
                self.fail(request, Code.LEADER_LOST, f"{self._name}: {reason} before the fate of the write was known")
                self._landed(request)

    def leader_is(self, leader: NodeId, now: float, is_answering: Callable[[NodeId], bool]) -> None:
        """Somebody else leads now: a deposed leader that lives says at once what became of what it was sent (it hands
        over at a clean stop, say), so it has `DEPOSED_S` to do so; of a silent one nothing is expected."""
        self._deposed.pop(leader, None)
        for peer in sorted({flight.peer for flight in self._flights.values()} - {leader}):
            if is_answering(peer):
                self._deposed.setdefault(peer, now + DEPOSED_S)
            else:
                self._leadership_lost(peer)

    def _leadership_lost(self, peer: NodeId) -> None:
        self._deposed.pop(peer, None)
        self.link_lost(peer, f"node {peer} lost the leadership")

    def _landed(self, request: Request) -> None:
        flight = request.flight
        if flight is not None:
            request.flight = None
            flight.open -= 1
            if not flight.open:
                del self._flights[flight.requests[0].number]

    # -- fates ----------------------------------------------------------------------------------------------------

    def applied(self, index: int, term: int, requests: Sequence[commands.Request], effects: Effects) -> None:
        """This node applied the entry that ends at `index` and holds `requests`.

        Terms only rise along the log, so whatever waits for a place of an older term will never be applied, wherever
        that place is.
        """
        is_new_term = term > self._applied[1]
        self._applied = (index, term)
        batches = self._batches
        while batches and (batches[0].last <= index or batches[0].term < term):
            batch = batches.popleft()
            self._batched -= len(batch.requests)
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
        """The state up to `index` came with a leader's snapshot: nobody here will learn what was applied before it."""
        self._applied = (index, term)
        message = f"{self._name}: a snapshot up to index {index} took the place of the log before the fate was known"
        while self._batches and self._batches[0].last <= index:
            batch = self._batches.popleft()
            self._batched -= len(batch.requests)
            for request in batch.requests:
                self._forget(request)
                for each in (request, *(request.joined or ())):
                    self.fail(each, Code.LEADER_LOST, message)
        while self._expected and self._expected[0][0] <= index:
            request = heapq.heappop(self._expected)[3]
            self.fail(request, Code.LEADER_LOST, message)
            self._landed(request)

    def _settle(self, batch: Batch, effects: Effects) -> None:
        term, requests = batch.term, batch.requests
        each: Iterable[RequestEffect] = effects.requests
        if effects.is_plain:
            each = [RequestEffect(Result.APPLIED, effects.revision)] * len(requests)
        for request in settle_all(term, requests, each):
            self._forget(request)
        self._count("applied", sum([request.future is not None for request in requests]))

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
            if expected_term == term:
                request.settle(term, effect_of[last])
                settled += 1
            else:
                self._overwritten(request, term)
            self._landed(request)
        self._count("applied", settled)

    def _expected_overwritten(self, term: int) -> None:
        for _, _, expected_term, request in self._expected:
            if expected_term < term:
                self._overwritten(request, term)
                self._landed(request)
        self._expected = [each for each in self._expected if each[2] >= term]
        heapq.heapify(self._expected)

    def _overwritten(self, request: Request, term: int) -> None:
        self._forget(request)
        for each in (request, *(request.joined or ())):
            message = f"{self._name}: an entry of term {term} was committed in its place"
            self.fail(each, Code.OVERWRITTEN, message)

    def expire(self, now: float, *, leader: NodeId) -> None:
        """Fails what is past its deadline: queued as not_applied, else as unknown; and what no deposed leader told."""
        for peer in [peer for peer, until in self._deposed.items() if until <= now]:
            self._leadership_lost(peer)
        if self._queue_deadline_min <= now:
            code = Code.DEADLINE if leader else Code.NO_LEADER
            reason = "could not be taken up" if leader else "found no leader"
            waiting = deque[Request]()
            for request in self._queue:
                if request.deadline <= now:
                    self.queued_bytes -= len(request.block)
                    self.refuse(request, code, f"the write {reason} within its deadline")
                else:
                    waiting.append(request)
            self._queue = waiting
            self._queue_deadline_min = min((request.deadline for request in waiting), default=NEVER)
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

    def _expire(self, requests: Iterable[Request], now: float) -> float:
        """Fails the due ones as unknown; the earliest deadline of the others."""
        earliest = NEVER
        for request in requests:
            if request.is_settled:
                continue
            if request.deadline <= now:
                self.fail(
                    request, Code.TIMEOUT, f"{self._name}: the write was queued, its fate unknown within the deadline"
                )
            else:
                earliest = min(earliest, request.deadline)
        return earliest

    def refuse(self, request: Request, code: Code, message: str) -> None:
        """It was never queued in any log, and is not taken."""
        if request.future is None:
            self.answers.append(Answer(request.peer, request.number, 0, code))
        else:
            self.fail(request, code, f"{self._name}: {message}")

    def refuse_forwarded(self, message: str) -> None:
        """Refuses what peers forwarded and is still queued: a request is passed on once only."""
        if any(request.future is None for request in self._queue):
            kept = deque[Request]()
            for request in self._queue:
                if request.future is None:
                    self.queued_bytes -= len(request.block)
                    self.refuse(request, Code.NO_LEADER, message)
                else:
                    kept.append(request)
            self._queue = kept

    def refuse_queued(self, code: Code, message: str) -> None:
        """Refuses all that was not proposed or forwarded yet."""
        for request in self._queue:
            self.refuse(request, code, message)
        self._queue.clear()
        self.queued_bytes = 0

    def fail_all(self, queued: Code, inflight: Code, message: str) -> None:
        """The end: nothing more will be learned here."""
        self.refuse_queued(queued, message)
        for batch in self._batches:
            for request in batch.requests:
                for each in (request, *(request.joined or ())):
                    self.fail(each, inflight, f"{self._name}: {message}")
        for _, _, _, request in self._expected:
            self.fail(request, inflight, f"{self._name}: {message}")
        for request in self._sent.values():
            self.fail(request, inflight, f"{self._name}: {message}")
        self._batches.clear()
        self._batched = 0
        self._expected.clear()
        self._sent.clear()
        self._flights.clear()
        self._open.clear()

    def fail(self, request: Request, code: Code, message: str) -> None:
        """Fails it and counts the outcome."""
        if not request.is_settled:
            request.fail(code, message)
            self._count(ERRORS[code].outcome, 1)

    def _count(self, outcome: str, number: int) -> None:
        if number:
            self._metrics.outcomes.labels(outcome).inc(number)
