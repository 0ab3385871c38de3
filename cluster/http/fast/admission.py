"""Bounds how many requests begin in one turn of the event loop; further connections wait in line, in their order.

The fast path asks it for each request. With thousands of busy connections, a turn that serves all of them takes half a
second. Meanwhile the node sends no heartbeat, reads from no peer and accepts no connection. Its followers elect another
leader, and status requests get no answer. So a turn serves a bounded number, and other work of the loop runs in
between. The bound counts work, not time: on a slow machine a turn must not become too small to be efficient.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

REQUESTS_MAX: Final = 512
"""Most requests that begin in one turn: about 15 ms, since in an entry of 512 each costs hardly more than in one of
thousands. With their answers and the node's work a turn takes twice as long, far less than an election timeout."""
REFUSALS_MAX: Final = 256
"""Most refusals in one turn, besides: a refusal costs half as much as a write."""
REQUEST_BYTES: Final = 8 << 10
"""A larger request counts as several of this size, because a batch of records takes time in proportion to its bytes."""


class Waiting(Protocol):
    """A connection in line."""

    def called(self) -> None:
        """Its turn has come."""


class AdmissionQueue:
    """The line of one node. Belongs to the event loop."""

    __slots__ = ("_is_calling", "_is_open", "_left", "_line", "_loop", "_refusals_left", "_refused")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._line: deque[Waiting] = deque()
        self._refused: deque[Waiting] = deque()
        self._left = self._refusals_left = 0  # requests and refusals left in this turn
        self._is_open = False  # `_next` is scheduled
        self._is_calling = False

    def may(self, size: int) -> bool:
        """Whether a request of that many bytes is served now. Else it must `wait`: others wait before it, or this turn
        has
        served enough."""
        if not self._is_open:
            self._begin()
        if self._left <= 0 or (self._line and not self._is_calling):
            return False
        self._left -= 1 + size // REQUEST_BYTES
        return True

    def may_refuse(self) -> bool:
        """Whether a connection that cannot wait in line is refused now; else it must `wait_refused`."""
        self._refusals_left -= 1
        return self._refusals_left >= 0

    def wait(self, connection: Waiting) -> None:
        """Calls the connection later, in its order."""
        self._line.append(connection)
        if not self._is_open:
            self._begin()

    def wait_refused(self, connection: Waiting) -> None:
        """As `wait`, in a line of its own, which moves faster."""
        self._refused.append(connection)

    def _begin(self) -> None:
        self._is_open = True
        self._left, self._refusals_left = REQUESTS_MAX, REFUSALS_MAX
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        """A new turn of the event loop begins."""
        if not self._line and not self._refused:
            self._is_open = False
            return
        self._begin()
        for _ in range(min(REFUSALS_MAX, len(self._refused))):
            self._refused.popleft().called()
        self._is_calling = True
        try:
            for _ in range(min(REQUESTS_MAX, len(self._line))):  # not connections that come back to the line meanwhile
                if self._left <= 0:
                    break
                self._line.popleft().called()
        finally:
            self._is_calling = False
