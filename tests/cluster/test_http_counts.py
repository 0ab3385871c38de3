"""Requests that are counted many at a time: the metrics end up with what they would know of each."""

from __future__ import annotations

from cluster.http_counts import TOLD_AT, RequestCounts
from cluster.metrics import Metrics
from tests.support import wait_until_async

SECONDS = (0.0, 0.005, 0.0051, 0.3, 0.0049, 99.0, 0.005)


def samples(metrics: Metrics) -> dict[str, float]:
    """The counters and buckets of requests, but for the times of their making."""
    lines = metrics.text().decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if line.startswith("raftlog_http") and "_created" not in line]
    return {name: float(value) for name, _, value in pairs}


async def test_many_told_together_are_what_each_told_by_itself_would_be() -> None:
    """Buckets, bounds included, sums and counts are those of prometheus_client's own `inc` and `observe`."""
    together, alone = Metrics(), Metrics()
    counts = RequestCounts(together)
    for route, status in (("/a", 200), ("/b", 200), ("/a", 404)):
        for seconds in SECONDS:
            counts.add(route, status, seconds)
            alone.http_requests.labels(route, str(status)).inc()
            alone.http_seconds.labels(route).observe(seconds)
    assert not samples(together), "nobody has asked"
    counts.tell()
    assert samples(together) == samples(alone)
    counts.tell()
    assert samples(together) == samples(alone), "each is told once"


async def test_what_is_not_told_is_bounded() -> None:
    """Where nobody asks, they are told by themselves. Guard: `TOLD_AT`."""
    metrics = Metrics()
    counts = RequestCounts(metrics)
    for _ in range(TOLD_AT + 1):
        counts.add("/a", 200, 0.001)
    assert samples(metrics)['raftlog_http_requests_total{route="/a",status="200"}'] == TOLD_AT


async def test_nobody_need_ask() -> None:
    """Whoever reads the metrics in another way than over HTTP sees them a moment later. Guard: the timer."""
    metrics = Metrics()
    RequestCounts(metrics).add("/a", 200, 0.001)
    await wait_until_async(lambda: samples(metrics))
