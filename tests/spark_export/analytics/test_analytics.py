"""Each analytic says of a real access log what plain Python counts in the raw lines."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from raftlog.spark_export import analytics
from raftlog.spark_export.columns.schema import ARROW, spark_schema
from tests.spark_export import logs
from tests.spark_export.analytics import visits
from tests.spark_export.analytics.visits import Visit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def rows() -> list[logs.Row]:
    """The rows of the log, read by the naive reader."""
    made = visits.log()
    return list(logs.naive_rows(made.entries, made.effects))


@pytest.fixture(scope="module")
def log(spark: "SparkSession", rows: list[logs.Row]) -> Iterator["DataFrame"]:
    """The log as Spark has it, in memory."""
    frame = of_rows(spark, rows).cache()
    yield frame
    frame.unpersist()


@pytest.fixture(scope="module")
def lines(log: "DataFrame") -> "DataFrame":
    """The events that are lines of the access log."""
    return analytics.events(log.where(F.col("operation") == "append"))


def of_rows(spark: "SparkSession", rows: list[logs.Row]) -> "DataFrame":
    """Rows as a frame of the log's schema."""
    return spark.createDataFrame(pa.Table.from_pylist(rows, ARROW), spark_schema())


def utc(time: datetime) -> datetime:
    """A time as Spark collects it: without its zone, in the session's, which is UTC."""
    return time.replace(tzinfo=UTC)


def quantile(values: list[int], share: float) -> int:
    """The smallest value that at least that share does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def collect(frame: "DataFrame", *names: str) -> list[tuple[Any, ...]]:
    """These columns of all rows, times with their zone, bytes as bytes."""

    def value(each: Any) -> Any:
        return utc(each) if isinstance(each, datetime) else bytes(each) if isinstance(each, bytearray) else each

    return [tuple(value(row[name]) for name in names) for row in frame.collect()]


# ---------------------------------------------------------------------------------------------------------------
# Windows.


def in_windows(size: timedelta, slide: timedelta) -> dict[datetime, list[int]]:
    """Lengths of the lines in every window that holds one."""
    held: dict[datetime, list[int]] = defaultdict(list)
    for visit in visits.visits():
        start = datetime.fromtimestamp(visit.time.timestamp() // slide.seconds * slide.seconds, UTC)
        while start + size > visit.time:
            held[start].append(len(visit.line))
            start -= slide
    return held


@pytest.mark.parametrize(("hours", "slide"), [(1, None), pytest.param(6, 2, marks=pytest.mark.long)])
def test_rates_and_percentiles_per_window(
    lines: "DataFrame", hours: int, slide: int | None, record_property: Callable[[str, object], None]
) -> None:
    """Tumbling and sliding windows hold the lines that lie in them, with their rate, sum, bounds and quantiles."""
    record_property("measured", f"analytics checked on {visits.where()}")
    got = analytics.rates(lines, f"{hours} hours", slide=f"{slide} hours" if slide else None)
    held = in_windows(timedelta(hours=hours), timedelta(hours=slide or hours))
    expected = {
        (
            start,
            start + timedelta(hours=hours),
            len(sizes),
            len(sizes) / (hours * 3600),
            sum(sizes),
            min(sizes),
            max(sizes),
            *(quantile(sizes, share) for share in (0.5, 0.9, 0.99)),
        )
        for start, sizes in held.items()
    }
    names = ("start", "end", "records", "per_second", "total", "lowest", "highest", "p50", "p90", "p99")
    assert len(held) > 30
    assert set(collect(got, *names)) == expected


def sessions_of(gap: timedelta) -> Iterator[tuple[bytes, list[tuple[datetime, int, Visit]]]]:
    """Host, and the visits of one session with their index, in the order of time."""
    of_host: dict[bytes, list[tuple[datetime, int, Visit]]] = defaultdict(list)
    for index, visit in indexed():
        of_host[visit.host].append((visit.time, index, visit))
    for host, listed in of_host.items():
        session: list[tuple[datetime, int, Visit]] = []
        for each in sorted(listed, key=lambda item: item[:2]):
            if session and each[0] - session[-1][0] > gap:
                yield host, session
                session = []
            session.append(each)
        yield host, session


def indexed() -> Iterable[tuple[int, Visit]]:
    """Each line with the index of its record: what lies between is counted by hand."""
    index = 1  # the configuration
    for number, visit in enumerate(visits.visits()):
        index += 1 + (number % 2_500 == 0)
        yield index, visit
        index += 1 if number % 10 == 0 else 2


def test_sessions_end_after_a_gap(lines: "DataFrame") -> None:
    """Half an hour without a line ends a session, at the exact second still not."""
    got = analytics.sessions(lines, "30 minutes")
    named = collect(got, "key", "start", "last", "seconds", "records", "bytes", "first_index", "last_index")
    listed = list(sessions_of(timedelta(minutes=30)))
    assert sorted(named) == sorted(
        (
            host,
            session[0][0],
            session[-1][0],
            (session[-1][0] - session[0][0]).total_seconds(),
            len(session),
            sum(len(visit.line) for _, _, visit in session),
            min(index for _, index, _ in session),
            max(index for _, index, _ in session),
        )
        for host, session in listed
    )


def test_windows_ask_for_one_of_size_and_gap(lines: "DataFrame") -> None:
    """An invalid window is refused before Spark sees it."""
    for arguments in ({}, {"size": "1 hour", "gap": "1 hour"}, {"gap": "1 hour", "slide": "1 hour"}):
        with pytest.raises(ValueError, match="give size"):
            analytics.rates(lines, **arguments)  # type: ignore[arg-type]


@pytest.mark.long
def test_access_log_lines_become_fields(lines: "DataFrame") -> None:
    """Every line gives host, path, status and size, also the one without its last quote."""
    got = collect(analytics.access_fields(lines).orderBy("index"), "host", "path", "status", "sent")
    assert got == [(visit.host.decode(), visit.path, visit.status, visit.sent) for visit in visits.visits()]


# ---------------------------------------------------------------------------------------------------------------
# Joins.


def test_join_within_a_time(lines: "DataFrame") -> None:
    """Each page that was not found, with what the same host asked for in the half minute after it; with how=left also
    those after which nothing came."""
    fields = analytics.access_fields(lines)
    got = analytics.join_within(fields.where("status = 404"), fields, "30 seconds", how="left")
    of_host: dict[bytes, list[tuple[int, Visit]]] = defaultdict(list)
    for index, visit in indexed():
        of_host[visit.host].append((index, visit))
    expected: list[tuple[Any, ...]] = []
    for index, visit in indexed():
        if visit.status == 404:
            after: list[tuple[Any, ...]] = [
                (visit.host, index, other, (then.time - visit.time).total_seconds())
                for other, then in of_host[visit.host]
                if other != index and timedelta() <= then.time - visit.time <= timedelta(seconds=30)
            ]
            expected += after or [(visit.host, index, None, None)]
    assert len(expected) > 100
    key = str
    assert sorted(collect(got, "key", "left_index", "right_index", "seconds"), key=key) == sorted(expected, key=key)
    matched = [each for each in expected if each[2] is not None]
    assert analytics.join_within(fields.where("status = 404"), fields, "30 seconds").count() == len(matched)


def tables(count: int | None = None) -> tuple[dict[bytes, int], dict[bytes, str]]:
    """What the first lines (None: all) left in the two tables: lines per host, and each host's last page."""
    hits: dict[bytes, int] = {}
    page: dict[bytes, str] = {}
    for visit in visits.visits()[:count]:
        hits[visit.host] = hits.get(visit.host, 0) + 1
        page.pop(visit.host, None)
        if visit.status != 404:
            page[visit.host] = visit.path
    return hits, page


