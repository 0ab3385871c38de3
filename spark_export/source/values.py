"""Turns values of JSON, msgpack or CSV into columns: whole, as text or a structure, or single members by name.

What does not fit goes to the rescued column (`_rescued_data`), as JSON: the members that no column has or whose type is
another, or the whole value. Without that column it becomes null, and `Misfits` counts it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from raftlog.cluster.api.encoding import to_b64
from raftlog.spark_export.columns.members import check_type
from raftlog.spark_export.columns.schema import ARROW, EVENT_TIME, SHOWN
from raftlog.spark_export.errors import ExportError, UsageError
from raftlog.spark_export.fetch.options import RESCUED, Mode, ValueFormat
from raftlog.spark_export.source.fitting import Fit, column, json_text
from raftlog.spark_export.source.forms import MISSING, Cells, Unreadable

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

VALUE: Final = "value"
_PREFIX: Final = "value_"
_BYTES: Final = "_value_b64"  # of a rescued value that is no text
_OWN: Final = {name.lower(): name for name in SHOWN.names}


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns of the result, and which of the log's they are made of."""

    schema: pa.Schema
    columns: tuple[str, ...]  # of the log, to decode
    value_format: ValueFormat = "raw"
    mode: Mode = "PERMISSIVE"
    rescued: str | None = None  # the column of what does not fit, if it is asked for

    @property
    def is_plain(self) -> bool:
        """Whether the log's columns are the result as they are."""
        return tuple(self.schema.names) == self.columns and self.schema.types == [
            SHOWN.field(name).type for name in self.columns
        ]

    def is_own(self, each: pa.Field) -> bool:
        """Whether that column of the result is one of the log's."""
        return each.name in self.columns and SHOWN.field(each.name).type == each.type

    @property
    def members(self) -> dict[str, pa.Field]:
        """The columns that are members of the value, by the member's name."""
        return {
            member_of(each.name): each
            for each in self.schema
            if not self.is_own(each) and each.name not in (VALUE, self.rescued)
        }


@dataclass(slots=True)
class Misfits:
    """What became null because it did not fit: how many records, and what the first one was."""

    count: int = 0
    first: str = ""

    def take(self, what: str) -> None:
        """One more record."""
        self.count += 1
        self.first = self.first or what


def column_of(member: str) -> str:
    """The name of the column of a member: its own, or `value_NAME` where the log has a column NAME."""
    return _PREFIX + member if member.lower() in _OWN else member


def member_of(name: str) -> str:
    """The member that a column shows."""
    return name[len(_PREFIX) :] if name.startswith(_PREFIX) and name[len(_PREFIX) :].lower() in _OWN else name


def project(
    asked: "StructType", value_format: ValueFormat = "raw", mode: Mode = "PERMISSIVE", rescued: str = RESCUED
) -> Projection:
    """What a user's schema asks for. Raises UsageError for a column that is neither the log's nor can be a member of a
    value, or has another type."""
    from pyspark.sql.pandas.types import to_arrow_type

    fields: list[pa.Field] = []
    columns: list[str] = []
    is_rescued = False
    for each in asked.fields:
        told = each.dataType.simpleString()
        own = each.name in ARROW.names or (
            # a member of the value may have this name, if it is no timestamp
            each.name == EVENT_TIME and (value_format == "raw" or told == "timestamp")
        )
        if own and (each.name != VALUE or value_format == "raw" or told == "binary"):
            expected = _spark_type(each.name)
            if told != expected:
                mend = "; valueFormat=json, msgpack, csv or auto gives other types" if each.name == VALUE else ""
                raise UsageError(f"column {each.name} is {expected}, not {told}{mend}")
            columns.append(each.name)
            fields.append(SHOWN.field(each.name))
            continue
        if value_format == "raw":
            raise UsageError(
                f"there is no column {each.name!r}; the columns are {', '.join(SHOWN.names)}. With "
                f"valueFormat=json, msgpack, csv or auto other names are members of the value"
            )
        if each.name == rescued:
            if told != "string":
                raise UsageError(f"column {rescued} takes what does not fit, as JSON: it is string, not {told}")
            is_rescued = True
        check_type(each.name, each.dataType)
        fields.append(pa.field(each.name, to_arrow_type(each.dataType, timezone="UTC")))
    if len(columns) < len(fields) and VALUE not in columns:
        columns.append(VALUE)
    return Projection(pa.schema(fields), tuple(columns), value_format, mode, rescued if is_rescued else None)


def _spark_type(name: str) -> str:
    from raftlog.spark_export.columns.schema import spark_schema

    return spark_schema(SHOWN)[name].dataType.simpleString()


