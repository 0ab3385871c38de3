"""A connection to a DuckDB file, for the sinks of SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import duckdb

from raftlog.cluster.sinks.changes import StoreRow
from raftlog.cluster.sinks.store import StoreError, StoreUnavailable
from raftlog.cluster.sinks.stores.sql import ArrayDatabase, DatabaseRefused

_ROWS_AT_ONCE: Final = 1_000


class DuckDatabase(ArrayDatabase):
    """A file of DuckDB, which is made if it is not there. One process has it open at a time."""

    types: ClassVar[Mapping[str, str]] = {
        "string": "VARCHAR",
        "int": "INTEGER",
        "bigint": "BIGINT",
        "double": "DOUBLE",
        "decimal": "DECIMAL",
        "boolean": "BOOLEAN",
        "date": "DATE",
        "timestamp": "TIMESTAMPTZ",
        "binary": "BLOB",
        "json": "VARCHAR",
    }

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: duckdb.DuckDBPyConnection | None = None

    def connect(self) -> None:
        """As `Database.connect`."""
        if self._connection is None:
            with _errors(self._path):
                self._connection = duckdb.connect(str(self._path))
                self._connection.execute("SET TimeZone = 'UTC'")

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
        self.execute("BEGIN TRANSACTION")

    def columns_of(self, table: str) -> dict[str, str]:
        """As `Database.columns_of`."""
        rows = self.execute(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? AND schema_name = 'main' "
            "AND database_name = current_database() ORDER BY column_index",
            (table,),
        )
        return dict(rows)

    def unnest(self, names: Sequence[str]) -> str:
        """As `ArrayDatabase.unnest`."""
        return f"(SELECT {', '.join(f'unnest(CAST(? AS VARCHAR[])) AS {name}' for name in names)})"

    def bytes_as(self, value: bytes) -> str:
        """As `ArrayDatabase.bytes_as`."""
        return "".join(f"\\x{each:02x}" for each in value)

    def stream(self, statement: str) -> Iterator[StoreRow]:
        """As `Database.stream`."""
        with _errors(self._path):
            found = self._open.execute(statement)
            while rows := found.fetchmany(_ROWS_AT_ONCE):
                yield from rows

    @property
    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            raise StoreUnavailable(f"the connection to {self._path} is closed")
        return self._connection


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (duckdb.IntegrityError, duckdb.DataError) as error:
        raise DatabaseRefused(str(error)) from error
    except duckdb.OperationalError as error:  # also of a file that another process has open, and of a full disk
        raise StoreUnavailable(f"{path}: {error}") from error
    except duckdb.Error as error:
        raise StoreError(f"{path}: {error}") from error
