"""Folds rows of the log to the state and computes its digest, in Spark's built-in functions alone.

They repeat `raftlog.statemachine.digest` (docs/formats.md has the definition); a test holds both equal. No Python runs
per row.
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from raftlog.cluster.api.status import SetDigestHex
from raftlog.statemachine.digest import LOW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row


def state_row_hash() -> "Column":
    """The hash of one live key."""
    return F.xxhash64("key", "value", "create", "mod", "version")


def set_digest(row_hash: "Column") -> list["Column"]:
    """Aggregates from which `as_digest` makes the digest of a set of rows. The two half sums are there because a sum of
    whole hashes would overflow, which is an error in Spark."""
    return [
        F.count(row_hash).alias("digest_count"),
        F.bit_xor(row_hash).alias("digest_xor"),
        F.sum(row_hash.bitwiseAND(F.lit(LOW))).alias("digest_low"),
        F.sum(F.shiftrightunsigned(row_hash, 32)).alias("digest_high"),
    ]


def as_digest(row: "Row") -> SetDigestHex:
    """The digest that a row of `set_digest` holds."""
    xor = (row["digest_xor"] or 0) & (1 << 64) - 1
    return SetDigestHex(
        row["digest_count"], f"{xor:016x}", f"{row['digest_low'] or 0:x}", f"{row['digest_high'] or 0:x}"
    )


def state(log: "DataFrame") -> "DataFrame":
    """The live keys (key, value, create, mod, version) after these rows of the log, which must begin at index 1.

    A put or delete has its one change in its own columns, all other operations in `changes`. The newest change of a key
    counts.
    """
    own = log.where(F.col("version").isNotNull()).select(
        "index", "key", "value", "create", F.col("revision").alias("mod"), "version"
    )
    spelled = (
        log.where(F.col("changes").isNotNull())
        .select("index", F.explode("changes").alias("change"))
        .select("index", "change.key", "change.value", "change.create", "change.mod", "change.version")
    )
    newest = (
        own.unionByName(spelled)
        .groupBy("key")
        .agg(F.max_by(F.struct("value", "create", "mod", "version"), "index").alias("newest"))
    )
    return newest.select("key", "newest.*").where(F.col("version") > 0)
