"""Takes a user's own columns out of values, and times out of columns, by Spark's functions.

The columns are given as DDL, or as a `ValueSchema`, for example the one that an import stored in the log.
"""

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.cluster.importer.formats.rows import COMMA_NUMBER
from raftlog.cluster.importer.formats.schema import PREFIX
from raftlog.spark_export.columns.schema import USER_RESULTS
from raftlog.spark_export.tables.value_schema import (
    GIVEN_FORMS,
    StoredSchemas,
    ValueColumn,
    ValueForm,
    ValueSchema,
    inferred,
    of_stored,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Schema = str | StructType | ValueSchema
"""DDL, as "Station STRING, Level DOUBLE"; the type that it stands for; or a schema of values."""

SAMPLE_ROWS: Final = 1_000
"""Values that `infer_schema` looks at: as many as an import does."""

_TYPES: Final = {"integer": "bigint", "number": "double", COMMA_NUMBER: "double", "boolean": "boolean"}
_UNITS: Final = {"s": Decimal(1_000_000), "ms": Decimal(1_000), "us": Decimal(1), "ns": Decimal("0.001")}
_NO_QUOTE: Final = "\u0000"
_PARTS: Final = {
    "Y": "yyyy",
    "y": "yy",
    "m": "M",
    "d": "d",
    "e": "d",
    "H": "H",
    "I": "h",
    "M": "mm",
    "S": "ss",
    "b": "MMM",
    "B": "MMMM",
    "p": "a",
    "a": "EEE",
    "A": "EEEE",
    "z": "[XXX][XX][X]",
    "j": "D",
    "%": "%",
}
"""Letters of strptime as Spark writes them. Month, day and hour may have one digit or two."""
_DIGITS: Final = frozenset("mdeHI")
"""Letters whose number has two digits where another one follows or precedes it without anything between."""
_FRACTION: Final = "".join(f"[{{}}{'S' * digits}]" for digits in range(9, 0, -1))


def stored_schema(log: "DataFrame", source: str | None = None) -> ValueSchema | None:
    """The columns that the newest import stored in the log, with all imports of the same columns; or those of `source`.

    None: there is none. Tables only, because it looks for the record.
    """
    newest, by_name = stored_schemas(log)
    return newest if source is None else by_name.get(source)


def stored_schemas(log: "DataFrame") -> StoredSchemas:
    """The columns of the newest import, and of the newest one of each name. Tables only."""
    found = log.where(
        (F.col("operation") == "put") & F.col("result").isin(*USER_RESULTS) & F.col("key").startswith(F.lit(PREFIX))
    )
    return of_stored((bytes(row["key"]), bytes(row["value"])) for row in found.select("key", "value").collect())


def infer_schema(log: "DataFrame", value: str = "value") -> ValueSchema | None:
    """The columns of JSON objects, by the first values of a table. None: there are no objects."""
    shown = log.where(F.col(quoted(value)).isNotNull()).select(F.col(quoted(value)).cast("binary")).limit(SAMPLE_ROWS)
    return inferred(bytes(row[0]) for row in shown.collect())


def with_columns(
    frame: "DataFrame", schema: Schema, *, form: ValueForm = "json", value: str = "value"
) -> tuple["DataFrame", list[str]]:
    """The frame with the columns of its values, and the names of these: value_NAME where the frame has a NAME.

    A cell that does not fit its type is null, and so is each column of a value of another form. `form` is that of DDL.
    """
    if isinstance(schema, ValueSchema):
        parsed, form, dialect = schema, schema.form, schema.dialect
        types: list[DataType | str] = [_TYPES.get(column.type, "string") for column in schema.columns]
    else:
        if form not in GIVEN_FORMS:
            raise ValueError(f"the form of values is {form!r}; it is {' or '.join(GIVEN_FORMS)}")
        kind = _struct(schema)
        parsed, dialect = ValueSchema(form, tuple(ValueColumn(name, "string") for name in kind.names)), Dialect()
        types = [field.dataType for field in kind.fields]
    names = parsed.named(frame.columns)
    text = F.col(quoted(value)).cast("string")
    if form == "csv":
        cell_types = ", ".join(f"c{place} STRING" for place in range(len(names)))
        cells = F.from_csv(F.rtrim(text, F.lit("\r\n")), cell_types, _options(dialect))
        texts = [
            F.replace(cells[f"c{place}"], F.lit(","), F.lit(".")) if column.type == COMMA_NUMBER else cells[f"c{place}"]
            for place, column in enumerate(parsed.columns)
        ]
        shown = {
            name: F.nullif(text, F.lit("")).try_cast(kind) for name, text, kind in zip(names, texts, types, strict=True)
        }
    elif form != "json":
        read = parsed.cells_reader()
        cells = F.udf(lambda each: read([each])[0], "array<string>")(F.col(quoted(value)).cast("binary"))
        shown = {name: cells[place].try_cast(kind) for place, (name, kind) in enumerate(zip(names, types, strict=True))}
    elif isinstance(schema, ValueSchema):
        cell_types = ", ".join(f"{quoted(column.name)} STRING" for column in parsed.columns if not column.path)
        cells = F.from_json(text, cell_types)
        shown = {
            name: _member(cells, column).try_cast(kind)
            for name, column, kind in zip(names, parsed.columns, types, strict=True)
        }
    else:
        cells = F.from_json(text, kind)
        shown = {name: cells.getField(field.name) for name, field in zip(names, kind.fields, strict=True)}
    return frame.withColumns(shown), names


def _member(cells: "Column", column: ValueColumn) -> "Column":
    """A member of the value as text, or what its path leads to."""
    if not column.path:
        return cells.getField(column.name)
    parent, *inside = column.path
    return F.get_json_object(cells.getField(parent), "$" + "".join(f"['{each}']" for each in inside))


def _struct(schema: str | StructType) -> StructType:
    from pyspark.errors import PySparkException

    if isinstance(schema, StructType):
        return schema
    try:
        kind = StructType.fromDDL(schema)
    except PySparkException as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"the schema {schema!r} is not 'NAME TYPE, …', as 'Station STRING, Level DOUBLE': {reason}"
        ) from error
    if not isinstance(kind, StructType):
        raise ValueError(f"the schema {schema!r} is one type, not 'NAME TYPE, …', as 'Station STRING, Level DOUBLE'")
    return kind


