"""Computes digests of rows of the log and of the state that they fold to, in Spark's built-in functions alone.

They repeat `raftlog.statemachine.digest` (docs/formats.md has the definition); a test holds both equal. No Python runs
per row.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from raftlog.cluster.api.status import SetDigestHex
from raftlog.statemachine.digest import LOW, MASKED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_LONG: Final = "bigint"


def log_row_hash() -> "Column":
    """The hash of a row of the log: Spark's xxhash64 over its columns, with a mask because it leaves nulls out. As in
    `log_row_hashes`, values of configurations and of changes of permissions are left out."""
    is_hidden = (F.col("kind") == "configuration") | F.col("operation").eqNullSafe("access")
    value = F.when(~is_hidden, F.col("value"))
    columns = {name: value if name == "value" else F.col(name) for name in MASKED}
    mask = sum((column.isNotNull().cast(_LONG) * (1 << bit) for bit, column in enumerate(columns.values())), F.lit(0))
    changes = F.transform(
        "changes",
        lambda change: F.struct(
            change["key"],
            change["value"],
            change["deleted"].cast(_LONG),
            change["create"],
            change["mod"],
            change["version"],
        ),
    )
    return F.xxhash64(
        F.col("index"),
        F.col("term"),
        F.unix_millis("time"),
        F.col("kind"),
        mask.cast(_LONG),
        F.col("operation"),
        F.col("key"),
        value,
        _length("headers"),
        F.col("headers"),
        F.unix_millis("client_time"),
        F.col("argument"),
        F.col("session"),
        F.col("sequence"),
        F.col("result"),
        F.col("revision"),
        F.col("succeeded").cast(_LONG),
        F.col("prior_index"),
        F.col("create"),
        F.col("version"),
        _length("changes"),
        changes,
    )


def _length(name: str) -> "Column":
    """The length of a list, null where there is none (`size` alone may say -1, depending on a setting)."""
    return F.when(F.col(name).isNotNull(), F.size(name).cast(_LONG))


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
