"""Appends that go together: what piled up while the last request was under way is one request, decided purely.

The layer above `cluster.client_core` that both clients use: a batch is one append of many records, with one session and
sequence, so a repeated one is applied once; it succeeds or fails as one, and each of its calls is told so. Only where
the node refuses what is in it (one record is malformed or too large) is it sent again in halves, until the call that
is at fault stands alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cluster import wire
from cluster.client_errors import ClientError, OutcomeUnknown, Unavailable
from cluster.client_flow import Ticket
from cluster.client_requests import NewRecord
from cluster.wire import Code

RECORDS_MAX: Final = 1_000
"""Records of one batch: a node applies an entry of so many in a few milliseconds."""
BYTES_MAX: Final = 512 << 10
"""Bytes of keys and values of one batch, but for a single larger record; half of what the log takes as one request."""
WAITING_MAX: Final = 65_536
"""Calls that may wait; more are refused as busy."""
_OF_CONTENT: Final = frozenset({Code.BAD_REQUEST, Code.TOO_LARGE})


class UnknownInBatch(OutcomeUnknown):
    """The append was one of a batch: its record is number `offset` of what the receipt of `sequence` tells."""

    offset: int = 0


class Append(msgspec.Struct, eq=False):
    """One call that waits; `waiter` is the shell's."""

    record: NewRecord
    deadline: float  # seconds of clock.monotonic
    waiter: Any


def size_of(record: NewRecord) -> int:
    """About how many bytes of a request it takes."""
    value, key, headers, _ = record
    size = 16 + len(value or b"")
    if key is not None or headers:
        size += len(key or b"") + sum([len(each) + 16 for _, each in headers])
    return size


def take(waiting: deque[Append], records_max: int) -> list[Append]:
    """The next batch, in order; empty only for want of calls."""
    batch: list[Append] = []
    size = 0
    while waiting and len(batch) < records_max:
        size += size_of(waiting[0].record)
        if batch and size > BYTES_MAX:
            break
        batch.append(waiting.popleft())
    return batch


def records_of(batch: Sequence[Append]) -> list[NewRecord]:
    """What the request holds."""
    return [each.record for each in batch]


def answers_of(answer: wire.Appended, count: int) -> list[wire.Appended]:
    """The answers to the calls of a batch, in order."""
    outcome, result, term = answer.outcome, answer.result, answer.term
    return [
        wire.Appended(outcome, result, index, index, 1, index, term)
        for index in range(answer.first, answer.first + count)
    ]


def halves(batch: list[Append], error: ClientError) -> tuple[list[Append], list[Append]] | None:
    """What to send instead of a batch that was refused for what is in it; None if that does not help."""
    if len(batch) == 1 or error.code not in _OF_CONTENT or isinstance(error, OutcomeUnknown):
        return None
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]


def error_of(error: ClientError, position: int, count: int) -> ClientError:
    """The error for the call at that position: an exception of its own."""
    if isinstance(error, OutcomeUnknown):
        kind = type(error) if count == 1 else UnknownInBatch
        unknown = kind(error.code, error.message, problem=error.problem, tried=error.tried)
        unknown.session, unknown.sequence = error.session, error.sequence
        if isinstance(unknown, UnknownInBatch):
            unknown.offset = position
        return unknown
    return type(error)(error.code, error.message, problem=error.problem, tried=error.tried)


def unknown(why: str, ticket: Ticket | None) -> OutcomeUnknown:
    """The end of a batch of which nothing was heard."""
    error = OutcomeUnknown(Code.TIMEOUT, f"it may or may not have been applied: {why}")
    if ticket is not None:
        error.session, error.sequence = ticket.book.session, ticket.sequence
    return error


LATE: Final = "its batch was not answered in time"
CLOSED: Final = "the client was closed meanwhile"


def late() -> ClientError:
    """A call whose deadline passed before it was sent."""
    return Unavailable(Code.DEADLINE, "the deadline passed while earlier appends were under way")


def closed() -> ClientError:
    """A call that was not sent when the client was closed."""
    return Unavailable(Code.SHUTTING_DOWN, "the client was closed before it was sent")


def crowded() -> ClientError:
    """A call too many."""
    return Unavailable(Code.BUSY, f"{WAITING_MAX} appends of this client wait already")
