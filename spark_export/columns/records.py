"""Selects user records, in Arrow and in Spark: the writes of clients, each request once.

A request that is sent again has records of its own in the log, with the result `repeated`. They are no events. So the
option `records` of the source and of `raftlog export` is `user` by default. Both kinds are in every range that is read,
and a digest proves each.
"""

from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from raftlog.spark_export.columns.schema import USER_OPERATIONS, USER_RESULTS

if TYPE_CHECKING:
    from pyspark.sql import Column

Records = Literal["user", "all"]
RECORDS: Final[tuple[Records, ...]] = ("user", "all")
"""Values of the option `records`; the first one is the default."""


def is_user(rows: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    """Which rows with the columns `operation` and `result` are user records, as booleans of Arrow without nulls."""
    import pyarrow.compute as pc  # planning a query needs the names above alone

    return pc.and_(
        pc.is_in(rows.column("operation"), pa.array(USER_OPERATIONS)),
        pc.is_in(rows.column("result"), pa.array(USER_RESULTS)),
    )


def is_user_row() -> "Column":
    """The same as a condition of Spark on the columns `operation` and `result`; false, not null, for internal rows."""
    from pyspark.sql import functions as F

    named = F.col("operation").isin(*USER_OPERATIONS) & F.col("result").isin(*USER_RESULTS)
    return F.coalesce(named, F.lit(False))
