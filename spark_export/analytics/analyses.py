"""Defines the analyses by name: the question of each, its rows in a good order, its plots, its notes.

`raftlog analyze` shows them. For further work in Python, call the functions of
`raftlog.spark_export.analytics` directly.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from raftlog.cluster.drawing.plots import BarPlot, LinePlot, Plot
from raftlog.spark_export import analytics
from raftlog.spark_export.analytics.own import OwnColumns, own_events
from raftlog.spark_export.analytics.values import quoted
from raftlog.spark_export.analytics.windows import QUANTILES, quantile_name
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.tables.report import Result, collect, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POINTS_MAX: Final = 400
"""Most points of a line: more would be closer than two of its pixels. A longer time has wider windows."""
LINES_MAX: Final = 4  # of a plot: as many as the page has colours
BARS_MAX: Final = 40
LONG_WINDOW_S: Final = 60
"""In windows from this length on, records are counted per window, and not per second."""
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}


def windows(
    log: "DataFrame",
    limit: int,
    own: OwnColumns,
    size: str | None,
    slide: str | None = None,
    gap: str | None = None,
    by: str | None = None,
    measure: str = "bytes",
) -> Result:
    """Windows with their rate and percentiles, in the order of time; one line for each of the largest groups."""
    events, own, notes = own_events(log, own, by, measure=measure)
    events = events.where(F.col("event_time").isNotNull()).cache()
    groups = (by,) if by else ()
    frame = analytics.rates(events, size, slide=slide, gap=gap, by=groups, measure=measure)
    if gap or _seconds(size) >= LONG_WINDOW_S:
        frame = frame.drop("per_second")
    found, is_cut = collect(frame.orderBy("start", *([F.col(quoted(by))] if by else [])), limit)
    if size is None:
        plots: list[Plot] = [_sizes(frame, "windows")]
        windows = f"windows that end after {gap} without a record"
    else:
        plots = _window_plots(events, size, slide, by, measure)
        windows = f"windows of {size}" + (f" that begin every {slide}" if slide else "")
        notes.append("the last window may not be over")
    events.unpersist()
    question = f"How many records are there{own.within}, and how is {measure} spread, in {windows}?"
    return _result("windows", question, frame, found, limit, is_cut, plots, notes)


def _window_plots(events: "DataFrame", size: str, slide: str | None, by: str | None, measure: str) -> list[Plot]:
    """Over all of the time, in windows wide enough for a plot; by each of the groups with the most records."""
    first, last = _span(events)
    if first is None or last is None:
        return [LinePlot("records", [])]
    step_s, width_s = _seconds(slide or size), _seconds(size)
    step_s *= math.ceil((last - first).total_seconds() / step_s / POINTS_MAX) or 1
    width_s = max(width_s, step_s)
    events, which = _largest(events, by, LINES_MAX) if by else (events, "")
    columns = (by,) if by else ()
    frame = analytics.rates(events, f"{width_s} seconds", slide=f"{step_s} seconds", by=columns, measure=measure)
    rows, step = frame.orderBy("start").collect(), timedelta(seconds=step_s)
    unit = _words(width_s)
    counts, values = f"records per {unit.removeprefix('1 ')}", f"{measure} per record, in windows of {unit}"
    if by:
        middle = quantile_name(QUANTILES[0])
        return [
            _split(counts + which, rows, by, "records", step),
            _split(f"{values}, median{which}", rows, by, middle, step),
        ]
    times = [_utc(row["start"]) for row in rows]
    quantiles = {name: [_float(row[name]) for row in rows] for name in map(quantile_name, QUANTILES)}
    return [
        LinePlot(counts, times, {"records": [row["records"] for row in rows]}, step=step),
        LinePlot(values, times, quantiles, step=step),
    ]


def _largest(events: "DataFrame", by: str, at_most: int) -> "tuple[DataFrame, str]":
    """The events of the groups with the most records, and which groups of how many these are."""
    column = F.col(quoted(by))
    counted = events.groupBy(column).count().cache()
    top = [row[0] for row in counted.orderBy(F.col("count").desc(), column).limit(at_most).collect()]
    number = counted.count()
    counted.unpersist()
    is_shown = F.lit(False)
    for each in top:
        is_shown |= column.eqNullSafe(F.lit(each))
    which = f", by {by}" if number <= at_most else f", by {by}: {at_most} of {number:,}, those with the most records"
    return events.where(is_shown), which


def _split(title: str, rows: Sequence[Any], by: str, value: str, step: timedelta | None) -> LinePlot:
    """A line for each group, the largest first; a time without a row of a group is a gap of its line."""
    sizes: Counter[Any] = Counter()
    for row in rows:
        sizes[row[by]] += row["records"]
    times = sorted({row["start"] for row in rows})
    values = {(row["start"], row[by]): _float(row[value]) for row in rows}
    lines = {
        str(plain(group)): [values.get((each, group)) for each in times] for group, _ in sizes.most_common(LINES_MAX)
    }
    return LinePlot(title, [_utc(each) for each in times], lines, step=step)


def _span(events: "DataFrame") -> tuple[datetime | None, datetime | None]:
    """The times of the first and of the last event."""
    (row,) = events.agg(F.min("event_time"), F.max("event_time")).collect()
    return row[0], row[1]


def _utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC)


def _seconds(interval: str | None) -> int:
    """`90 seconds`, `1 hour` as a number."""
    number, unit = str(interval).split()
    return int(number) * _SECONDS[unit.removesuffix("s")]


def _words(seconds: int) -> str:
    """A number of seconds in the largest unit that it is a multiple of: `1 hour`, `90 seconds`."""
    unit, length = next(each for each in reversed(_SECONDS.items()) if seconds % each[1] == 0)
    number = seconds // length
    return f"{number} {unit}{'' if number == 1 else 's'}"


def _sizes(frame: "DataFrame", what: str) -> BarPlot:
    """How many of all rows have how many records."""
    sizes = frame.groupBy(F.floor(F.log2("records")).alias("power")).count().orderBy("power").collect()
    labels = [
        f"{2 ** row['power']} to {2 ** (row['power'] + 1) - 1} records" if row["power"] else "1 record" for row in sizes
    ]
    return BarPlot(f"{what} by their number of records", labels, [row["count"] for row in sizes])


def top_keys(log: "DataFrame", limit: int, own: OwnColumns | None = None) -> Result:
    """The keys with the most user records."""
    events, own, notes = own_events(log, own or OwnColumns())
    counted = events.where(F.col("key").isNotNull()).groupBy("key").count()
    number = counted.count()
    frame = counted.orderBy(F.col("count").desc(), "key")
    found, is_cut = collect(frame, limit)
    shown = found[:BARS_MAX]
    title = "records, by key" + (f": {len(shown)} of {number:,}" if len(shown) < number else "")
    bars = BarPlot(title, [str(plain(row["key"])) for row in shown], [row["count"] for row in shown])
    question = f"Which keys have the most records{own.within}?"
    return _result("top-keys", question, frame, found, limit, is_cut, [bars], notes)


def sessions(log: "DataFrame", limit: int, own: OwnColumns, gap: str) -> Result:
    """The longest sessions of one key, and how many are of which length."""
    events, own, notes = own_events(log, own)
    frame = analytics.sessions(events, gap).cache()
    found, is_cut = collect(frame.orderBy(F.col("records").desc(), "start", "key"), limit)
    plots = [_sizes(frame, "sessions")]
    frame.unpersist()
    question = f"Which records of one key{own.within} follow each other by at most {gap}?"
    return _result("sessions", question, frame, found, limit, is_cut, plots, notes)


def joins(log: "DataFrame", limit: int, own: OwnColumns, left: str, right: str, within: str, of: str) -> Result:
    """Records whose column `of` matches `left`, each with those of the same key after it where it matches `right`."""
    for pattern in (left, right):
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{pattern!r} is no regular expression: {error}") from error
    events, own, notes = own_events(log, own, of)
    text = F.col(quoted(of)).cast("string")
    columns = () if of in ("key", "value", "index", "event_time") else (of,)
    frame = analytics.join_within(
        events.where(text.rlike(left)), events.where(text.rlike(right)), within, columns=columns
    ).cache()
    found, is_cut = collect(frame.orderBy("left_index", "right_index"), limit)
    width = math.ceil((_seconds(within) + 1) / BARS_MAX)
    whole = frame.groupBy(F.floor(F.col("seconds") / width).alias("place")).count().orderBy("place").collect()
    frame.unpersist()
    labels = [
        f"{row['place'] * width} s" + (f" to {(row['place'] + 1) * width} s" if width > 1 else "") for row in whole
    ]
    plots = [BarPlot("pairs by the seconds between them", labels, [row["count"] for row in whole])]
    question = (
        f"Which records{own.within} match {right!r} at most {within} after one of the same key that matches {left!r}?"
    )
    return _result("joins", question, frame, found, limit, is_cut, plots, notes)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _result(
    name: str,
    question: str,
    frame: "DataFrame",
    found: list[dict[str, Any]],
    limit: int,
    is_cut: bool,
    plots: Sequence[Plot] = (),
    notes: Sequence[str] = (),
) -> Result:
    shown = found[:limit] if limit else found
    rows = [[plain(row[column]) for column in frame.columns] for row in shown]
    return Result(name, question, frame.columns, rows, is_cut or len(shown) < len(found), tuple(plots), tuple(notes))
