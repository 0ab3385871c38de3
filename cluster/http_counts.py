"""Counts requests for the metrics, many at a time: to tell them each by itself takes a tenth of a simple request."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import Final

from cluster.metrics import Metrics

TELL_SECONDS: Final = 0.05
"""The metrics know everything after so long at the latest, and whenever `GET /metrics` asks."""
TOLD_AT: Final = 512
"""So many of one route and status are told before that."""


class RequestCounts:
    """What `raftlog_http_requests` and `raftlog_http_request_seconds` do not know yet. Belongs to the event loop."""

    __slots__ = ("_handle", "_metrics", "_seconds")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._handle: asyncio.TimerHandle | None = None
        self._seconds: dict[tuple[str, int], list[float]] = {}  # of each request, by route and status

    def add(self, route: str, status: int, seconds: float) -> None:
        """One request was answered."""
        times = self._seconds.get((route, status))
        if times is None:
            times = self._seconds[route, status] = []
        times.append(seconds)
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(TELL_SECONDS, self.tell)
        if len(times) >= TOLD_AT:
            self._tell(route, status, times)

    def tell(self) -> None:
        """The metrics know everything."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        for (route, status), times in self._seconds.items():
            if times:
                self._tell(route, status, times)

    def _tell(self, route: str, status: int, times: list[float]) -> None:
        """As `inc` and `observe` once for each, which prometheus_client has no words for."""
        self._metrics.http_requests.labels(route, str(status)).inc(len(times))
        histogram = self._metrics.http_seconds.labels(route)
        times.sort()
        histogram._sum.inc(sum(times))
        below = 0
        for bound, bucket in zip(histogram._upper_bounds, histogram._buckets, strict=True):
            count = bisect_right(times, bound)
            if count > below:
                bucket.inc(count - below)
            below = count
        times.clear()
