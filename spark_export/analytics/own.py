"""Finds a user's own columns for a question: in the log, in values by a stored or given schema, or in access logs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from raftlog.spark_export import analytics
from raftlog.spark_export.analytics.values import infer_schema, quoted, stored_schemas, with_columns
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.tables.value_schema import ValueForm, ValueSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


@dataclass(frozen=True, slots=True)
class Own:
    """What a user says of his own columns. Without `value` (raw, json or csv) they are looked for, in the values of the
    import `source` or of the newest one."""

    value: str | None = None
    schema: str | None = None
    time: str | None = None
    time_format: str | None = None
    key: str | None = None
    source: str | None = None

    @property
    def is_given(self) -> bool:
        """Whether the user says anything."""
        return self != Own()


def own_events(
    log: "DataFrame", own: Own, *wanted: str | None, measure: str | None = None
) -> tuple["DataFrame", list[str]]:
    """The events with the columns that are wanted, and notes about them and their times. Raises UsageError.

    `measure` must be a number."""
    notes: list[str] = []
    names = [name for name in (own.time, own.key, *wanted, measure) if name]
    events = _with_wanted(log, own, names, measure, notes)
    if measure is not None:
        _check_number(events, measure)
    return events, notes + _time_notes(events, own)


def own_columns(log: "DataFrame", own: Own, frame: "DataFrame") -> "DataFrame":
    """A frame with the columns of its values, where a form of values is given. Raises UsageError."""
    if own.value in (None, "raw") and own.schema is None:
        return frame
    schema, form = _schema(log, own)
    assert schema is not None
    return with_columns(frame, schema, form=form)[0]


def _check_number(events: "DataFrame", measure: str) -> None:
    """Raises UsageError for a measure that is no number."""
    kinds = {field.name: field.dataType.simpleString().partition("(")[0] for field in events.schema.fields}
    if kinds[measure] not in _NUMBERS:
        numbers = [name for name, kind in kinds.items() if kind in _NUMBERS]
        raise UsageError(f"--measure {measure} is {kinds[measure]}, not a number; numbers are {', '.join(numbers)}")


def _with_wanted(log: "DataFrame", own: Own, wanted: list[str], measure: str | None, notes: list[str]) -> "DataFrame":
    schema: str | ValueSchema | None
    form: ValueForm = "json"
    if own.value is None and own.schema is None:
        if own.source is None and _has(log.columns, [own.time, own.key]):
            plain = analytics.events(log, own.time, own.key, time_format=own.time_format)
            if _has([*plain.columns, *log.columns], wanted) and _has(plain.columns, _without(wanted, own)):
                return plain
        schema = _stored(log, own, notes)
        if schema is None or schema.form == "access":
            return _in_access_log(log, schema, own, wanted)
    else:
        schema, form = _schema(log, own)
    if isinstance(schema, ValueSchema):
        schema = schema.with_nested(wanted, [measure] if measure else [])
    events = analytics.events(log, schema=schema, form=form)
    if not _has(events.columns, wanted):
        raise _lacking(wanted, events.columns)
    return analytics.events(log, own.time, own.key, schema=schema, form=form, time_format=own.time_format)


def _stored(log: "DataFrame", own: Own, notes: list[str]) -> ValueSchema | None:
    """The schema of the import that is asked for, else of the newest one. Raises UsageError where there is none."""
    schemas = stored_schemas(log)
    if own.source is not None and own.source not in schemas:
        told = f"it has {', '.join(schemas)}" if schemas else "it has none"
        raise UsageError(f"--source {own.source}: the log has no import of that name; {told}")
    if own.source is None and len(schemas) > 1:
        newest, *others = schemas
        notes.append(f"the columns are those of the import {newest}; --source takes another: {', '.join(others)}")
    return schemas[own.source] if own.source is not None else next(iter(schemas.values()), None)


def _in_access_log(log: "DataFrame", schema: ValueSchema | None, own: Own, wanted: list[str]) -> "DataFrame":
    if schema is not None:
        log = log.where((F.col("operation") == "append") & F.col("session").isin(*schema.sessions))
    events = analytics.access_fields(analytics.events(log))
    if own.time is not None or not _has(events.columns, wanted):
        raise _lacking(wanted, events.columns)
    return events if own.key is None else events.withColumn("key", F.col(quoted(own.key)))


def _schema(log: "DataFrame", own: Own) -> "tuple[str | ValueSchema | None, ValueForm]":
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
    stored = _stored(log, own, [])
    if stored is None or stored.form != form:
        stored = infer_schema(analytics.user_records(log).where("operation = 'append'")) if form == "json" else None
    if stored is None:
        mend = "give --schema 'NAME TYPE, …', as --schema 'Station STRING, Level DOUBLE'"
        raise UsageError(f"--value {form}: the log has no stored schema of an import of {form.upper()}; {mend}")
    return stored, form


def _time_notes(events: "DataFrame", own: Own) -> list[str]:
    """What to say of events without a time. Raises UsageError where none has one."""
    shown = F.col(quoted(own.time)).cast("string") if own.time in events.columns else F.lit(None).cast("string")
    lacks = F.col("event_time").isNull()
    (found,) = events.agg(
        F.count(F.lit(1)).alias("all"), F.count("event_time").alias("timed"),
        F.first(F.when(lacks, shown), ignorenulls=True).alias("example"),
    ).collect()  # fmt: skip
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
    return [f"{lacking} of {found['all']} events have no time that can be read{where}{example}: they are in no window"]


def _has(columns: Iterable[str], wanted: Iterable[str | None]) -> bool:
    return {name for name in wanted if name} <= {*columns}


def _without(wanted: list[str], own: Own) -> list[str]:
    return [name for name in wanted if name not in (own.time, own.key)]


def _lacking(wanted: list[str], columns: list[str]) -> UsageError:
    lacking = " or ".join(name for name in wanted if name not in columns) or " or ".join(wanted)
    return UsageError(
        f"there is no column for {lacking}; there are {', '.join(columns)}. Columns of values need --value json, or "
        f"--value csv with --schema 'NAME TYPE, …'; those of another import --source NAME"
    )
