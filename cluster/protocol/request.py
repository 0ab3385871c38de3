"""Defines a request block with its deadline and future, the groups it travels in, and the result of the future.

`raftlog.cluster.protocol.proposals` moves requests from state to state; this module only defines the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.raft.codec.block import decode_blocks, decode_records
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.types import NOBODY, NodeId
from raftlog.statemachine.answers import Reason
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.effects import RequestEffect

NEVER: Final = float("inf")
"""The deadline of what waits without one, in seconds of the clock."""
Value_contra = TypeVar("Value_contra", contravariant=True)


_KEEPALIVE: Final = int(Operation.SESSION_KEEPALIVE)
_KEEPALIVE_BYTES_MAX: Final = 1_024
"""Bytes of the largest block that a full queue checks for being a keepalive; a keepalive is much shorter."""
_CODES: Final = {
    Reason.SEQUENCE_SETTLED: Code.SEQUENCE_SETTLED,
    Reason.PAYLOAD_DIFFERS: Code.SEQUENCE_REUSED,
    Reason.WINDOW_FULL: Code.WINDOW_FULL,
    Reason.ANSWERS_FULL: Code.WINDOW_FULL,
    Reason.ANSWERS_SHARE: Code.WINDOW_FULL,
    Reason.SESSIONS_FULL: Code.SESSIONS_FULL,
    Reason.SESSIONS_SHARE: Code.SESSIONS_FULL,
    Reason.FUTURE_REVISION: Code.FUTURE_INDEX,
    Reason.NO_CONSUMER: Code.CONSUMER_NOT_FOUND,
    Reason.CONSUMERS_FULL: Code.CONSUMERS_FULL,
    Reason.CONSUMERS_SHARE: Code.CONSUMERS_FULL,
    Reason.NOT_PERMITTED: Code.PERMISSION_LOST,
}


def code_of(reason: Reason | None) -> Code:
    """The code of an answer for a reason of the state machine; a few reasons have a code of their own."""
    return Code.REFUSED if reason is None else _CODES.get(reason, Code.REFUSED)


class Promise(Protocol[Value_contra]):
    """The waiting caller of a request: an `asyncio.Future` in the server, a simulated client in the simulator."""

    def done(self) -> bool:
        """Whether the caller does not wait any more."""

    def set_result(self, result: Value_contra, /) -> None:
        """The request succeeded with this result."""

    def set_exception(self, exception: BaseException, /) -> None:
        """The request failed with this error."""


class RequestResult(NamedTuple):
    """The result of a request that this node has applied: indexes of its records, the entry's term, its effect."""

    first: int
    last: int
    term: int
    effect: RequestEffect


@dataclass(slots=True, eq=False)
class Inflight:
    """One request block. `future` is None if a peer forwarded it; then `peer` gets its position."""

    block: bytes
    count: int
    deadline: float  # seconds of `clock.monotonic`
    session: int
    sequence: int
    future: Promise[RequestResult] | None
    peer: NodeId = NOBODY  # the node that forwarded it
    number: int = 0  # names it between this node and the other one
    first: int = 0  # index of its first record, once proposed
    joined: list[Inflight] | None = None  # repetitions of it that share its outcome
    flight: Flight | None = None

    @property
    def last(self) -> int:
        """Index of its last record, once it has a position."""
        return self.first + self.count - 1

    @property
    def is_settled(self) -> bool:
        """Whether its caller does not wait any more."""
        return self.future is None or self.future.done()

    @property
    def is_keepalive(self) -> bool:
        """Whether it only keeps a session alive."""
        if len(self.block) > _KEEPALIVE_BYTES_MAX:
            return False
        try:
            records = [record for each in decode_blocks(self.block) for record in decode_records(each)]
        except (Corrupt, UnknownVersion):
            return False  # the node that applies it reports the error
        return len(records) == 1 and records[0].operation == _KEEPALIVE

    def settle(self, term: int, effect: RequestEffect) -> None:
        """The request was applied."""
        if self.future is not None and not self.future.done():
            self.future.set_result(RequestResult(self.first, self.last, term, effect))

    def fail(self, code: Code, message: str) -> None:
        """The request was not applied, or its outcome is unknown."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(ApiError(code, message))


@dataclass(slots=True, eq=False)
class Batch:
    """The requests of one entry that this node proposed, in order."""

    term: int
    last: int
    requests: Sequence[Inflight]
    deadline_min: float


@dataclass(slots=True, eq=False)
class Flight:
    """The requests of one frame to the leader; `open` of them are not settled."""

    peer: NodeId
    requests: Sequence[Inflight]
    deadline_min: float
    open: int


class PeerReply(NamedTuple):
    """The leader's answer to the node that forwarded a request: its first index, or the code of the refusal."""

    peer: NodeId
    number: int
    first: int
    code: Code | None = None
