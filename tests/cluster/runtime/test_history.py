"""The history of a node: rows of what its counters rose, in rings of bounded size."""

from __future__ import annotations

from math import ceil, isnan

import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.runtime.history import (
    BOUNDS_MS,
    COLUMNS,
    ROWS,
    Counters,
    History,
    bucket_of,
    empty_times,
    percentile,
    row_of,
)
from raftlog.cluster.runtime.metrics import READ, WAITS, WRITE, Metrics
from tests.cluster.fake_node import serve
from tests.cluster.http.http_probe import ask


def counters(count: int = 0) -> Counters:
    """A node that has answered so many writes of 4 ms, each an entry of two requests and a sync of 2 ms."""
    writes = empty_times()
    writes[bucket_of(0.004)] = count
    return Counters(empty_times(), writes, count, 10 * count, count, 2 * count, count, 0.002 * count, 7, 5_000)


def test_a_row_is_what_the_counters_rose() -> None:
    """Rates are by the second; a mean of nothing and a percentile of nothing are not known."""
    row = dict(zip(COLUMNS, row_of(counters(10), counters(30), 4.0), strict=True))
    assert (row["writes"], row["reads"], row["problems"], row["records"], row["syncs"]) == (5, 0, 5, 50, 5)
    assert (row["batch"], row["queue"], row["memory_bytes"]) == (2, 7, 5_000)
    assert row["sync_ms"] == pytest.approx(2)
    assert 3 < row["write_p50_ms"] < row["write_p99_ms"] <= 5
    assert isnan(row["read_p50_ms"])
    idle = dict(zip(COLUMNS, row_of(counters(30), counters(30), 1.0), strict=True))
    assert isnan(idle["batch"])
    assert isnan(idle["sync_ms"])
    assert idle["writes"] == 0


@given(st.lists(st.floats(0.00001, 9.0), min_size=100, max_size=300))
def test_a_percentile_lies_in_the_bucket_of_the_true_one(seconds: list[float]) -> None:
    """Whatever the times."""
    counts = empty_times()
    for each in seconds:
        counts[bucket_of(each)] += 1
    bounds = (0.0, *BOUNDS_MS)
    for share in (0.5, 0.99):
        place = bucket_of(sorted(seconds)[ceil(share * len(seconds)) - 1])
        assert bounds[place] <= percentile(counts, share) <= bounds[place + 1], share


def test_times_beyond_all_bounds_are_the_last_bound() -> None:
    """No percentile is above the last bound."""
    counts = empty_times()
    counts[bucket_of(99.0)] = 3
    assert percentile(counts, 0.99) == BOUNDS_MS[-1]


def test_rings_keep_the_newest_rows_of_seconds_and_minutes() -> None:
    """After two days there are 600 rows of a second and 1,440 of a minute, oldest first."""
    count = 0

    def read() -> Counters:
        return counters(count)

    history = History(read)
    two_days = 2 * 24 * 3600
    for second in range(two_days + 1):
        count = second * (second + 1) // 2  # each second one more write than in the one before
        history.look(float(second))
        history.look(second + 0.5)
    seconds, minutes = history.columns(1, ROWS[1]), history.columns(60, ROWS[60])
    assert {len(column) for column in seconds.values()} == {600}
    assert {len(column) for column in minutes.values()} == {1_440}
    writes = [value or 0 for value in seconds["writes"]]
    assert writes == sorted(writes)
    assert writes[-1] == pytest.approx(two_days, rel=1e-3)
    newest = minutes["writes"][-1]
    assert newest == pytest.approx(two_days - 30, rel=1e-3)
    assert len(history.columns(60, 5)["writes"]) == 5
    assert history.age_s(60, two_days + 7.0) == 7


def test_a_node_that_was_held_up_has_empty_rows() -> None:
    """The rate of the whole time, and no rows are invented for the seconds of it."""
    readings = iter([counters(0), counters(0), counters(40), counters(50)])
    history = History(lambda: next(readings))
    for second in (10.0, 11.0, 15.0, 16.0):
        history.look(second)
    assert history.columns(1, 9)["writes"] == [0, 10, None, None, None, 10]


def test_requests_that_wait_as_asked_do_not_count() -> None:
    """A long poll of a minute is no slow read."""
    metrics = Metrics()
    metrics.history.look(1.0)
    for kind, seconds in ((READ, 0.001), (WAITS, 60.0), (WRITE, 0.004)):
        metrics.http.answered.append(("/v1/log", 200, seconds, kind))
    metrics.history.look(2.0)
    columns = metrics.history.columns(1, 1)
    assert (columns["reads"], columns["writes"]) == ([1], [1])
    assert (columns["read_p99_ms"][0] or 9) <= 1
    assert (columns["memory_bytes"][0] or 0) > 1 << 20


async def test_the_history_of_a_node_over_http() -> None:
    """Requests of a client are in the next row; `step` and `rows` are checked."""
    async with serve() as served:
        history = served.node.metrics.history
        history.look(1.0)
        assert (await ask(served.port, "PUT", "/v1/kv/a", b"1")).status == 200
        assert (await ask(served.port, "GET", "/v1/kv/a")).status == 200
        history.look(2.0)
        answer = (await ask(served.port, "GET", "/v1/history")).json()
        assert (answer["node"], answer["step_s"]) == (1, 1)
        assert answer["columns"].keys() == set(COLUMNS)
        assert (answer["columns"]["reads"], answer["columns"]["writes"]) == ([1], [1])
        assert (await ask(served.port, "GET", "/v1/history?step=60")).json()["columns"]["writes"] == []
        for query in ("step=5", "rows=0", "rows=601", "step=60&rows=1441", "since=3"):
            assert (await ask(served.port, "GET", f"/v1/history?{query}")).problem().code == "bad_request", query
