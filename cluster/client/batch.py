"""Joins the appends of a client into batches, as pure decisions: appends that wait become one request.

Both clients use it above `raftlog.cluster.client.decisions`. A batch is one append of many records with one session and
sequence, so a repeated batch is applied once. It succeeds or fails as a whole, and each of its calls gets that result.
Only if the node refuses its content (one record is malformed or too large), it is sent again in halves, until the wrong
call stands alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from raftlog.cluster.api.errors import Code
from raftlog.cluster.api.records import Appended
from raftlog.cluster.client.errors import ClientError, OutcomeUnknown, Unavailable
from raftlog.cluster.client.flow import Ticket
from raftlog.cluster.client.new_records import NewRecord

W = TypeVar("W")

RECORDS_MAX: Final = 1_000
"""Most records of one batch; a node applies an entry of as many in a few milliseconds."""
BYTES_MAX: Final = 512 << 10
"""Most bytes of keys and values of one batch, unless one call is larger; half of the limit of one request."""
WAITING_MAX: Final = 65_536
"""Most calls that may wait; further ones are refused as busy."""
_OF_CONTENT: Final = frozenset({Code.BAD_REQUEST, Code.TOO_LARGE})


class UnknownInBatch(OutcomeUnknown):
    """The append was one of a batch: its record is number `offset` of the records in the receipt of `sequence`."""

    offset: int = 0


class WaitingCall(msgspec.Struct, eq=False, kw_only=True):
    """One call that waits; `waiter` belongs to the client. Times are seconds of clock.monotonic."""

    waiter: Any = None
    came: float = 0.0
    trace: str = ""  # `traceparent` of its caller


class Append(WaitingCall, eq=False):
    """One waiting append. In the asyncio client one with a deadline of its own does not wait for a batch."""

    record: NewRecord
    deadline: float = 0.0


def size_of(call: Append) -> int:
    """Estimated bytes of its record in a request."""
    value, key, headers, _ = call.record
    size = 16 + len(value or b"")
    if key is not None or headers:
        size += len(key or b"") + sum([len(each) + 16 for _, each in headers])
    return size


def take(waiting: deque[W], count_max: int, size_of: Callable[[W], int]) -> list[W]:
    """Takes the next batch, in order: BYTES_MAX at most, but for a single larger call. Empty if nothing waits."""
    batch: list[W] = []
    size = 0
    while waiting and len(batch) < count_max:
        size += size_of(waiting[0])
        if batch and size > BYTES_MAX:
            break
        batch.append(waiting.popleft())
    return batch


def records_of(batch: Sequence[Append]) -> list[NewRecord]:
    """The records of the request."""
    return [each.record for each in batch]


def answers_of(answer: Appended, count: int) -> list[Appended]:
    """The answers to the calls of a batch, in order."""
    outcome, result, term = answer.outcome, answer.result, answer.term
    return [
        Appended(outcome, result, index, index, 1, index, term) for index in range(answer.first, answer.first + count)
    ]


def halves(batch: list[Append], error: ClientError) -> tuple[list[Append], list[Append]] | None:
    """The two batches to send instead of one that was refused for its content; None if that does not help."""
    if len(batch) == 1 or error.code not in _OF_CONTENT or isinstance(error, OutcomeUnknown):
        return None
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]


def error_of(error: ClientError, position: int, count: int) -> ClientError:
    """The error for the call at that position; each call gets its own exception."""
    if isinstance(error, OutcomeUnknown):
        kind = type(error) if count == 1 else UnknownInBatch
        unknown = kind(error.code, error.message, problem=error.problem, tried=error.tried)
        unknown.session, unknown.sequence = error.session, error.sequence
        if isinstance(unknown, UnknownInBatch):
            unknown.offset = position
        return unknown
    return type(error)(error.code, error.message, problem=error.problem, tried=error.tried)


def unknown(why: str, ticket: Ticket | None) -> OutcomeUnknown:
    """The error of a batch without an answer."""
    error = OutcomeUnknown(Code.TIMEOUT, f"it may or may not have been applied: {why}")
    if ticket is not None:
        error.session, error.sequence = ticket.book.session, ticket.sequence
    return error


LATE: Final = "its batch was not answered in time"
CLOSED: Final = "the client was closed meanwhile"


def late() -> ClientError:
    """The error of a call whose deadline passed before it was sent."""
    return Unavailable(Code.DEADLINE, "the deadline passed while earlier appends were under way")


def closed() -> ClientError:
    """The error of a call that was not sent before the client was closed."""
    return Unavailable(Code.SHUTTING_DOWN, "the client was closed before it was sent")


def crowded() -> ClientError:
    """The error of a call beyond `WAITING_MAX`."""
    return Unavailable(Code.BUSY, f"{WAITING_MAX} appends of this client wait already")
