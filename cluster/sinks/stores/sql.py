"""Writes rows and the position of a sink into a SQL database, in one transaction.

The statements are the same for PostgreSQL, SQLite and DuckDB; a `Database` is a connection to one of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

from raftlog.cluster.sinks.changes import UNCHANGED, RowChange, RowChanges, StorePosition, StoreRow
from raftlog.cluster.sinks.columns import json_text
from raftlog.cluster.sinks.mapping import RowMapping, SinkColumn
from raftlog.cluster.sinks.store import (
    BESIDE,
    WRITTEN_ON,
    PositionMoved,
    Refusal,
    RowsRefused,
    SinkIdentity,
    StoredRows,
    StoreError,
    StoreFenced,
    StoreUnavailable,
    check_owner,
    place_of,
    position_of,
)

POSITIONS: Final = "raftlog_sinks"
"""The table of positions, one row a sink."""

_TABLE_BESIDE: Final = "__rebuild"
"""End of the name of the table that a rebuild fills."""

ROWS_AT_ONCE: Final = 1_000
"""Rows that a reader of a table gets at once."""

_CREATE_POSITIONS: Final = (
    f"CREATE TABLE IF NOT EXISTS {POSITIONS} (name text PRIMARY KEY, target text NOT NULL, log text NOT NULL, "
    "mapping text NOT NULL, generation bigint NOT NULL, next bigint NOT NULL, loaded text NOT NULL, "
    "revision bigint NOT NULL)"
)


FileIdentity = tuple[int, int]
"""Device and inode of a file."""


class DatabaseRefused(Exception):
    """The database refuses a value or a row: it does not fit a type, or violates a constraint."""


class SqlTable(NamedTuple):
    """The table of a sink: its name, the columns of its key, and the types of its columns in the database."""

    name: str
    primary_key: Sequence[str]
    types: Mapping[str, str]


class Database(ABC):
    """A connection to a database. Raises StoreUnavailable, DatabaseRefused, and StoreError for any other refusal.

    `place` is how messages call it, and the path of a database that is a file.
    """

    types: ClassVar[Mapping[str, str]]
    """The database's names of the types of columns."""

    begins: ClassVar[tuple[str, str]] = ("BEGIN", "BEGIN")
    """Begins a transaction that writes, or one that sees the database as of one moment."""

    columns_query: ClassVar[str]
    """The names and types of the columns of a table."""

    def __init__(self, place: object) -> None:
        self._place = place
        self._connection: Any = None
        self._file: FileIdentity | None = None

    @abstractmethod
    def _connected(self) -> Any:
        """A new connection, whose commits are on disk when they return."""

    @abstractmethod
    def _errors(self) -> AbstractContextManager[None]:
        """Turns the database's own errors into those that this class raises."""

    @abstractmethod
    def upsert(self, table: SqlTable, columns: Sequence[str], rows: Sequence[StoreRow]) -> None:
        """Inserts rows, or changes those whose key is there."""

    @abstractmethod
    def delete(self, table: SqlTable, keys: Sequence[StoreRow]) -> None:
        """Deletes the rows of these keys."""

    def connect(self) -> None:
        """Opens the connection."""
        if self._connection is None:
            with self._errors():
                self._connection = self._connected()
            self._file = _file_at(self._place)

    def close(self) -> None:
        """Ends the connection, and a transaction that is open."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _open(self) -> Any:
        if self._connection is None:
            raise StoreUnavailable(f"the connection to {self._place} is closed")
        return self._connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[StoreRow]:
        """Carries out a statement whose parameters are written `?`. Returns its rows."""
        with self._errors():
            rows: list[StoreRow] = self._open.execute(statement, parameters).fetchall()
        return rows

    def begin(self, *, reads: bool = False) -> None:
        """Begins a transaction. One that `reads` sees the database as of one moment.

        Raises StoreError for a file that is not at its path any more: its rows would be lost.
        """
        if _file_at(self._place) != self._file:
            raise StoreError(
                f"{self._place} is not the file that the sink has opened: it was deleted or replaced since. Start the "
                f"sink again: it fills the file that is there. Beside a file from a backup, first delete what ends "
                f"with -wal, -shm or .wal: it is of the old file"
            )
        self.execute(self.begins[reads])

    def columns_of(self, table: str) -> dict[str, str]:
        """The columns of a table and their types; none if there is no such table."""
        return dict(self.execute(self.columns_query, (table,)))

    def stream(self, statement: str) -> Iterator[StoreRow]:
        """The rows of a query, not all at once, as the mapping makes them from records."""
        with self._errors():
            found = self._open.execute(statement)
            while rows := found.fetchmany(ROWS_AT_ONCE):
                yield from rows

    def copy_table(self, old: str, new: str) -> bool:
        """Makes an empty table like another, with its own columns and indexes. Returns whether the database can."""
        return False

    def captures(self, source: str, table: str) -> bool:
        """Whether changes of this very table go into the log, as those of the table `source`."""
        return False


def _file_at(place: object) -> FileIdentity | None:
    """The file at a path; None if there is none, or the place is no path. Raises StoreUnavailable."""
    if not isinstance(place, Path):
        return None
    try:
        found = place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(f"{place}: {error.strerror}") from error
    return found.st_dev, found.st_ino


def quoted(name: str) -> str:
    """The name for SQL; schema and table may be separated by a point."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def upsert_of(table: SqlTable, columns: Sequence[str], values: str) -> str:
    """The statement that inserts `values`, or changes the rows whose key is there."""
    others = [quoted(name) for name in columns if name not in table.primary_key]
    changed = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
    key, name = ", ".join(map(quoted, table.primary_key)), quoted(table.name)
    return f"INSERT INTO {name} ({', '.join(map(quoted, columns))}) {values} ON CONFLICT ({key}) DO {changed}"


