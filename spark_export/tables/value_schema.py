"""Knows what the values of records hold: columns, their types, and the dialect of CSV; pure.

`raftlog import` stores it in the log (docs/formats.md, "Schema of an import"); a user may give it too. SQL and Spark
take columns out of values by it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.cluster.importer.formats.forms import FIXED_MEMBERS, Cells, parse_of_values
from raftlog.cluster.importer.formats.rows import common_type, type_of
from raftlog.cluster.importer.formats.schema import PREFIX, SCHEMA_VERSION, beside, json_type
from raftlog.spark_export.errors import UsageError

ValueForm = Literal["csv", "json", "access", "syslog", "lines"]
FORMS: Final[tuple[str, ...]] = get_args(ValueForm)
GIVEN_FORMS: Final = ("csv", "json")
"""Forms whose columns a user can give."""

NESTED: Final = ("object", "array", "json")
"""Types whose values are JSON."""

_FIXED: Final = {
    form: tuple(
        (name, "integer" if name in ("status", "sent", "facility", "priority") else "string") for name in members
    )
    for form, members in FIXED_MEMBERS.items()
}


class ValueColumn(msgspec.Struct, frozen=True):
    """A column, and its type as an import names it: integer, number, boolean, string; any other is text. `path`: the
    members through which a nested value of JSON is reached; empty for a member of the value itself."""

    name: str
    type: str
    path: tuple[str, ...] = ()


class StoredSchema(msgspec.Struct, frozen=True):
    """The record that an import puts into the store, as far as readers need it."""

    version: int
    source: str
    values: str
    columns: tuple[ValueColumn, ...] = ()
    dialect: Dialect | None = None
    time: str | None = None


class ValueSchema(msgspec.Struct, frozen=True):
    """The columns in values of one form. `sessions`: the imports whose records have them; empty: every record. With
    `time`, the column of the imports' times, the time of a record that has none is not known. `source`: the name of the
    import, or of all of them."""

    form: ValueForm
    columns: tuple[ValueColumn, ...]
    dialect: Dialect = Dialect()
    sessions: tuple[int, ...] = ()
    time: str | None = None
    source: str | None = None

    def with_nested(self, names: Iterable[str], numbers: Iterable[str] = ()) -> "ValueSchema":
        """With a column for each name like a.b that goes into an object of JSON: a number or text."""
        columns = {column.name: column for column in self.columns}
        for name in names:
            parent, *inside = name.split(".")
            if name not in columns and inside and parent in columns and columns[parent].type in NESTED:
                kind = "number" if name in numbers else "string"
                columns[name] = ValueColumn(name, kind, (parent, *inside))
        return msgspec.structs.replace(self, columns=tuple(columns.values()))

    def cells_reader(self) -> Callable[[Sequence[bytes | None]], list[list[str | None] | None]]:
        """A function from values that are no JSON to the cells of each as text; null for a value of another form."""
        names = [column.name for column in self.columns]
        parse = parse_of_values(self.form, self.dialect, names)

        def read(values: Sequence[bytes | None]) -> list[list[str | None] | None]:
            rows = parse([value or b"" for value in values])
            return [[row.get(name) for name in names] if isinstance(row, Cells) else None for row in rows]

        return read

    def named(self, taken: Iterable[str]) -> list[str]:
        """The names of the columns beside columns of the names `taken`: value_NAME where NAME is one of them."""
        return beside([column.name for column in self.columns], taken)


_decode: Final = msgspec.json.Decoder(StoredSchema).decode


class StoredSchemas(NamedTuple):
    """Of the imports in a log: the newest one, with all that have the same columns; and of each name, newest first."""

    newest: ValueSchema | None
    by_name: dict[str, ValueSchema]

    def named(self, source: str) -> ValueSchema:
        """The newest one of that name. Raises UsageError where there is none."""
        if source not in self.by_name:
            known = f"it has {', '.join(self.by_name)}" if self.by_name else "it has none"
            raise UsageError(f"--source {source}: the log has no import of that name; {known}")
        return self.by_name[source]


def of_stored(found: Iterable[tuple[bytes, bytes]]) -> StoredSchemas:
    """The schema of the newest import of each name, by the keys and values below PREFIX: with the sessions of all
    imports of that name with the same columns. Raises UsageError for a version that this raftlog does not know."""
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
        if schema.values in FORMS and (schema.columns or schema.values in _FIXED):
            stored.append((int(digits), schema))
    stored.sort(key=lambda each: each[0], reverse=True)
    alike: dict[object, dict[str, list[int]]] = {}
    for session, each in stored:
        alike.setdefault(_kind(each), {}).setdefault(each.source, []).append(session)
    by_name: dict[str, ValueSchema] = {}
    for _, each in stored:
        if each.source not in by_name:
            by_name[each.source] = _schema(each, each.source, alike[_kind(each)][each.source])
    if not stored:
        return StoredSchemas(None, by_name)
    names = alike[_kind(stored[0][1])]
    first, *others = names
    source = f"{first} and {len(others)} more with the same columns" if others[1:] else " and ".join(names)
    return StoredSchemas(_schema(stored[0][1], source, [each for some in names.values() for each in some]), by_name)


def _kind(stored: StoredSchema) -> object:
    return stored.values, stored.columns, stored.dialect, stored.time


def _schema(stored: StoredSchema, source: str, sessions: Iterable[int]) -> ValueSchema:
    form: ValueForm = stored.values  # type: ignore[assignment]  # one of FORMS
    fixed = _FIXED.get(form)
    if fixed is not None:
        columns = tuple(ValueColumn(*column) for column in fixed)
    else:
        columns = tuple(ValueColumn(column.name, json_type(column.type)) for column in stored.columns)
    time = "time" if form in ("access", "syslog") else stored.time  # these have it in its own place
    return ValueSchema(form, columns, stored.dialect or Dialect(), tuple(sorted(sessions)), time, source)


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
