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
from raftlog.cluster.sinks.stores.sql import ROWS_AT_ONCE, ArrayDatabase, DatabaseRefused, quoted

_CONNECT_S: Final = 10
_REFUSED: Final = ("21", "22", "23", "54")
"""Classes of PostgreSQL's codes: cardinality, data, constraints, and limits of a row."""

_exact: Final = msgspec.json.Decoder(float_hook=Decimal).decode
_PASSING: Final = ("08", "25006", "40", "53", "55", "57", "58")
"""Connections, a server that only reads (as after a failover), serialization, resources, locks, shutdown, system."""


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
    begins: ClassVar[tuple[str, str]] = ("BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    columns_query: ClassVar[str] = (
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(?) "
        "AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )

    def __init__(self, conninfo: str) -> None:
        super().__init__("PostgreSQL")
        self._conninfo = conninfo

    def _connected(self) -> psycopg.Connection[StoreRow]:
        connection = psycopg.connect(
            self._conninfo,
            autocommit=True,
            connect_timeout=_CONNECT_S,
            application_name="raftlog",
            options="-c timezone=UTC -c synchronous_commit=on -c standard_conforming_strings=on",
        )
        set_json_loads(_exact, connection)
        return connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[StoreRow]:
        with self._errors():
            cursor = self._open.execute(_numbered(statement), parameters or None)
            return cursor.fetchall() if cursor.description is not None else []

    def copy_table(self, old: str, new: str) -> bool:
        self.execute(f"CREATE TABLE {quoted(new)} (LIKE {quoted(old)} INCLUDING ALL)")
        return True

    def unnest(self, names: Sequence[str]) -> str:
        return f"unnest({', '.join(['?::text[]'] * len(names))}) AS given ({', '.join(names)})"

    def bytes_as(self, value: bytes) -> str:
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
        with self._errors(), self._open.cursor(name="raftlog") as cursor:
            cursor.itersize = ROWS_AT_ONCE
            yield from cursor.execute(statement)

    @contextmanager
    def _errors(self) -> Iterator[None]:
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
            if state.startswith(_PASSING) or (is_lost and not _is_refused_at_connect(why)):
                raise StoreUnavailable(f"PostgreSQL: {why}{detail}") from error
            raise StoreError(f"PostgreSQL: {why}{detail}") from error


def _numbered(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s") if "?" in statement else statement


def _is_refused_at_connect(why: str) -> bool:
    """Whether no waiting helps: psycopg gives no code for what PostgreSQL says before the connection stands."""
    return any(each in why for each in ("does not exist", "certificate", "no pg_hba.conf entry"))