def as_text(value: Any) -> str | None:
    """A cell as text that both PostgreSQL and DuckDB read; bytes are theirs to write."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case dict() | list():
            return json_text(value)
        case datetime():
            return value.isoformat(sep=" ")
        case _:
            return str(value)


def delete_of(table: SqlTable, values: str) -> str:
    """The statement that deletes the rows whose keys the query `values` gives."""
    name = quoted(table.name)
    same = " AND ".join(f"{name}.{quoted(each)} = gone.{quoted(each)}" for each in table.primary_key)
    return f"DELETE FROM {name} USING ({values}) AS gone WHERE {same}"


class ArrayDatabase(Database):
    """Puts and deletes the rows of a batch by one statement, for a database that takes arrays of text."""

    @abstractmethod
    def unnest(self, names: Sequence[str]) -> str:
        """The FROM clause of arrays with these names."""

    @abstractmethod
    def bytes_as(self, value: bytes) -> str:
        """Bytes as text that the database casts."""

    def array(self, cells: list[str | None]) -> object:
        """The parameter of an array."""
        return cells

    def upsert(self, table: SqlTable, columns: Sequence[str], rows: Sequence[StoreRow]) -> None:
        values, parameters = self._selected(table, columns, rows)
        self.execute(upsert_of(table, columns, values), parameters)

    def delete(self, table: SqlTable, keys: Sequence[StoreRow]) -> None:
        values, parameters = self._selected(table, table.primary_key, keys)
        self.execute(delete_of(table, values), parameters)

    def _selected(self, table: SqlTable, columns: Sequence[str], rows: Sequence[StoreRow]) -> tuple[str, list[object]]:
        """A query that gives the rows, each cell cast from text to the type of its column, and its parameters: one
        array for each column."""
        cells = ", ".join(f"CAST({quoted(name)} AS {table.types[name]}) AS {quoted(name)}" for name in columns)
        arrays = [
            self.array([self.bytes_as(each) if isinstance(each, bytes) else as_text(each) for each in column])
            for column in zip(*rows, strict=True)
        ]
        return f"SELECT {cells} FROM {self.unnest([quoted(name) for name in columns])}", arrays


class SqlStore:
    """A table of a database that a sink keeps up to date."""

    def __init__(self, database: Database, table: str, mapping: RowMapping, *, like: str | None = None) -> None:
        self._database = database
        self._table = table
        self._mapping = mapping
        self._like = like
        self._types: Mapping[str, str] = {}
        self._sink = SinkIdentity("", "", "")
        self._generation = 0

    def open(self, sink: SinkIdentity, generation: int) -> StorePosition | None:
        """Makes the table if it is not there. A position without its table counts no more: the table was dropped."""
        self._sink, self._generation = self._placed(sink), generation
        self._database.connect()
        self._database.execute(_CREATE_POSITIONS)
        self._check_target()
        with self._transaction():
            found = self._found()
            if found is not None:
                check_owner(found[1], sink)
                if found[2] > generation:
                    raise StoreFenced(self._sink.name, found[2])
                if not self._database.columns_of(self._table):  # dropped: its rows would not come again
                    self._database.execute(f"DELETE FROM {POSITIONS} WHERE name = ?", (self._sink.name,))
                    found = None
            self._types = self._made_table()
            self._database.execute(
                f"UPDATE {POSITIONS} SET generation = ? WHERE name = ?", (generation, self._sink.name)
            )
        return None if found is None else found[0]

    def write(self, changes: RowChanges, expected: StorePosition | None, next: StorePosition) -> None:
        try:
            with self._transaction():
                self._move(expected, next)
                self._apply(changes)
        except DatabaseRefused as error:
            self._raise_refused(changes, error)

    @contextmanager
    def rows(self, sink: SinkIdentity) -> Iterator[StoredRows | None]:
        """As `SinkStore.rows`: in one transaction that reads."""
        self._sink = self._placed(sink)
        self._database.connect()
        with self._transaction(reads=True):
            found = self._found() if self._database.columns_of(POSITIONS) else None
            if found is None:
                yield None
            else:
                names = ", ".join(map(quoted, self._mapping.names))
                yield StoredRows(found[0], self._database.stream(f"SELECT {names} FROM {quoted(self._table)}"))

    def close(self) -> None:
        self._database.close()

    def drop(self, sink: SinkIdentity) -> None:
        self._database.connect()
        with self._transaction():
            self._database.execute(f"DROP TABLE IF EXISTS {quoted(self._table)}")
            if self._database.columns_of(POSITIONS):
                self._database.execute(f"DELETE FROM {POSITIONS} WHERE name = ?", (self._placed(sink).name,))

    def beside(self) -> SqlStore:
        """As `RebuiltStore.beside`: a table with another name, and what PostgreSQL copies of this one."""
        return SqlStore(self._database, f"{self._table}{_TABLE_BESIDE}", self._mapping, like=self._table)

    def exchange(self, sink: SinkIdentity, generation: int) -> None:
        self._database.connect()
        execute = self._database.execute
        with self._transaction():
            old = execute(f"DELETE FROM {POSITIONS} WHERE name = ? RETURNING log, next", (sink.name,))
            new = execute(
                f"UPDATE {POSITIONS} SET name = ?, target = ?, generation = ? WHERE name = ? RETURNING log, next",
                (sink.name, self._table, generation, sink.name + BESIDE),
            )
            if old > new and old[0][0] == sink.log:
                raise PositionMoved(WRITTEN_ON)
            execute(f"DROP TABLE IF EXISTS {quoted(self._table)}")
            name = quoted(self._table.rpartition(".")[2])
            execute(f"ALTER TABLE {quoted(self._table + _TABLE_BESIDE)} RENAME TO {name}")

    def _placed(self, sink: SinkIdentity) -> SinkIdentity:
        return sink if self._like is None else sink._replace(name=sink.name + BESIDE)

    def _check_target(self) -> None:
        source = self._mapping.source.table
        if source is not None and self._database.captures(source, self._table):
            raise StoreError(
                f"the table {self._table} is captured into the log as {source}, and the sink would write its own "
                f"changes again and again: name another table"
            )
        others = self._database.execute(
            f"SELECT name FROM {POSITIONS} WHERE target = ? AND name <> ?", (self._table, self._sink.name)
        )
        if others:
            raise StoreError(f"the sink {others[0][0]} writes into the table {self._table} already: name another table")

    def _made_table(self) -> Mapping[str, str]:
        """Makes a missing table, and checks the columns of one that is there. Returns their types."""
        there = self._database.columns_of(self._table)
        like = self._like if not there and self._like and self._database.columns_of(self._like) else None
        is_copied = like is not None and self._database.copy_table(like, self._table)
        if is_copied or (there and self._mapping.new_columns == "add"):
            there = self._with_all_columns()
        if not there:
            columns = [f"{quoted(each.name)} {self._type_of(each)}" for each in self._mapping.columns]
            key = ", ".join(map(quoted, self._mapping.primary_key))
            self._database.execute(f"CREATE TABLE {quoted(self._table)} ({', '.join(columns)}, PRIMARY KEY ({key}))")
            return self._database.columns_of(self._table)
        missing = [name for name in self._mapping.names if name not in there]
        if missing:
            raise StoreError(
                f"the table {self._table} has no column {', '.join(missing)}, it has {', '.join(there)}: add it, or "
                f"name one of these in columns"
            )
        return there

    def _with_all_columns(self) -> dict[str, str]:
        """Adds the columns that the table lacks, if there is one. Returns those that it has then."""
        there = self._database.columns_of(self._table)
        for each in self._mapping.columns if there else ():
            if each.name not in there:
                new = f"{quoted(each.name)} {self._type_of(each)}"
                self._database.execute(f"ALTER TABLE {quoted(self._table)} ADD COLUMN {new}")
        return self._database.columns_of(self._table)

    def _type_of(self, column: SinkColumn) -> str:
        base, _, digits = (column.kind or "string").partition("(")
        return f"{self._database.types[base]}({digits}" if digits else self._database.types[base]

    def _found(self) -> tuple[StorePosition, SinkIdentity, int] | None:
        rows = self._database.execute(
            f"SELECT log, mapping, generation, next, loaded, revision FROM {POSITIONS} WHERE name = ?",
            (self._sink.name,),
        )
        if not rows:
            return None
        log, mapping, generation, next, loaded, revision = rows[0]
        return position_of(next, loaded, revision), SinkIdentity(self._sink.name, log, mapping), generation

    def _move(self, expected: StorePosition | None, next: StorePosition) -> None:
        """Moves the position, or raises what stands against it."""
        place = place_of(next)
        if expected is None:
            if self._found() is not None:
                raise PositionMoved("another runner has begun this sink")
            sink = (self._sink.name, self._table, self._sink.log, self._sink.mapping, self._generation)
            self._database.execute(f"INSERT INTO {POSITIONS} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*sink, *place))
            return
        moved = self._database.execute(
            f"UPDATE {POSITIONS} SET next = ?, loaded = ?, revision = ? WHERE name = ? AND generation = ? "
            "AND next = ? AND loaded = ? AND revision = ? RETURNING next",
            (*place, self._sink.name, self._generation, *place_of(expected)),
        )
        if moved:
            return
        found = self._found()
        if found is not None and found[2] > self._generation:
            raise StoreFenced(self._sink.name, found[2])
        there = "the sink's row is gone" if found is None else f"the store is at {found[0].next}"
        raise PositionMoved(f"{there}, not at {expected.next}")

    def _apply(self, changes: RowChanges) -> None:
        database, table = self._database, SqlTable(self._table, self._mapping.primary_key, self._types)
        if changes.truncates:
            database.execute(f"DELETE FROM {quoted(self._table)}")
        if deleted := [each.key for each in changes.rows if each.row is None]:
            database.delete(table, deleted)
        for names, rows in self._by_columns(changes.rows):
            database.upsert(table, names, rows)

    def _by_columns(self, changes: Iterable[RowChange]) -> Iterator[tuple[Sequence[str], list[StoreRow]]]:
        """The rows to put, those that know the same columns together."""
        names = self._mapping.names
        whole: list[StoreRow] = []
        partial: dict[tuple[str, ...], list[StoreRow]] = {}
        for change in changes:
            if (row := change.row) is None:
                continue
            if UNCHANGED in row:
                known = [(name, each) for name, each in zip(names, row, strict=True) if each is not UNCHANGED]
                partial.setdefault(tuple(name for name, _ in known), []).append(tuple(each for _, each in known))
            else:
                whole.append(row)
        if whole:
            yield names, whole
        yield from partial.items()

    def _raise_refused(self, changes: RowChanges, error: DatabaseRefused) -> NoReturn:
        """Names the rows that the database refuses, each tried alone and taken back."""
        refusals = []
        for each in changes.rows:
            self._database.begin()
            try:
                self._apply(RowChanges((each,)))
            except DatabaseRefused as refused:
                refusals.append(Refusal(each, str(refused)))
            finally:
                self._database.execute("ROLLBACK")
        if not refusals:  # only together they violate a constraint
            raise StoreError(f"the store refuses the changes up to index {changes.rows[-1].index}: {error}") from error
        raise RowsRefused(refusals) from error

    @contextmanager
    def _transaction(self, *, reads: bool = False) -> Iterator[None]:
        try:
            self._database.begin(reads=reads)
            yield
            self._database.execute("COMMIT")
        except StoreUnavailable:
            self._database.close()
            raise
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """Ends a transaction that failed. The database may have no transaction any more: its first error counts."""
        try:
            self._database.execute("ROLLBACK")
        except StoreError:
            self._database.close()
