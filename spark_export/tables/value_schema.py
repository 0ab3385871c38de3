"""Knows what the values of records hold: columns, their types, and the dialect of CSV; pure.

`raftlog import` stores it in the log (docs/formats.md, "Schema of an import"); a user may give it too. SQL and Spark
take columns out of values by it.
"""

from collections.abc import Iterable
from typing import Final, Literal, get_args

import msgspec

from raftlog.cluster.importer.formats.rows import common_type, type_of
from raftlog.cluster.importer.formats.schema import PREFIX, SCHEMA_VERSION
from raftlog.spark_export.errors import UsageError

ValueForm = Literal["csv", "json"]
FORMS: Final[tuple[str, ...]] = get_args(ValueForm)


class ValueColumn(msgspec.Struct, frozen=True):
    """A column, and its type as an import names it: integer, number, boolean, string; any other is text."""

    name: str
    type: str


class CsvDialect(msgspec.Struct, frozen=True):
    """How a row of CSV is written. Without `escape` a quote in a quoted cell is doubled."""

    delimiter: str = ","
    quote: str = '"'
    escape: str | None = None


class StoredSchema(msgspec.Struct, frozen=True):
    """The record that an import puts into the store, as far as readers need it."""

    version: int
    source: str
    values: str
    columns: tuple[ValueColumn, ...] = ()
    dialect: CsvDialect | None = None
    time: str | None = None


class ValueSchema(msgspec.Struct, frozen=True):
    """The columns in values of one form. `sessions`: the imports whose records have them; empty: every record.

    With `time`, the column of the imports' times, the time of a record that has none is not known.
    """

    form: ValueForm
    columns: tuple[ValueColumn, ...]
    dialect: CsvDialect = CsvDialect()
    sessions: tuple[int, ...] = ()
    time: str | None = None

    def named(self, taken: Iterable[str]) -> list[str]:
        """The names of the columns beside columns of the names `taken`: value_NAME where NAME is one of them.

        Names are compared as SQL does, which makes no difference between upper and lower case.
        """
        names: list[str] = []
        known = {name.lower() for name in taken}
        for column in self.columns:
            name = column.name or "column"
            while name.lower() in known:
                name = f"value_{name}"
            known.add(name.lower())
            names.append(name)
        return names


_decode: Final = msgspec.json.Decoder(StoredSchema).decode


def of_stored(found: Iterable[tuple[bytes, bytes]]) -> ValueSchema | None:
    """The schema of the newest import, by the keys and values below PREFIX, with all imports of the same columns.

    None: there is no import of CSV or JSON. Raises UsageError for a version that this raftlog does not know.
    """
    stored: list[tuple[int, StoredSchema]] = []
    for key, value in found:
        digits = key.removeprefix(PREFIX)
        try:
            schema = _decode(value)
        except msgspec.MsgspecError:
            continue  # a key of a user
        if not digits.isdigit():
            continue
        if schema.version != SCHEMA_VERSION:
            raise UsageError(
                f"the stored schema of {schema.source} has version {schema.version}, this raftlog knows "
                f"{SCHEMA_VERSION}: upgrade it, or give the columns yourself"
            )
        if schema.values in FORMS and schema.columns:
            stored.append((int(digits), schema))
    if not stored:
        return None
    _, newest = max(stored, key=lambda each: each[0])
    kind = (newest.values, newest.columns, newest.dialect, newest.time)
    sessions = sorted(
        session for session, each in stored if (each.values, each.columns, each.dialect, each.time) == kind
    )
    form: ValueForm = "csv" if newest.values == "csv" else "json"
    return ValueSchema(form, newest.columns, newest.dialect or CsvDialect(), tuple(sessions), newest.time)


def inferred(values: Iterable[bytes]) -> ValueSchema | None:
    """The columns of JSON objects by some of them, in the order in which they come. None: there are no objects."""
    types: dict[str, set[str]] = {}
    for value in values:
        try:
            found = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        for name, each in found.items() if isinstance(found, dict) else ():
            types.setdefault(name, set()).update(() if (kind := type_of(each)) is None else (kind,))
    columns = tuple(ValueColumn(name, common_type([*kinds])) for name, kinds in types.items())
    return ValueSchema("json", columns) if columns else None
