"""A connection to an SQLite file, for the sinks of SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
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
    begins: ClassVar[tuple[str, str]] = ("BEGIN IMMEDIATE", "BEGIN")
    columns_query: ClassVar[str] = "SELECT name, type FROM pragma_table_info(?)"

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(str(self._place), timeout=_BUSY_S, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def upsert(self, table: SqlTable, columns: Sequence[str], rows: Sequence[StoreRow]) -> None:
        values = f"VALUES ({', '.join('?' * len(columns))})"
        self._many(upsert_of(table, columns, values), [table.types[name] for name in columns], rows)

    def delete(self, table: SqlTable, keys: Sequence[StoreRow]) -> None:
        wanted = " AND ".join(f"{quoted(name)} = ?" for name in table.primary_key)
        types = [table.types[name] for name in table.primary_key]
        self._many(f"DELETE FROM {quoted(table.name)} WHERE {wanted}", types, keys)

    def _many(self, statement: str, types: Sequence[str], rows: Sequence[StoreRow]) -> None:
        have_text = ["text" in each.lower() for each in types]
        stored = ([as_stored(*each) for each in zip(row, have_text, strict=True)] for row in rows)
        with self._errors():
            self._open.executemany(statement, stored)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
            raise DatabaseRefused(str(error)) from error
        except sqlite3.OperationalError as error:
            if any(each in str(error) for each in _PASSING):
                raise StoreUnavailable(f"{self._place}: {error}") from error
            raise StoreError(f"{self._place}: {error}") from error
        except sqlite3.Error as error:
            raise StoreError(f"{self._place}: {error}") from error


def as_stored(value: Any, is_text: bool) -> Any:
    """A cell as SQLite keeps it: times, decimals and structures are text, and a truth in a column of text is a word."""
    is_kept = not isinstance(value, date | Decimal | dict | list) and not (is_text and isinstance(value, bool))
    return value if is_kept else as_text(value)
