"""Decodes values in JSON or msgpack to columns: whole, as text or a structure, or single members by name."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from raftlog.spark_export.columns.schema import ARROW, EVENT_TIME, SHOWN
from raftlog.spark_export.errors import ExportError, UsageError
from raftlog.spark_export.fetch.options import Mode, ValueFormat

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_VALUE: Final = "value"
_MISSING: Final = object()
_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
_SIMPLE: Final = (
    "string", "binary", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns of the result, and which of the log's they are made of."""

    schema: pa.Schema
    columns: tuple[str, ...]  # of the log, to decode
    value_format: ValueFormat = "raw"
    mode: Mode = "PERMISSIVE"

    @property
    def is_plain(self) -> bool:
        """Whether the log's columns are the result as they are."""
        return tuple(self.schema.names) == self.columns and self.schema.types == [
            SHOWN.field(name).type for name in self.columns
        ]


def project(asked: "StructType", value_format: ValueFormat = "raw", mode: Mode = "PERMISSIVE") -> Projection:
    """What a user's schema asks for. Raises UsageError for a column that is neither the log's nor can be a member of a
    value, or has another type."""
    from pyspark.sql.pandas.types import to_arrow_type

    fields: list[pa.Field] = []
    columns: list[str] = []
    for field in asked.fields:
        told = field.dataType.simpleString()
        own = field.name in ARROW.names or (
            # a member of the value may have this name, but no member can be a timestamp
            field.name == EVENT_TIME and (value_format == "raw" or told == "timestamp")
        )
        if own and (field.name != _VALUE or value_format == "raw" or told == "binary"):
            expected = _spark_type(field.name)
            if told != expected:
                mend = "; valueFormat=json or msgpack gives other types" if field.name == _VALUE else ""
                raise UsageError(f"column {field.name} is {expected}, not {told}{mend}")
            columns.append(field.name)
            fields.append(SHOWN.field(field.name))
            continue
        if value_format == "raw":
            raise UsageError(
                f"there is no column {field.name!r}; the columns are {', '.join(SHOWN.names)}. With "
                f"valueFormat=json or msgpack other names are members of the value"
            )
        _check_type(field.name, field.dataType)
        fields.append(pa.field(field.name, to_arrow_type(field.dataType)))
        if _VALUE not in columns:
            columns.append(_VALUE)
    return Projection(pa.schema(fields), tuple(columns), value_format, mode)


def _spark_type(name: str) -> str:
    from raftlog.spark_export.columns.schema import spark_schema

    return spark_schema(SHOWN)[name].dataType.simpleString()


def _check_type(name: str, kind: "DataType") -> None:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_type(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check_type(f"{name}[]", kind.elementType)
    elif kind.simpleString() not in _SIMPLE:
        raise UsageError(f"column {name} cannot be {kind.simpleString()}: take {', '.join(_SIMPLE)}, struct or array")


def parsed(batch: pa.RecordBatch, projection: Projection, indexes: Sequence[int]) -> pa.RecordBatch:
    """The batch of the log's columns as the projection wants it. `indexes` are those of the rows, for messages.

    A value that is not of the format, and a member that is not of its type, is null, or with FAILFAST an ExportError.
    """
    whole = _objects(batch.column(projection.columns.index(_VALUE)), projection, indexes)
    arrays = []
    for field in projection.schema:
        own = field.name in projection.columns and SHOWN.field(field.name).type == field.type
        if own:
            arrays.append(batch.column(projection.columns.index(field.name)))
        elif field.name == _VALUE:
            texts = pa.types.is_string(field.type)
            values = [_text(each) for each in whole] if texts else [_or_none(each) for each in whole]
            arrays.append(_column(field, values, projection, indexes))
        else:
            name = field.name
            values = [each.get(name) if isinstance(each, dict) else None for each in whole]
            arrays.append(_column(field, values, projection, indexes))
    return pa.RecordBatch.from_arrays(arrays, schema=projection.schema)


def _objects(values: pa.Array, projection: Projection, indexes: Sequence[int]) -> list[Any]:
    """Every value decoded; _MISSING where there is none, or none of the format."""
    decode: Callable[[bytes], Any] = (
        msgspec.json.Decoder().decode if projection.value_format == "json" else msgspec.msgpack.Decoder().decode
    )
    decoded = []
    for place, value in enumerate(values.to_pylist()):
        if value is None:
            decoded.append(_MISSING)
            continue
        try:
            decoded.append(decode(value))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if projection.mode == "FAILFAST":
                raise ExportError(
                    f"the value at index {indexes[place]} is no {projection.value_format}: {error}. With "
                    f"mode=PERMISSIVE it is null."
                ) from error
            decoded.append(_MISSING)
    return decoded


def _or_none(value: Any) -> Any:
    return None if value is _MISSING else value


def _text(value: Any) -> str | None:
    """The value as JSON text, as from_json and get_json_object take it."""
    if value is _MISSING:
        return None
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return json.dumps(value, default=str)


def _column(field: pa.Field, values: list[Any], projection: Projection, indexes: Sequence[int]) -> pa.Array:
    try:
        return _array(values, field.type)
    except _MISFITS:
        pass  # some value is not of the type: look at each
    for place, value in enumerate(values):
        try:
            _array([value], field.type)
        except _MISFITS as error:
            if projection.mode == "FAILFAST":
                raise ExportError(
                    f"{field.name} in the value at index {indexes[place]} is not {field.type}: {error}. With "
                    f"mode=PERMISSIVE it is null."
                ) from error
            values[place] = None
    return _array(values, field.type)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Raises one of _MISFITS. Arrow alone would take a text for a list of its characters."""
    if pa.types.is_nested(kind):
        for value in values:
            _check_shape(value, kind)
    return pa.array(values, kind)


def _check_shape(value: Any, kind: pa.DataType) -> None:
    if value is None or not pa.types.is_nested(kind):
        return
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise TypeError(f"{type(value).__name__} where a list should be")
        for each in value:
            _check_shape(each, kind.value_type)
        return
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} where a structure should be")
    for field in kind:
        _check_shape(value.get(field.name), field.type)
