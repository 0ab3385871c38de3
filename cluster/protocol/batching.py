"""Decides when to close a batch of requests or of reads.

The replica's parts `writes` and `reads` ask it in every turn in which requests wait. A commit costs about the same
whatever it carries, and so does a read round. So one is under way at a time, and the next one carries many requests.
Clients that were just answered usually send their next request at once, so the next batch waits briefly for them. A
single client is back alone, so it never waits. The wait ends after `GAP_S` without a new request, and in any case after
`WINDOW_S`. There is no timer: the caller asks again in every turn of the event loop.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

GAP_S: Final = 0.0001
"""Longest pause between two requests of one batch, in seconds. A local client among many takes less to send again."""
WINDOW_S: Final = 0.002
"""Longest wait for one batch, in seconds. One commit takes about as long: a longer wait would cost more than it
saves."""


class BatchDecision(Enum):
    """Whether the waiting writes, or the waiting reads, go now."""

    GO = auto()
    AGAIN = auto()  # look again in the next turn of the loop: more requests will come
    LATER = auto()  # no request waits, or the batch under way ends with a turn


# Read in every turn: a member of an enum costs a call each time.
GO: Final = BatchDecision.GO
AGAIN: Final = BatchDecision.AGAIN
LATER: Final = BatchDecision.LATER


class BatchWindow:
    """Counts the requests that wait for one kind of batch. Times are seconds of `clock.monotonic`."""

    __slots__ = ("_came", "_is_new", "_seen", "_until", "_wanted")

    def __init__(self) -> None:
        self._wanted = 0  # requests that make the batch complete; 0: none is expected
        self._is_new = False  # no look has happened since the answers
        self._seen = 0  # requests that waited at the last look
        self._came = 0.0  # when their number last changed
        self._until = 0.0

    def answered(self, count: int, waiting: int) -> None:
        """`count` requests were answered while `waiting` new ones had come: expects all of these clients in one
        batch."""
        self._wanted = count + waiting
        self._is_new = True

    def look(self, waiting: int, now: float) -> BatchDecision:
        """Whether the batch goes now, with `waiting` requests in it; else the caller asks again in its next turn."""
        if waiting >= self._wanted:
            return GO
        if self._is_new:  # the time for writing the answers does not count
            self._is_new = False
            self._came, self._until = now, now + WINDOW_S
        elif now >= self._until or (waiting == self._seen and now - self._came >= GAP_S):
            self._wanted = 0
            return GO
        elif waiting != self._seen:
            self._came = now
        self._seen = waiting
        return AGAIN