@pytest.mark.long
def test_enrich_events_with_a_table(lines: "DataFrame", log: "DataFrame") -> None:
    """Each line with the last page of its host, where it has one."""
    page = {host: path.encode() for host, path in tables()[1].items()}
    table = log.sparkSession.createDataFrame([*page.items()], "key BINARY, value BINARY")
    got = collect(analytics.enrich(lines, table), "index", "key", "table_value")
    assert sorted(got) == [(index, visit.host, page.get(visit.host)) for index, visit in indexed()]


@pytest.mark.parametrize("how", ["inner", *(pytest.param(how, marks=pytest.mark.long) for how in ("left", "full"))])
def test_view_over_two_tables(log: "DataFrame", how: str) -> None:
    """Both tables by host: those with a page, and with how=left those without one; full adds nothing, since no host has
    a page without a count."""
    hits, page = tables()
    expected = {
        (host, b"%d" % count, page[host].encode() if host in page else None)
        for host, count in hits.items()
        if host in page or how != "inner"
    }
    assert set(collect(analytics.view(log, "hits/", "page/", how=how), "id", "left", "right")) == expected
    assert len(collect(analytics.view(log, "page/", "hits/", how="left"), "id")) == len(page)


def test_joins_refuse_unknown_options(lines: "DataFrame", log: "DataFrame") -> None:
    """Another kind of join is named."""
    with pytest.raises(ValueError, match="'outer'; it is inner or left"):
        analytics.join_within(lines, lines, how="outer")
    with pytest.raises(ValueError, match="'outer'; it is inner, left or full"):
        analytics.view(log, "a", "b", how="outer")
