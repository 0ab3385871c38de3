"""Defines the analyses by name: the question of each, its rows in a good order, its plots, its notes.

`raftlog analyze` shows them. For further work in Python, call the functions of
`raftlog.spark_export.analytics` directly.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from raftlog.spark_export import analytics
from raftlog.spark_export.analytics.own import Own, own_columns, own_events
from raftlog.spark_export.analytics.values import quoted
from raftlog.spark_export.analytics.windows import QUANTILES, quantile_name
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.tables.plots import Bars, Lines, Plot
from raftlog.spark_export.tables.report import Result, collect, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POINTS_MAX: Final = 2_000  # of a plot over time: more than it has pixels
GROUPS_MAX: Final = 4  # lines of a plot: as many as the page has colours


def rates(
    log: "DataFrame", limit: int, own: Own, size: str | None, slide: str | None, gap: str | None, by: str | None,
    measure: str,
) -> Result:  # fmt: skip
    """Windows with their rate and percentiles, in the order of time; one line for each of the largest groups."""
    events, notes = own_events(log, own, by, measure=measure)
    frame = analytics.rates(events, size, slide=slide, gap=gap, by=(by,) if by else (), measure=measure)
    ordered = frame.orderBy("start", *([F.col(quoted(by))] if by else []))
    found, is_cut = collect(ordered, max(limit, POINTS_MAX) if limit else 0)
    step = None if gap or not found else found[0]["end"] - found[0]["start"]  # also where windows slide: they overlap
    plots: list[Plot] = []
    if found and by:
        plots = [
            _split("records per second", found, "start", by, "per_second", "/s", step),
            _split(f"{measure} per record, p50", found, "start", by, "p50", "", step),
        ]
    elif found:
        times = [row["start"] for row in found]
        quantiles = {name: [_float(row[name]) for row in found] for name in map(quantile_name, QUANTILES)}
        plots = [
            Lines("records per second", times, {"records": [row["per_second"] for row in found]}, "/s", step),
            Lines(f"{measure} per record", times, quantiles, step=step),
        ]
    windows = f"windows of {size}" + (f", every {slide}" if slide else "") if size else f"sessions that end after {gap}"
    question = f"How many records, and how are their {measure} spread, in {windows}?"
    notes += ["the last window may not be over"] if size else []
    return _result("rates", question, frame, found, limit, is_cut, plots, notes)


def _split(
    title: str, found: list[dict[str, Any]], time: str, by: str, value: str, unit: str, step: timedelta | None
) -> Lines:
    """A line for each of the groups with the most points; a time without a row of a group is a gap of its line."""
    counted = Counter(row[by] for row in found)
    shown = [group for group, _ in counted.most_common(GROUPS_MAX)]
    times = sorted({row[time] for row in found})
    values = {(row[time], row[by]): _float(row[value]) for row in found}
    lines = {str(plain(group)): [values.get((each, group)) for each in times] for group in shown}
    return Lines(f"{title}, by {by}", times, lines, unit, step)


def sliding(log: "DataFrame", limit: int, own: Own, size: str, by: str | None, measure: str) -> Result:
    """Each event with the sum of what came in the time before it."""
    events, notes = own_events(log, own, by, measure=measure)
    frame = analytics.sliding(events, size, by=(by,) if by else (), measure=measure)
    found, is_cut = collect(frame.orderBy("event_time", "index"), max(limit, POINTS_MAX) if limit else 0)
    plots: list[Plot] = []
    if found and by:
        plots = [_split(f"mean {measure}", found, "event_time", by, "mean", "", None)]
    elif found:
        lines = {name: [_float(row[name]) for row in found] for name in ("mean", "lowest", "highest")}
        plots = [Lines(measure, [row["event_time"] for row in found], lines)]
    question = f"What do the {measure} of the {size} before each record sum up to{f', for each {by}' if by else ''}?"
    return _result("sliding", question, frame, found, limit, is_cut, plots, notes)


def latest(log: "DataFrame", limit: int, own: Own, by: str, at: int | None, measure: str | None) -> Result:
    """The newest event of each group as of an index."""
    events, notes = own_events(log, own, by, measure=measure)
    frame = analytics.latest(events, at, by=(by,))
    found, is_cut = collect(frame.orderBy(F.col(quoted(by))), limit)
    shown = found[:40]
    labels = [str(plain(row[by])) for row in shown]
    plots: list[Plot] = []
    if measure is not None:
        plots = [Bars(measure, labels, [_float(row[measure]) or 0.0 for row in shown])]
    elif found:
        newest = max(row["event_time"] for row in found)
        ages = [(newest - row["event_time"]).total_seconds() for row in shown]
        plots = [Bars("seconds before the newest of all", labels, ages, "s")]
    when = "at the end" if at is None else f"as of index {at}"
    return _result(
        "latest", f"Which record is the newest of each {by}, {when}?", frame, found, limit, is_cut, plots, notes
    )


def top_keys(log: "DataFrame", limit: int) -> Result:
    """The keys with the most user records."""
    frame = analytics.top_keys(log, limit or 2**31 - 1)
    found, _ = collect(frame, 0)
    bars = Bars("records", [str(plain(row["key"])) for row in found[:40]], [row["count"] for row in found[:40]])
    return _result("top-keys", "Which keys have the most records?", frame, found, limit, False, [bars])


def sessions(log: "DataFrame", limit: int, own: Own, gap: str) -> Result:
    """The longest sessions of one key, and how many are of which length."""
    events, notes = own_events(log, own)
    frame = analytics.sessions(events, gap).cache()
    found, is_cut = collect(frame.orderBy(F.col("records").desc(), "start", "key"), limit)
    sizes = frame.groupBy(F.floor(F.log2("records")).alias("power")).count().orderBy("power").collect()
    frame.unpersist()
    labels = [
        f"{2 ** row['power']} to {2 ** (row['power'] + 1) - 1} records" if row["power"] else "1 record" for row in sizes
    ]
    plots = [Bars("sessions by their number of records", labels, [row["count"] for row in sizes])]
    question = f"Which records of one key belong together, at most {gap} apart?"
    return _result("sessions", question, frame, found, limit, is_cut, plots, notes)


def join(log: "DataFrame", limit: int, own: Own, left: str, right: str, within: str, of: str) -> Result:
    """Records whose column `of` matches `left`, each with those of the same key after it where it matches `right`."""
    for pattern in (left, right):
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{pattern!r} is no regular expression: {error}") from error
    events, notes = own_events(log, own, of)
    text = F.col(quoted(of)).cast("string")
    columns = () if of in ("key", "value", "index", "event_time") else (of,)
    frame = analytics.join_within(
        events.where(text.rlike(left)), events.where(text.rlike(right)), within, columns=columns
    ).cache()
    found, is_cut = collect(frame.orderBy("left_index", "right_index"), limit)
    whole = frame.groupBy(F.floor("seconds").alias("second")).count().orderBy("second").limit(60).collect()
    frame.unpersist()
    plots = [Bars("pairs by the seconds between them", [f"{row['second']} s" for row in whole],
                  [row["count"] for row in whole])]  # fmt: skip
    question = f"What matching {right!r} follows what matches {left!r}, of the same key, within {within}?"
    return _result("join", question, frame, found, limit, is_cut, plots, notes)


def enrich(log: "DataFrame", limit: int, prefix: str) -> Result:
    """Each record that is no change of a key, with what the key-value store holds for its key under `prefix`."""
    state = analytics.state_at(log)
    start = len(prefix.encode())
    table = state.where(F.substring("key", 1, start) == F.lit(prefix.encode())).select(
        F.col("key").substr(F.lit(start + 1), F.octet_length("key")).alias("key"), "value", "mod", "version"
    )
    frame = analytics.enrich(analytics.events(log.where(F.col("operation") == "append")), table)
    found, is_cut = collect(frame.orderBy("index"), limit)
    known = frame.agg(F.count("table_value"), F.count(F.lit(1)) - F.count("table_value")).collect()[0]
    plots = [Bars("records", ["with a row of the table", "without one"], list(known))]
    question = f"What does the table hold for each record's key{f', under {prefix}' if prefix else ''}?"
    return _result("enrich", question, frame, found, limit, is_cut, plots)


def view(log: "DataFrame", limit: int, left: str, right: str, how: str) -> Result:
    """Two tables of the key-value store, joined by what follows their prefixes."""
    frame = analytics.view(log, left, right, how=how)
    found, is_cut = collect(frame.orderBy("id"), limit)
    sides = F.struct(F.col("left").isNotNull().alias("left"), F.col("right").isNotNull().alias("right"))
    counted = {tuple(row[0]): row["count"] for row in frame.groupBy(sides).count().collect()}
    names = {(True, True): "in both", (True, False): f"only in {left}", (False, True): f"only in {right}"}
    plots = [Bars("rows", list(names.values()), [counted.get(each, 0) for each in names])]
    question = f"What do the tables {left} and {right} hold together ({how} join)?"
    return _result("view", question, frame, found, limit, is_cut, plots)


def state(log: "DataFrame", limit: int, own: Own, at: int | None) -> Result:
    """The live keys as of an index, with the columns of their values where a form of values is given."""
    frame = own_columns(log, own, analytics.state_at(log, at)).cache()
    found, is_cut = collect(frame.orderBy("key"), limit)
    written = frame.orderBy(F.col("version").desc(), "key").limit(40).collect()
    frame.unpersist()
    labels = [str(plain(bytes(row["key"]))) for row in written]
    plots = [Bars("how often each key was written", labels, [row["version"] for row in written])]
    when = "at the end" if at is None else f"after index {at}"
    question = f"What did the key-value store hold {when}?"
    return _result("state", question, frame, found, limit, is_cut, plots)


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
    plots: Sequence[Plot] = (), notes: Sequence[str] = (),
) -> Result:  # fmt: skip
    shown = found[:limit] if limit else found
    rows = [[plain(row[column]) for column in frame.columns] for row in shown]
    return Result(name, question, frame.columns, rows, is_cut or len(shown) < len(found), tuple(plots), tuple(notes))
