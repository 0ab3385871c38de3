"""Groups events in windows of their own time: rates and percentiles, sums before each event, and sessions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from raftlog.spark_export.analytics.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WATERMARK: Final = "1 minute"
"""How late an event may be before a stream leaves it out."""
QUANTILES: Final = (0.5, 0.9, 0.99)
_ACCURACY: Final = 10_000  # of percentile_approx: exact up to so many different values, off by 1/10,000 of a rank above


def rates(
    events: "DataFrame",
    size: str | None = None,
    *,
    slide: str | None = None,
    gap: str | None = None,
    by: Sequence[str] = (),
    measure: str = "bytes",
    quantiles: Sequence[float] = QUANTILES,
    watermark: str = WATERMARK,
) -> "DataFrame":
    """Counts events per window, and shows the spread of `measure`.

    The columns are start, end, the columns of `by`, records, per_second, total, lowest, highest, and p50, p90, p99 (or
    as `quantiles` says).

    Windows are tumbling (`size`), hopping (`size` and `slide`), or sessions, which end after more than `gap` without an
    event of the same `by`. A stream of sessions needs a column in `by`. Intervals are Spark's: "10 minutes". A quantile
    is the smallest value that at least that share of the events does not exceed. A stream in append mode emits a window
    once the watermark has passed its end.
    """
    if (size is None) == (gap is None) or (slide is not None and size is None):
        raise ValueError("rates: give size, or size and slide, or gap")
    window = F.session_window("event_time", gap) if gap else F.window("event_time", str(size), slide)
    groups, number = [F.col(quoted(name)) for name in by], F.col(quoted(measure))
    grouped = events.withWatermark("event_time", watermark).groupBy(window.alias("window"), *groups)
    counted = grouped.agg(
        F.count(F.lit(1)).alias("records"),
        F.sum(number).alias("total"),
        F.min(number).alias("lowest"),
        F.max(number).alias("highest"),
        F.percentile_approx(number, list(quantiles), _ACCURACY).alias("quantiles"),
    )
    seconds = (F.unix_micros("window.end") - F.unix_micros("window.start")) / 1_000_000
    return counted.select(
        F.col("window.start").alias("start"),
        F.col("window.end").alias("end"),
        *groups,
        "records",
        (F.col("records") / seconds).alias("per_second"),
        "total",
        "lowest",
        "highest",
        *(F.get("quantiles", F.lit(place)).alias(quantile_name(each)) for place, each in enumerate(quantiles)),
    )


def sliding(events: "DataFrame", size: str, *, by: Sequence[str] = (), measure: str = "bytes") -> "DataFrame":
    """Each event with what it and the events of the same `by` in the `size` before it sum up to.

    The columns are index, event_time, the columns of `by`, `measure`, and then records, total, mean, lowest, highest of
    the sliding window that ends with the event. Events without a time are left out. Tables only. Without `by` one task
    sorts all events.
    """
    groups, number = [F.col(quoted(name)) for name in by], F.col(quoted(measure))
    width = _micros(events, size)
    window = Window.partitionBy(*groups).orderBy(F.unix_micros("event_time")).rangeBetween(-width, 0)
    return events.where(F.col("event_time").isNotNull()).select(
        "index",
        "event_time",
        *groups,
        number,
        F.count(F.lit(1)).over(window).alias("records"),
        F.sum(number).over(window).alias("total"),
        F.avg(number).over(window).alias("mean"),
        F.min(number).over(window).alias("lowest"),
        F.max(number).over(window).alias("highest"),
    )


def _micros(events: "DataFrame", interval: str) -> int:
    """An interval of Spark, as "10 minutes", in microseconds."""
    epoch = F.lit("1970-01-01").cast("timestamp")
    (row,) = events.sparkSession.range(1).select(F.unix_micros(epoch + F.expr(f"INTERVAL {interval}"))).collect()
    return int(row[0])


def quantile_name(quantile: float) -> str:
    """The column of a quantile: p50, p99, p99_9."""
    return f"p{quantile * 100:g}".replace(".", "_")


def sessions(events: "DataFrame", gap: str = "30 minutes", *, watermark: str = WATERMARK) -> "DataFrame":
    """Events of one key that follow each other by at most `gap`: key, start, last (its last event), seconds, records,
    bytes, first_index, last_index."""
    of_keys = events.where(F.col("key").isNotNull()).withWatermark("event_time", watermark)
    seconds = (F.unix_micros("last") - F.unix_micros("start")) / 1_000_000
    return (
        of_keys.groupBy("key", F.session_window("event_time", gap))
        .agg(
            F.min("event_time").alias("start"),
            F.max("event_time").alias("last"),
            F.count(F.lit(1)).alias("records"),
            F.sum("bytes").alias("bytes"),
            F.min("index").alias("first_index"),
            F.max("index").alias("last_index"),
        )
        .select("key", "start", "last", seconds.alias("seconds"), "records", "bytes", "first_index", "last_index")
    )