@dataclass(slots=True)
class _Rest:
    """What did not fit, row by row."""

    projection: Projection
    indexes: Sequence[int]
    misfits: Misfits
    of: dict[int, Any] = field(default_factory=dict)
    wrong: dict[int, str] = field(default_factory=dict)  # why the row is not as the schema says

    def whole(self, place: int, value: Any, why: str) -> None:
        """The value of a row as a whole. Raises ExportError with mode FAILFAST."""
        self._note(place, f"the value at index {self.indexes[place]} is {why}")
        if isinstance(value, Unreadable):
            try:
                value = value.data.decode()
            except UnicodeDecodeError:
                value = {_BYTES: to_b64(value.data)}
        self.of[place] = value

    def part(self, place: int, name: str, found: Fit, kind: pa.DataType) -> None:
        """Keeps the rest of one member. Raises ExportError with mode FAILFAST if it is of another type."""
        if found.is_misfit:
            shown = json_text(found.rest)
            told = shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}…"
            self._note(place, f"{name} in the value at index {self.indexes[place]} is not {kind}: {told}")
        self.of.setdefault(place, {})[name] = found.rest

    def _note(self, place: int, what: str) -> None:
        if self.projection.mode == "FAILFAST":
            raise ExportError(
                f"{what}. With mode=PERMISSIVE it is null, and a column {self.projection.rescued or RESCUED} has it."
            )
        self.wrong.setdefault(place, what)

    def texts(self, rows: int) -> pa.Array:
        """The rescued column."""
        return pa.array([json_text(self.of[place]) if place in self.of else None for place in range(rows)], pa.string())

    def count(self) -> None:
        """Notes the rows of which a part became null, if no column has it."""
        if self.projection.rescued is None:
            for what in self.wrong.values():
                self.misfits.take(what)


_SHOWN_MAX: Final = 60  # characters of a value in a message


def parsed(
    batch: pa.RecordBatch, rows: list[Any], projection: Projection, indexes: Sequence[int], misfits: Misfits
) -> pa.RecordBatch:
    """The batch of the log's columns as the projection wants it: `rows` are its values, as `forms` reads them.

    `indexes` are those of the rows, for messages. A value that is not of the format, and a member that is not of its
    type, is null and goes to the rescued column, or is counted; with FAILFAST it is an ExportError.
    """
    rest = _Rest(projection, indexes, misfits)
    members = projection.members
    for place, row in enumerate(rows):
        if isinstance(row, Unreadable):
            form = "readable" if projection.value_format == "auto" else projection.value_format
            rest.whole(place, row, f"no {form}: {row.reason}")
        elif members and row is not None and row is not MISSING and not isinstance(row, dict):
            rest.whole(place, row, f"no object, so that it has no {', '.join([*members][:3])}")
    texts = [isinstance(row, Cells) for row in rows]
    is_text = texts if any(texts) else None
    arrays = {name: _member(rows, name, each, is_text, rest) for name, each in members.items()}
    if members and projection.rescued is not None:
        _keep_unknown(rows, members, rest)
    made = []
    for each in projection.schema:
        if projection.is_own(each):
            made.append(batch.column(each.name))
        elif each.name == VALUE:
            made.append(_value(rows, each, is_text, rest))
        elif each.name != projection.rescued:
            made.append(arrays[member_of(each.name)])
        else:
            made.append(None)
    rest.count()
    if projection.rescued is not None:
        made[projection.schema.get_field_index(projection.rescued)] = rest.texts(len(rows))
    return pa.RecordBatch.from_arrays(made, schema=projection.schema)


def _member(rows: list[Any], name: str, each: pa.Field, is_text: Sequence[bool] | None, rest: _Rest) -> pa.Array:
    values = [row.get(name) if isinstance(row, dict) else None for row in rows]
    made, left = column(values, each.type, is_text)
    for place, found in left.items():
        rest.part(place, name, found, each.type)
    return made


def _keep_unknown(rows: list[Any], members: dict[str, pa.Field], rest: _Rest) -> None:
    known = members.keys()
    for place, row in enumerate(rows):
        if isinstance(row, dict) and not row.keys() <= known:
            kept = rest.of.setdefault(place, {})
            kept.update({name: each for name, each in row.items() if name not in known})


def _value(rows: list[Any], each: pa.Field, is_text: Sequence[bool] | None, rest: _Rest) -> pa.Array:
    """The whole value, as JSON text or as a structure."""
    plain = [None if row is MISSING or isinstance(row, Unreadable) else row for row in rows]
    if pa.types.is_string(each.type):
        return pa.array([row if row is None else json_text(row) for row in plain], pa.string())
    made, left = column(plain, each.type, is_text)
    for place, found in left.items():
        if isinstance(found.rest, dict) and pa.types.is_struct(each.type):
            for name, part in found.rest.items():
                rest.part(place, name, Fit(None, part, found.is_misfit), each.type)
        else:
            rest.whole(place, found.rest, f"not {each.type}")
    return made
