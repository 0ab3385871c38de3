"""Turns values of JSON, msgpack or CSV into columns: whole, as text or a structure, or single members by name.

What does not fit goes to the rescued column (`_rescued_data`), as JSON: the members that no column has or whose type is
another, or the whole value. Without that column it becomes null, and `Misfits` counts it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from raftlog.cluster.api.encoding import to_b64
from raftlog.cluster.importer.formats.forms import MISSING, Cells, Unreadable
from raftlog.spark_export.errors import ExportError
from raftlog.spark_export.fetch.options import RESCUED
from raftlog.spark_export.source.fitting import Fit, column, json_text
from raftlog.spark_export.source.projection import VALUE, Projection, member_of

_BYTES: Final = "_value_b64"  # of a rescued value that is no text


@dataclass(slots=True)
class Misfits:
    """What became null because it did not fit: how many records, and what the first one was."""

    count: int = 0
    first: str = ""

    def take(self, what: str) -> None:
        """One more record."""
        self.count += 1
        self.first = self.first or what


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
            sample = shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}…"
            self._note(place, f"{name} in the value at index {self.indexes[place]} is not {kind}: {sample}")
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
