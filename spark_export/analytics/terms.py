"""Sums up the log by term: how long each term lasted, how much it wrote, and how long the pauses were."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from raftlog.spark_export.analytics.neighbours import BLOCK, with_previous
from raftlog.spark_export.columns.records import is_user_row

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def terms(log: "DataFrame", leaders: Mapping[int, str] | None = None, *, block: int = BLOCK) -> "DataFrame":
    """One row per term with a record.

    The columns are term, leader, first_index, last_index, records, user, first_time, last_time, seconds, per_second,
    longest_pause and gap. `per_second` counts user records. `longest_pause` is the longest time in seconds without a
    record within the term. `gap` is the time in seconds since the last record of the term before.

    The log does not name leaders; `leaders` can (`/v1/status` names the leader of the current term). Works on tables
    only.
    """
    rows = with_previous(
        log.select("index", "term", "time", is_user_row().alias("is_user")), "time", "term", block=block
    )
    pause = F.when(F.col("term") == F.col("previous_term"), _seconds(F.col("previous_time"), F.col("time")))
    summed = rows.groupBy("term").agg(
        F.min("index").alias("first_index"),
        F.max("index").alias("last_index"),
        F.count(F.lit(1)).alias("records"),
        F.count(F.when(F.col("is_user"), 1)).alias("user"),
        F.min("time").alias("first_time"),
        F.max("time").alias("last_time"),
        F.max(pause).alias("longest_pause"),
    )
    seconds = _seconds(F.col("first_time"), F.col("last_time"))
    before = F.lag("last_time").over(Window.orderBy("term"))  # few rows: one per term
    leader = F.lit(None).cast("string")
    for term, name in (leaders or {}).items():
        leader = F.when(F.col("term") == term, F.lit(name)).otherwise(leader)
    return summed.select(
        "term",
        leader.alias("leader"),
        "first_index",
        "last_index",
        "records",
        "user",
        "first_time",
        "last_time",
        seconds.alias("seconds"),
        F.when(seconds > 0, F.col("user") / seconds).alias("per_second"),
        "longest_pause",
        _seconds(before, F.col("first_time")).alias("gap"),
    ).orderBy("term")


def _seconds(start: "Column", end: "Column") -> "Column":
    return (F.unix_micros(end) - F.unix_micros(start)) / 1_000_000
