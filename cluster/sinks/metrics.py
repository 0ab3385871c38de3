"""Serves what the sinks of a runner have done, for Prometheus, on a port of the runner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from raftlog.cluster.sinks.runner import SinkRun

_METRICS: Final = {
    "position": (GaugeMetricFamily, "next index that the store lacks", "next_index"),
    "lag_records": (GaugeMetricFamily, "indexes that the store lacks", "behind"),
    "batch_seconds": (GaugeMetricFamily, "how long the newest batch took", "batch_s"),
    "failing": (GaugeMetricFamily, "1 while the store or the cluster is tried again", "is_failing"),
    "rows": (CounterMetricFamily, "rows that were written or deleted", "rows"),
    "batches": (CounterMetricFamily, "batches that were written", "batches"),
    "rejected": (CounterMetricFamily, "changes in the file of rejected ones", "rejected"),
    "transactions_split": (CounterMetricFamily, "transactions too large for one batch", "split"),
}


class SinkMetrics(Collector):
    """The metrics of some runs, labelled by their sinks."""

    def __init__(self, runs: Sequence[SinkRun]) -> None:
        self._progress = {run.name: run.progress for run in runs}

    def collect(self) -> Iterator[Metric]:
        for name, (kind, text, attribute) in _METRICS.items():
            family = kind(f"raftlog_sink_{name}", text, labels=["sink"])
            for sink, progress in self._progress.items():
                family.add_metric([sink], getattr(progress, attribute))
            yield family


def serve_metrics(runs: Sequence[SinkRun], port: int) -> None:
    """Serves them on loopback until the process ends. Raises OSError where the port is taken."""
    registry = CollectorRegistry()
    registry.register(SinkMetrics(runs))
    start_http_server(port, "127.0.0.1", registry)
