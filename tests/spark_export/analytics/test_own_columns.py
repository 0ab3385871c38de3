"""A user's own columns, in values or in any frame, give what the generator of the readings knows."""

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.spark_export import analytics
from raftlog.spark_export.analytics.values import time_of
from raftlog.spark_export.tables.value_schema import ValueColumn, ValueForm, ValueSchema
from tests.spark_export.readings import DDL, readings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

MINUTE = timedelta(minutes=1)
UNKNOWN: Any = "xml"


@pytest.fixture(scope="module", params=["csv", pytest.param("json", marks=pytest.mark.extra)])
def form(request: pytest.FixtureRequest) -> ValueForm:
    """How the values are written."""
    return "csv" if request.param == "csv" else "json"


@pytest.fixture(scope="module")
def frame(spark: "SparkSession", form: ValueForm, tmp_path_factory: pytest.TempPathFactory) -> tuple["DataFrame", Any]:
    """A frame that is no log: a number and a value for each row of the file; and the truth."""
    path = tmp_path_factory.mktemp("readings") / f"readings.{form}"
    truth = readings.make(path, form=form)
    numbered = [(index, row.value) for index, row in enumerate(truth.rows)]
    return spark.createDataFrame(numbered, "index BIGINT, value BINARY").cache(), truth


@pytest.fixture(scope="module")
def events(frame: tuple["DataFrame", Any], form: ValueForm) -> "DataFrame":
    """The events of the readings, with their own times, keys and columns."""
    rows, _ = frame
    return analytics.events(
        rows, time="Measured", key="Station", schema=DDL, form=form, time_format=readings.TIME_FORMAT
    ).cache()


def timed(truth: Any) -> list[tuple[int, Any]]:
    """The readings that have a time, by index."""
    return [(index, row) for index, row in enumerate(truth.rows) if row.measured is not None]


def aware(time: datetime) -> datetime:
    """A time of Spark, which is in UTC."""
    return time.replace(tzinfo=UTC)


def test_events_are_the_rows_of_the_file(events: "DataFrame", frame: tuple["DataFrame", Any]) -> None:
    """Row by row: times, keys and cells; null where a cell does not fit, or there is none."""
    _, truth = frame
    got = [
        (row["event_time"] and aware(row["event_time"]), row["key"], row["Station"], row["Level"], row["Remark"])
        for row in events.orderBy("index").collect()
    ]
    assert got == [(row.measured, row.station, row.station, row.level, row.remark) for row in truth.rows]
    assert sum(row.measured is None for row in truth.rows) > 0
    assert sum(row.level is None for row in truth.rows) > 0


@pytest.mark.parametrize("slide", [None, 2], ids=["tumbling", "hopping"])
def test_windows_of_a_column(events: "DataFrame", frame: tuple["DataFrame", Any], slide: int | None) -> None:
    """Records, sum and extremes of a column for each group of another, in each window that has an event."""
    _, truth = frame
    step = 5 * MINUTE if slide is None else slide * MINUTE
    expected: dict[tuple[datetime, str], list[float | None]] = defaultdict(list)
    for _, row in timed(truth):
        start = row.measured - (row.measured - datetime(1970, 1, 1, tzinfo=UTC)) % step
        while start > row.measured - 5 * MINUTE:
            expected[start, row.station].append(row.level)
            start -= step
    every = None if slide is None else f"{slide} minutes"
    rates = analytics.rates(events, "5 minutes", slide=every, by=("Station",), measure="Level")
    got = {(aware(row["start"]), row["Station"]): row for row in rates.collect()}
    assert got.keys() == expected.keys()
    for place, levels in expected.items():
        known = [level for level in levels if level is not None]
        assert got[place]["records"] == len(levels)
        assert got[place]["total"] == pytest.approx(sum(known))
        assert (got[place]["lowest"], got[place]["highest"]) == (min(known), max(known))


def test_sliding_windows_of_a_column(events: "DataFrame", frame: tuple["DataFrame", Any]) -> None:
    """Each event sums up those of its group in the minute that ends with it, both ends included."""
    _, truth = frame
    rows = timed(truth)
    got = analytics.sliding(events, "1 minute", by=("Station",), measure="Level").orderBy("index").collect()
    assert [row["index"] for row in got] == [index for index, _ in rows]
    for found, (_, row) in zip(got, rows, strict=True):
        near = [
            each.level
            for _, each in rows
            if each.station == row.station and row.measured - MINUTE <= each.measured <= row.measured
        ]
        known = [level for level in near if level is not None]
        assert (found["records"], found["Level"]) == (len(near), row.level)
        assert found["mean"] == (pytest.approx(sum(known) / len(known)) if known else None)
        assert found["highest"] == max(known, default=None)


def test_a_join_within_a_time_carries_own_columns(events: "DataFrame", frame: tuple["DataFrame", Any]) -> None:
    """Ice is followed by what the same station reports within five minutes."""
    _, truth = frame
    rows = timed(truth)
    expected = sorted(
        (index, after, row.level, other.level)
        for index, row in rows
        if row.remark == "ice; seen"
        for after, other in rows
        if other.remark == "ok"
        and other.station == row.station
        and index != after
        and timedelta(0) <= other.measured - row.measured <= 5 * MINUTE
    )
    ice, ok = (events.where(F.col("Remark") == remark) for remark in ("ice; seen", "ok"))
    joined = analytics.join_within(ice, ok, "5 minutes", columns=("Level",))
    got = joined.select("left_index", "right_index", "left_Level", "right_Level").collect()
    assert sorted(map(tuple, got)) == expected
    assert expected


