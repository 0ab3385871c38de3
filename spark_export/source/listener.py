"""Reports the lag of a streaming query: in records, in seconds, and the time that it needs to catch up.

    spark.streams.addListener(LagListener(print, endpoints="http://127.0.0.1:7001"))

Spark has no such metric for a source in Python. The offsets of each progress have the numbers.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from raftlog.spark_export.fetch.door import ask, log_page, parse_endpoints

_LOG: Final = logging.getLogger("raftlog.spark")
PATIENCE_S: Final = 1.0
"""Longest time in seconds for a node to send a record's time: a listener must not delay the listeners behind it."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Where a query stood at the end of a micro-batch."""

    query: str  # its name, else its id
    batch: int
    read: int  # the next index that it will read
    end: int  # the next index after the last one that it could have read
    rows_per_second: float
    seconds: float | None = None  # since the oldest record that it has not read was written; 0: there is none

    @property
    def records(self) -> int:
        """How many records it has not read."""
        return max(0, self.end - self.read)

    @property
    def seconds_to_go(self) -> float | None:
        """How long the rest takes at this batch's rate; None where there is no rate."""
        if not self.records:
            return 0.0
        return self.records / self.rows_per_second if self.rows_per_second > 0 else None

    def __str__(self) -> str:
        behind = f"{self.records:,} records" + ("" if self.seconds is None else f" and {self.seconds:.1f} s")
        to_go = "" if self.seconds_to_go is None else f", {self.seconds_to_go:.1f} s to go"
        return (
            f"{self.query} batch {self.batch}: read to index {self.read - 1:,}, {behind} behind, "
            f"{self.rows_per_second:,.0f} rows/s{to_go}"
        )


def lag_of(progress: dict[str, Any]) -> Lag | None:
    """The lag in a progress (its JSON, as values). None when no source of the query is a raftlog."""
    for source in progress.get("sources", ()):
        read = _next(source.get("endOffset"))
        if read is None:
            continue
        end = _next(source.get("latestOffset"))
        rate = source.get("processedRowsPerSecond") or 0.0
        lag = Lag(
            progress.get("name") or progress["id"], progress["batchId"], read, max(read, end or read), float(rate)
        )
        return lag
    return None


def _next(offset: Any) -> int | None:
    """The next index of an offset of ours, as text or as values."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if not isinstance(offset, dict) or "log" not in offset or not isinstance(offset.get("next"), dict):
        return None
    return int(sum(offset["next"].values()))


class LagListener(StreamingQueryListener):
    """Calls `tell` after each micro-batch of a query over a raftlog. `latest` keeps the last of each query by its name.

    With `endpoints` a lag has its seconds too: one small question to a node for each batch that left something unread.
    What goes wrong here is logged (logger raftlog.spark) and never reaches the query.
    """

    def __init__(
        self,
        tell: Callable[[Lag], object] = lambda lag: None,
        *,
        endpoints: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.latest: dict[str, Lag] = {}
        self._tell = tell
        self._patience_s = patience_s
        self._endpoints = None if endpoints is None else parse_endpoints(endpoints)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """After each micro-batch."""
        try:
            lag = lag_of(json.loads(event.progress.json))
            if lag is not None:
                lag = self._with_seconds(lag)
                # a new dict: a reader that iterates over the old one is not disturbed
                self.latest = {**self.latest, lag.query: lag}
                self._tell(lag)
        except Exception:
            _LOG.warning("the lag of a query could not be reported", exc_info=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """There was nothing to read: the lag is as it was."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The query has ended."""

    def _with_seconds(self, lag: Lag) -> Lag:
        if not lag.records:
            seconds = 0.0
        elif self._endpoints is None:
            return lag
        else:
            query: dict[str, object] = {"from": lag.read, "limit": 1, "internal": "true", "consistency": "stale"}
            page = ask(self._endpoints, "/v1/log", query, log_page, patience_s=self._patience_s)
            if not page.records:
                return lag
            seconds = max(0.0, time.time() - page.records[0].time_ms / 1000)
        return Lag(lag.query, lag.batch, lag.read, lag.end, lag.rows_per_second, seconds)
