"""Stands in for the metrics and the logger of a simulated node's replica."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any


class SimHistogram:
    """Stands in for a histogram."""

    def observe(self, value: float) -> None:
        """Nothing."""


class SimMetrics:
    """Stands in for `raftlog.cluster.runtime.metrics.Metrics`: of all series a world counts the forwards alone."""

    def __init__(self, forwarded: Callable[[], None]) -> None:
        self._forwarded = forwarded
        self.counts = defaultdict[str, Counter[str]](Counter)
        self.histograms = defaultdict[str, SimHistogram](SimHistogram)

    def count(self, name: str, value: str, by: int = 1) -> None:
        if (name, value) == ("raftlog_forwards_total", "sent"):
            self._forwarded()


class SimLogger:
    """The log of one process: lines that the world watches go to `report`, all others nowhere."""

    def __init__(self, report: Callable[[str, dict[str, Any]], None], watched: frozenset[str]) -> None:
        self._report, self._watched = report, watched

    def _line(self, event: str, **values: Any) -> None:
        if event in self._watched or "exc_info" in values:
            self._report(event, values)

    debug = info = warning = error = _line

    def bind(self, **_: Any) -> SimLogger:
        return self
