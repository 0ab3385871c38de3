"""Streaming queries of Spark itself: `spark.readStream.format("raftlog")` into sinks, restarted, limited, idle."""

import json
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark_export import logs
from tests.spark_export.server import LOG_ID, Served, serving
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

LOG = logs.mixed(41, 60, records_max=3)
END = LOG.last.index + 1
HALF = LOG.entries[30].index + 1
CONNECTS = 10  # Spark gives a new Python process ten seconds, which on a machine with much to do are sometimes too few


@contextmanager
def query(
    spark: "SparkSession", url: str, folder: Path, available_now: bool = False, **options: Any
) -> "Iterator[StreamingQuery]":
    """A query over that node into Parquet files in the folder; stopped at the end."""
    given = {"endpoints": url, "records": "all", **options}
    rows = spark.readStream.format("raftlog").options(**given).schema("index BIGINT, value BINARY").load()
    writer = rows.writeStream.format("parquet").options(
        path=str(folder / "rows"), checkpointLocation=str(folder / "checkpoint")
    )
    started = begun(writer.trigger(availableNow=True) if available_now else writer)
    try:
        yield started
    finally:
        started.stop()


def begun(writer: "DataStreamWriter") -> "StreamingQuery":
    """The query once it has done something, if only failed for a reason of its own."""
    for _ in range(CONNECTS):
        started = writer.start()
        wait_until(partial(_is_off, started), 120, what="the first batch")
        error = started.exception()
        if error is None or "connect back" not in str(error):
            return started
    raise AssertionError(f"Spark started no Python process within its ten seconds, {CONNECTS} times")


def _is_off(started: "StreamingQuery") -> bool:
    return started.lastProgress is not None or not started.isActive


def indexes(spark: "SparkSession", folder: Path) -> list[int]:
    """What the sink holds."""
    return sorted(row["index"] for row in spark.read.parquet(str(folder / "rows")).select("index").collect())


def offsets(folder: Path) -> list[Any]:
    """The end of every batch in the checkpoint."""
    files = sorted((folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return [json.loads(file.read_text().splitlines()[-1]) for file in files]


def test_a_query_goes_on_and_an_idle_one_makes_no_batch(spark: "SparkSession", tmp_path: Path) -> None:
    """All rows come once, later ones too. Then, with nothing new, there is no batch and about a request a second. After
    a restart the query continues at its checkpoint.
    """
    node = Served(LOG, committed=HALF - 1)
    with serving(node) as url:
        with query(spark, url, tmp_path) as running:
            running.processAllAvailable()
            assert offsets(tmp_path) == [{"log": LOG_ID, "next": {"0": HALF}, "first": {"0": 1}}]
            asked = len(node.asked)
            wait_until(lambda: len(node.asked) >= asked + 3, what="three questions for news")
            assert len(offsets(tmp_path)) == 1
            assert all("wait=1000" in each for each in node.asked[asked:])
            node.commit(-2)
            wait_until(lambda: len(offsets(tmp_path)) == 2, 60, what="a second batch")
            running.processAllAvailable()
        node.commit(-1)
        with query(spark, url, tmp_path, available_now=True) as running:
            assert running.awaitTermination(60)
            assert running.exception() is None
    assert indexes(spark, tmp_path) == list(range(1, END))


def test_available_now_with_limits(spark: "SparkSession", tmp_path: Path) -> None:
    """As many batches as the limit makes of it, then the end; every third answer is damaged."""
    node = Served(LOG, faults=[lambda body: body, lambda body: body[:100], lambda body: body] * 9)
    with serving(node) as url:
        with query(spark, url, tmp_path, available_now=True, maxEntriesPerTrigger=50, minPartitions=2) as running:
            assert running.awaitTermination(120)
            assert running.exception() is None
    ends = [offset["next"]["0"] for offset in offsets(tmp_path)]
    assert ends == [*range(51, END, 50), END]
    assert indexes(spark, tmp_path) == list(range(1, END))


def test_a_trimmed_position_ends_the_query_with_its_reason(spark: "SparkSession", tmp_path: Path) -> None:
    """The query fails by name; it does not go on with a gap."""
    node = Served(LOG, committed=HALF - 1)
    with serving(node) as url:
        with query(spark, url, tmp_path, available_now=True) as running:
            assert running.awaitTermination(60)
        node.commit(-1)
        node.oldest = HALF + 3
        with query(spark, url, tmp_path, available_now=True) as running:
            with pytest.raises(Exception, match=rf"index {HALF} is no longer kept: the log begins at index {HALF + 3}"):
                running.awaitTermination(60)
    assert indexes(spark, tmp_path) == list(range(1, HALF))


def test_a_query_killed_within_its_first_batch_runs_that_again(spark: "SparkSession", tmp_path: Path) -> None:
    """Spark keeps no start: it asks for the first batch with the present start. A trim removed the log's beginning, and
    failOnDataLoss is off, so that this start is another one. No row outside the batch is read a second time, and no
    kept row is missing.
    """
    node = Served(LOG, committed=HALF - 1)
    seen: list[tuple[int, list[int]]] = []

    def see(rows: "DataFrame", batch: int) -> None:
        seen.append((batch, sorted(row["index"] for row in rows.collect())))

    def run(url: str) -> None:
        given = {"endpoints": url, "records": "all", "failOnDataLoss": "false"}
        rows = spark.readStream.format("raftlog").options(**given).schema("index BIGINT").load()
        writer = rows.writeStream.foreachBatch(see).option("checkpointLocation", str(tmp_path / "checkpoint"))
        running = begun(writer.trigger(availableNow=True))
        assert running.awaitTermination(60)
        assert running.exception() is None

    with serving(node) as url:
        run(url)
        assert seen == [(0, list(range(1, HALF)))]
        for commit in (tmp_path / "checkpoint" / "commits").glob("*0*"):
            commit.unlink()  # as if killed before the batch was reported as done
        node.commit(-1)
        run(url)
        assert seen[1:] == [(0, list(range(1, HALF))), (1, list(range(HALF, END)))]
        for commit in (tmp_path / "checkpoint" / "commits").glob("*[01]*"):
            commit.unlink()
        for offset in (tmp_path / "checkpoint" / "offsets").glob("*1*"):
            offset.unlink()
        node.oldest = 9
        run(url)
        assert seen[3:] == [(0, list(range(9, HALF))), (1, list(range(HALF, END)))]
