"""A connection to an SQLite file, for the sinks of SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Final

from raftlog.cluster.sinks.changes import StoreRow
from raftlog.cluster.sinks.store import StoreError, StoreUnavailable
from raftlog.cluster.sinks.stores.sql import Database, DatabaseRefused, SqlTable, as_text, quoted, upsert_of

_BUSY_S: Final = 10.0
_PASSING: Final = ("locked", "busy", "disk I/O error", "full", "unable to open")


class SqliteDatabase(Database):
    """A file of SQLite, which is made if it is not there."""

    types: ClassVar[Mapping[str, str]] = {
        "string": "text",
        "int": "integer",
        "bigint": "integer",
        "double": "real",
        "decimal": "text",
        "boolean": "boolean",
        "date": "date",
        "timestamp": "timestamp",
        "binary": "blob",
        "json": "text",
    }

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def connect(self) -> None:
        """As `Database.connect`. Commits are on disk when they return."""
        if self._connection is None:
            with _errors(self._path):
                connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
            self._connection = connection

    def close(self) -> None:
        """As `Database.close`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[StoreRow]:
        """As `Database.execute`."""
        with _errors(self._path):
            return self._open.execute(statement, parameters).fetchall()

    def begin(self, *, reads: bool = False) -> None:
        """As `Database.begin`."""
        self.execute("BEGIN" if reads else "BEGIN IMMEDIATE")

    def columns_of(self, table: str) -> dict[str, str]:
        """As `Database.columns_of`."""
        rows = self.execute("SELECT name, type FROM pragma_table_info(?)", (table,))
        return dict(rows)

    def upsert(self, table: SqlTable, columns: Sequence[str], rows: Sequence[StoreRow]) -> None:
        """As `Database.upsert`."""
        values = f"VALUES ({', '.join('?' * len(columns))})"
        self._many(upsert_of(table, columns, values), [table.types[name] for name in columns], rows)

    def delete(self, table: SqlTable, keys: Sequence[StoreRow]) -> None:
        """As `Database.delete`."""
        wanted = " AND ".join(f"{quoted(name)} = ?" for name in table.primary_key)
        types = [table.types[name] for name in table.primary_key]
        self._many(f"DELETE FROM {quoted(table.name)} WHERE {wanted}", types, keys)

    def stream(self, statement: str) -> Iterator[StoreRow]:
        """As `Database.stream`."""
        with _errors(self._path):
            yield from self._open.execute(statement)

    def _many(self, statement: str, types: Sequence[str], rows: Sequence[StoreRow]) -> None:
        have_text = ["text" in each.lower() for each in types]
        stored = ([as_stored(*each) for each in zip(row, have_text, strict=True)] for row in rows)
        with _errors(self._path):
            self._open.executemany(statement, stored)

    @property
    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable(f"the connection to {self._path} is closed")
        return self._connection


def as_stored(value: Any, is_text: bool) -> Any:
    """A cell as SQLite keeps it: times, decimals and structures are text, and a truth in a column of text is a word."""
    is_kept = not isinstance(value, date | Decimal | dict | list) and not (is_text and isinstance(value, bool))
    return value if is_kept else as_text(value)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
        raise DatabaseRefused(str(error)) from error
    except sqlite3.OperationalError as error:
        if any(each in str(error) for each in _PASSING):
            raise StoreUnavailable(f"{path}: {error}") from error
        raise StoreError(f"{path}: {error}") from error
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from error
