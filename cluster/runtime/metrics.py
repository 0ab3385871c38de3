"""Collects the numbers of `/metrics`: counters, gauges and histograms of one node, in a registry of its own.

Each node has its own registry, so that several nodes can live in one process (tests). `metric_table` has their names,
types and meanings. A number that can be read is a function that is called when `/metrics` is read. Only numbers that
must be counted as they happen cost time elsewhere. Counters, and what each HTTP request adds, belong to the event loop:
prometheus_client's own take a lock for each addition, which is a tenth of the processor time of a simple request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from math import inf
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from raftlog.cluster.api.status import ConsumerStatus
from raftlog.cluster.runtime import build
from raftlog.cluster.runtime.history import Counters, History, bucket_of, empty_times
from raftlog.cluster.runtime.log_file import sink
from raftlog.cluster.runtime.metric_table import HTTP_BUCKETS, METRICS

HTTP_SECONDS: Final = "raftlog_http_request_seconds"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
READ: Final = 0
WRITE: Final = 1
WAITS: Final = 2
"""Kinds of requests: with one of the last kind the client waits as it asked."""
_BATCHES: Final = "raftlog_batch_requests"
_CLASSES: Final = ("2xx", "4xx", "5xx")
"""Of statuses: the API has no others."""

Samples = Iterable[tuple[dict[str, str], float]]
"""The labels and the value of each."""


class Metrics(Collector):
    """All metrics of a node. Counters begin at 0, with all values of their labels."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.peers: Callable[[], Iterable[str]] = tuple  # the values of the label `peer`
        self.http = HttpCounts()
        self.history = History(self._counters)
        self._process = ProcessCollector(registry=None)
        self.counts = {name: dict.fromkeys(row.values, 0) for name, row in METRICS.items() if row.kind == "counter"}
        self.histograms = {
            name: Histogram(name, row.meaning, buckets=row.buckets, registry=None)
            for name, row in METRICS.items()
            if row.buckets and not row.label
        }
        self._reads: dict[str, dict[int, Callable[[], Samples]]] = {}
        self._consumers: list[ConsumerStatus] = []
        self._read("raftlog_http_requests_total", self.http.samples)
        self.number("raftlog_log_lines_lost_total", lambda: sink.lost)
        self.numbers("raftlog_consumer_lag_records", self._consumer_records)
        self.numbers("raftlog_consumer_lag_seconds", self._consumer_seconds)

    def show_process(self) -> None:
        """Adds the build, the process and Python's garbage collector, which are one for all nodes of a process."""
        labels = build.facts()
        self._read("raftlog_build_info", lambda: [(labels, 1.0)])
        self.registry.register(self._process)
        GCCollector(registry=self.registry)

    def _counters(self) -> Counters:
        """What `history` makes rows of."""
        self.http.count()
        batches = {each.name.rpartition("_")[2]: each.value for each in _samples(self.histograms[_BATCHES])}
        memory = next(
            (each.value for each in _samples(self._process) if each.name.endswith("_resident_memory_bytes")), 0
        )
        return Counters(
            tuple(self.http.times[READ]),
            tuple(self.http.times[WRITE]),
            sum(self.counts["raftlog_http_problems_total"].values()),
            self._now("raftlog_applied_index"),
            batches["count"],
            batches["sum"],
            self._now("raftlog_disk_syncs_total"),
            self._now("raftlog_disk_sync_seconds_total"),
            self._now("raftlog_queued_requests"),
            memory,
        )

    def _now(self, name: str) -> float:
        """A number of group 0; 0 where nothing has registered it."""
        read = self._reads.get(name, {}).get(0)
        return 0.0 if read is None else next((number for _, number in read()), 0.0)

    def show_consumers(self, consumers: list[ConsumerStatus]) -> None:
        """Sets the groups whose lag is shown from now on; the caller bounds their number."""
        self._consumers = consumers

    def _consumer_records(self) -> dict[str, float]:
        return {each.name: float(each.lag) for each in self._consumers}

    def _consumer_seconds(self) -> dict[str, float]:
        return {each.name: each.lag_seconds for each in self._consumers if each.lag_seconds is not None}

    def count(self, name: str, value: str, by: int = 1) -> None:
        """Raises the counter of that value of its label."""
        counts = self.counts[name]
        counts[value] = counts.get(value, 0) + by

    def number(self, name: str, read: Callable[[], float], *, shard: int = 0) -> None:
        """Registers a gauge or a counter that is read for each request of `/metrics`."""
        self._read(name, lambda: [({}, float(read()))], shard)

    def numbers(self, name: str, read: Callable[[], dict[str, float]], *, shard: int = 0) -> None:
        """Registers a gauge that is read by its label for each request of `/metrics`."""
        label = METRICS[name].label
        self._read(name, lambda: [({label: value}, number) for value, number in read().items()], shard)

    def _read(self, name: str, read: Callable[[], Samples], shard: int = 0) -> None:
        assert name in METRICS, name
        reads = self._reads.setdefault(name, {})
        assert shard not in reads, f"{name} of group {shard} is registered twice"
        reads[shard] = read

    def collect(self) -> Iterator[Metric]:
        self.http.count()
        for name, row in METRICS.items():
            family = Metric(name.removesuffix("_total"), row.meaning, row.kind)
            for shard, read in self._reads.get(name, {}).items():
                group = {"shard": str(shard)} if shard else {}
                for labels, number in read():
                    family.add_sample(name, labels | group, number)
            if row.label == "peer":
                for peer in self.peers():
                    self.counts.get(name, {}).setdefault(peer, 0)
            for value, count in self.counts.get(name, {}).items():
                family.add_sample(name, {row.label: value}, count)
            if name in self.histograms:
                (found,) = self.histograms[name].collect()
                family.samples = [each for each in found.samples if not each.name.endswith("_created")]
            if name == HTTP_SECONDS:
                self.http.add_times(family)
            if family.samples:
                yield family

    def text(self) -> bytes:
        """The body of the answer to `GET /metrics`, as CONTENT_TYPE."""
        return generate_latest(self.registry)


