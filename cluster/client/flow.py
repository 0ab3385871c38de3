"""Runs one request from its first byte to its answer, as a generator that both clients drive.

The generator yields commands (`Send`, `Sleep`) and gets their results with the time. `raftlog.cluster.client.decisions`
decides, `raftlog.cluster.client.http1` makes the bytes. So the two clients differ only in how they wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar, cast

import msgspec

from raftlog.cluster.api.errors import Problem
from raftlog.cluster.api.headers import (
    H_DEADLINE,
    H_INDEX,
    H_LOG,
    H_SEQUENCE,
    H_SESSION,
    H_SETTLED,
    H_TERM,
    H_TRACEPARENT,
    JSON,
)
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.client import trace_context
from raftlog.cluster.client.decisions import (
    Attempt,
    ClientCall,
    Failure,
    GiveUp,
    Policy,
    Random,
    Routes,
    Safety,
    SessionBook,
    Step,
    answered,
    begin,
    failed,
    refused,
)
from raftlog.cluster.client.errors import KeyNotFound, NotApplied, OutcomeUnknown, SessionExpired
from raftlog.cluster.client.http1 import NO_TLS, ResponseHead, encode_request
from raftlog.cluster.security.bearer import Bearer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[T]):
    """A request without its node, session and deadline. `target` is the raw path and query."""

    method: str
    target: str
    decode: Callable[[ResponseHead, bytes], T]
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    accept: str = JSON
    writes: bool = False  # changes something: takes a session and sequence if the client has one
    may_repeat: bool = False  # changes something, and a repetition changes nothing more: sent again without a session
    is_plain: bool = False  # changes something outside sessions: never sent again once it may have happened
    hold_ms: int = 0  # how long the node may hold the answer back (long poll)
    deadline_s: float | None = None  # of this request; None: the client's
    may_be_absent: bool = False  # its key may be missing: then the answer is None
    may_be_late: bool = False  # a read that names no index: the node must know what the client has seen


@dataclass(slots=True)
class ClientState:
    """The facts that one client remembers, shared by all its requests."""

    routes: Routes
    policy: Policy
    random: Random
    index: int = 0  # the highest index seen in any answer: the read-your-writes token
    bearer: Bearer | None = None  # the token that goes with every request
    log: str = ""  # the id of the log that answered first; answers of another log are errors
    process: int = field(default_factory=os.getpid)  # of the client

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the client's."""
        return self.process != os.getpid()

    def check_process(self) -> None:
        """Raises RuntimeError in a process that was forked from the client's.

        Both would write under the same session and sequences, and the state machine would take one write for a
        repetition of the other. They would share connections, too.
        """
        if self.is_forked:
            raise RuntimeError(
                f"this client belongs to process {self.process}, from which this process ({os.getpid()}) was forked: "
                "make a client in each process"
            )

    def saw(self, head: ResponseHead) -> None:
        """Remembers the index of an answer, and the log of the first one."""
        if not self.log and head.status < 300:
            self.log = head.headers.get(_LOG, "")
        index = head.headers.get(_INDEX, "")
        if index.isascii() and index.isdigit():
            self.index = max(self.index, int(index))


_INDEX = H_INDEX.lower()
_LOG = H_LOG.lower()
_TERM = H_TERM.lower()


@dataclass(frozen=True, slots=True)
class Ticket:
    """A sequence of a session, for one request. `is_new`: taken for this request, which was never sent before."""

    book: SessionBook
    sequence: int
    is_new: bool = False


