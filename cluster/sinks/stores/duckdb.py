"""A connection to a DuckDB file, for the sinks of SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

import duckdb

from raftlog.cluster.sinks.store import StoreError, StoreUnavailable
from raftlog.cluster.sinks.stores.sql import ArrayDatabase, DatabaseRefused


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
    columns_query: ClassVar[str] = (
        "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? AND schema_name = 'main' "
        "AND database_name = current_database() ORDER BY column_index"
    )

    def _connected(self) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect(str(self._place))
        connection.execute("SET TimeZone = 'UTC'")
        return connection

    def unnest(self, names: Sequence[str]) -> str:
        return f"(SELECT {', '.join(f'unnest(CAST(? AS VARCHAR[])) AS {name}' for name in names)})"

    def bytes_as(self, value: bytes) -> str:
        return "".join(f"\\x{each:02x}" for each in value)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.IntegrityError, duckdb.DataError) as error:
            raise DatabaseRefused(str(error)) from error
        except duckdb.OperationalError as error:  # also of a file that another process has open, and of a full disk
            raise StoreUnavailable(f"{self._place}: {error}") from error
        except duckdb.Error as error:
            raise StoreError(f"{self._place}: {error}") from error
