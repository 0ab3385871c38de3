"""One request block on its way, the groups it travels in, and what its future gets.

`cluster.pending` moves them from state to state; here is only what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from cluster.wire import ApiError, Code
from raft.codec import Corrupt, UnknownVersion, decode_blocks, decode_records
from raft.types import NOBODY, NodeId
from statemachine.answers import Reason
from statemachine.commands import Operation
from statemachine.effects import RequestEffect

_new: Final = tuple.__new__  # a NamedTuple without the cost of its constructor
Value_contra = TypeVar("Value_contra", contravariant=True)


_KEEPALIVE: Final = int(Operation.SESSION_KEEPALIVE)
_KEEPALIVE_BYTES_MAX: Final = 256
"""Of a block that is looked into when a queue is full; a keepalive is much shorter."""
_CODES: Final = {
    Reason.SEQUENCE_SETTLED: Code.SEQUENCE_SETTLED,
    Reason.PAYLOAD_DIFFERS: Code.SEQUENCE_REUSED,
    Reason.WINDOW_FULL: Code.WINDOW_FULL,
    Reason.ANSWERS_FULL: Code.WINDOW_FULL,
    Reason.SESSIONS_FULL: Code.SESSIONS_FULL,
    Reason.FUTURE_REVISION: Code.FUTURE_INDEX,
    Reason.NO_CONSUMER: Code.CONSUMER_NOT_FOUND,
    Reason.CONSUMERS_FULL: Code.CONSUMERS_FULL,
}


def code_of(reason: Reason | None) -> Code:
    """What a client is told of a reason of the machine: a few have a code of their own."""
    return Code.REFUSED if reason is None else _CODES.get(reason, Code.REFUSED)


class Promise(Protocol[Value_contra]):
    """Who waits for a fate: an `asyncio.Future` in the server, a client of the simulator's in the simulator."""

    def done(self) -> bool:
        """Whether nobody waits any more."""

    def set_result(self, result: Value_contra, /) -> None:
        """It is known."""

    def set_exception(self, exception: BaseException, /) -> None:
        """It failed."""


class Settled(NamedTuple):
    """A request that this node has applied: the indexes of its records, the entry's term, what it did."""

    first: int
    last: int
    term: int
    effect: RequestEffect


@dataclass(slots=True, eq=False)
class Request:
    """One request block on its way. `future` is None for one that a peer forwarded: `peer` is told its position."""

    block: bytes
    count: int
    deadline: float  # seconds of `clock.monotonic`
    session: int
    sequence: int
    future: Promise[Settled] | None
    peer: NodeId = NOBODY  # who forwarded it
    number: int = 0  # names it between this node and the other one
    first: int = 0  # index of its first record, once proposed
    joined: list[Request] | None = None  # repetitions of it that share its fate
    flight: Flight | None = None

    @property
    def last(self) -> int:
        """Index of its last record, once it has a place."""
        return self.first + self.count - 1

    @property
    def is_settled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future is None or self.future.done()

    @property
    def is_keepalive(self) -> bool:
        """Whether it does nothing but keep a session alive."""
        if len(self.block) > _KEEPALIVE_BYTES_MAX:
            return False
        try:
            records = [record for each in decode_blocks(self.block) for record in decode_records(each)]
        except (Corrupt, UnknownVersion):
            return False  # the node that applies it says so
        return len(records) == 1 and records[0].operation == _KEEPALIVE

    def settle(self, term: int, effect: RequestEffect) -> None:
        """It was applied."""
        if self.future is not None and not self.future.done():
            self.future.set_result(Settled(self.first, self.last, term, effect))

    def fail(self, code: Code, message: str) -> None:
        """It was not, or nobody knows."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(ApiError(code, message))


def settle_all(term: int, requests: Sequence[Request], effects: Iterable[RequestEffect]) -> list[Request]:
    """They were applied, each with its effect: as `Request.settle`, without a call for each, and their repetitions.
    Answers those of a session."""
    of_sessions: list[Request] = []
    for request, effect in zip(requests, effects, strict=True):
        future = request.future
        if future is not None and not future.done():
            first = request.first
            future.set_result(_new(Settled, (first, first + request.count - 1, term, effect)))
        if request.session:
            of_sessions.append(request)
            for repetition in request.joined or ():
                repetition.settle(term, effect)
    return of_sessions


@dataclass(slots=True, eq=False)
class Batch:
    """The requests of one entry that this node proposed, in order."""

    term: int
    last: int
    requests: Sequence[Request]
    deadline_min: float


@dataclass(slots=True, eq=False)
class Flight:
    """The requests of one frame to the leader; `open` of them are not settled."""

    peer: NodeId
    requests: Sequence[Request]
    deadline_min: float
    open: int


class Answer(NamedTuple):
    """What the leader tells the node that forwarded a request: its first index, or why it was not taken."""

    peer: NodeId
    number: int
    first: int
    code: Code | None = None
