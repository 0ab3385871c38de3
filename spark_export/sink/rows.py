"""Turns rows of a frame into records: columns named as the log's, or a user's own columns encoded in the value.

A row always gives the same bytes, so a repeated task sends the requests that it sent before.
"""

import base64
import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from raftlog.spark_export.columns.members import check_type
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.sink.options import FORMATS, SinkOptions, ValueFormat

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from raftlog.cluster.client.new_records import NewRecord

Row = Mapping[str, Any]

_TYPES: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "client_time": ("timestamp",),
    "headers": ("array<struct<name:string,value:binary>>",),
}
_LINE_END: Final = "\r\n"
_KEYS: Final = ("string", "binary", "tinyint", "smallint", "int", "bigint")


def check_columns(schema: "StructType", options: SinkOptions) -> None:
    """Raises UsageError for columns that are no part of a record, or lack."""
    if options.value_format is not None:
        _check_own(schema, options)
        return
    for field in schema.fields:
        allowed = _TYPES.get(field.name)
        kind = field.dataType.simpleString()
        if allowed is None:
            raise UsageError(
                f"column {field.name!r} cannot be written: select only {', '.join(_TYPES)}, or set valueFormat to "
                f"{', '.join(FORMATS)} to have all columns in the value"
            )
        if kind not in allowed:
            raise UsageError(f"column {field.name} is {kind}; it must be {' or '.join(allowed)}")
    needed = ("key", "value") if options.operation == "put" else ("value",)
    for name in needed:
        if name not in schema.names:
            raise UsageError(f"column {name} is missing: {options.operation} needs {' and '.join(needed)}")
    if options.operation == "put" and (more := set(schema.names) - set(needed)):
        raise UsageError(f"column {min(more)} is no part of a key of the store: put takes key and value")


def _check_own(schema: "StructType", options: SinkOptions) -> None:
    for option, name, allowed in (
        ("keyColumn", options.key_column, _KEYS),
        ("timeColumn", options.time_column, ("timestamp",)),
    ):
        if name is None:
            continue
        if name not in schema.names:
            raise UsageError(f"option {option} is {name!r}; the columns are {', '.join(schema.names)}")
        kind = schema[name].dataType.simpleString()
        if kind not in allowed:
            raise UsageError(f"option {option} is {name!r}, which is {kind}; it must be {', '.join(allowed)}")
    if options.operation == "put" and (options.key_column is None or options.time_column is not None):
        raise UsageError("operation put needs keyColumn, and no timeColumn: a key of the store has no time")
    rest = [each for each in schema.fields if each.name not in (options.key_column, options.time_column)]
    if not rest:
        raise UsageError("no column is left for the value: keyColumn and timeColumn are not part of it")
    for each in rest:
        check_type(each.name, each.dataType)


def records(batches: "Iterator[pa.RecordBatch]", options: SinkOptions) -> "Iterator[NewRecord]":
    """The record of each row."""
    from raftlog.cluster.client.new_records import NewRecord

    for row in _rows(batches, options):
        headers: Any = row.get("headers") or ()
        time = row.get("client_time")
        yield NewRecord(
            _bytes(row["value"]),
            _bytes(row.get("key")),
            tuple((each["name"], each["value"] or b"") for each in headers),
            None if time is None else round(time.timestamp() * 1000),
        )


def pairs(batches: "Iterator[pa.RecordBatch]", options: SinkOptions) -> Iterator[tuple[bytes, bytes]]:
    """The key and the value of each row to put. Raises UsageError where one is missing."""
    for row in _rows(batches, options):
        key, value = _bytes(row["key"]), _bytes(row["value"])
        if not key:
            raise UsageError("a row to put has no key: keys are 1 to 4096 bytes; leave such rows out")
        if value is None:
            raise UsageError(f"the value to put under key {key[:40]!r} is null: leave such rows out, or make it empty")
        yield key, value


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def _rows(batches: "Iterator[pa.RecordBatch]", options: SinkOptions) -> Iterator[Row]:
    """Rows with the names of the log's columns."""
    encode: Callable[[Row], Row] | None = None
    for batch in batches:
        if options.value_format is None:
            yield from batch.to_pylist()
            continue
        if encode is None:
            encode = _encoder(batch.schema, options)
        yield from map(encode, batch.to_pylist())


def _encoder(schema: "pa.Schema", options: SinkOptions) -> Callable[[Row], Row]:
    """A function from a row of own columns to one of the log's."""
    key, time = options.key_column, options.time_column
    names = [name for name in schema.names if name not in (key, time)]
    is_plain = options.value_format != "csv" and all(_is_plain(schema.field(name).type) for name in names)
    maps = {name: schema.field(name).type for name in names}
    value_of = _VALUES[options.value_format or "json"]

    def encode(row: Row) -> Row:
        values = [row[name] if is_plain else _carried(row[name], maps[name], options.value_format) for name in names]
        found: dict[str, Any] = {"value": value_of(names, values)}
        if key is not None:
            found["key"] = row[key]
        if time is not None:
            found["client_time"] = row[time]
        return found

    return encode


def _is_plain(kind: "pa.DataType") -> bool:
    """Whether values of this type are encoded as they are."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _carried(value: Any, kind: "pa.DataType", form: ValueFormat | None) -> Any:
    """The value as the format carries it without loss: maps as objects, in JSON also NaN and bytes as text."""
    import pyarrow as pa

    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if form == "msgpack" or math.isfinite(value) else str(value)
        case bytes():
            return value if form == "msgpack" else base64.b64encode(value).decode()
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case dict():
            return {each.name: _carried(value[each.name], each.type, form) for each in kind}
        case _ if pa.types.is_map(kind):
            return {name: _carried(each, kind.item_type, form) for name, each in value}
        case _:
            return [_carried(each, kind.value_type, form) for each in value]


def _json(names: Sequence[str], values: Sequence[Any]) -> bytes:
    return msgspec.json.encode(dict(zip(names, values, strict=True)))


def _msgpack(names: Sequence[str], values: Sequence[Any]) -> bytes:
    return msgspec.msgpack.encode(dict(zip(names, values, strict=True)))


def _csv(names: Sequence[str], values: Sequence[Any]) -> bytes:
    """The cells in the order of the columns; null is an empty cell, and a nested value is JSON."""
    line = io.StringIO()
    # The module csv quotes a cell for a line feed or carriage return only if the line end has it.
    csv.writer(line, lineterminator=_LINE_END).writerow([_cell(value) for value in values])
    return line.getvalue().removesuffix(_LINE_END).encode()


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return msgspec.json.encode(value).decode()


_VALUES: Final[dict[ValueFormat, Callable[[Sequence[str], Sequence[Any]], bytes]]] = {
    "json": _json,
    "msgpack": _msgpack,
    "csv": _csv,
}
