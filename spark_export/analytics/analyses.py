"""Defines the analyses by name: the question of each, its rows in a good order, its plots, its notes.

`raftlog analyze` shows them. For further work in Python, call the functions of
`raftlog.spark_export.analytics` directly.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from raftlog.spark_export import analytics
from raftlog.spark_export.analytics.windows import QUANTILES, quantile_name
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.tables.plots import Bars, Lines, Plot
from raftlog.spark_export.tables.report import Result, collect, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POINTS_MAX: Final = 2_000  # of a plot over time: more than it has pixels


def rates(
    log: "DataFrame", limit: int, size: str | None, slide: str | None, gap: str | None, by: str | None, measure: str
) -> Result:
    """Windows with their rate and percentiles, in the order of time; plots unless they are split by a column."""
    events = _measured(analytics.events(log), by, measure)
    frame = analytics.rates(events, size, slide=slide, gap=gap, by=(by,) if by else (), measure=measure)
    ordered = frame.orderBy("start", *([by] if by else []))
    found, is_cut = collect(ordered, max(limit, POINTS_MAX) if limit else 0)
    plots: list[Plot] = []
    if found and not by:
        times = [row["start"] for row in found]
        step = None if gap else found[0]["end"] - found[0]["start"]  # also where windows slide: they overlap
        quantiles = {name: [_float(row[name]) for row in found] for name in map(quantile_name, QUANTILES)}
        plots = [
            Lines("records per second", times, {"records": [row["per_second"] for row in found]}, "/s", step),
            Lines(f"{measure} per record", times, quantiles, step=step),
        ]
    windows = f"windows of {size}" + (f", every {slide}" if slide else "") if size else f"sessions that end after {gap}"
    question = f"How many records, and how are their {measure} spread, in {windows}?"
    notes = ["the last window may not be over"] if size else []
    return _result("rates", question, frame, found, limit, is_cut, plots, notes)


def _measured(events: "DataFrame", by: str | None, measure: str) -> "DataFrame":
    """The events, with the fields of an access log where one of them is asked for."""
    wanted = [name for name in (by, measure) if name]
    for frame in (events, analytics.access_fields(events)):
        if set(wanted) <= set(frame.columns):
            return frame
    raise UsageError(f"there is no column for {' or '.join(wanted)}; there are {', '.join(frame.columns)}")


def top_keys(log: "DataFrame", limit: int) -> Result:
    """The keys with the most user records."""
    frame = analytics.top_keys(log, limit or 2**31 - 1)
    found, _ = collect(frame, 0)
    bars = Bars("records", [str(plain(row["key"])) for row in found[:40]], [row["count"] for row in found[:40]])
    return _result("top-keys", "Which keys have the most records?", frame, found, limit, False, [bars])


def sessions(log: "DataFrame", limit: int, gap: str) -> Result:
    """The longest sessions of one key, and how many are of which length."""
    frame = analytics.sessions(analytics.events(log), gap).cache()
    found, is_cut = collect(frame.orderBy(F.col("records").desc(), "start", "key"), limit)
    sizes = frame.groupBy(F.floor(F.log2("records")).alias("power")).count().orderBy("power").collect()
    frame.unpersist()
    labels = [
        f"{2 ** row['power']} to {2 ** (row['power'] + 1) - 1} records" if row["power"] else "1 record" for row in sizes
    ]
    plots = [Bars("sessions by their number of records", labels, [row["count"] for row in sizes])]
    question = f"Which records of one key belong together, at most {gap} apart?"
    return _result("sessions", question, frame, found, limit, is_cut, plots)


def join(log: "DataFrame", limit: int, left: str, right: str, within: str) -> Result:
    """Records whose value matches `left`, each with those of the same key after it whose value matches `right`."""
    for pattern in (left, right):
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{pattern!r} is no regular expression: {error}") from error
    events = analytics.events(log)
    text = F.col("value").cast("string")
    frame = analytics.join_within(events.where(text.rlike(left)), events.where(text.rlike(right)), within).cache()
    found, is_cut = collect(frame.orderBy("left_index", "right_index"), limit)
    whole = frame.groupBy(F.floor("seconds").alias("second")).count().orderBy("second").limit(60).collect()
    frame.unpersist()
    plots = [Bars("pairs by the seconds between them", [f"{row['second']} s" for row in whole],
                  [row["count"] for row in whole])]  # fmt: skip
    question = f"What matching {right!r} follows what matches {left!r}, of the same key, within {within}?"
    return _result("join", question, frame, found, limit, is_cut, plots)


def enrich(log: "DataFrame", limit: int, prefix: str) -> Result:
    """Each record that is no change of a key, with what the key-value store holds for its key under `prefix`."""
    state = analytics.state_at(log)
    start = len(prefix.encode())
    table = state.where(F.substring("key", 1, start) == F.lit(prefix.encode())).select(
        F.col("key").substr(F.lit(start + 1), F.octet_length("key")).alias("key"), "value", "mod", "version"
    )
    frame = analytics.enrich(analytics.events(log.where(F.col("operation") == "append")), table)
    found, is_cut = collect(frame.orderBy("index"), limit)
    question = f"What does the table hold for each record's key{f', under {prefix}' if prefix else ''}?"
    return _result("enrich", question, frame, found, limit, is_cut)


def view(log: "DataFrame", limit: int, left: str, right: str, how: str) -> Result:
    """Two tables of the key-value store, joined by what follows their prefixes."""
    frame = analytics.view(log, left, right, how=how)
    found, is_cut = collect(frame.orderBy("id"), limit)
    return _result(
        "view", f"What do the tables {left} and {right} hold together ({how} join)?", frame, found, limit, is_cut
    )


def state(log: "DataFrame", limit: int, at: int | None) -> Result:
    """The live keys as of an index."""
    frame = analytics.state_at(log, at)
    found, is_cut = collect(frame.orderBy("key"), limit)
    when = "at the end" if at is None else f"after index {at}"
    return _result("state", f"What did the key-value store hold {when}?", frame, found, limit, is_cut)


def changes(log: "DataFrame", limit: int) -> Result:
    """Every change of a key, with the value before it."""
    frame = analytics.change_feed(log).cache()
    found, is_cut = collect(frame.orderBy("index", "key"), limit)
    kinds = frame.groupBy("change").count().orderBy("change").collect()
    unknown = frame.where(~F.col("is_before_known")).count()
    frame.unpersist()
    plots = [Bars("changes", [row["change"] for row in kinds], [row["count"] for row in kinds])]
    notes = [f"of {unknown} changes the value before is not known: the record that wrote it is not among the rows"]
    return _result(
        "changes", "What changed, from what to what?", frame, found, limit, is_cut, plots, notes if unknown else []
    )


def terms(log: "DataFrame", limit: int, leaders: Mapping[int, str]) -> Result:
    """The history by term."""
    frame = analytics.terms(log, leaders)
    found, is_cut = collect(frame, limit)
    labels = [f"term {row['term']}" for row in found]
    plots = [
        Bars("users' records per second", labels, [_float(row["per_second"]) or 0.0 for row in found], "/s"),
        Bars("seconds since the term before", labels, [_float(row["gap"]) or 0.0 for row in found], "s"),
    ]
    notes = ["the log does not name leaders; a running cluster (--endpoints) gives the leader of the current term"]
    question = "How long did each term last, and how many records were written in it?"
    return _result("terms", question, frame, found, limit, is_cut, plots, notes)


def audit(log: "DataFrame") -> Result:
    """Faults of the log, and oddities worth knowing."""
    frame = analytics.audit(log)
    found, _ = collect(frame, 0)
    latest = analytics.late(analytics.events(log)).agg(F.max("seconds")).collect()[0][0]
    notes = [f"the latest event is {latest:g} s behind: a watermark of so much loses nothing"] if latest else []
    return _result("audit", "Is the log complete, and are there oddities?", frame, found, 0, False, notes=notes)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _result(
    name: str, question: str, frame: "DataFrame", found: list[dict[str, Any]], limit: int, is_cut: bool,
    plots: list[Plot] | list[Bars] | None = None, notes: list[str] | None = None,
) -> Result:  # fmt: skip
    shown = found[:limit] if limit else found
    rows = [[plain(row[column]) for column in frame.columns] for row in shown]
    return Result(
        name, question, frame.columns, rows, is_cut or len(shown) < len(found), tuple(plots or ()), tuple(notes or ())
    )
