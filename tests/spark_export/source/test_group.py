"""A streaming query with `groupId`: the group follows it, says where it begins, and has one owner at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.spark_export.errors import FencedError, UsageError
from raftlog.spark_export.fetch.options import parse_options
from raftlog.spark_export.source.stream import StreamPlanner
from tests.cluster.cli.test_cli import Running
from tests.spark_export.source.test_stream_query import indexes, query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """What it shows."""
        return self.now


@pytest.fixture
def running() -> Iterator[Running]:
    """A node with five records, 3 to 7."""
    running = Running()
    with SyncClient(running.url, sessions=False) as client:
        for number in range(5):
            client.append(b"%d" % number)
    yield running
    running.stop()


def planner(running: Running, clock: Any = None, **options: str) -> StreamPlanner:
    """As a query that starts has one."""
    given = {"endpoints": running.url, "timeoutSeconds": "5", "groupId": "g", **options}
    return StreamPlanner(parse_options(given, streaming=True), clock or Clock())


def group(running: Running) -> Any:
    """The group as the node has it."""
    return running.node.machine.consumers.get(b"g")


def at(running: Running, index: int) -> dict[str, Any]:
    """The offset as Spark keeps it."""
    return {"log": running.node.log_id, "next": {"0": index}}


def test_the_group_follows_the_query_at_most_once_a_second(running: Running) -> None:
    """It learns the finished position when the next batch is requested; a report that came too soon goes with the next;
    without news there is no record.
    """
    clock = Clock()
    stream = planner(running, clock)
    start = stream.initial()
    assert start == stream.initial() == at(running, 1)
    assert stream.latest(start, 2) == start  # the pin batch
    first = stream.latest(start, 2)
    assert (first, group(running).next) == (at(running, 3), 1)
    clock.now += 1
    second = stream.latest(first, 2)
    assert (second, group(running).next) == (at(running, 5), 3)
    clock.now += 0.5
    third = stream.latest(second, 2)
    assert (third, group(running).next) == (at(running, 7), 3)
    clock.now += 0.5
    fourth = stream.latest(third, 10**6)
    assert group(running).next == 7
    clock.now += 1
    assert stream.latest(fourth, 10**6) == fourth
    assert group(running).next == fourth["next"]["0"]
    before = running.node.applied
    for _ in range(3):
        clock.now += 30
        assert stream.latest(fourth, 10**6) == fourth
    assert running.node.applied == before
    stream.done()


def test_a_query_without_a_checkpoint_begins_where_the_group_stands(running: Running) -> None:
    """Unless its options say where: then the group goes there, also back."""
    stream = planner(running)
    stream.latest(stream.initial(), 10**6)
    stream.latest(at(running, 5), 10**6)
    stream.done()
    assert group(running).next == 5
    again = planner(running)
    assert again.initial() == at(running, 5)
    again.done()
    told = planner(running, startingOffsets="3")
    start = told.initial()
    assert start == at(running, 3)
    told.latest(start, 10**6)
    told.latest(start, 10**6)
    assert group(running).next == 3
    told.done()


def test_a_query_with_a_checkpoint_takes_the_group_along(running: Running) -> None:
    """Spark asks for no start then; the group goes where the checkpoint is, even if that is behind it."""
    with SyncClient(running.url, sessions=False) as client:
        client.consumer("g").claim(start=7)
    stream = planner(running)
    stream.latest(at(running, 4), 10**6)
    assert group(running).next == 4
    assert b"Spark query on" in group(running).owner
    stream.done()


def test_a_second_query_with_the_same_group_ends_the_first(running: Running) -> None:
    """The first fails with the new owner's name and the fix; the second goes on."""
    clock = Clock()
    first, second = planner(running, clock), planner(running, clock)
    start = first.initial()
    assert first.latest(start, 3) == start
    assert second.initial() == start
    clock.now += 2
    with pytest.raises(FencedError, match=r"'g' over .*Spark query on .*groupId"):
        first.latest(at(running, 4), 10**6)
    second.latest(at(running, 4), 10**6)
    assert group(running).next == 4
    first.done()
    second.done()


def test_a_report_that_does_not_arrive_is_put_off(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that takes no writes for a while does not end a query that can read."""
    monkeypatch.setattr("raftlog.spark_export.source.group.REPORT_S", 0.2)
    clock = Clock()
    stream = planner(running, clock)
    start = stream.initial()
    stream.latest(start, 10**6)
    submit = running.node.submit

    def full(*_: Any, **__: Any) -> Any:
        raise ApiError(Code.BUSY, "full")

    monkeypatch.setattr(running.node, "submit", full)
    clock.now += 1
    end = stream.latest(at(running, 5), 10**6)
    assert group(running).next == 1
    monkeypatch.setattr(running.node, "submit", submit)
    clock.now += 1
    stream.latest(end, 10**6)
    assert group(running).next == end["next"]["0"]
    stream.done()


def test_a_query_that_reads_the_present_log_reports_its_end(running: Running) -> None:
    """The end is reported at once, because no later batch will be requested."""
    stream = planner(running)
    stream.stop_at_end()
    start = stream.initial()
    assert stream.latest(start, 10**6) == start
    end = stream.latest(start, 10**6)
    assert stream.latest(end, 10**6) == end
    assert group(running).next == end["next"]["0"] == 8
    stream.done()


def test_a_group_is_for_streams() -> None:
    """A batch read moves nothing, and a name is not empty."""
    with pytest.raises(UsageError, match=r"readStream"):
        parse_options({"endpoints": "h:1", "groupId": "g"})
    with pytest.raises(UsageError, match="empty"):
        parse_options({"endpoints": "h:1", "groupId": " "}, streaming=True)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_of_spark_moves_the_group(spark: SparkSession, running: Running, tmp_path: Path) -> None:
    """Everything committed is read once, and the group stands behind it; a new query of another folder that only knows
    the group reads only what came since."""
    with query(spark, running.url, tmp_path / "one", available_now=True, groupId="g", records="user") as first:
        assert first.awaitTermination(60)
    assert indexes(spark, tmp_path / "one") == [3, 4, 5, 6, 7]
    assert group(running).next == 8
    with SyncClient(running.url, sessions=False) as client:
        index = client.append(b"more").first
    with query(spark, running.url, tmp_path / "two", available_now=True, groupId="g", records="user") as second:
        assert second.awaitTermination(60)
    assert indexes(spark, tmp_path / "two") == [index]
    assert group(running).next > index
