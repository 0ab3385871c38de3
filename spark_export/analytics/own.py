"""Finds a user's own columns for a question: in the log, in values by a stored or given schema, or in access logs."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from raftlog.spark_export import analytics
from raftlog.spark_export.analytics.values import infer_schema, quoted, stored_schemas
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.tables.value_schema import ValueForm, ValueSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


@dataclass(frozen=True, slots=True)
class OwnColumns:
    """What a user says of his own columns. Without `value` (raw, json or csv) they are looked for, in the values of the
    import `source` or of the newest one. `found`: its schema, once it was looked for."""

    value: str | None = None
    schema: str | None = None
    time: str | None = None
    time_format: str | None = None
    key: str | None = None
    source: str | None = None
    operations: str | None = None  # the records of these alone, with commas; the columns of all imports are known
    found: ValueSchema | None = None

    @property
    def within(self) -> str:
        """Of which import the answer is, as the end of a question."""
        return "" if self.found is None else f" in {self.found.source}"


def resolved(log: "DataFrame", own: OwnColumns, *wanted: str | None) -> tuple[OwnColumns, list[str]]:
    """With the import that has these columns, and a note where there are others. Raises UsageError."""
    names = [name for name in (own.time, own.key, *wanted) if name]
    is_told = own.schema is not None or own.value == "raw"
    if own.found is not None or (own.source is None and (is_told or _plain(log, own, names) is not None)):
        return own, []
    found, notes = _stored(log, own)
    if own.source is None and own.value is not None and found is not None and found.form != own.value:
        return own, []
    return replace(own, found=found), notes


def own_events(
    log: "DataFrame", own: OwnColumns, *wanted: str | None, measure: str | None = None
) -> tuple["DataFrame", OwnColumns, list[str]]:
    """The events with the columns that are wanted, where they were found, and notes about them and their times. Raises
    UsageError.

    `measure` must be a number."""
    names = [name for name in (own.time, own.key, *wanted, measure) if name]
    own, notes = resolved(log, own, *wanted, measure)
    if own.operations is not None:
        log = log.where(F.col("operation").isin(*own.operations.split(",")))
    events = _with_wanted(log, own, names, measure)
    if measure is not None:
        _check_number(events, measure)
    return events, own, notes + _time_notes(events, own)


def _check_number(events: "DataFrame", measure: str) -> None:
    """Raises UsageError for a measure that is no number."""
    kinds = {field.name: field.dataType.simpleString().partition("(")[0] for field in events.schema.fields}
    if kinds[measure] not in _NUMBERS:
        numbers = [name for name, kind in kinds.items() if kind in _NUMBERS]
        raise UsageError(f"--measure {measure} is {kinds[measure]}, not a number; numbers are {', '.join(numbers)}")


def _with_wanted(log: "DataFrame", own: OwnColumns, wanted: list[str], measure: str | None) -> "DataFrame":
    schema: str | ValueSchema | None
    form: ValueForm = "json"
    if own.found is not None:
        log = log.where((F.col("operation") == "append") & F.col("session").isin(*own.found.sessions))
    if own.value is None and own.schema is None:
        schema = own.found
        if schema is None and (plain := _plain(log, own, wanted)) is not None:
            return plain
        if schema is None or schema.form == "access":
            return _in_access_log(log, own, wanted)
    else:
        schema, form = _schema(log, own)
    if isinstance(schema, ValueSchema):
        schema = schema.with_nested(wanted, [measure] if measure else [])
    events = analytics.events(log, schema=schema, form=form)
    if not _has(events.columns, wanted):
        raise _lacking(wanted, events.columns)
    return analytics.events(log, own.time, own.key, schema=schema, form=form, time_format=own.time_format)


def _plain(log: "DataFrame", own: OwnColumns, wanted: list[str]) -> "DataFrame | None":
    """The events without columns of values, where these are enough."""
    if not _has(log.columns, [own.time, own.key]):
        return None
    events = analytics.events(log, own.time, own.key, time_format=own.time_format)
    return events if _has(events.columns, [name for name in wanted if name not in (own.time, own.key)]) else None


def _stored(log: "DataFrame", own: OwnColumns) -> tuple[ValueSchema | None, list[str]]:
    """The schema of the import that is asked for, else of the newest one, with a note of the others. Raises
    UsageError where there is none of that name."""
    stored = stored_schemas(log)
    if own.source is not None:
        return stored.named(own.source), []
    newest, by_name = stored
    others = [name for name in by_name if newest is not None and not {*by_name[name].sessions} <= {*newest.sessions}]
    if newest is None or not others:
        return newest, []
    notice = f"the records and columns are those of the import {newest.source}; --source takes another: "
    return newest, [notice + ", ".join(others)]


def _in_access_log(log: "DataFrame", own: OwnColumns, wanted: list[str]) -> "DataFrame":
    events = analytics.access_fields(analytics.events(log))
    if own.time is not None or not _has(events.columns, wanted):
        raise _lacking(wanted, events.columns)
    return events if own.key is None else events.withColumn("key", F.col(quoted(own.key)))


def _schema(log: "DataFrame", own: OwnColumns) -> "tuple[str | ValueSchema | None, ValueForm]":
    """The schema that is given, else the stored one of that form, else what JSON shows."""
    if own.value == "raw":
        if own.schema is not None:
            raise UsageError("--schema says nothing of --value raw: give --value json or --value csv")
        return None, "json"
    if own.value not in ("json", "csv"):
        raise UsageError("--schema needs --value json or --value csv, which says how the values are written")
    form: ValueForm = "csv" if own.value == "csv" else "json"
    if own.schema is not None:
        return own.schema, form
    stored = own.found
    if stored is None or stored.form != form:
        stored = infer_schema(analytics.user_records(log).where("operation = 'append'")) if form == "json" else None
    if stored is None:
        mend = "give --schema 'NAME TYPE, …', as --schema 'Station STRING, Level DOUBLE'"
        raise UsageError(f"--value {form}: the log has no stored schema of an import of {form.upper()}; {mend}")
    return stored, form


def _time_notes(events: "DataFrame", own: OwnColumns) -> list[str]:
    """What to say of events without a time. Raises UsageError where none has one."""
    shown = F.col(quoted(own.time)).cast("string") if own.time in events.columns else F.lit(None).cast("string")
    lacks = F.col("event_time").isNull()
    (found,) = events.agg(
        F.count(F.lit(1)).alias("all"),
        F.count("event_time").alias("timed"),
        F.first(F.when(lacks, shown), ignorenulls=True).alias("example"),
    ).collect()
    lacking = found["all"] - found["timed"]
    example = "" if found["example"] is None else f", as {found['example']!r}"
    if found["all"] and not found["timed"]:
        form = f" of the form {own.time_format!r}" if own.time_format else ""
        raise UsageError(
            f"--time {own.time or 'TIME'}: no event has a time{form} that can be read{example}; "
            f"give --time-format, as '%Y/%m/%d %H:%M:%S.%f'"
        )
    if not lacking:
        return []
    where = f" in {own.time}" if own.time else ""
    return [
        f"events without a time that can be read{where}: {lacking} of {found['all']}{example}; they are in no window"
    ]


def _has(columns: Iterable[str], wanted: Iterable[str | None]) -> bool:
    return {name for name in wanted if name} <= {*columns}


def _lacking(wanted: list[str], columns: list[str]) -> UsageError:
    lacking = " or ".join(name for name in wanted if name not in columns) or " or ".join(wanted)
    return UsageError(
        f"there is no column for {lacking}; there are {', '.join(columns)}. Columns of values need --value json, or "
        f"--value csv with --schema 'NAME TYPE, …'; those of another import --source NAME"
    )