def _options(dialect: Dialect) -> dict[str, str]:
    quote = dialect.quote or _NO_QUOTE
    return {"sep": dialect.delimiter, "quote": quote, "escape": dialect.escape or quote, "multiLine": "true"}


def quoted(name: str) -> str:
    """The name of a column as Spark reads it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def time_of(frame: "DataFrame", column: "Column", form: str | None = None) -> "Column":
    """A column of a frame as a timestamp; null where it is no time.

    `form` is `iso` (the default for text), `s`, `ms`, `us`, `ns`, or a format of strptime. Text without a zone is in
    that of the session. Raises ValueError for a number without a form, and for a form that does not exist.
    """
    shown = frame.select(column).schema[0]
    kind = shown.dataType.simpleString()
    if kind in ("timestamp", "timestamp_ntz", "date"):
        return column.cast("timestamp")
    if form in _UNITS:
        return F.timestamp_micros(F.round(column.try_cast("decimal(30,9)") * F.lit(_UNITS[form])).cast("bigint"))
    if kind not in ("string", "binary"):
        raise ValueError(f"the time {shown.name} is {kind}: give its form, which is s, ms, us or ns since 1970")
    text = column.cast("string")
    if form in (None, "iso"):
        return text.try_cast("timestamp")
    return F.try_to_timestamp(text, F.lit(pattern_of(str(form))))


def pattern_of(form: str) -> str:
    """A format of strptime as Spark's pattern; a fraction of a second may be missing. Raises ValueError."""
    if "%" not in form:
        raise ValueError(f"the form {form!r} is none of iso, s, ms, us, ns, nor a format such as '%Y/%m/%d %H:%M:%S'")
    pattern = ""
    parts = re.findall(r"[.,]?%f|%.|[^%]", form, re.DOTALL)
    for before, part, after in zip(["", *parts], parts, [*parts[1:], ""], strict=False):
        if part.endswith("%f"):
            pattern += _FRACTION.replace("{}", f"'{part[0]}'" if part != "%f" else "")
        elif part[0] == "%" and part[1:] in _PARTS:
            is_alone = before[:1] != "%" and after[:1] != "%"
            pattern += _PARTS[part[1]] if is_alone or part[1] not in _DIGITS else 2 * _PARTS[part[1]]
        elif part[0] == "%":
            raise ValueError(f"the form {form!r} has {part}; there are %{', %'.join(_PARTS)} and %f")
        else:
            pattern += "''" if part == "'" else f"'{part}'" if part.isalpha() or part in "[]{}#" else part
    return pattern
