"""Counts the requests, bytes and streams of one principal at a node, and refuses those over its quota.

Two balances grow with the time, up to one second's worth: requests and bytes. A request is taken while both are above
zero, whatever its size, and answers are charged once they are known. So a large answer is paid for by a pause after it.
"""

from __future__ import annotations

import math

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.runtime import clock


class Meter:
    """The use of one principal. Belongs to the event loop."""

    __slots__ = ("_at", "_bytes", "_bytes_max", "_name", "_requests", "_requests_max", "_streams_max", "streams")

    def __init__(self, name: str, requests_max: int, bytes_max: int, streams_max: int) -> None:
        """Most requests and bytes a second, and most streams that are open."""
        self._name = name
        self._requests_max, self._bytes_max, self._streams_max = requests_max, bytes_max, streams_max
        self._requests, self._bytes = float(requests_max), float(bytes_max)
        self._at = clock.monotonic()
        self.streams = 0

    def take(self, size: int) -> None:
        """Counts a request with a body of that size. Raises ApiError over_quota."""
        now = clock.monotonic()
        passed = now - self._at
        self._at = now
        self._requests = requests = min(self._requests_max, self._requests + passed * self._requests_max)
        self._bytes = most = min(self._bytes_max, self._bytes + passed * self._bytes_max)
        if requests < 1 or most <= 0:
            self._refuse()
        self._requests = requests - 1
        self._bytes = most - size

    def charge(self, size: int) -> None:
        self._bytes -= size

    def _refuse(self) -> None:
        if self._requests < 1:
            what, name, wait_s = f"{self._requests_max} requests", "requests", (1 - self._requests) / self._requests_max
        else:
            what, name, wait_s = f"{self._bytes_max} bytes", "bytes", -self._bytes / self._bytes_max
        raise ApiError(
            Code.OVER_QUOTA,
            f"user {self._name!r} has used its {what} a second at this node (limits.principal_{name}_max): wait",
            retry_after=max(1, math.ceil(wait_s)),
        )

    def open_stream(self) -> None:
        """Counts a stream until `close_stream`. Raises ApiError over_quota."""
        if self.streams >= self._streams_max:
            raise ApiError(
                Code.OVER_QUOTA,
                f"user {self._name!r} has {self.streams} streams open at this node "
                "(limits.principal_streams_max): close one",
                retry_after=1,
            )
        self.streams += 1

    def close_stream(self) -> None:
        self.streams -= 1
