"""Checks a log for gaps, doubled rows, times that fall, repeated requests and late events.

Tables only: each of these looks at rows in the order of their indexes.
"""

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from raftlog.spark_export.analytics.events import events
from raftlog.spark_export.analytics.neighbours import BLOCK, with_highest_before, with_previous

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def gaps(log: "DataFrame", *, block: int = BLOCK) -> "DataFrame":
    """Ranges of indexes without a row between the first and the last one: first_missing, last_missing, missing. They
    mean something only for a log with its internal records; of a whole one there are none."""
    rows = with_previous(log.select("index"), "index", block=block)
    missing = F.col("index") - F.col("previous_index") - 1
    return rows.where(missing > 0).select(
        (F.col("previous_index") + 1).alias("first_missing"),
        (F.col("index") - 1).alias("last_missing"),
        missing.alias("missing"),
    )


def duplicates(happened: "DataFrame") -> "DataFrame":
    """Events equal in key, value and time: key, event_time, value, records, first_index, last_index. The log keeps what
    it is given; equal ones mean that a client sent (or a source wrote) the same thing more than once."""
    grouped = happened.groupBy("key", "event_time", "value").agg(
        F.count(F.lit(1)).alias("records"), F.min("index").alias("first_index"), F.max("index").alias("last_index")
    )
    return grouped.where(F.col("records") > 1)


def late(happened: "DataFrame", *, block: int = BLOCK) -> "DataFrame":
    """Events older than one before them: the event's columns and `seconds`, how much older than the newest so far. The
    greatest of these is the watermark that loses nothing."""
    rows = with_highest_before(happened, "event_time", block=block)
    behind = (F.unix_micros("highest_event_time") - F.unix_micros("event_time")) / 1_000_000
    return rows.where(behind > 0).withColumn("seconds", behind).drop("highest_event_time")


def audit(log: "DataFrame", *, block: int = BLOCK) -> "DataFrame":
    """One row per check: check, found (how often), first_index (the first place), is_wrong (null: only worth knowing).

    `log` is a log with its internal records. Wrong are missing and doubled indexes, terms and times that fall, and a
    request of a session that was applied in two places. Equal and late events are the clients' own affair.
    """
    rows = with_previous(log.select("index", "term", "time"), "index", "term", "time", block=block)
    step = F.col("index") - F.col("previous_index")
    in_order = rows.agg(
        _check("missing indexes", step > 1, step - 1, F.col("previous_index") + 1),
        _check("doubled indexes", step < 1),
        _check("terms that fall", F.col("term") < F.col("previous_term")),
        _check("times that fall", F.col("time") < F.col("previous_time")),
    )
    requests = (
        log.where(F.col("session").isNotNull() & (F.col("result") == "applied"))
        .groupBy("session", "sequence")
        .agg(F.count(F.lit(1)).alias("records"), F.min("index").alias("index"), F.max("index").alias("last"))
    )
    in_two_places = F.col("last") - F.col("index") + 1 != F.col("records")
    happened = events(log)
    checks = [
        in_order,
        requests.agg(_check("requests applied twice", in_two_places)),
        duplicates(happened).agg(
            _check("events equal to an earlier one", F.lit(True), F.col("records") - 1, F.col("first_index"), False)
        ),
        late(happened, block=block).agg(_check("events older than one before", F.lit(True), is_error=False)),
    ]
    each = [summed.select(F.explode(F.array(*summed.columns)).alias("row")).select("row.*") for summed in checks]
    return reduce(lambda one, other: one.unionByName(other), each)


def _check(
    name: str, condition: "Column", count: "Column | None" = None, place: "Column | None" = None, is_error: bool = True
) -> "Column":
    """One line of the audit as an aggregate: how many of the rows (or the sum of `count`), and the first place."""
    counted = F.when(condition, F.lit(1) if count is None else count)
    found = F.coalesce(F.sum(counted), F.lit(0)).cast("bigint")
    first = F.min(F.when(condition, F.col("index") if place is None else place))
    is_wrong = found > 0 if is_error else F.lit(None).cast("boolean")
    return F.struct(
        F.lit(name).alias("check"), found.alias("found"), first.alias("first_index"), is_wrong.alias("is_wrong")
    ).alias(name)
