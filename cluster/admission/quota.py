"""Counts the requests, bytes and streams of one principal at a node, and refuses those over its quota.

`Slots` bound any work of which so much may be in progress at once (the node's own: `raftlog.cluster.admission.load`).

Two balances grow with the time, up to one second's worth: requests and bytes. A request is taken while one request is
left and the bytes are not below zero, whatever its size, and answers are charged once they are known. So a large answer
is paid for by a pause after it.
"""

from __future__ import annotations

import math

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.runtime import clock


class Slots:
    """Work of which so much may be in progress at once. Used as a context: it counts one piece of it."""

    __slots__ = ("_advice", "_code", "_most", "_name", "_what", "open")

    def __init__(
        self, what: str, most: int, name: str, advice: str = "ask another node, or later", code: Code = Code.BUSY
    ) -> None:
        """`name`: of the limit in the settings. `code`: of the refusal, busy or over_quota."""
        self._what, self._most, self._name, self._advice, self._code = what, most, name, advice, code
        self.open = 0

    def __enter__(self) -> None:
        """Raises ApiError."""
        if self.open >= self._most:
            refusal = f"{self.open} {self._what}: the limit is {self._most} (limits.{self._name}); {self._advice}"
            raise ApiError(self._code, refusal, **({} if self._code is Code.BUSY else {"retry_after": 1}))
        self.open += 1

    def __exit__(self, *_: object) -> None:
        self.open -= 1


class Meter:
    """The use of one principal. Belongs to the event loop."""

    __slots__ = ("_at", "_bytes", "_bytes_max", "_name", "_requests", "_requests_max", "streams")

    def __init__(self, name: str, requests_max: int, bytes_max: int, streams_max: int) -> None:
        """Most requests and bytes a second, and most streams that are open."""
        self._name = name
        self._requests_max, self._bytes_max = requests_max, bytes_max
        self._requests, self._bytes = float(requests_max), float(bytes_max)
        self._at = clock.monotonic()
        what, advice = f"streams of user {name!r} are open at this node", "close one"
        self.streams = Slots(what, streams_max, "principal_streams_max", advice, Code.OVER_QUOTA)

    def take(self, size: int) -> None:
        """Counts a request with a body of that size. Raises ApiError over_quota."""
        now = clock.monotonic()
        passed = now - self._at
        self._at = now
        self._requests = requests = min(self._requests_max, self._requests + passed * self._requests_max)
        self._bytes = most = min(self._bytes_max, self._bytes + passed * self._bytes_max)
        if requests < 1 or most < 0:
            self._refuse()
        self._requests = requests - 1
        self._bytes = most - size

    def charge(self, size: int) -> None:
        self._bytes -= size

    def _refuse(self) -> None:
        wait_s, what, name = max(
            ((1 - self._requests) / self._requests_max, f"{self._requests_max} requests", "requests"),
            (-self._bytes / self._bytes_max, f"{self._bytes_max} bytes", "bytes"),
        )
        raise ApiError(
            Code.OVER_QUOTA,
            f"user {self._name!r} has used its {what} a second at this node (limits.principal_{name}_max): wait",
            retry_after=max(1, math.ceil(wait_s)),
        )
