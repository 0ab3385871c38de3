"""A page of an import shows all of its time, its largest groups and no record of another import, and says so."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from raftlog.cluster.drawing.plots import BarPlot, LinePlot
from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.raft.codec.block import BlockRecord
from raftlog.spark_export.analytics import analyses
from raftlog.spark_export.analytics.own import OwnColumns, resolved
from raftlog.spark_export.columns.schema import ARROW, spark_schema
from raftlog.statemachine.commands import Operation
from tests.spark_export import logs
from tests.spark_export.imports import add_import, appended, schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

BEGIN = datetime(2001, 1, 1, tzinfo=UTC)
HOURS = 60 * 24
GROUPS = 50
"""Of one record every 20 hours each; and `last`, which has a record every hour."""


def row(key: str, hours: int, delay: int) -> BlockRecord:
    """A record of the import, `hours` after the first."""
    at = BEGIN + timedelta(hours=hours)
    value = f"{key},{delay}".encode()
    return BlockRecord(Operation.APPEND, key.encode(), value, argument=int(at.timestamp() * 1_000))


@pytest.fixture(scope="module")
def log(spark: "SparkSession") -> Iterator["DataFrame"]:
    """Flights of 60 days, then two files with the same columns as each other, and records of no import."""
    made = appended(b"by hand")
    columns = (("origin", "string"), ("delay", "integer"))
    dialect = Dialect(header=False)
    flights = [row(f"g{hour // 20 % GROUPS:02}", hour, -hour) for hour in range(0, HOURS, 20)]
    flights += [row("last", hour, 7) for hour in range(HOURS)]
    add_import(made, schema("csv", *columns, source="flights.csv", dialect=dialect), flights)
    columns = (("town", "string"), ("level", "integer"))
    for month in (1, 2):
        rows = [row(town, month, -month) for town in ("Ulm", "Lech")]
        add_import(made, schema("csv", *columns, source=f"{month}.csv", dialect=dialect), rows)
    all_rows = [*logs.naive_rows(made.entries, made.effects)]
    frame = spark.createDataFrame(pa.Table.from_pylist(all_rows, ARROW), spark_schema()).cache()
    yield frame
    frame.unpersist()


FLIGHTS = OwnColumns(source="flights.csv")


def test_a_plot_covers_all_of_the_time_and_the_groups_with_the_most_records(log: "DataFrame") -> None:
    """In wider windows where there would be too many points; the heading says how many groups there are. No record is
    lost by it, and a long window has no rate per second."""
    told = analyses.windows(log, 10, FLIGHTS, "1 hour", None, None, "origin", "delay")
    counts, medians = told.plots
    assert isinstance(counts, LinePlot)
    assert isinstance(medians, LinePlot)
    assert counts.title == f"records per 4 hours, by origin: 4 of {GROUPS + 1}, those with the most records"
    assert medians.title.startswith("delay per record, in windows of 4 hours, median, by origin: 4 of 51")
    assert (counts.times[0], counts.times[-1]) == (BEGIN, BEGIN + timedelta(hours=HOURS - 4))
    assert len(counts.times) <= analyses.POINTS_MAX
    assert next(iter(counts.series)) == "last"
    assert [sum(filter(None, each)) for each in counts.series.values()] == [HOURS, 2, 2, 2]
    assert "per_second" not in told.columns
    assert (len(told.rows), told.is_cut) == (10, True)
    assert told.question == "How many records are there in flights.csv, and how is delay spread, in windows of 1 hour?"
    all_groups = analyses.windows(log, 0, FLIGHTS, "1 hour", None, None, None, "delay")
    assert isinstance(all_groups.plots[0], LinePlot)
    assert sum(filter(None, all_groups.plots[0].series["records"])) == HOURS + HOURS // 20
    short = analyses.windows(log, 1, OwnColumns(source="2.csv"), "30 seconds", None, None, None, "level")
    assert "per_second" in short.columns


def test_a_plot_can_be_by_key(log: "DataFrame") -> None:
    """Keys are bytes, and the names of lines text."""
    told = analyses.windows(log, 1, FLIGHTS, "1 day", None, None, "key", "delay")
    assert isinstance(told.plots[0], LinePlot)
    assert next(iter(told.plots[0].series)) == "last"


def test_windows_that_end_after_a_pause_are_counted_by_size(log: "DataFrame") -> None:
    """However many there are, each is in a bar."""
    told = analyses.windows(log, 1, FLIGHTS, None, None, "30 minutes", "origin", "delay")
    (sizes,) = told.plots
    assert isinstance(sizes, BarPlot)
    assert (list(sizes.labels), list(sizes.values)) == (["1 record"], [HOURS + HOURS // 20])


def test_bars_are_of_the_keys_with_the_most_records(log: "DataFrame") -> None:
    """Of more keys than rows; the heading says of how many."""
    told = analyses.top_keys(log, 3, FLIGHTS)
    assert told.rows[0] == ["last", HOURS]
    assert told.plots[0].title == "records, by key: 3 of 51"


def test_a_section_holds_to_its_import_and_names_it(log: "DataFrame") -> None:
    """That of a name alone, though another file has the same columns; the newest one, with those like it, for columns
    that only an import has; the whole log where nothing is said of imports."""
    for own, wanted, within in (
        (OwnColumns(source="2.csv"), (), " in 2.csv?"),
        (OwnColumns(), ("town",), " in 2.csv and 1.csv?"),
        (FLIGHTS, ("delay",), " in flights.csv?"),
        (OwnColumns(), (), " records?"),
    ):
        own, notes = resolved(log, own, *wanted)
        keys = analyses.top_keys(log, 0, own)
        assert keys.question.endswith(within)
        counts = {str(key): int(str(number)) for key, number in keys.rows}
        assert ("last" in counts) == (within in (" in flights.csv?", " records?"))
        assert min(counts.values()) == (1 if within != " in 2.csv and 1.csv?" else 2), within
        assert bool(notes) == (wanted == ("town",))
        if "csv" in within:
            sessions = analyses.sessions(log, 0, own, "10 hours")
            records = list(sessions.columns).index("records")
            assert sum(int(str(each[records])) for each in sessions.rows) == sum(counts.values())
            assert within.rstrip("?") in sessions.question
