"""Maps records of the log to rows of a store; pure.

A sink names its columns, and for each the place in the record that it comes from: `key`, `value.name`, `index`. A part
of a record that does not fit its column is a `Misfit`, which names index, key and column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from raftlog.cluster.client.answers import Item, Record
from raftlog.cluster.importer.formats import schema
from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.cluster.importer.formats.forms import Parse, Unreadable, parse_of, parse_of_import
from raftlog.cluster.importer.formats.rows import look_in_object
from raftlog.cluster.sinks.changes import UNCHANGED, MappedRecord, RowChange, StoreRow
from raftlog.cluster.sinks.columns import Cast, ColumnError, cast_of, columns_of, number_text

PLACES: Final = ("key", "suffix", "index", "time", "event_time", "revision", "create", "version", "value")
"""Where a column may come from, beside value.MEMBER and header.NAME. `suffix` is the key behind the prefix."""

_KINDS: Final = {
    "index": "bigint",
    "revision": "bigint",
    "create": "bigint",
    "version": "bigint",
    "time": "timestamp",
    "event_time": "timestamp",
}
_OF_KEYS: Final = ("key", "suffix")
MEMBERS: Final = "members"
"""The place of a column that takes all members of the value."""
RESCUED: Final = "rescued"
"""The place, and the name, of a column that takes the members that no other column takes, as one JSON object."""
_IMPORTED: Final = {
    "integer": "bigint",
    "number": "double",
    "boolean": "boolean",
    "object": "json",
    "array": "json",
    "json": "json",
}
_TOO_LONG: Final = ("uint64", "decimal")  # types of Arrow whose digits no number of a store has
_OPERATIONS: Final = {
    "keys": ("put", "delete"),
    "table": ("snapshot", "insert", "update", "delete", "truncate"),
}
_SHOWN_MAX: Final = 60  # characters of a value in a message


class SinkSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a sink reads: exactly one of the first four. `values`: auto, json, msgpack or csv, whose cells have `names`.
    Of the changes of keys or of a table it takes those of the `operations`; all of them if none is named.

    `keys`: the key-value store below a prefix, one row a key. `records`: appended records whose key has the prefix.
    `table`: a table that an import captures from PostgreSQL. `of_import`: the rows of an import by its name.
    """

    keys: str | None = None
    records: str | None = None
    table: str | None = None
    of_import: str | None = msgspec.field(default=None, name="import")
    values: str = "auto"
    names: tuple[str, ...] = ()
    delimiter: str = ","
    operations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = [name for name in ("keys", "records", "table", "of_import") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("name exactly one of keys, records, table, import")
        if self.values not in ("auto", "json", "msgpack", "csv"):
            raise ValueError(f"values is {self.values!r}: it is one of auto, json, msgpack, csv")
        if (self.values == "csv") != bool(self.names):
            raise ValueError('values = "csv" and names = […], the names of its cells, belong together')
        known = _OPERATIONS.get(given[0], ())
        for each in self.operations:
            if each not in known:
                choice = f"it is of {', '.join(known)}" if known else "records and the rows of an import have none"
                raise ValueError(f"operations has {each!r}: {choice}")

    @property
    def has_keys(self) -> bool:
        """Whether it is the key-value store."""
        return self.keys is not None

    @property
    def fraction(self) -> str:
        """The type of a column that is found, for numbers with a fraction. Those of PostgreSQL have digits that a
        double loses."""
        return "double" if self.table is None else "decimal(38,18)"

    def takes(self, operation: str) -> bool:
        """Whether the sink follows changes of this operation."""
        return not self.operations or operation in self.operations


class SinkColumn(NamedTuple):
    """A column of the store, where it comes from, and its type; without one the value stays as it is."""

    name: str
    place: str
    kind: str | None


class Misfit(ValueError):
    """A record that cannot become a row. The message says of which index and key, and why."""

    exit_code = 1  # of the command line

    def __init__(self, index: int, key: bytes | None, what: str) -> None:
        shown = "without a key" if key is None else f"with the key {_shown(key)}"
        super().__init__(f"index {index}, {shown}: {what}")
        self.index = index
        self.key = key
        self.reason = what


class NewMembers(Misfit):
    """A value has members that no column takes, and the sink adds a column for each: its name and its place and type
    are in `columns`."""

    def __init__(self, index: int, key: bytes | None, columns: Mapping[str, str]) -> None:
        super().__init__(index, key, f"new columns: {', '.join(columns)}")
        self.columns = columns


class _Entry(msgspec.Struct, frozen=True):
    """A record, or one key of the store, as columns are read from it. `members` is its parsed value."""

    index: int
    key: bytes | None
    members: Any
    value: bytes | None = None
    time_ms: int | None = None
    event_time_ms: int | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    revision: int | None = None
    create: int | None = None
    version: int | None = None


class _CapturedChange(msgspec.Struct, frozen=True):
    """The members of a captured change that a sink needs (docs/postgres.md has all of them)."""

    op: str
    table: str
    lsn: str
    xid: int | None
    before: msgspec.Raw = msgspec.Raw(b"null")  # a truncate has neither
    after: msgspec.Raw = msgspec.Raw(b"null")
    unchanged: tuple[str, ...] = ()
    last: bool = False


_CAPTURED: Final = b'{"op":"'  # how each captured change begins
_captured: Final = msgspec.json.Decoder(_CapturedChange).decode


class RowMapping:
    """Maps records by the source, columns and primary key of a sink. Raises ColumnError.

    `new_columns` says what becomes of members that no column takes: "stop", "rescue" or "add". None ignores them.
    """

    def __init__(
        self,
        source: SinkSource,
        columns: Mapping[str, str],
        primary_key: Sequence[str],
        new_columns: str | None = None,
    ) -> None:
        self.source = source
        self.given = columns
        self.new_columns = new_columns
        self.imported: dict[str, str] = {}
        """The columns of the import, by the schemas that were learned."""
        self._imports: dict[int, Parse] = {}
        self._parse = self._parser()
        self._prefix = (source.keys or source.records or "").encode()
        self.columns = tuple(_column(name, given) for name, given in columns.items())
        self.names = tuple(column.name for column in self.columns)
        if not self.columns:
            raise ColumnError("columns is empty: name at least those of the primary key")
        for name in primary_key:
            if name not in self.names:
                raise ColumnError(f"primary_key names {name}, which columns does not have")
        if not primary_key or len(set(primary_key)) < len(primary_key):
            raise ColumnError("primary_key names each column of the key of a row once")
        self.primary_key = tuple(primary_key)
        self.key_at = [self.names.index(name) for name in primary_key]
        self.key_columns = [self.columns[at] for at in self.key_at]
        places = [column.place for column in self.columns]
        taken = frozenset(place.removeprefix("value.") for place in places if place.startswith("value."))
        self._taken = taken if self.new_columns is not None else None
        self._cells = [_cell(column, _reader(column, len(self._prefix), taken)) for column in self.columns]
        self._key_cells = [self._cells[at] for at in self.key_at]
        self._needs_members = bool(taken) or self.new_columns is not None or MEMBERS in places
        self._check_places()

    def _check_places(self) -> None:
        """Raises ColumnError for a place that records of this source do not have."""
        for column in self.columns:
            is_deleted = self.source.has_keys and self.source.takes("delete")
            if is_deleted and column.name in self.primary_key and column.place not in _OF_KEYS:
                raise ColumnError(
                    f"primary_key: {column.name} comes from {column.place}, and a deleted key has no value: take a "
                    f"column from {' or '.join(_OF_KEYS)}"
                )
            is_index = column.place in ("index", "time", "event_time") or column.place.startswith("header.")
            if self.source.has_keys and is_index:
                raise ColumnError(f"columns: {column.name} comes from {column.place}, which keys of the store lack")
            if not self.source.has_keys and column.place in ("revision", "create", "version"):
                raise ColumnError(
                    f"columns: {column.name} comes from {column.place}, which only keys of the store have"
                )

    def _parser(self) -> Parse:
        form = self.source.values if self.source.table is None else "json"
        return parse_of(form, Dialect(self.source.delimiter, header=False), self.source.names, exact=True)

    @property
    def schema_prefix(self) -> bytes | None:
        """Below which keys the schemas lie that `learn` is to get first; None if it needs none."""
        return None if self.source.of_import is None else schema.PREFIX

    def learn(self, found: Iterable[tuple[bytes, bytes]]) -> None:
        """Takes the schemas of imports, by the keys and values below `schema.PREFIX`. Raises ValueError."""
        for key, value in found:
            digits = key.removeprefix(schema.PREFIX)
            if digits.isdigit():
                stored = schema.decode(value)
                if stored.source == self.source.of_import:
                    self._imports[int(digits)] = parse_of_import(stored, exact=True)
                    for column in stored.columns:
                        is_long = column.type.startswith(_TOO_LONG)
                        kind = "string" if is_long else _IMPORTED.get(schema.json_type(column.type), "string")
                        self.imported[column.name] = f"value.{column.name}:{kind}"

    def of_record(self, record: Record) -> MappedRecord:
        """What the record does to the rows. Raises Misfit."""
        size = len(record.key or b"") + len(record.value or b"")
        if record.result != "applied":
            return MappedRecord(record.index)
        if self.source.has_keys:
            return MappedRecord(record.index, [*self._of_keys(record)], size=size)
        if record.operation == "put" and self.source.of_import is not None:
            if (record.key or b"").startswith(schema.PREFIX):
                self.learn([(record.key or b"", record.value or b"")])
        if record.operation != "append":
            return MappedRecord(record.index)
        if self.source.table is not None:
            return self._of_table(record, size)
        if self.source.of_import is not None:
            parse = self._imports.get(record.session or 0)
            if parse is None:
                return MappedRecord(record.index)
        elif (record.key or b"").startswith(self._prefix):
            parse = self._parse
        else:
            return MappedRecord(record.index)
        members = self._members(parse, record.index, record.key, record.value)
        times = record.time_ms, record.client_time_ms
        entry = _Entry(record.index, record.key, members, record.value, *times, record.headers or ())
        return MappedRecord(record.index, [self._change(entry)], size=size)

    def of_item(self, item: Item, index: int) -> RowChange:
        """The row of a key of the store, as of an index. Raises Misfit."""
        return self._of_key(index, item.key, item.value, item.mod, item.create, item.version)

    def _of_keys(self, record: Record) -> Iterable[RowChange]:
        if record.changes is not None:
            for each in record.changes:
                operation = "delete" if each.deleted else "put"
                if each.key.startswith(self._prefix) and self.source.takes(operation):
                    value = None if each.deleted else each.value or b""
                    yield self._of_key(record.index, each.key, value, each.mod, each.create, each.version)
        elif record.operation not in ("put", "delete") or not self.source.takes(record.operation):
            return
        elif (record.key or b"").startswith(self._prefix):
            value = None if record.operation == "delete" else record.value or b""
            yield self._of_key(record.index, record.key or b"", value, record.revision, record.create, record.version)

    def _of_key(
        self,
        index: int,
        key: bytes,
        value: bytes | None,
        revision: int | None,
        create: int | None,
        version: int | None,
    ) -> RowChange:
        members = None if value is None else self._members(self._parse, index, key, value)
        entry = _Entry(index, key, members, value, revision=revision, create=create, version=version)
        if value is None:
            return RowChange(index, self._key_of(entry), None)
        return self._change(entry)

    def _of_table(self, record: Record, size: int) -> MappedRecord:
        value = record.value or b""
        if not value.startswith(_CAPTURED):
            return MappedRecord(record.index)
        try:
            found = _captured(value)
        except msgspec.MsgspecError:
            return MappedRecord(record.index)  # a user's record that begins like one
        transaction = None if found.xid is None else found.lsn
        rows: list[RowChange] = []
        truncates = False
        if found.table == self.source.table and self.source.takes(found.op):
            if found.op == "truncate":
                truncates = True
            else:
                rows = self._of_change(record, found)
        return MappedRecord(record.index, rows, truncates, transaction, found.last, size)

    def _of_change(self, record: Record, found: _CapturedChange) -> list[RowChange]:
        old, new = (
            None if image == b"null" else self._image(record, image)
            for image in (bytes(found.before), bytes(found.after))
        )
        rows = []
        if new is not None:
            new.update(dict.fromkeys(found.unchanged, UNCHANGED))
            rows.append(self._change(self._entry_of(record, new)))
        if old is not None:
            key = self._key_of(self._entry_of(record, old)) if new is None else self._key_or_none(record, old)
            if key is not None and (not rows or key != rows[0].key):
                rows.insert(0, RowChange(record.index, key, None))
        return rows

    def _image(self, record: Record, image: bytes) -> dict[str, Any]:
        found: dict[str, Any] = next(iter(self._parse([image])))
        if not isinstance(found, dict):
            raise Misfit(record.index, record.key, "the image of the row is no object")
        self._look_for_new(record.index, record.key, found)
        return found

    def _entry_of(self, record: Record, members: dict[str, Any]) -> _Entry:
        return _Entry(record.index, record.key, members, None, record.time_ms, record.client_time_ms)

    def _key_or_none(self, record: Record, old: dict[str, Any]) -> StoreRow | None:
        """The key that the row had before an update; None if the columns of the key are not logged."""
        try:
            return self._key_of(self._entry_of(record, old))
        except Misfit:
            return None

    def _members(self, parse: Parse, index: int, key: bytes | None, value: bytes | None) -> Any:
        if not self._needs_members or value is None:
            return None
        found = next(iter(parse([value])))
        if isinstance(found, Unreadable):
            raise Misfit(index, key, f"the value is not readable: {found.reason}")
        if not isinstance(found, dict):
            raise Misfit(index, key, f"the value is no object with members: {_shown(value)}")
        self._look_for_new(index, key, found)
        return found

    def _look_for_new(self, index: int, key: bytes | None, members: dict[str, Any]) -> None:
        """Raises NewMembers or Misfit for members that no column takes."""
        if self._taken is None or self.new_columns == "rescue" or members.keys() <= self._taken:
            return
        new = {name: each for name, each in members.items() if name not in self._taken}
        columns = columns_of([new], self.source.fraction) if self.new_columns == "add" else {}
        left = [name for name in new if name not in columns or name in self.names]
        if left:
            raise Misfit(
                index,
                key,
                f"the value has the member {left[0]}, which no column takes: name the columns, or let them be found "
                f'again with raftlog sink rebuild; new_columns = "rescue" keeps such members in one column',
            )
        raise NewMembers(index, key, columns)

    def _change(self, entry: _Entry) -> RowChange:
        row = tuple([cell(entry) for cell in self._cells])
        key = tuple([row[at] for at in self.key_at])
        if None in key or UNCHANGED in key:
            self._refuse_key(entry, key)
        return RowChange(entry.index, key, row)

    def _key_of(self, entry: _Entry) -> StoreRow:
        key = tuple([cell(entry) for cell in self._key_cells])
        if None in key:
            self._refuse_key(entry, key)
        return key

    def _refuse_key(self, entry: _Entry, key: StoreRow) -> None:
        name = next(name for name, each in zip(self.primary_key, key, strict=True) if each is None or each is UNCHANGED)
        hint = "; set REPLICA IDENTITY FULL if PostgreSQL does not log it" if self.source.table is not None else ""
        raise Misfit(entry.index, entry.key, f"{name} is of the primary key and has no value{hint}")


def _column(name: str, given: str) -> SinkColumn:
    """`value.born:date` as a column. Raises ColumnError."""
    place, _, kind = given.partition(":")
    is_inside = place.startswith(("value.", "header.")) and place.partition(".")[2]
    if place not in (*PLACES, MEMBERS, RESCUED) and not is_inside:
        raise ColumnError(
            f"columns: {name} comes from {place!r}; it is one of {', '.join(PLACES)}, value.MEMBER, header.NAME"
        )
    if kind:
        try:
            cast_of(kind)
        except ColumnError as error:
            raise ColumnError(f"columns: {name}: {error}") from None
    return SinkColumn(name, place, kind or _KINDS.get(place))


def _cell(column: SinkColumn, read: Callable[[_Entry], Any]) -> Callable[[_Entry], Any]:
    """Makes a column's cell of an entry. Raises Misfit."""
    cast = _checked_cast(column)

    def cell(entry: _Entry) -> Any:
        value = read(entry)
        if value is None or value is UNCHANGED:
            return value
        try:
            return cast(value)
        except (ValueError, TypeError, ArithmeticError) as error:
            what = f"{column.name} is {_shown(value)}, which is {error} ({column.place}:{column.kind})"
            raise Misfit(entry.index, entry.key, what) from None

    return cell


def _reader(column: SinkColumn, prefix: int, taken: frozenset[str]) -> Callable[[_Entry], Any]:
    first, _, rest = column.place.partition(".")
    match first:
        case "members":
            return lambda entry: entry.members
        case "rescued":
            return lambda entry: {name: each for name, each in entry.members.items() if name not in taken} or None
        case "value" if "." in rest:
            return lambda entry: look_in_object(entry.members, rest)
        case "value" if rest:
            return lambda entry: entry.members.get(rest)
        case "header":
            return lambda entry: next((value for name, value in entry.headers if name == rest), None)
        case "suffix":
            return lambda entry: None if entry.key is None else entry.key[prefix:]
        case "time" | "event_time":
            return lambda entry: _as_time(getattr(entry, f"{first}_ms"))
        case _:
            return attrgetter(first)


def _checked_cast(column: SinkColumn) -> Cast:
    if column.kind is not None:
        return cast_of(column.kind)
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    """Bytes as text where they are text, a fraction with all digits and without its last zeros; all else unchanged."""
    if type(value) is str:
        return value
    if isinstance(value, float | Decimal):
        return Decimal(number_text(value))
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def _as_time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def _shown(value: Any) -> str:
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
