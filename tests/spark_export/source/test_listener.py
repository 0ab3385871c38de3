"""Tests that the lag of a streaming query follows from its offsets, and that reporting it never harms the query."""

import json
import logging
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent

from raftlog.spark_export.source.listener import Lag, LagListener, lag_of
from tests.spark_export import logs
from tests.spark_export.server import Served, serving
from tests.support import free_port

LOG = "0123456789abcdef0123456789abcdef"


def offset(index: int) -> dict[str, Any]:
    """A position as the source writes it."""
    return {"log": LOG, "next": {"0": index}}


def progress(read: int, end: int | None, *, rate: float = 1000.0, name: str | None = "clicks") -> dict[str, Any]:
    """Spark's progress after a micro-batch; another source of the query comes first."""
    ours = {"endOffset": offset(read), "latestOffset": end and offset(end), "processedRowsPerSecond": rate}
    other = {"endOffset": {"logOffset": 3}, "latestOffset": None}
    return {"id": "a-query", "name": name, "batchId": 7, "sources": [other, ours]}


def event(told: object) -> QueryProgressEvent:
    """The event that carries it."""
    return cast(QueryProgressEvent, SimpleNamespace(progress=SimpleNamespace(json=json.dumps(told))))


def test_lag_is_the_distance_of_two_offsets() -> None:
    """Records behind and the time to go; a query without a name goes by its id, and offsets may be text."""
    lag = lag_of(progress(901, 1001))
    assert lag == Lag("clicks", 7, 901, 1001, 1000.0)
    assert (lag.records, lag.seconds_to_go) == (100, 0.1)
    assert str(lag) == "clicks batch 7: read to index 900, 100 records behind, 1,000 rows/s, 0.1 s to go"
    assert str(lag_of(progress(901, 901))) == (
        "clicks batch 7: read to index 900, 0 records behind, 1,000 rows/s, 0.0 s to go"
    )
    standing = lag_of(progress(901, 1001, rate=0.0, name=None))
    assert standing is not None
    assert (standing.query, standing.seconds_to_go) == ("a-query", None)
    as_text = progress(901, 1001)
    as_text["sources"][1]["endOffset"] = json.dumps(offset(901))
    assert lag_of(as_text) == lag


def test_no_lag_is_made_up() -> None:
    """A query over something else has no lag; an unreported end, or one that lies behind, gives no negative lag."""
    assert (
        lag_of({"id": "x", "batchId": 0, "sources": [{"endOffset": {"logOffset": 3}}, {"endOffset": "text"}]}) is None
    )
    assert lag_of({"id": "x", "batchId": 0, "sources": [{"endOffset": None}, {"endOffset": {"log": 1}}]}) is None
    for end in (None, 5):
        lag = lag_of(progress(901, end))
        assert lag is not None
        assert lag.records == 0


def test_seconds_are_those_of_the_oldest_unread_record() -> None:
    """A node is asked when the first record that was not read was written; nothing unread is 0 s, and no question."""
    made = logs.real(3, batch=False)
    told: list[Lag] = []
    with serving(Served(made)) as url:
        listener = LagListener(told.append, endpoints=url)
        entry = made.entries[9]
        listener.onQueryProgress(event(progress(entry.first, made.last.index + 1)))
        listener.onQueryProgress(event(progress(9, 9)))
    first, second = told
    age = time.time() - entry.time_ms / 1000
    assert first.seconds == pytest.approx(age, abs=30)
    assert second.seconds == 0.0
    assert listener.latest == {"clicks": second}


def test_the_lags_may_be_walked_while_another_query_begins() -> None:
    """Spark calls the listener in a thread of its own. Guard: the new dict in `onQueryProgress` of
    spark_export/source/listener.py.
    """
    listener = LagListener()
    listener.onQueryProgress(event(progress(1, 2)))
    walk = iter(listener.latest)
    listener.onQueryProgress(event(progress(1, 2, name="other")))
    assert list(walk) == ["clicks"]
    assert list(listener.latest) == ["clicks", "other"]


def test_trouble_stays_in_the_listener(caplog: pytest.LogCaptureFixture) -> None:
    """A failing callback, an invalid progress and a lost node are logged; the next lag is reported again."""
    told: list[Lag] = []

    def tell(lag: Lag) -> None:
        told.append(lag)
        if len(told) == 1:
            raise ValueError("a bad day")

    listener = LagListener(tell)
    with caplog.at_level(logging.WARNING, "raftlog.spark"):
        listener.onQueryProgress(event(progress(1, 2)))
        listener.onQueryProgress(event("no progress"))
        listener.onQueryProgress(event(progress(2, 3)))
        gone = LagListener(tell, endpoints=f"127.0.0.1:{free_port()}", patience_s=0.1)
        gone.onQueryProgress(event(progress(2, 3)))
    assert len(caplog.records) == 3
    assert [lag.read for lag in told] == [1, 2]
