"""Makes the record that keeps an import's schema in the log: names, types, dialect and time of its values; pure.

The record puts a key below `PREFIX`, named after the session of the import. Every record of the import has this
session. So a reader finds the schema of each record, also after a trim of the log. docs/formats.md has its fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.cluster.importer.formats.lines import OBJECTS, TABLES, InputColumn, InputFormat, InputOptions
from raftlog.cluster.importer.formats.times import TimeRule

PREFIX: Final = b"raftlog/import/"
"""Reserved for schemas: the session of the import follows, in 20 digits."""

SCHEMA_VERSION: Final = 1

LOG_COLUMNS: Final = (
    "index",
    "term",
    "time",
    "kind",
    "operation",
    "key",
    "value",
    "headers",
    "client_time",
    "argument",
    "session",
    "sequence",
    "result",
    "revision",
    "succeeded",
    "prior_index",
    "create",
    "version",
    "changes",
    "event_time",
)
"""The columns that SQL and Spark have for each record, before those of its value."""

_ARROW: Final = (
    (re.compile(r"u?int(8|16|32)|int64|duration.*"), "integer"),
    (re.compile(r"uint64|halffloat|float|double|decimal.*"), "number"),
    (re.compile(r"bool"), "boolean"),
    (re.compile(r"struct.*"), "object"),
    (re.compile(r"(large_|fixed_size_)?list.*|map.*"), "array"),
)
"""What the columns of Parquet and Arrow are as JSON; any other is text."""


def json_type(name: str) -> str:
    """The type of a column's values in JSON, by its type in the schema."""
    return next((kind for form, kind in _ARROW if form.fullmatch(name)), name)


def beside(names: Iterable[str], taken: Iterable[str] = LOG_COLUMNS) -> list[str]:
    """The names of columns beside those of the names `taken`: value_NAME where NAME is one of them. SQL compares names
    without a difference between upper and lower case."""
    found: list[str] = []
    known = {name.lower() for name in taken}
    for name in names:
        name = name or "column"
        while name.lower() in known:
            name = f"value_{name}"
        known.add(name.lower())
        found.append(name)
    return found


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """What the values of an import hold. `values`: csv, json, access, syslog or lines."""

    version: int
    source: str
    format: InputFormat
    values: str
    columns: tuple[InputColumn, ...] = ()
    dialect: Dialect | None = None
    charset: str = "utf-8"  # of the input; text in values is always UTF-8
    key: str | None = None
    time: str | None = None
    times: TimeRule | None = None
    headers: tuple[str, ...] = ()


_decode: Final = msgspec.json.Decoder(Schema).decode


def key_of(session: int) -> bytes:
    """The key of the schema of an import."""
    return PREFIX + b"%020d" % session


def schema_of(reading: InputOptions, source: str) -> Schema:
    """The schema of an import that reads so."""
    columns, dialect = reading.types, None
    if reading.select:
        types = {column.name: column.type for column in reading.types}
        columns = tuple(InputColumn(name, types.get(name, "json")) for name in reading.select)
        values = "json"
    elif reading.format in TABLES:
        values, dialect = "csv", msgspec.structs.replace(reading.dialect, header=False)
    else:
        values = "json" if reading.format in OBJECTS else reading.format.value
    return Schema(
        version=SCHEMA_VERSION,
        source=source,
        format=reading.format,
        values=values,
        columns=columns,
        dialect=dialect,
        charset=reading.charset,
        key=reading.key,
        time=reading.time,
        times=reading.times,
        headers=reading.headers,
    )


def encode(schema: Schema) -> bytes:
    """The value of the record."""
    return msgspec.json.encode(schema)


def decode(value: bytes) -> Schema:
    """The schema in the value of the record. Raises ValueError."""
    schema = _decode(value)
    if schema.version != SCHEMA_VERSION:
        raise ValueError(f"the schema has version {schema.version}, this raftlog knows {SCHEMA_VERSION}; upgrade it")
    return schema
