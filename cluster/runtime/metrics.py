"""Collects the numbers of `/metrics`: counters, gauges and histograms of one node, in a registry of its own.

Each node has its own registry, so that several nodes can live in one process (tests). A gauge is a function that is
called when `/metrics` is read. Only numbers that must be counted as they happen cost time elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from raftlog.cluster.api.status import ConsumerStatus
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.log_file import sink

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SYNC_BUCKETS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_HTTP_BUCKETS: Final = Histogram.DEFAULT_BUCKETS  # in seconds; the last is infinity
_BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


Samples = list[tuple[dict[str, str], float]]
"""The labels and the value of each."""


class Metrics:
    """All metrics of a process. Their names begin with `raftlog_`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges: dict[str, _Gauges] = {}
        self.loop_lag = Histogram(
            "raftlog_loop_lag_seconds",
            "How late the event loop ran its tick",
            buckets=_LAG_BUCKETS,
            registry=self.registry,
        )
        self.sync_seconds = Histogram(
            "raftlog_sync_seconds",
            "One trip to the disk: write, fdatasync, thread hops",
            buckets=_SYNC_BUCKETS,
            registry=self.registry,
        )
        self.batch_requests = Histogram(
            "raftlog_batch_requests", "Requests packed into one entry", buckets=_BATCH_BUCKETS, registry=self.registry
        )
        self.outcomes = self._counter("raftlog_submits", "Requests settled by this node, by outcome", "outcome")
        self.events = self._counter("raftlog_raft_events", "Events of the consensus core", "event")
        self.messages_refused = self._counter(
            "raftlog_messages_refused", "Messages and frames refused, by sender", "peer"
        )
        self.forwards = self._counter("raftlog_forwards", "Requests passed to the leader or taken from others", "way")
        self.link_dropped = self._counter(
            "raftlog_link_dropped", "Messages not sent: the link was full or down", "peer"
        )
        self.link_closed = self._counter("raftlog_link_closed", "Accepted peer connections closed, by reason", "reason")
        self.handovers = self._counter("raftlog_disk_handovers", "Leaderships given up for this node's disk", "why")
        self.http = HttpCounts()
        self.registry.register(self.http)

        self.gauge(
            "raftlog_log_lines_lost", "Lines of this node's own log that could not be written", lambda: sink.lost
        )
        self._consumers: list[ConsumerStatus] = []
        self.gauges("raftlog_consumer_lag_records", "Records it has not read", "consumer", self._consumer_records)
        self.gauges("raftlog_consumer_lag_seconds", "Age of the oldest one", "consumer", self._consumer_seconds)

    def show_consumers(self, consumers: list[ConsumerStatus]) -> None:
        """Sets the groups whose lag is shown from now on; the caller bounds their number."""
        self._consumers = consumers

    def _consumer_records(self) -> dict[str, float]:
        return {each.name: float(each.lag) for each in self._consumers}

    def _consumer_seconds(self) -> dict[str, float]:
        return {each.name: each.lag_seconds for each in self._consumers if each.lag_seconds is not None}

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, read: Callable[[], float], *, shard: int = 0) -> None:
        """Registers a number that is read for each request of `/metrics`."""
        self._read(name, text, shard, lambda: [({}, float(read()))])

    def gauges(self, name: str, text: str, label: str, read: Callable[[], dict[str, float]], *, shard: int = 0) -> None:
        """Registers numbers by label that are read for each request of `/metrics`."""
        self._read(name, text, shard, lambda: [({label: value}, number) for value, number in read().items()])

    def _read(self, name: str, text: str, shard: int, read: Callable[[], Samples]) -> None:
        if name not in self._gauges:
            self._gauges[name] = _Gauges(name, text)
            self.registry.register(self._gauges[name])
        self._gauges[name].add(shard, read)

    def text(self) -> bytes:
        """The body of the answer to `GET /metrics`, as CONTENT_TYPE."""
        return generate_latest(self.registry)


class ShardMetrics:
    """The metrics of a process, for the gauges of one Raft group.

    Groups other than 0 have a label with their number.
    """

    def __init__(self, metrics: Metrics, shard: int) -> None:
        self._metrics, self._shard = metrics, shard

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._metrics.gauge(name, text, read, shard=self._shard)

    def gauges(self, name: str, text: str, label: str, read: Callable[[], dict[str, float]]) -> None:
        self._metrics.gauges(name, text, label, read, shard=self._shard)


class _Gauges(Collector):
    """A family of gauges that are read when collected: those of group 0 without, others with the label `shard`."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._read: dict[int, Callable[[], Samples]] = {}

    def add(self, shard: int, read: Callable[[], Samples]) -> None:
        """Adds the samples of one Raft group."""
        assert shard not in self._read, f"{self._name} of group {shard} is registered twice"
        self._read[shard] = read

    def collect(self) -> list[Metric]:
        """One sample per group and label value."""
        family = Metric(self._name, self._text, "gauge")
        for shard, read in self._read.items():
            group = {"shard": str(shard)} if shard else {}
            for labels, number in read():
                family.add_sample(self._name, labels | group, number)
        return [family]


class HttpCounts(Collector):
    """Counts HTTP requests by route and status, and measures their time by route.

    The gate appends each answered request to `answered`, on the event loop, and `count` adds up many at once.
    prometheus_client's own counters look labels up and take a lock for each addition, which is a tenth of the processor
    time of a simple request.
    """

    def __init__(self) -> None:
        self.answered: list[tuple[str, int, float]] = []  # route, status and seconds of requests not counted yet
        self._requests: dict[tuple[str, int], list[float]] = {}  # by route and status: count, when first seen
        self._seconds: dict[str, tuple[list[int], list[float]]] = {}  # by route: of each bucket; sum, when first seen

    def count(self) -> None:
        """Counts the answered requests since the last call."""
        for route, status, seconds in self.answered:
            counted = self._requests.get((route, status))
            if counted is None:
                counted = self._requests[route, status] = [0, clock.wall_ms() / 1_000]
                self._seconds.setdefault(route, ([0] * len(_HTTP_BUCKETS), [0.0, counted[1]]))
            counted[0] += 1
            buckets, total = self._seconds[route]
            buckets[bisect_left(_HTTP_BUCKETS, seconds)] += 1
            total[0] += seconds
        self.answered.clear()

    def collect(self) -> list[Metric]:
        """A counter and a histogram, as prometheus_client's own would be."""
        self.count()
        labels = ["route", "status"]
        requests = CounterMetricFamily("raftlog_http_requests", "HTTP requests, by route and status", labels=labels)
        for (route, status), (count, created) in self._requests.items():
            requests.add_metric([route, str(status)], count, created)
        name, text = "raftlog_http_request_seconds", "From the head of a request to the end of its answer"
        times = HistogramMetricFamily(name, text, labels=["route"])
        for route, (buckets, (total, created)) in self._seconds.items():
            below = zip(map(floatToGoString, _HTTP_BUCKETS), accumulate(buckets), strict=True)
            times.add_metric([route], list(below), total)
            times.add_sample(f"{name}_created", {"route": route}, created)
        return [requests, times]