@pytest.mark.parametrize(
    ("given", "form", "expected"),
    [
        ("2016/01/01 00:30:04.91", "%Y/%m/%d %H:%M:%S.%f", "2016-01-01 00:30:04.910000"),
        ("2016/01/01 00:30:04", "%Y/%m/%d %H:%M:%S.%f", "2016-01-01 00:30:04"),
        ("17/May/2015:10:05:03 +0200", "%d/%b/%Y:%H:%M:%S %z", "2015-05-17 08:05:03"),
        ("5/7/15 3:05 PM", "%m/%d/%y %I:%M %p", "2015-05-07 15:05:00"),
        ("20150517100503", "%Y%m%d%H%M%S", "2015-05-17 10:05:03"),
        ("2015-05-17T10:05:03.25Z", "%Y-%m-%dT%H:%M:%S.%f%z", "2015-05-17 10:05:03.250000"),
        ("May 7, 2015", "%b %d, %Y", "2015-05-07 00:00:00"),
        ("2015-05-17T10:05:03.25+02:00", None, "2015-05-17 08:05:03.250000"),
        ("1431857103.25", "s", "2015-05-17 10:05:03.250000"),
        ("1431857103250", "ms", "2015-05-17 10:05:03.250000"),
        ("1431857103250001", "us", "2015-05-17 10:05:03.250001"),
        ("1431857103250000499", "ns", "2015-05-17 10:05:03.250000"),
        ("soon", "%Y", None),
        ("soon", "iso", None),
        ("soon", "ms", None),
    ],
)
def test_times_are_read_as_an_import_reads_them(
    spark: "SparkSession", given: str, form: str | None, expected: str | None
) -> None:
    """Formats of strptime, ISO 8601 and units of Unix time; any other text is null."""
    rows = spark.createDataFrame([(given,)], "t STRING")
    (row,) = rows.select(time_of(rows, F.col("t"), form)).collect()
    assert (row[0] and str(row[0])) == expected


def test_any_frame_has_its_own_names(spark: "SparkSession") -> None:
    """Columns that are called as those of events, dots and blanks in names, no index, a number as value and time."""
    rows = spark.createDataFrame(
        [(1_000, 4.5, "a", "x"), (2_500, 7.0, "a", "y")], "`at ms` BIGINT, `m.w` DOUBLE, station STRING, bytes STRING"
    )
    own = analytics.events(rows, time="at ms", key="station", value="m.w", time_format="ms")
    assert own.columns == ["index", "event_time", "key", "value", "bytes", "at ms", "m.w", "station"]
    (window,) = analytics.rates(own, "1 minute", by=("station",), measure="m.w").collect()
    assert (window["station"], window["records"], window["total"]) == ("a", 2, 11.5)
    (pair,) = analytics.join_within(own.where("`m.w` < 5"), own.where("`m.w` > 5"), "1 minute").collect()
    assert (pair["seconds"], pair["left_value"], pair["right_value"], pair["left_index"]) == (1.5, 4.5, 7.0, None)
    state = spark.createDataFrame([(b"k", b'{"key": "inner", "n": 1}')], "key BINARY, value BINARY")
    shown, names = analytics.with_columns(state, "key STRING, n BIGINT")
    assert (names, shown.collect()[0]["value_key"]) == (["value_key", "n"], "inner")


def test_a_dialect_of_csv(spark: "SparkSession") -> None:
    """Another delimiter and quote, backslash, carriage return, decimal comma, too few and too many cells."""
    written = [b"1;'a;b\\'c';2,5\r", b"2", b"3;d;x;4"]
    rows = spark.createDataFrame(list(enumerate(written)), "index BIGINT, value BINARY")
    columns = tuple(ValueColumn(*each) for each in (("n", "integer"), ("text", "string"), ("m", "comma_number")))
    shown, _ = analytics.with_columns(rows, ValueSchema("csv", columns, Dialect(";", "'", "\\")))
    got = [tuple(row) for row in shown.orderBy("index").select("n", "text", "m").collect()]
    assert got == [(1, "a;b'c", 2.5), (2, None, None), (3, "d", None)]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda rows: analytics.events(rows), "have no time: give time=NAME; the columns are n, t"),
        (lambda rows: analytics.events(rows, "n"), "the time n is bigint: give its form"),
        (lambda rows: analytics.events(rows, "when"), "there is no column 'when'; the columns are n, t"),
        (lambda rows: analytics.events(rows, "t", time_format="later"), "'later' is none of iso, s, ms, us, ns"),
        (lambda rows: analytics.events(rows, "t", time_format="%Q"), "has %Q; there are %Y"),
        (lambda rows: analytics.with_columns(rows, "a STRING b", value="t"), "is not 'NAME TYPE, …'"),
        (lambda rows: analytics.with_columns(rows, "a STRING", form=UNKNOWN, value="t"), "it is csv or json"),
    ],
)
def test_a_wrong_argument_is_named(spark: "SparkSession", call: Callable[["DataFrame"], Any], match: str) -> None:
    """Each error names the argument, and the values that are possible."""
    rows = spark.createDataFrame([(1, "x")], "n BIGINT, t STRING")
    with pytest.raises(ValueError, match=match):
        call(rows)