def _samples(collector: Collector | Histogram) -> Iterator[Sample]:
    return (sample for family in collector.collect() for sample in family.samples)


class ShardMetrics:
    """The metrics of a process, for the numbers of one Raft group.

    Groups other than 0 have a label with their number.
    """

    def __init__(self, metrics: Metrics, shard: int) -> None:
        self._metrics, self._shard = metrics, shard

    def number(self, name: str, read: Callable[[], float]) -> None:
        self._metrics.number(name, read, shard=self._shard)

    def numbers(self, name: str, read: Callable[[], dict[str, float]]) -> None:
        self._metrics.numbers(name, read, shard=self._shard)


class HttpCounts:
    """Counts HTTP requests by route and class of status, and measures their time by route.

    The gate appends each answered request to `answered`, and `count` adds up many at once.
    """

    def __init__(self) -> None:
        self.answered: list[tuple[str, int, float, int]] = []  # not counted yet: route, status, seconds, kind
        self.times = {READ: empty_times(), WRITE: empty_times(), WAITS: empty_times()}
        self._seconds: dict[str, tuple[list[int], list[float]]] = {}  # by requested route: of each bucket; their sum
        self._classes: dict[str, list[int]] = {}  # by route: answers by the first digit of their status

    def begin(self, routes: Iterable[str]) -> None:
        """Shows these routes from now on, also before their first requests."""
        for route in routes:
            self._classes.setdefault(route, [0] * 6)

    def count(self) -> None:
        for route, status, seconds, kind in self.answered:
            self.times[kind][bucket_of(seconds)] += 1
            if route not in self._seconds:
                self.begin([route])
                self._seconds[route] = [0] * (len(HTTP_BUCKETS) + 1), [0.0]
            self._classes[route][status // 100] += 1
            buckets, total = self._seconds[route]
            buckets[bisect_left(HTTP_BUCKETS, seconds)] += 1
            total[0] += seconds
        self.answered.clear()

    def add_times(self, family: Metric) -> None:
        bounds = [*map(floatToGoString, (*HTTP_BUCKETS, inf))]
        for route, (buckets, (total,)) in self._seconds.items():
            times = HistogramMetricFamily(family.name, family.documentation, labels=["route"])
            times.add_metric([route], [*zip(bounds, accumulate(buckets), strict=True)], total)
            family.samples += times.samples

    def samples(self) -> Samples:
        for route, classes in self._classes.items():
            for name in _CLASSES:
                yield {"route": route, "status": name}, classes[int(name[0])]
