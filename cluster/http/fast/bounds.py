"""Bounds what connections may take: requests in one turn, time for a head or a body to come, and bytes of a head.

`AdmissionQueue` is one line for all connections. A connection has one `HeadWatch`, and a `Body` for each body that
comes in several packets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config.settings import LimitSettings

REQUESTS_MAX: Final = 512
"""Most requests that begin in one turn: about 15 ms, since in an entry of 512 each costs hardly more than in one of
thousands. With their answers and the node's work a turn takes twice as long, far less than an election timeout."""
REFUSALS_MAX: Final = 256
"""Most refusals in one turn, besides: a refusal costs half as much as a write."""
REQUEST_BYTES: Final = 8 << 10
"""A larger request counts as several of this size, because a batch of records takes time in proportion to its bytes."""
BODY_WAIT_SECONDS: Final = 0.02
"""Seconds to wait for the next packet of a body. Head and body often come in two packets, a large body in many. After
a longer pause the request goes to aiohttp."""
BODY_WAITS_MAX: Final = 50
"""Most such waits for one body; then the request goes to aiohttp too."""
HEADS: Final = 4
"""Most bytes of all fields of one head together, in times of limits.head_bytes_max; aiohttp bounds each field alone."""


class WaitingConnection(Protocol):
    """A connection in line."""

    def called(self) -> None:
        """Its turn has come."""


class AdmissionQueue:
    """The line of one node: bounds how many requests begin in one turn of the event loop.

    The fast path asks it for each request. With thousands of busy connections, a turn that serves all of them takes
    half a second. Meanwhile the node sends no heartbeat, reads from no peer and accepts no connection. Its followers
    elect another leader, and status requests get no answer. So a turn serves a bounded number, and other work of the
    loop runs in between. The bound counts work, not time: on a slow machine a turn must not become too small to be
    efficient.
    """

    __slots__ = ("_is_calling", "_is_open", "_left", "_line", "_loop", "_refusals_left", "_refused")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._line: deque[WaitingConnection] = deque()
        self._refused: deque[WaitingConnection] = deque()
        self._left = self._refusals_left = 0  # requests and refusals left in this turn
        self._is_open = False  # `_next` is scheduled
        self._is_calling = False

    def may(self, size: int) -> bool:
        """Whether a request of that many bytes is served now. Else it must `wait`: others wait before it, or this turn
        has served enough."""
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

    def wait(self, connection: WaitingConnection) -> None:
        """Calls the connection later, in its order."""
        self._line.append(connection)
        if not self._is_open:
            self._begin()

    def wait_refused(self, connection: WaitingConnection) -> None:
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


class Body:
    """The body of one request, whose head is here."""

    __slots__ = ("_missing", "_parts", "_seen", "_waits")

    def __init__(self, begun: bytes, missing: int) -> None:
        """`begun`: the bytes that came so far. `missing`: the number of bytes to come."""
        self._parts = [begun]
        self._missing = self._seen = missing
        self._waits = 0

    def is_whole_with(self, data: bytes) -> bool:
        """Takes the next bytes. Returns whether the body is complete."""
        self._parts.append(data)
        self._missing -= len(data)
        return self._missing <= 0

    def is_slow(self) -> bool:
        """Whether the body comes too slowly. Called every BODY_WAIT_SECONDS."""
        has_come, self._seen = self._seen > self._missing, self._missing
        self._waits += 1
        return not has_come or self._waits >= BODY_WAITS_MAX

    def joined(self) -> bytes:
        return b"".join(self._parts)


class HeadWatch:
    """The watch of one connection. Belongs to the event loop."""

    __slots__ = ("_bytes", "_late", "_limits", "_timer")

    def __init__(self, limits: LimitSettings, late: Callable[[ApiError], None]) -> None:
        """`late` is called with the error for a head that did not end in time."""
        self._limits = limits
        self._late: Callable[[ApiError], None] | None = late
        self._timer: asyncio.TimerHandle | None = None
        self._bytes = 0

    @property
    def has_begun(self) -> bool:
        return self._timer is not None

    def begin(self) -> None:
        if self._timer is None:
            seconds = self._limits.head_timeout_ms / 1_000
            self._timer = asyncio.get_running_loop().call_later(seconds, self._is_over)

    def came(self, size: int) -> ApiError | None:
        """That many bytes came, of the head and perhaps of more. Returns the error if the head is too long."""
        self.begin()
        bytes_max = HEADS * self._limits.head_bytes_max
        if self._bytes > bytes_max:
            return ApiError(
                Code.TOO_LARGE, f"the head has more than {bytes_max} bytes ({HEADS} times limits.head_bytes_max)"
            )
        self._bytes += size
        return None

    def end(self) -> None:
        """The head is complete, or the connection has gone."""
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forget(self) -> None:
        """The connection has gone: lets go of it."""
        self._late = None

    def _is_over(self) -> None:
        self._timer = None
        ms, late = self._limits.head_timeout_ms, self._late
        if late is not None:
            late(ApiError(Code.DEADLINE, f"the head of this request did not end in {ms} ms (limits.head_timeout_ms)"))
