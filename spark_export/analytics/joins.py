"""Joins streams and tables: two streams within a time, a stream with a table, and two tables as a kept view."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from raftlog.spark_export.analytics.events import key_changes
from raftlog.spark_export.analytics.values import quoted
from raftlog.spark_export.analytics.windows import WATERMARK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EVENT: Final = ("event_time", "index", "value")


def join_within(
    left: "DataFrame",
    right: "DataFrame",
    within: str = "1 minute",
    *,
    how: str = "inner",
    watermark: str = WATERMARK,
    columns: Sequence[str] = (),
) -> "DataFrame":
    """Pairs each event of `left` with every event of `right` that has the same key and lies at most `within` after it.

    The columns are key, left_event_time, left_index, left_value, right_…, seconds, and for each of `columns`, which
    both sides have, left_NAME and right_NAME. A record is never paired with itself, as far as events have an index.

    `how` is inner, or left for those without a partner too. A stream keeps an event as long as a partner may come.
    """
    if how not in ("inner", "left"):
        raise ValueError(f"join_within: how is {how!r}; it is inner or left")
    first = _renamed(left, "left", watermark, columns)
    second = _renamed(right, "right", watermark, columns)
    condition = (
        (F.col("left_key") == F.col("right_key"))
        & (F.col("right_event_time") >= F.col("left_event_time"))
        & (F.col("right_event_time") <= F.col("left_event_time") + F.expr(f"INTERVAL {within}"))
        & F.coalesce(F.col("left_index") != F.col("right_index"), F.lit(True))
    )
    seconds = (F.unix_micros("right_event_time") - F.unix_micros("left_event_time")) / 1_000_000
    return first.join(second, condition, how).select(
        F.col("left_key").alias("key"),
        *(f"{side}_{name}" for side in ("left", "right") for name in _EVENT),
        seconds.alias("seconds"),
        *(F.col(quoted(f"{side}_{name}")) for name in columns for side in ("left", "right")),
    )


def _renamed(events: "DataFrame", side: str, watermark: str, columns: Sequence[str]) -> "DataFrame":
    renamed = events.select(*(F.col(quoted(name)).alias(f"{side}_{name}") for name in ("key", *_EVENT, *columns)))
    return renamed.withWatermark(f"{side}_event_time", watermark)


def enrich(events: "DataFrame", table: "DataFrame", on: str = "key") -> "DataFrame":
    """Each event with its key's row of a table, for example a state or a file.

    The table's other columns are named table_…; they are null for a key that the table does not have. A stream is
    joined with the table as of each micro-batch.
    """
    named = table.select(on, *(F.col(name).alias(f"table_{name}") for name in table.columns if name != on))
    return events.join(named, on, "left")


def view(log: "DataFrame", left: str, right: str, *, how: str = "inner") -> "DataFrame":
    """Joins two tables that lie in the key-value store under the prefixes `left` and `right`, by the rest of the key.

    The columns are id, left, right (the live values), left_index, right_index (of the records that wrote them).

    `how` is inner, left or full. One aggregate keeps the join current. In a stream (update or complete mode) a row
    comes whenever either table changes it. Update mode does not report a row that leaves the view.
    """
    conditions = {"inner": ("left", "right"), "left": ("left",), "full": ()}
    if how not in conditions:
        raise ValueError(f"view: how is {how!r}; it is inner, left or full")
    changes = key_changes(log)
    rest = F.when(_begins(left), _after(left)).when(_begins(right), _after(right))
    newest = (
        changes.withColumns({"id": rest, "alive": F.struct("index", "version", "value")})
        .where(F.col("id").isNotNull())
        .groupBy("id")
        .agg(
            *(
                F.max_by("alive", F.when(_begins(prefix), F.col("index"))).alias(name)
                for name, prefix in (("newest_left", left), ("newest_right", right))
            )
        )
    )
    joined = newest.select("id", *_live("left"), *_live("right"))
    is_there = F.col("left_index").isNotNull() | F.col("right_index").isNotNull()
    for side in conditions[how]:
        is_there &= F.col(f"{side}_index").isNotNull()
    return joined.where(is_there).select("id", "left", "right", "left_index", "right_index")


def _begins(prefix: str) -> "Column":
    return F.substring("key", 1, len(prefix.encode())) == F.lit(prefix.encode())


def _after(prefix: str) -> "Column":
    return F.col("key").substr(F.lit(len(prefix.encode()) + 1), F.octet_length("key"))


def _live(side: str) -> list["Column"]:
    newest = F.col(f"newest_{side}")
    is_alive = newest["version"] > 0
    return [F.when(is_alive, newest["value"]).alias(side), F.when(is_alive, newest["index"]).alias(f"{side}_index")]
