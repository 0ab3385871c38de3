"""Turns rows of the log into user records, events with their own time, and changes of keys."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from raftlog.spark_export.columns.schema import USER_OPERATIONS, USER_RESULTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def user_records(log: "DataFrame") -> "DataFrame":
    """The rows that users wrote: their operations, applied or with a comparison that failed."""
    return log.where(F.col("operation").isin(*USER_OPERATIONS) & F.col("result").isin(*USER_RESULTS))


def events(log: "DataFrame") -> "DataFrame":
    """The user records as events: index, event_time (the client's own time, else the leader's), key, value, bytes."""
    return user_records(log).select(
        "index",
        F.coalesce("client_time", "time").alias("event_time"),
        "key",
        "value",
        F.coalesce(F.octet_length("value").cast("bigint"), F.lit(0).cast("bigint")).alias("bytes"),
    )


def key_changes(log: "DataFrame") -> "DataFrame":
    """One row per key that a record changed: index, time, key, value, create, mod, version (0: deleted), prior_index.

    `prior_index` is null for changes of transactions and range deletes, which do not carry it.
    """
    own = F.struct(
        F.col("key"), F.col("value"), F.col("create"), F.col("revision").alias("mod"), F.col("version"),
        F.col("prior_index"),
    )  # fmt: skip
    spelled = F.transform(
        "changes",
        lambda change: F.struct(
            change["key"].alias("key"), change["value"].alias("value"), change["create"].alias("create"),
            change["mod"].alias("mod"), change["version"].alias("version"),
            F.lit(None).cast("bigint").alias("prior_index"),
        ),
    )  # fmt: skip
    changed = F.when(F.col("version").isNotNull(), F.array(own)).otherwise(spelled)
    return log.select("index", "time", F.explode(changed).alias("change")).select("index", "time", "change.*")
