"""Serves what the sinks of a runner have done, for Prometheus, on a port of the runner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from raftlog.cluster.sinks.runner import SinkProgress, SinkRun

_GAUGES = {
    "position": ("next index that the store lacks", "next_index"),
    "lag_records": ("indexes that the store lacks", "behind"),
    "batch_seconds": ("how long the newest batch took", "batch_s"),
    "failing": ("1 while the store or the cluster is tried again", "is_failing"),
}
_COUNTERS = {
    "rows": ("rows that were written or deleted", "rows"),
    "batches": ("batches that were written", "batches"),
    "rejected": ("changes in the file of rejected ones", "rejected"),
    "transactions_split": ("transactions too large for one batch", "split"),
}


class SinkMetrics(Collector):
    """The metrics of some runs, labelled by their sinks."""

    def __init__(self, runs: Sequence[SinkRun]) -> None:
        self._progress = {run.name: run.progress for run in runs}

    def collect(self) -> Iterator[Metric]:
        for name, (text, attribute) in _GAUGES.items():
            family = GaugeMetricFamily(f"raftlog_sink_{name}", text, labels=["sink"])
            yield _filled(family, attribute, self._progress.items())
        for name, (text, attribute) in _COUNTERS.items():
            counter = CounterMetricFamily(f"raftlog_sink_{name}", text, labels=["sink"])
            yield _filled(counter, attribute, self._progress.items())


def serve_metrics(runs: Sequence[SinkRun], port: int) -> None:
    """Serves them on loopback until the process ends. Raises OSError where the port is taken."""
    registry = CollectorRegistry()
    registry.register(SinkMetrics(runs))
    start_http_server(port, "127.0.0.1", registry)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, attribute: str, progress: Iterable[tuple[str, SinkProgress]]
) -> Metric:
    for name, each in progress:
        family.add_metric([name], getattr(each, attribute))
    return family
