"""Each analytic says of a real access log what plain Python counts in the raw lines."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
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

BLOCK = 1 << 12
"""Small enough that the log falls into several blocks."""


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
            start, start + timedelta(hours=hours), len(sizes), len(sizes) / (hours * 3600), sum(sizes), min(sizes),
            max(sizes), *(quantile(sizes, share) for share in (0.5, 0.9, 0.99)),
        )
        for start, sizes in held.items()
    }  # fmt: skip
    names = ("start", "end", "records", "per_second", "total", "lowest", "highest", "p50", "p90", "p99")
    assert len(held) > 30
    assert set(collect(got, *names)) == expected


def test_rates_of_a_column_by_another(lines: "DataFrame") -> None:
    """Any number may be measured, and counted by any column: bytes sent per day and status; lines without a size count,
    and are in no quantile."""
    got = analytics.rates(
        analytics.access_fields(lines), "1 day", by=("status",), measure="sent", quantiles=(0.5, 0.999)
    )
    held: dict[tuple[datetime, int], list[int | None]] = defaultdict(list)
    for visit in visits.visits():
        held[visit.time.replace(hour=0, minute=0, second=0), visit.status].append(visit.sent)
    expected = {}
    for place, sent in held.items():
        known = [each for each in sent if each is not None]
        expected[place] = (len(sent), *((quantile(known, share) for share in (0.5, 0.999)) if known else (None, None)))
    rows = collect(got, "start", "status", "records", "p50", "p99_9")
    assert {row[:2]: row[2:] for row in rows} == expected


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
    """Half an hour without a line ends a session, at the exact second still not; each event knows its place in it."""
    got = analytics.sessions(lines, "30 minutes")
    named = collect(got, "key", "start", "last", "seconds", "records", "bytes", "first_index", "last_index")
    listed = list(sessions_of(timedelta(minutes=30)))
    assert sorted(named) == sorted(
        (
            host, session[0][0], session[-1][0], (session[-1][0] - session[0][0]).total_seconds(), len(session),
            sum(len(visit.line) for _, _, visit in session), min(index for _, index, _ in session),
            max(index for _, index, _ in session),
        )
        for host, session in listed
    )  # fmt: skip
    events = collect(analytics.sessionise(lines, "30 minutes"), "key", "session", "number", "seconds", "index", "value")
    expected = []
    for host, session in listed:
        times = [time for time, _, _ in session]
        since = [None, *((b - a).total_seconds() for a, b in pairwise(times))]
        expected += [
            (host, times[0], number, since[number - 1], index, visit.line)
            for number, (_, index, visit) in enumerate(session, 1)
        ]
    assert sorted(events, key=lambda event: event[4]) == sorted(expected, key=lambda event: event[4])


def test_windows_ask_for_one_of_size_and_gap(lines: "DataFrame") -> None:
    """An invalid window is refused before Spark sees it."""
    for arguments in ({}, {"size": "1 hour", "gap": "1 hour"}, {"gap": "1 hour", "slide": "1 hour"}):
        with pytest.raises(ValueError, match="give size"):
            analytics.rates(lines, **arguments)  # type: ignore[arg-type]


def test_top_keys_are_the_most_frequent_of_each_window(lines: "DataFrame", log: "DataFrame") -> None:
    """The hosts with the most lines, equal ones by name."""
    counted = Counter(visit.host for visit in visits.visits())
    expected = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:20]
    got = analytics.top_keys(log.where(F.col("operation") == "append"), 20)
    assert collect(got, "key", "count") == expected


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
    state = analytics.state_at(log).where(F.col("key").startswith(F.lit(b"page/")))
    table = state.select(F.expr("substring(key, 6)").alias("key"), "value")
    got = collect(analytics.enrich(lines, table), "index", "key", "table_value")
    page = {host: path.encode() for host, path in tables()[1].items()}
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


# ---------------------------------------------------------------------------------------------------------------
# State and history.


def test_state_at_an_index(log: "DataFrame") -> None:
    """The tables as they were after line 4,000, and at the end."""
    for count, index in ((4_000, list(indexed())[4_000][0] - 1), (None, None)):
        hits, page = tables(count)
        expected = {(b"hits/" + host, b"%d" % hit) for host, hit in hits.items()}
        expected |= {(b"page/" + host, path.encode()) for host, path in page.items()}
        assert set(collect(analytics.state_at(log, index), "key", "value")) == expected


def test_change_feed_has_the_value_before(log: "DataFrame") -> None:
    """Every change comes in order with the value before, of puts, deletes and transactions. From the middle of the log
    on, the first change of a key says that the value before is not known.
    """
    pages: dict[bytes, bytes] = {}
    counts: dict[bytes, int] = {}
    expected: list[tuple[Any, ...]] = []
    for visit in visits.visits():
        count = counts[visit.host] = counts.get(visit.host, 0) + 1
        key = b"hits/" + visit.host
        before = b"%d" % (count - 1) if count > 1 else None
        expected.append((key, "update" if before else "insert", before, b"%d" % count))
        old, new = pages.get(visit.host), None if visit.status == 404 else visit.path.encode()
        if new is None:
            pages.pop(visit.host, None)
        else:
            pages[visit.host] = new
        if old is not None or new is not None:
            word = "delete" if new is None else "insert" if old is None else "update"
            expected.append((b"page/" + visit.host, word, old, new))
    feed = analytics.change_feed(log).orderBy("index", "key")
    assert collect(feed, "key", "change", "before", "after") == expected
    assert feed.where("NOT is_before_known OR before_index >= index").count() == 0
    late = analytics.change_feed(log.where("index > 15000")).orderBy("index", "key")
    assert collect(late, "key", "change", "after") == [
        row[1:] for row in collect(feed, "index", "key", "change", "after") if row[0] > 15_000
    ]
    unknown = late.where("NOT is_before_known")
    assert unknown.count() > 0
    assert unknown.where("before IS NOT NULL").count() == 0
    first = late.groupBy("key").agg(F.min("index").alias("index"))
    assert unknown.join(first, ["key", "index"], "left_anti").count() == 0


def test_terms_are_summed_up_with_their_pauses(log: "DataFrame", rows: list[logs.Row]) -> None:
    """Each term from its first record to its last, its users' records and their rate, the longest pause, and the gap to
    the term before it; leaders where somebody knows them."""
    expected: list[list[Any]] = []
    last: datetime | None = None
    for row in rows:
        if not expected or expected[-1][0] != row["term"]:
            gap = None if last is None else (row["time"] - last).total_seconds()
            expected.append([row["term"], row["index"], 0, 0, 0, row["time"], None, gap])
            last = None
        term = expected[-1]
        term[2], term[3], term[4] = row["index"], term[3] + 1, term[4] + logs.is_user(row)
        if last is not None:
            term[6] = max(term[6] or 0.0, (row["time"] - last).total_seconds())
        last = row["time"]
    got = collect(
        analytics.terms(log, {3: "node 2"}, block=BLOCK), "term", "first_index", "last_index", "records", "user",
        "first_time", "longest_pause", "gap",
    )  # fmt: skip
    assert got == [tuple(term) for term in expected]
    assert len(got) == 5
    shown = collect(analytics.terms(log, {3: "node 2"}, block=BLOCK), "leader", "seconds", "user", "per_second")
    assert [row[0] for row in shown] == [None, None, "node 2", None, None]
    assert [row[3] for row in shown] == [row[2] / row[1] if row[1] else None for row in shown]


def test_audit_of_a_whole_log(log: "DataFrame", lines: "DataFrame") -> None:
    """Nothing is wrong with it; the lines that repeat an earlier one, and those that are late, are counted."""
    listed = visits.visits()
    newest = listed[0].time
    late = []
    for index, visit in indexed():
        if visit.time < newest:
            late.append((index, (newest - visit.time).total_seconds()))
        newest = max(newest, visit.time)
    repeated = len(listed) - len({visit.line for visit in listed})
    assert repeated > 0
    assert sorted(collect(analytics.late(lines, block=BLOCK), "index", "seconds")) == late
    found = {row[0]: row[1:] for row in collect(analytics.audit(log, block=BLOCK), "check", "found", "is_wrong")}
    assert {name: wrong for name, (_, wrong) in found.items() if wrong is not None} == dict.fromkeys(
        ("missing indexes", "doubled indexes", "terms that fall", "times that fall", "requests applied twice"), False
    )
    assert sum(row[0] - 1 for row in collect(analytics.duplicates(lines), "records")) == repeated
    assert analytics.gaps(log, block=BLOCK).count() == 0


@pytest.mark.long
def test_audit_of_a_damaged_log(spark: "SparkSession", rows: list[logs.Row]) -> None:
    """Missing and doubled rows, a term and a time that fall, and a request that was applied in two places are found,
    with their places; also at the ends of blocks."""
    damaged = [row for row in rows[: 3 * BLOCK] if row["index"] not in (100, 101, BLOCK, 2 * BLOCK - 1)]
    damaged.append(damaged[200])
    damaged[300] = damaged[300] | {"term": 1, "time": damaged[300]["time"] - timedelta(hours=1)}
    for place in (400, 500):
        damaged[place] = damaged[place] | {"session": 7, "sequence": 3}
    frame = of_rows(spark, damaged)
    missing = collect(analytics.gaps(frame, block=BLOCK), "first_missing", "last_missing", "missing")
    assert sorted(missing) == [(100, 101, 2), (BLOCK, BLOCK, 1), (2 * BLOCK - 1, 2 * BLOCK - 1, 1)]
    found = {
        row[0]: row[1:]
        for row in collect(analytics.audit(frame, block=BLOCK), "check", "found", "first_index", "is_wrong")
    }
    assert found["missing indexes"] == (4, 100, True)
    assert found["doubled indexes"] == (1, damaged[200]["index"], True)
    assert found["terms that fall"] == (1, damaged[300]["index"], True)
    assert found["times that fall"] == (1, damaged[300]["index"], True)
    assert found["requests applied twice"] == (1, damaged[400]["index"], True)