@contextmanager
def settling(
    ticket: Ticket, settle: Callable[[Ticket, bool], None], drop: Callable[[SessionBook], None]
) -> Iterator[None]:
    """Around the flow of a write: settles the sequence by its end. `settle` gets whether the outcome is unknown.

    A session that has expired is dropped: later writes open another one, and this write is never sent again.
    """
    is_unknown = True  # also after any other error, such as a cancellation: the request may have been sent
    try:
        yield
        is_unknown = False
    except NotApplied:
        is_unknown = False
        raise
    except OutcomeUnknown as error:
        error.session, error.sequence = ticket.book.session, ticket.sequence
        if isinstance(error, SessionExpired):
            drop(ticket.book)
        raise
    finally:
        settle(ticket, is_unknown)


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for that time."""

    ms: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes to that node, and wait that long for the whole response (of a stream: for its head)."""

    url: str
    data: bytes
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer. Of an accepted stream, the body is still to come and `body` is empty."""

    head: ResponseHead
    body: bytes


@dataclass(frozen=True, slots=True)
class LostAnswer:
    """No answer."""

    failure: Failure
    reason: str


def unreached(error: OSError, timeout_s: float, *, is_accepted: bool) -> LostAnswer:
    """The failure of a connection that was not made, or of its handshake once a program has accepted it."""
    why = f" within {timeout_s:g} s" if isinstance(error, TimeoutError) else f": {error}"
    if is_accepted:
        return LostAnswer(Failure.NO_HANDSHAKE, f"{NO_TLS}{why}")
    is_refused = isinstance(error, ConnectionRefusedError)
    return LostAnswer(Failure.NOT_SENT, "connection refused" if is_refused else f"no connection{why}")


Happened = tuple[int, Response | LostAnswer | None]
"""The time in monotonic ms after a command, and its result (None after a Sleep)."""

Flow = Generator[Send | Sleep, Happened, T]


def exchange(
    state: ClientState, request: ApiRequest[T], ticket: Ticket | None, *, now_ms: int, deadline_ms: int
) -> Flow[T]:
    """Carries the request out. Returns the decoded answer; raises ClientError."""
    safety = Safety.AGAIN if request.may_repeat else Safety.FREE
    if request.writes or request.is_plain:
        safety = Safety.PLAIN if ticket is None else Safety.ONCE
    call, step = begin(
        state.routes,
        _policy(state, request),
        safety,
        now_ms=now_ms,
        deadline_ms=deadline_ms,
        random=state.random,
        maybe=safety is Safety.ONCE and ticket is not None and not ticket.is_new,
    )
    result, _ = yield from _carry_on(state, request, ticket, call, step)
    return result


def exchange_batch(
    state: ClientState, request: ApiRequest[T], *, now_ms: int, deadline_ms: int
) -> Flow[tuple[T, ClientCall]]:
    """Carries out a request whose body has a session and a sequence for each of its writes. Raises ClientError.

    Also returns the call, with which `resume` continues a write whose answer was a problem.
    """
    call, step = begin(
        state.routes, state.policy, Safety.ONCE, now_ms=now_ms, deadline_ms=deadline_ms, random=state.random
    )
    return (yield from _carry_on(state, request, None, call, step))


def resume(
    state: ClientState, request: ApiRequest[T], ticket: Ticket, call: ClientCall, problem: Problem, *, now_ms: int
) -> Flow[T]:
    """Continues one write of a batch, whose answer was `problem`: alone, under the same sequence.

    Raises as `exchange`.
    """
    call, step = refused(state.routes, state.policy, call, problem, now_ms=now_ms, random=state.random)
    result, _ = yield from _carry_on(state, request, ticket, call, step)
    return result


def _policy(state: ClientState, request: ApiRequest[T]) -> Policy:
    policy = state.policy
    return replace(policy, attempt_ms=policy.attempt_ms + request.hold_ms) if request.hold_ms else policy


def _carry_on(
    state: ClientState, request: ApiRequest[T], ticket: Ticket | None, call: ClientCall, step: Step
) -> Flow[tuple[T, ClientCall]]:
    """Carries out each step until the request is answered or given up."""
    policy = _policy(state, request)
    while True:
        if isinstance(step, GiveUp):
            if request.may_be_absent and isinstance(step.error, KeyNotFound):
                return cast(T, None), call
            raise step.error
        if step.wait_ms:
            yield Sleep(step.wait_ms)
        data = _bytes_of(state, request, ticket, step)
        now_ms, happened = yield Send(step.url, data, step.timeout_ms)
        if isinstance(happened, Response):
            state.saw(happened.head)
            if 200 <= happened.head.status < 300:
                try:
                    result = request.decode(happened.head, happened.body)
                except (msgspec.MsgspecError, ValueError, KeyError) as error:
                    happened = LostAnswer(Failure.GARBLED, f"an answer that cannot be read: {error}")
                else:
                    term = happened.head.headers.get(_TERM, "")
                    leader = getattr(result, "leader", None)
                    answered(
                        state.routes,
                        call,
                        leader=leader if isinstance(leader, LeaderHint) else None,
                        term=int(term) if term.isascii() and term.isdigit() else None,
                    )
                    return result, call
        call, step = _after(state, policy, call, happened, now_ms)


def _after(
    state: ClientState, policy: Policy, call: ClientCall, happened: Response | LostAnswer | None, now_ms: int
) -> tuple[ClientCall, Step]:
    match happened:
        case Response(head, body):
            try:
                problem = _problem(body)
            except msgspec.MsgspecError:
                lost = LostAnswer(Failure.GARBLED, f"HTTP {head.status} that is not raftlog's: {_glimpse(body)}")
            else:
                return refused(state.routes, policy, call, problem, now_ms=now_ms, random=state.random)
        case LostAnswer():
            lost = happened
        case None:
            raise AssertionError("a Send was answered as a Sleep")
    return failed(state.routes, policy, call, lost.failure, lost.reason, now_ms=now_ms, random=state.random)


_problem = msgspec.json.Decoder(Problem).decode


def _glimpse(body: bytes) -> str:
    text = body[:80].decode("utf-8", "replace").strip()
    return repr(text) if text else "an empty body"


def _bytes_of(state: ClientState, request: ApiRequest[T], ticket: Ticket | None, attempt: Attempt) -> bytes:
    headers = [("Accept", request.accept), *request.headers, (H_DEADLINE, str(attempt.node_ms))]
    if state.log:
        headers.append((H_LOG, state.log))
    if state.bearer is not None:
        headers += state.bearer.header(attempt.url)
    if ticket is not None:
        headers += [
            (H_SESSION, str(ticket.book.session)),
            (H_SEQUENCE, str(ticket.sequence)),
            (H_SETTLED, str(ticket.book.settled)),
        ]
    if trace := trace_context.of_request():
        headers.append((H_TRACEPARENT, trace))
    host = attempt.url.partition("://")[2]
    # Pitfall 39: a client that moves to another node would see time go backward.
    least = f"&min_index={state.index}" if request.may_be_late and state.index else ""
    return encode_request(request.method, request.target + least, host, headers, request.body)
