"""Stands in for the metrics and the logger of a simulated node's replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class SimMetrics:
    """Stands in for `raftlog.cluster.runtime.metrics.Metrics`: of all series a world counts the forwards alone."""

    def __init__(self, forwarded: Callable[[], None]) -> None:
        self.forwards = Forwards(forwarded)

    def __getattr__(self, name: str) -> SimMetrics:
        return self

    def labels(self, *_: str) -> SimMetrics:
        """Every series is the same."""
        return self

    def inc(self, number: float = 1) -> None:
        """Nothing."""

    def observe(self, number: float) -> None:
        """Nothing."""


class Forwards:
    """The counter of writes that were passed on, by way."""

    def __init__(self, forwarded: Callable[[], None], way: str = "") -> None:
        self._forwarded, self._way = forwarded, way

    def labels(self, way: str) -> Forwards:
        """The series of that way."""
        return Forwards(self._forwarded, way)

    def inc(self, number: float = 1) -> None:
        """Counts a frame that was sent."""
        if self._way == "sent":
            self._forwarded()


class SimLogger:
    """The log of one process: lines that the world watches go to `told`, all others nowhere."""

    def __init__(self, told: Callable[[str, dict[str, Any]], None], watched: frozenset[str]) -> None:
        self._told, self._watched = told, watched

    def _line(self, event: str, **values: Any) -> None:
        if event in self._watched or "exc_info" in values:
            self._told(event, values)

    debug = info = warning = error = _line

    def bind(self, **_: Any) -> SimLogger:
        """A logger of a part."""
        return self
