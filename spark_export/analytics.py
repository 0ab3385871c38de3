"""Questions that one asks of a log first, answered from an export or from the source itself."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_export.schema import USER_OPERATIONS, USER_RESULTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def user_records(log: "DataFrame") -> "DataFrame":
    """The rows that users wrote: their operations, applied or with a comparison that failed."""
    return log.where(F.col("operation").isin(*USER_OPERATIONS) & F.col("result").isin(*USER_RESULTS))


def top_keys(log: "DataFrame", limit: int = 10) -> "DataFrame":
    """The keys with the most user records: columns key (binary) and count, most first, equal counts by key."""
    counted = user_records(log).where(F.col("key").isNotNull()).groupBy("key").agg(F.count(F.lit(1)).alias("count"))
    return counted.orderBy(F.col("count").desc(), F.col("key")).limit(limit)
