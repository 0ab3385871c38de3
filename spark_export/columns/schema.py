"""Defines the columns of a log row, for Spark and for Arrow, and the names of the numbers in the log.

The order is part of the format: exports, log digests and the mask in a row's hash follow it. Every column is nullable,
because Spark's Python sources demand it; which ones are ever null is in docs/spark.md.
"""

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SCHEMA_VERSION: Final = 1
"""Of the columns below; written into manifests and files."""

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
STATE: Final = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("create", pa.int64()), ("mod", pa.int64()), ("version", pa.int64())]
)
"""The live keys as of an index (option `asOf`)."""

_CHANGES: Final = pa.list_(pa.struct([*STATE.insert(2, pa.field("deleted", pa.bool_()))]))

ARROW: Final = pa.schema(
    [
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("time", _TIMESTAMP),
        ("kind", pa.string()),
        ("operation", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("client_time", _TIMESTAMP),
        ("argument", pa.int64()),
        ("session", pa.int64()),
        ("sequence", pa.int64()),
        ("result", pa.string()),
        ("revision", pa.int64()),
        ("succeeded", pa.bool_()),
        ("prior_index", pa.int64()),
        ("create", pa.int64()),
        ("version", pa.int64()),
        ("changes", _CHANGES),
    ]
)

EVENT_TIME: Final = "event_time"
SHOWN: Final = ARROW.append(pa.field(EVENT_TIME, _TIMESTAMP))
"""The columns of a reader: those of the log, and the client's time, or the leader's where the client gave none.

Exports, digests and masks do not know the last one: it follows from two others.
"""

COLUMNS: Final[tuple[str, ...]] = tuple(ARROW.names)

FEED: Final = pa.schema(
    [
        *(ARROW.field(name) for name in ("index", "term", "time", "operation")),
        ("change", pa.string()),
        ("key", pa.binary()),
        ("before", pa.binary()),
        ("after", pa.binary()),
        ("before_known", pa.bool_()),
        *(ARROW.field(name) for name in ("prior_index", "create")),
        ("mod", pa.int64()),
        ("version", pa.int64()),
    ]
)
"""One row per changed key, with the value before (option `changes`)."""

# Names of numbers, by number; None where the number has no meaning (yet). This package must not import
# raftlog.raft.types.EntryKind, raftlog.statemachine.commands.Operation and Result. So
# tests/spark_export/columns/test_schema.py compares these names with them.
KINDS: Final[tuple[str | None, ...]] = (None, "noop", "configuration", "clock", "commands")
KIND_SNAPSHOT: Final = "snapshot"
"""Not of an entry: rows with which a stream begins that starts from the state."""
KIND_CONFIGURATION: Final = 2
KIND_COMMANDS: Final = 4

OPERATIONS: Final[tuple[str | None, ...]] = (
    None,
    "append",
    "put",
    "delete",
    "delete_range",
    "txn",
    *([None] * 26),
    "compact",
    "session_open",
    "session_keepalive",
    "session_close",
    "void",
    None,
    None,
    None,
    "trim",
    "digest_point",
    "consumer",
    "access",
)
APPEND: Final = 1
PUT: Final = 2
DELETE: Final = 3
TXN: Final = 5
INTERNAL_FIRST: Final = 32
"""Operations from this number on are internal."""

RESULTS: Final[tuple[str | None, ...]] = (
    None,
    "applied",
    "repeated",
    "compare_failed",
    "refused",
    "expired",
    "voided",
)
RESULT_APPLIED: Final = 1
USER_RESULTS: Final = ("applied", "compare_failed")
"""A user record is a record of kind `commands` with a user's operation and one of these results."""
USER_OPERATIONS: Final = tuple(name for name in OPERATIONS[:INTERNAL_FIRST] if name is not None)
INTERNAL_OPERATIONS: Final = tuple(name for name in OPERATIONS[INTERNAL_FIRST:] if name is not None)


def spark_schema(of: pa.Schema = ARROW) -> "StructType":
    """The columns as a Spark type."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(of)
