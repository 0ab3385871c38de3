"""How many requests are begun in one turn of the event loop: then connections wait in line, first come first.

With thousands of busy connections a turn that serves all of them takes half a second, in which the node sends no
heartbeat, hears no peer and takes no connection: its followers elect another leader, and nobody who asks how it is
gets an answer. So a turn serves so many, and everything else the loop has to do comes in between. What counts is work,
not time: on a machine that gives the node little of it a turn must not become too small to be worth its while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

REQUESTS_MAX: Final = 512
"""About 15 ms: an entry of so many costs each of them hardly more than one of thousands. With their answers and what
the node does, a turn is about twice as long: a small part of the time after which a follower misses its leader."""
REFUSALS_MAX: Final = 256
"""Besides those: a refusal costs half of what a write does."""
REQUEST_BYTES: Final = 8 << 10
"""A larger request counts as several: a batch of records takes as long for each so many bytes."""


class Waiting(Protocol):
    """A connection in line."""

    def called(self) -> None:
        """It is its turn."""


class Turns:
    """The line of one node. Belongs to the event loop."""

    __slots__ = ("_is_calling", "_is_open", "_left", "_line", "_loop", "_refusals_left", "_refused")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._line: deque[Waiting] = deque()
        self._refused: deque[Waiting] = deque()
        self._left = self._refusals_left = 0  # what this turn may still do
        self._is_open = False  # `_next` will come
        self._is_calling = False

    def may(self, size: int) -> bool:
        """Whether a request of so many bytes is served now; else it must `wait`: others were there before, or enough
        were served in this turn."""
        if not self._is_open:
            self._begin()
        if self._left <= 0 or (self._line and not self._is_calling):
            return False
        self._left -= 1 + size // REQUEST_BYTES
        return True

    def may_refuse(self) -> bool:
        """Whether one that may not wait any more is refused now; else it must `wait_refused`."""
        self._refusals_left -= 1
        return self._refusals_left >= 0

    def wait(self, connection: Waiting) -> None:
        """Calls it later, in its order."""
        self._line.append(connection)
        if not self._is_open:
            self._begin()

    def wait_refused(self, connection: Waiting) -> None:
        """The same, in a line of its own, which goes faster."""
        self._refused.append(connection)

    def _begin(self) -> None:
        self._is_open = True
        self._left, self._refusals_left = REQUESTS_MAX, REFUSALS_MAX
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        """The loop has been round."""
        if not self._line and not self._refused:
            self._is_open = False
            return
        self._begin()
        for _ in range(min(REFUSALS_MAX, len(self._refused))):
            self._refused.popleft().called()
        self._is_calling = True
        try:
            for _ in range(min(REQUESTS_MAX, len(self._line))):  # not those who come back to it
                if self._left <= 0:
                    break
                self._line.popleft().called()
        finally:
            self._is_calling = False
