"""Knows what the values of records hold: columns, their types, and the dialect of CSV; pure.

`raftlog import` stores it in the log (docs/formats.md, "Schema of an import"); a user may give it too. SQL and Spark
take columns out of values by it.
"""

from collections.abc import Iterable
from typing import Final, Literal, get_args

import msgspec

from raftlog.spark_export.errors import UsageError

PREFIX: Final = b"raftlog/import/"
"""Keys of stored schemas: the session of the import follows, in 20 digits."""

STORED_VERSION: Final = 1

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


class ValueSchema(msgspec.Struct, frozen=True):
    """The columns in values of one form. `sessions`: the imports whose records have them; empty: every record."""

    form: ValueForm
    columns: tuple[ValueColumn, ...]
    dialect: CsvDialect = CsvDialect()
    sessions: tuple[int, ...] = ()


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
        if schema.version != STORED_VERSION:
            raise UsageError(
                f"the stored schema of {schema.source} has version {schema.version}, this raftlog knows "
                f"{STORED_VERSION}: upgrade it, or give the columns yourself"
            )
        if schema.values in FORMS and schema.columns:
            stored.append((int(digits), schema))
    if not stored:
        return None
    _, newest = max(stored, key=lambda each: each[0])
    kind = (newest.values, newest.columns, newest.dialect)
    sessions = sorted(session for session, each in stored if (each.values, each.columns, each.dialect) == kind)
    form: ValueForm = "csv" if newest.values == "csv" else "json"
    return ValueSchema(form, newest.columns, newest.dialect or CsvDialect(), tuple(sessions))
