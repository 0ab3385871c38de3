"""Turns rows of the log, or of any table, into events with their own time, and the log into changes of keys."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from raftlog.cluster.importer.formats.schema import PREFIX
from raftlog.spark_export.analytics.values import Schema, quoted, time_of, with_columns
from raftlog.spark_export.columns.records import is_user_row
from raftlog.spark_export.columns.schema import COLUMNS, EVENT_TIME
from raftlog.spark_export.tables.value_schema import ValueForm, ValueSchema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OWN: tuple[str, ...] = ("index", EVENT_TIME, "key", "value", "bytes")


def user_records(log: "DataFrame") -> "DataFrame":
    """The rows that users wrote: their operations, applied or with a comparison that failed."""
    return log.where(is_user_row())


def events(
    log: "DataFrame",
    time: "str | Column | None" = None,
    key: "str | Column | None" = None,
    value: "str | Column | None" = None,
    schema: Schema | None = None,
    *,
    form: ValueForm = "json",
    time_format: str | None = None,
) -> "DataFrame":
    """Events with index, event_time, key, value and bytes, and then the user's own columns.

    Of rows of the log these are the user records. Without `time`, the event's time is the client's own, else the
    leader's. With `schema` (DDL of values of `form`, or a `ValueSchema`) the columns of the values are the user's own
    columns. A schema with sessions takes the records of those imports alone, each with the time that the import read.

    Of any other frame, `time`, `key` and `value` say what these are, and all its other columns are the user's own. An
    `index` orders events of the same time; without it, it is null. Such a frame needs `time`, unless it has an
    event_time.

    `time` may be a timestamp, text or a number; `time_format` as in `raftlog import`: iso, s, ms, us, ns, or a format
    such as '%Y/%m/%d %H:%M:%S.%f'. An event without a readable time has none, and is in no window.
    """
    is_log = {"operation", "result", "index", "value"} <= {*log.columns}
    rows = user_records(log) if is_log else log
    own = [name for name in rows.columns if name not in (COLUMNS if is_log else ()) and name not in _OWN]
    if schema is not None:
        if isinstance(schema, ValueSchema) and schema.sessions and is_log:
            rows = rows.where((F.col("operation") == "append") & F.col("session").isin(*schema.sessions))
        if is_log:  # the schema that an import stores is no event
            rows = rows.where(~F.coalesce(F.col("key").startswith(F.lit(PREFIX)), F.lit(False)))
        reserved = {name: F.lit(None).cast("string") for name in _OWN if name not in rows.columns}
        rows, found = with_columns(rows.withColumns(reserved), schema, form=form)
        own += found
    if is_log and isinstance(schema, ValueSchema) and schema.time is not None and time in (None, schema.time):
        time = F.col("client_time")  # what the import read
    shown_value = _column(rows, value, "value")
    bytes_ = F.octet_length(shown_value if _is_bytes(rows, shown_value) else shown_value.cast("string"))
    return rows.select(
        (F.col("index") if "index" in rows.columns else F.lit(None)).cast("bigint").alias("index"),
        (_own_time(log, is_log) if time is None else time_of(rows, _column(rows, time, ""), time_format)).alias(
            EVENT_TIME
        ),
        _column(rows, key, "key").alias("key"),
        shown_value.alias("value"),
        F.coalesce(bytes_.cast("bigint"), F.lit(0).cast("bigint")).alias("bytes"),
        *(F.col(quoted(name)) for name in own),
    )


def _own_time(log: "DataFrame", is_log: bool) -> "Column":
    """The time of an event where the user names no column."""
    if is_log:
        return F.coalesce("client_time", "time")
    if EVENT_TIME in log.columns:
        return time_of(log, F.col(EVENT_TIME))
    raise ValueError(f"the events have no time: give time=NAME; the columns are {', '.join(log.columns)}")


def _column(rows: "DataFrame", asked: "str | Column | None", usual: str) -> "Column":
    if asked is None:
        return F.col(usual) if usual in rows.columns else F.lit(None).cast("binary")
    if not isinstance(asked, str):
        return asked
    if asked not in rows.columns:
        raise ValueError(f"there is no column {asked!r}; the columns are {', '.join(rows.columns)}")
    return F.col(quoted(asked))


def _is_bytes(rows: "DataFrame", column: "Column") -> bool:
    return rows.select(column).schema[0].dataType.simpleString() in ("string", "binary")


def key_changes(log: "DataFrame") -> "DataFrame":
    """One row per key that a record changed: index, time, key, value, create, mod, version (0: deleted), prior_index.

    `prior_index` is null for changes of transactions and range deletes, which do not carry it.
    """
    own = F.struct(
        F.col("key"),
        F.col("value"),
        F.col("create"),
        F.col("revision").alias("mod"),
        F.col("version"),
        F.col("prior_index"),
    )
    spelled = F.transform(
        "changes",
        lambda change: F.struct(
            change["key"].alias("key"),
            change["value"].alias("value"),
            change["create"].alias("create"),
            change["mod"].alias("mod"),
            change["version"].alias("version"),
            F.lit(None).cast("bigint").alias("prior_index"),
        ),
    )
    changed = F.when(F.col("version").isNotNull(), F.array(own)).otherwise(spelled)
    return log.select("index", "time", F.explode(changed).alias("change")).select("index", "time", "change.*")
