"""The numbers of `/metrics`: counters, gauges and histograms of one node, in a registry of its own.

A registry per node, so that several nodes can live in one process (tests). What can be read when asked is a gauge with
a function; only what must be counted as it happens costs anything on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.log_file import sink
from cluster.wire import ConsumerStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SYNC_BUCKETS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


class Metrics:
    """Everything that is counted. Names begin with `raftlog_`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.loop_lag = Histogram(
            "raftlog_loop_lag_seconds", "How late the event loop ran its tick", buckets=_LAG_BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self.sync_seconds = Histogram(
            "raftlog_sync_seconds", "One trip to the disk: write, fdatasync, thread hops", buckets=_SYNC_BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self.batch_requests = Histogram(
            "raftlog_batch_requests", "Requests packed into one entry", buckets=_BATCH_BUCKETS, registry=self.registry
        )
        self.outcomes = self._counter("raftlog_submits", "Requests settled by this node, by outcome", "outcome")
        self.events = self._counter("raftlog_raft_events", "Events of the consensus core", "event")
        self.forwards = self._counter("raftlog_forwards", "Requests passed to the leader or taken from others", "way")
        self.link_dropped = self._counter(
            "raftlog_link_dropped", "Messages not sent: the link was full or down", "peer"
        )
        self.link_closed = self._counter("raftlog_link_closed", "Accepted peer connections closed, by reason", "reason")
        self.handovers = self._counter("raftlog_disk_handovers", "Leaderships given up for this node's disk", "why")
        self.http_requests = self._counter(
            "raftlog_http_requests", "HTTP requests, by route and status", "route", "status"
        )
        self.http_seconds = Histogram(
            "raftlog_http_request_seconds", "From the head of a request to the end of its answer", ["route"],
            registry=self.registry,
        )  # fmt: skip

        self.gauge(
            "raftlog_log_lines_lost", "Lines of this node's own log that could not be written", lambda: sink.lost
        )
        self._consumers: list[ConsumerStatus] = []
        self.gauges("raftlog_consumer_lag_records", "Records it has not read", "consumer", self._consumer_records)
        self.gauges("raftlog_consumer_lag_seconds", "Age of the oldest one", "consumer", self._consumer_seconds)

    def show_consumers(self, consumers: list[ConsumerStatus]) -> None:
        """The groups whose lag is told from now on; the caller bounds how many."""
        self._consumers = consumers

    def _consumer_records(self) -> dict[str, float]:
        return {each.name: float(each.lag) for each in self._consumers}

    def _consumer_seconds(self) -> dict[str, float]:
        return {each.name: each.lag_seconds for each in self._consumers if each.lag_seconds is not None}

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A number that is read whenever somebody asks."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def gauges(self, name: str, text: str, label: str, read: Callable[[], dict[str, float]]) -> None:
        """Numbers by label, read whenever somebody asks."""
        self.registry.register(_Gauges(name, text, label, read))

    def text(self) -> bytes:
        """What `GET /metrics` answers, as CONTENT_TYPE."""
        return generate_latest(self.registry)


class _Gauges(Collector):
    """A family of gauges computed when it is collected."""

    def __init__(self, name: str, text: str, label: str, read: Callable[[], dict[str, float]]) -> None:
        self._name, self._text, self._label, self._read = name, text, label, read

    def collect(self) -> list[Metric]:
        """One sample per label value."""
        family = GaugeMetricFamily(self._name, self._text, labels=[self._label])
        for value, number in self._read().items():
            family.add_metric([value], number)
        return [family]
