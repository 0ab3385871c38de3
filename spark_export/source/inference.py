"""Finds the columns of values: from the schemas that imports stored, or from a sample of the log.

A sample is taken from both ends of the range. Records between may differ: what does not fit the columns goes to the
rescued column.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from raftlog.cluster.importer.formats.forms import FIXED_MEMBERS, Cells, Unreadable, cells_of
from raftlog.cluster.importer.formats.rows import type_of_text
from raftlog.spark_export.errors import DataLossError, UsageError
from raftlog.spark_export.fetch.imports import Stored, chosen, stored
from raftlog.spark_export.fetch.options import SourceOptions
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.source.bounds import batch_range
from raftlog.spark_export.source.projection import VALUE, column_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

    from raftlog.spark_export.source.parsing import RowReader

COLUMNS_MAX: Final = 1_000
"""Most columns that are inferred. Objects with more members are maps, and need a schema that says so."""
_DEPTH_MAX: Final = 16  # of structures; deeper structures are JSON text

Kind = Any
"""An inferred type: None (nothing seen), the name of a Spark type, a dict of members, or a list of one kind."""

_TEXTS: Final = {"integer": "bigint", "number": "double", "boolean": "boolean"}
"""Types of an import; every other one is text, or JSON text."""
_ARROW: Final = {
    "int8": "bigint",
    "int16": "bigint",
    "int32": "bigint",
    "int64": "bigint",
    "uint8": "bigint",
    "uint16": "bigint",
    "uint32": "bigint",
    "uint64": "decimal(20,0)",
    "halffloat": "double",
    "float": "double",
    "double": "double",
    "bool": "boolean",
    "date32[day]": "date",
    "date64[ms]": "date",
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_ARROW_FORMS: Final = (
    (re.compile(r"timestamp\[(?:s|ms|us)(?:, tz=.*)?\]"), "timestamp"),  # ns would lose digits: it stays text
    (re.compile(r"duration\[.*\]"), "bigint"),
    (re.compile(r"decimal\d*\((\d+), (\d+)\)"), "decimal"),
)


def members(options: SourceOptions) -> "list[StructField]":
    """The columns of the members of values. Raises UsageError where none can be found."""
    imports: Stored = {}
    if options.value_format == "auto":
        imports = chosen(stored(options.endpoints, options.patience_s), options.import_source)
        if imports and not options.infers:
            return _fields(_of_imports(imports))
    if options.csv.columns and not options.infers:
        return _fields(dict.fromkeys(options.csv.columns, "string"))
    kinds, looked_at = _of_sample(options, imports)
    if not kinds:
        raise UsageError(
            f"no columns can be inferred: records looked at: {looked_at:,}; none has members in "
            f"{options.value_format}. Name the columns with .schema(…), or set another valueFormat."
        )
    if len(kinds) > COLUMNS_MAX:
        raise UsageError(
            f"the values have {len(kinds)} different members, more than {COLUMNS_MAX}: name the columns that you need "
            f"with .schema(…); the others go to {options.rescued}"
        )
    return _fields(kinds)


def _fields(kinds: Mapping[Any, Kind]) -> "list[StructField]":
    """A column for each member. Of names that differ in case alone the first has one: Spark sees no difference."""
    from pyspark.sql.types import StructField

    found: dict[str, StructField] = {}
    for name, kind in kinds.items():
        if isinstance(name, str) and name.strip():  # a map of msgpack has other names too
            shown = column_of(name)
            found.setdefault(shown.lower(), StructField(shown, _spark_type(kind)))
    return [*found.values()]


def _spark_type(kind: Kind, depth: int = 0) -> "DataType":
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        BooleanType,
        DateType,
        DecimalType,
        DoubleType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    if isinstance(kind, list):
        return ArrayType(_spark_type(kind[0], depth + 1))
    if isinstance(kind, dict):
        names = [name.lower() for name in kind if isinstance(name, str) and name.strip()]
        if not names or len({*names}) < len(kind) or len(kind) > COLUMNS_MAX or depth > _DEPTH_MAX:
            return StringType()
        return StructType([StructField(name, _spark_type(each, depth + 1)) for name, each in kind.items()])
    if kind is not None and (found := _DECIMAL.fullmatch(kind)):
        return DecimalType(int(found[1]), int(found[2]))
    simple: dict[str | None, DataType] = {
        "bigint": LongType(),
        "double": DoubleType(),
        "boolean": BooleanType(),
        "binary": BinaryType(),
        "timestamp": TimestampType(),
        "date": DateType(),
    }
    return simple.get(kind, StringType())


# ---------------------------------------------------------------------------------------------------------------
# Stored schemas.


def _of_imports(imports: Stored) -> dict[str, Kind]:
    """The columns of all imports: where the types of two differ, the one that holds both, else text."""
    kinds: dict[str, Kind] = {}
    for schema in imports.values():
        for name in FIXED_MEMBERS.get(schema.values, ()):
            kinds[name] = "string"
        for column in schema.columns:
            kind = _of_type(column.type)
            kinds[column.name] = merged(kinds[column.name], kind) if column.name in kinds else kind
    return kinds


def _of_type(name: str) -> str:
    """The Spark type of a type of an import."""
    if name in _TEXTS or name in _ARROW:
        return _TEXTS.get(name) or _ARROW[name]
    for form, kind in _ARROW_FORMS:
        if found := form.fullmatch(name):
            if kind != "decimal":
                return kind
            return f"decimal({found[1]},{found[2]})" if int(found[1]) <= 38 else "string"
    return "string"


# ---------------------------------------------------------------------------------------------------------------
# Samples.


def _of_sample(options: SourceOptions, imports: Stored) -> tuple[dict[str, Kind], int]:
    """The members of the sampled values with their types, and the number of records looked at."""
    from raftlog.spark_export.source.parsing import RowReader

    reader = RowReader(options, (), imports)
    batches = [*_sample(options, reader)]
    if options.value_format == "csv":
        reader = RowReader(options, options.csv.columns or _numbered(options, batches), imports)
    kinds: dict[str, Kind] = {}
    for batch in batches:
        for row in reader.rows(batch):
            if isinstance(row, Cells):
                found: Kind = {name: _text_kind(each) for name, each in row.items() if isinstance(each, str)}
            elif isinstance(row, dict):
                found = kind_of(row)
            else:
                continue
            kinds = merged(kinds, found)
    if options.value_format == "csv" and not options.infers:
        kinds = dict.fromkeys(kinds, "string")
    return kinds, sum(map(len, batches))


def _numbered(options: SourceOptions, batches: list[pa.RecordBatch]) -> list[str]:
    """c1, c2, …, as `raftlog import --no-header` names columns: as many as most rows of CSV have cells."""
    widths: Counter[int] = Counter()
    for batch in batches:
        values = [value for value in batch.column(VALUE).to_pylist() if value]
        widths.update(len(row) for row in cells_of(values, options.csv.dialect) if not isinstance(row, Unreadable))
    width = max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))[0]
    return [f"c{number}" for number in range(1, width + 1)]


def _sample(options: SourceOptions, reader: "RowReader") -> Iterator[pa.RecordBatch]:
    """The first and the last records of the range; of an empty range the newest of the log."""
    starting = "earliest" if options.starting in ("latest", "snapshot") else options.starting
    try:
        log, start, stop = batch_range(replace(options, starting=starting))
    except DataLossError:  # a stream that goes on from its checkpoint began where the log no longer has it
        log, start, stop = batch_range(replace(options, starting="earliest"))
    if start == stop:
        log, start, stop = batch_range(replace(options, starting="earliest"))
        start = max(start, stop - options.sampling)
    last = 0 if stop - start <= options.sampling else options.sampling // 2
    yield from _first(Range.of(options, log, start, stop), options, reader, options.sampling - last)
    yield from _first(Range.of(options, log, stop - last, stop), options, reader, last)


def _first(wanted: Range, options: SourceOptions, reader: "RowReader", count: int) -> Iterator[pa.RecordBatch]:
    from raftlog.spark_export.fetch.reader import read
    from raftlog.spark_export.fetch.selection import of_options

    if wanted.start >= wanted.stop:
        return
    for batch in read(wanted, reader.columns, selection=of_options(options)):
        chosen_rows = reader.chosen(batch, wanted)
        yield chosen_rows.slice(0, count)
        count -= min(count, len(chosen_rows))
        if not count:
            return


def kind_of(value: Any, depth: int = 0) -> Kind:
    """The type of a value of JSON or msgpack."""
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            return "bigint" if -(1 << 63) <= value < 1 << 63 else "string"  # as text it keeps its digits
        case float():
            return "double"
        case bytes():
            return "binary"
        case dict() if depth <= _DEPTH_MAX:
            return {name: kind_of(each, depth + 1) for name, each in value.items()}
        case list() if depth <= _DEPTH_MAX:
            return [_merged_all(kind_of(each, depth + 1) for each in value)]
        case _:
            return "string"


def _merged_all(kinds: Iterable[Kind]) -> Kind:
    found: Kind = None
    for kind in kinds:
        found = merged(found, kind)
    return found


def merged(one: Kind, other: Kind) -> Kind:
    """A type that holds both: text where nothing else does."""
    if one is None or one == other:
        return other
    if other is None:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys((*one, *other))
        return {name: merged(one.get(name), other.get(name)) for name in names}
    if isinstance(one, list) and isinstance(other, list):
        return [merged(one[0], other[0])]
    if isinstance(one, str) and isinstance(other, str) and {one, other} == {"bigint", "double"}:
        return "double"
    return "string"


def _text_kind(text: str) -> Kind:
    """The type of a cell; None for an empty one."""
    found = type_of_text(text)
    if found is None:
        return None
    is_long = found == "number" and text.lstrip("-").isdigit()  # as text it keeps its digits
    return "string" if is_long else _TEXTS.get(found, "string")
