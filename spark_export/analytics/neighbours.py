"""Joins each row of the log with values of the rows before it, without sorting the whole log in one task.

Rows fall into blocks of so many indexes; windows run inside a block, and a small table of the blocks' ends joins them.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BLOCK: Final = 1 << 16
"""Indexes in a block: a sort that fits any task, and a table of ends that stays small (15,000 rows for 10**9)."""


def with_previous(log: "DataFrame", *names: str, block: int = BLOCK) -> "DataFrame":
    """The rows with previous_NAME for each name: that column of the row before it by index, null for the first."""
    blocks = log.withColumn("block", _block(block))
    inside = Window.partitionBy("block").orderBy("index")
    ends = blocks.groupBy("block").agg(*(F.max_by(F.struct(name), "index").alias(name) for name in names))
    before = ends.select(
        "block", *(F.lag(name).over(Window.orderBy("block"))[name].alias(f"edge_{name}") for name in names)
    )
    is_first = F.row_number().over(inside) == 1
    looked = blocks.withColumns(
        {"is_first": is_first} | {f"previous_{name}": F.lag(name).over(inside) for name in names}
    )
    joined = looked.join(F.broadcast(before), "block")
    filled = {
        f"previous_{name}": F.when(F.col("is_first"), F.col(f"edge_{name}")).otherwise(F.col(f"previous_{name}"))
        for name in names
    }
    return joined.withColumns(filled).drop("block", "is_first", *(f"edge_{name}" for name in names))


def with_highest_before(rows: "DataFrame", name: str, *, block: int = BLOCK) -> "DataFrame":
    """The rows with highest_NAME: the greatest value of that column in rows of lower indexes, null for the first."""
    blocks = rows.withColumn("block", _block(block))
    ends = blocks.groupBy("block").agg(F.max(name).alias("end"))
    earlier = Window.orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    before = ends.select("block", F.max("end").over(earlier).alias("edge"))
    inside = Window.partitionBy("block").orderBy("index").rowsBetween(Window.unboundedPreceding, -1)
    looked = blocks.withColumn("inside", F.max(name).over(inside)).join(F.broadcast(before), "block")
    return looked.withColumn(f"highest_{name}", F.greatest("inside", "edge")).drop("block", "inside", "edge")


def _block(size: int) -> "Column":
    return F.floor(F.col("index") / size)
