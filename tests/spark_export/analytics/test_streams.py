"""The same functions on a stream: what it gives in the end is what they give of the table."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from raftlog.spark_export import analytics
from raftlog.spark_export.columns.schema import ARROW, spark_schema
from tests.spark_export import logs
from tests.spark_export.analytics import visits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FILES = 4
_CLOSED = visits.WATERMARK  # what the watermark holds back in the end


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log as a few Parquet files, one after the other in the order of indexes: a source of a stream."""
    made = visits.log()
    table = pa.Table.from_pylist(list(logs.naive_rows(made.entries, made.effects)), ARROW)
    folder = tmp_path_factory.mktemp("log")
    each = -(-len(table) // FILES)
    for number in range(FILES):
        pq.write_table(table.slice(number * each, each), folder / f"{number}.parquet")
    return folder


def both(spark: "SparkSession", folder: Path) -> tuple["DataFrame", "DataFrame"]:
    """The log as a table, and as a stream of one file at a time."""
    stream = spark.readStream.schema(spark_schema()).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return spark.read.schema(spark_schema()).parquet(str(folder)), stream


def lines(log: "DataFrame") -> "DataFrame":
    """The events that are lines of the access log."""
    return analytics.events(log.where(F.col("operation") == "append"))


def streamed(frame: "DataFrame", where: Path, mode: str = "append") -> list[Any]:
    """All rows that the stream gave when it has read everything; its batches are several."""
    name = f"streamed_{where.name.replace('-', '_')}"
    query = (
        frame.writeStream.format("memory")
        .queryName(name)
        .outputMode(mode)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(where))
        .start()
    )
    assert query.awaitTermination(120)
    assert len([batch for batch in query.recentProgress if batch["numInputRows"]]) == FILES
    rows = frame.sparkSession.table(name).collect()
    frame.sparkSession.catalog.dropTempView(name)
    return rows


def test_rates_of_a_stream(spark: "SparkSession", folder: Path, tmp_path: Path) -> None:
    """In append mode a stream gives each window once, when the watermark has passed it, and as the table has it: late
    lines are in it."""
    table, stream = both(spark, folder)
    got = streamed(analytics.rates(lines(stream), "6 hours"), tmp_path)
    end = max(visit.time for visit in visits.visits()).replace(tzinfo=None) - _CLOSED
    expected = [row for row in analytics.rates(lines(table), "6 hours").collect() if row["end"] <= end]
    assert len(expected) > 8
    assert sorted(got) == sorted(expected)


def _sessions(log: "DataFrame") -> "DataFrame":
    return analytics.sessions(lines(log), "30 minutes")


def _joined(log: "DataFrame") -> "DataFrame":
    fields = analytics.access_fields(lines(log))
    return analytics.join_within(fields.where("status = 404"), fields, "30 seconds")


def _enriched(log: "DataFrame") -> "DataFrame":
    static = log.sparkSession.createDataFrame([(visits.visits()[0].host, 1)], "key BINARY, number INT")
    return analytics.enrich(lines(log), static)


def _viewed(log: "DataFrame") -> "DataFrame":
    return analytics.view(log, "hits/", "page/")


@pytest.mark.long
@pytest.mark.parametrize(
    ("analytic", "mode"),
    [(_sessions, "append"), (_joined, "append"), (_enriched, "append"), (_viewed, "complete")],
    ids=lambda value: getattr(value, "__name__", str(value)).strip("_"),
)
def test_a_stream_gives_the_same_rows_as_the_table(
    spark: "SparkSession", folder: Path, tmp_path: Path, analytic: Callable[["DataFrame"], "DataFrame"], mode: str
) -> None:
    """Sessions once they are over, pairs, enriched events, and tables that change: nothing else, nothing less."""
    table, stream = both(spark, folder)
    got = streamed(analytic(stream), tmp_path, mode)
    expected = analytic(table).collect()
    if analytic is _sessions:  # those that the watermark did not pass are not over yet
        last = max(visit.time for visit in visits.visits()).replace(tzinfo=None)
        over = {
            (row["key"], row["start"])
            for row in _sessions(table).collect()
            if row["last"] + visits.THIRTY_MINUTES <= last - _CLOSED
        }
        expected = [row for row in expected if (row["key"], row["start"]) in over]
    assert len(expected) > 100
    assert sorted(map(str, got)) == sorted(map(str, expected))
