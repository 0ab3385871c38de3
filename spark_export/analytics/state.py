"""Computes the key-value state as of an index, and every change of it with the value before."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from raftlog.spark_export.analytics.events import key_changes
from raftlog.spark_export.analytics.values import quoted
from raftlog.spark_export.export.digests import state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def state_at(log: "DataFrame", index: int | None = None) -> "DataFrame":
    """The live keys after the record `index` (None: the last): key, value, create, mod, version.

    The rows must begin at index 1. As a stream it is a table that changes: complete or update mode.
    """
    return state(log if index is None else log.where(F.col("index") <= index))


def latest(events: "DataFrame", index: int | None = None, *, by: Sequence[str] = ("key",)) -> "DataFrame":
    """The newest event of each `by` as of the record `index` (None: the last): the events' columns, `by` first.

    The newest is that of the latest time; of several of the same time, the one of the highest index. Events without a
    time are left out. As a stream it is a table that changes: complete or update mode.
    """
    rows = events.where(F.col("event_time").isNotNull() & (F.lit(True) if index is None else F.col("index") <= index))
    rest = [F.col(quoted(name)) for name in events.columns if name not in by]
    newest = F.max_by(F.struct(*rest), F.struct("event_time", "index")).alias("newest")
    return rows.groupBy(*(F.col(quoted(name)) for name in by)).agg(newest).select(*map(quoted, by), "newest.*")


def change_feed(log: "DataFrame") -> "DataFrame":
    """Every change of a key: index, time, key, change (insert, update, delete), before, after, before_index, mod,
    version, is_before_known.

    `before` is the value that was replaced; `before_index` the record that wrote it. Where that record is not among the
    rows (they begin later), `before` is null and `is_before_known` false. Tables only: it looks back along each key.
    """
    of_key = Window.partitionBy("key").orderBy("index")
    previous = F.lag(F.struct("index", "value", "version")).over(of_key)
    changes = key_changes(log).withColumn("previous", previous)
    was_alive = F.col("previous.version") > 0
    found_index = F.when(was_alive, F.col("previous.index"))
    told_index = F.nullif(F.col("prior_index"), F.lit(0))
    before_index = F.when(F.col("prior_index").isNotNull(), told_index).otherwise(found_index)
    is_known = F.when(F.col("prior_index").isNotNull(), told_index.eqNullSafe(found_index)).otherwise(
        F.col("previous").isNotNull() | (F.col("version") == 1)
    )
    is_insert = F.when(F.col("prior_index").isNotNull(), told_index.isNull()).otherwise(F.col("version") == 1)
    return changes.select(
        "index",
        "time",
        "key",
        F.when(F.col("version") == 0, "delete").when(is_insert, "insert").otherwise("update").alias("change"),
        F.when(is_known & was_alive, F.col("previous.value")).alias("before"),
        F.when(F.col("version") > 0, F.col("value")).alias("after"),
        before_index.alias("before_index"),
        "mod",
        "version",
        is_known.alias("is_before_known"),
    )
