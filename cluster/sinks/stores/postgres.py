"""A connection to PostgreSQL, for the sinks of SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, ClassVar, Final

import msgspec
import psycopg
from psycopg.types.json import set_json_loads

from raftlog.cluster.sinks.changes import StoreRow
from raftlog.cluster.sinks.store import StoreError, StoreUnavailable, certificate_error
from raftlog.cluster.sinks.stores.sql import ArrayDatabase, DatabaseRefused, quoted

_ROWS_AT_ONCE: Final = 1_000
_CONNECT_S: Final = 10
_REFUSED: Final = ("21", "22", "23", "54")
"""Classes of PostgreSQL's codes: cardinality, data, constraints, and limits of a row."""

_exact: Final = msgspec.json.Decoder(float_hook=Decimal).decode
_PASSING: Final = ("08", "40", "53", "55", "57", "58")
"""Connections, serialization, resources, locks, shutdown, and the system."""


class PostgresDatabase(ArrayDatabase):
    """A database by a connection string of libpq, which reads PGPASSWORD and the other usual places too."""

    types: ClassVar[Mapping[str, str]] = {
        "string": "text",
        "int": "integer",
        "bigint": "bigint",
        "double": "double precision",
        "decimal": "numeric",
        "boolean": "boolean",
        "date": "date",
        "timestamp": "timestamptz",
        "binary": "bytea",
        "json": "jsonb",
    }

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: psycopg.Connection[StoreRow] | None = None

    def connect(self) -> None:
        """As `Database.connect`. A commit is on PostgreSQL's disk when it returns."""
        if self._connection is None:
            with _errors():
                self._connection = psycopg.connect(
                    self._conninfo,
                    autocommit=True,
                    connect_timeout=_CONNECT_S,
                    application_name="raftlog",
                    options="-c timezone=UTC -c synchronous_commit=on -c standard_conforming_strings=on",
                )
                set_json_loads(_exact, self._connection)

    def close(self) -> None:
        """As `Database.close`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[StoreRow]:
        """As `Database.execute`."""
        with _errors():
            cursor = self._open.execute(_numbered(statement), parameters or None)
            return cursor.fetchall() if cursor.description is not None else []

    def begin(self, *, reads: bool = False) -> None:
        """As `Database.begin`."""
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if reads else "BEGIN")

    def columns_of(self, table: str) -> dict[str, str]:
        """As `Database.columns_of`."""
        rows = self.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(?) "
            "AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (table,),
        )
        return dict(rows)

    def copy_table(self, old: str, new: str) -> bool:
        """As `Database.copy_table`."""
        self.execute(f"CREATE TABLE {quoted(new)} (LIKE {quoted(old)} INCLUDING ALL)")
        return True

    def unnest(self, names: Sequence[str]) -> str:
        """As `ArrayDatabase.unnest`."""
        return f"unnest({', '.join(['?::text[]'] * len(names))}) AS given ({', '.join(names)})"

    def bytes_as(self, value: bytes) -> str:
        """As `ArrayDatabase.bytes_as`."""
        return f"\\x{value.hex()}"

    def array(self, cells: list[str | None]) -> object:
        """An array as PostgreSQL reads it: psycopg's own form of a list takes three times as long."""
        texts = (None if each is None else each.replace("\\", "\\\\").replace('"', '\\"') for each in cells)
        return "{" + ",".join(["NULL" if each is None else f'"{each}"' for each in texts]) + "}"

    def captures(self, source: str, table: str) -> bool:
        """As `Database.captures`: it is published, and this database has a slot."""
        found = self.execute(
            "SELECT 1 FROM pg_publication_tables AS published, pg_replication_slots AS slot "
            "WHERE published.schemaname || '.' || published.tablename = ? AND to_regclass(?) = to_regclass(?) "
            "AND slot.database = current_database() AND slot.slot_type = 'logical' LIMIT 1",
            (source, quoted(source), quoted(table)),
        )
        return bool(found)

    def stream(self, statement: str) -> Iterator[StoreRow]:
        """As `Database.stream`, by a cursor of the server."""
        with _errors(), self._open.cursor(name="raftlog") as cursor:
            cursor.itersize = _ROWS_AT_ONCE
            yield from cursor.execute(statement)

    @property
    def _open(self) -> psycopg.Connection[StoreRow]:
        if self._connection is None:
            raise StoreUnavailable("PostgreSQL: the connection is closed")
        return self._connection


def _numbered(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s") if "?" in statement else statement


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""
        why = (error.diag.message_primary or str(error)).strip()
        detail = f": {error.diag.message_detail}" if error.diag.message_detail else ""
        if not state and "certificate verify failed" in why:
            raise certificate_error("PostgreSQL", why, "its url: sslrootcert=FILE") from error
        if state[:2] in _REFUSED or (isinstance(error, psycopg.DataError) and not state):
            raise DatabaseRefused(f"{why}{detail}") from error
        if "authentication failed" in why:
            raise StoreError(f"PostgreSQL refuses the user of the url: {why}") from error
        is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and state[:2] != "28"
        if state[:2] in _PASSING or (is_lost and not _is_refused_at_connect(why)):
            raise StoreUnavailable(f"PostgreSQL: {why}{detail}") from error
        raise StoreError(f"PostgreSQL: {why}{detail}") from error


def _is_refused_at_connect(why: str) -> bool:
    """Whether no waiting helps: psycopg gives no code for what PostgreSQL says before the connection stands."""
    return any(each in why for each in ("does not exist", "certificate", "no pg_hba.conf entry"))
