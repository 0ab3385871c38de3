"""Decides which columns a user's schema asks for: those of the log, and members of the values.

Each streaming query starts a process that needs this, and reads no value. So nothing that parses is imported here.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from raftlog.spark_export.columns.members import check_type
from raftlog.spark_export.columns.schema import ARROW, EVENT_TIME, SHOWN
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.fetch.options import RESCUED, Mode, ValueFormat

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

VALUE: Final = "value"
_PREFIX: Final = "value_"
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
        given = each.dataType.simpleString()
        own = each.name in ARROW.names or (
            # a member of the value may have this name, if it is no timestamp
            each.name == EVENT_TIME and (value_format == "raw" or given == "timestamp")
        )
        if own and (each.name != VALUE or value_format == "raw" or given == "binary"):
            expected = _spark_type(each.name)
            if given != expected:
                mend = "; valueFormat=json, msgpack, csv or auto gives other types" if each.name == VALUE else ""
                raise UsageError(f"column {each.name} is {expected}, not {given}{mend}")
            columns.append(each.name)
            fields.append(SHOWN.field(each.name))
            continue
        if value_format == "raw":
            raise UsageError(
                f"there is no column {each.name!r}; the columns are {', '.join(SHOWN.names)}. With "
                f"valueFormat=json, msgpack, csv or auto other names are members of the value"
            )
        if each.name == rescued:
            if given != "string":
                raise UsageError(f"column {rescued} takes what does not fit, as JSON: it is string, not {given}")
            is_rescued = True
        check_type(each.name, each.dataType)
        fields.append(pa.field(each.name, to_arrow_type(each.dataType, timezone="UTC")))
    if len(columns) < len(fields) and VALUE not in columns:
        columns.append(VALUE)
    return Projection(pa.schema(fields), tuple(columns), value_format, mode, rescued if is_rescued else None)


def _spark_type(name: str) -> str:
    from raftlog.spark_export.columns.schema import spark_schema

    return spark_schema(SHOWN)[name].dataType.simpleString()
