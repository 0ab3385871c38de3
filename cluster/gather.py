"""When a batch is whole: who was just answered asks again at once, and what they ask belongs into the same batch.

A commit costs what it costs, however much it carries, and so does a read round: so one is under way at a time, and the
next one waits for those that the last one answered, as long as they keep coming. A single client is back alone, so it
never waits; where nobody comes back for `GAP_S` nobody is waited for; `GATHER_S` bounds it in any case. There is no
timer: whoever gathers looks again in every turn of the event loop, in which it has nothing else to do.
"""

from __future__ import annotations

from typing import Final

GAP_S: Final = 0.0001
"""Longer than a client of this machine takes from an answer to its next request, where many do so in turn."""
GATHER_S: Final = 0.002
"""About what a commit takes: longer than that it would be better to be on the way."""


class Gather:
    """What is waiting for one kind of batch. Times are seconds of `clock.monotonic`."""

    __slots__ = ("_came", "_is_new", "_seen", "_until", "_wanted")

    def __init__(self) -> None:
        self._wanted = 0  # as many as would make it whole; 0: nobody is expected
        self._is_new = False  # nobody has looked since the answers
        self._seen = 0  # how many waited at the last look
        self._came = 0.0  # when there was one more of them
        self._until = 0.0

    def answered(self, count: int, waiting: int) -> None:
        """`count` were answered while `waiting` more had come: all of them may want to go together."""
        self._wanted = count + waiting
        self._is_new = True

    def is_whole(self, waiting: int, now: float) -> bool:
        """Whether the batch goes now, with `waiting` in it; else look again in the next turn of the loop."""
        if waiting >= self._wanted:
            return True
        if self._is_new:  # the time that the answers took to be written does not count
            self._is_new = False
            self._came, self._until = now, now + GATHER_S
        elif now >= self._until or (waiting == self._seen and now - self._came >= GAP_S):
            self._wanted = 0
            return True
        elif waiting != self._seen:
            self._came = now
        self._seen = waiting
        return False
