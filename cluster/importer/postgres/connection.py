"""Talks to PostgreSQL as a replication client: queries, `COPY`, and the stream of a slot with its confirmations.

`raftlog.cluster.importer.postgres.source` uses it. psycopg's wrapper of libpq connects, proves the user's identity and
encrypts. It confirms nothing by itself: PostgreSQL may forget only what this class reports as flushed.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from raftlog.cluster.importer.source import SourceError

_SETTINGS: Final = {
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "search_path": "public",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
"""What decides how values are written, whatever the role or the database has set."""

_CONNECT_S: Final = "10"
_STATUS: Final = struct.Struct(">cQQQqB")
_ALIVE: Final = struct.Struct(">cQqB")
_DATA_AT: Final = 25  # after the kind, two positions and a time
_EPOCH_US: Final = 946_684_800_000_000

SLOT_IN_USE: Final = "55006"
"""PostgreSQL's code of an object that another session uses."""


class ConnectionLost(OSError):
    """PostgreSQL cannot be reached, or the connection has ended."""


class QueryFailed(SourceError):
    """PostgreSQL refused a command. `state` is its code."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(f"PostgreSQL: {message}")
        self.state = state


class Alive(NamedTuple):
    """PostgreSQL has sent everything up to `lsn`, as far as it concerns the slot. It may want a report."""

    lsn: int
    wants_report: bool


def parse_conninfo(text: str) -> dict[str, Any]:
    """The parts of a connection string. The error has nothing of the string, which may hold a password."""
    try:
        return dict(conninfo_to_dict(text))
    except psycopg.Error:
        raise SourceError(
            "this is not a connection string of PostgreSQL: give 'host=… port=… dbname=… user=…' or postgresql://…"
        ) from None


def identifier(name: str) -> str:
    """The name, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """The text, quoted for SQL."""
    return "'" + text.replace("'", "''") + "'"


class PgConnection:
    """One connection. Raises ConnectionLost and QueryFailed from every method."""

    def __init__(self, conninfo: dict[str, Any]) -> None:
        given = conninfo.get("options") or os.environ.get("PGOPTIONS", "")
        options = " ".join([given, *(f"-c {name}={value}" for name, value in _SETTINGS.items())]).strip()
        fixed = {"options": options, "replication": "database", "client_encoding": "UTF8"}
        text = make_conninfo("", **{"connect_timeout": _CONNECT_S, "application_name": "raftlog", **conninfo, **fixed})
        self._libpq = pq.PGconn.connect(text.encode())
        if self._libpq.status != pq.ConnStatus.OK:
            message = _line(self._libpq.error_message)
            self._libpq.finish()
            raise ConnectionLost(message)
        self._poll = select.poll()
        self._poll.register(self._libpq.socket, select.POLLIN)

    def close(self) -> None:
        """Ends the connection."""
        self._libpq.finish()

    def query(self, sql: str) -> list[tuple[str | None, ...]]:
        """The rows of a command, as text."""
        result = self._checked(self._libpq.exec_(sql.encode()))
        return [
            tuple(
                None if (value := result.get_value(row, column)) is None else value.decode()
                for column in range(result.nfields)
            )
            for row in range(result.ntuples)
        ]

    def value(self, sql: str) -> str:
        """The only value of the only row."""
        ((value,),) = self.query(sql)
        return value or ""

    def copy(self, sql: str) -> Iterator[bytes]:
        """The lines of `COPY … TO STDOUT`."""
        self._checked(self._libpq.exec_(sql.encode()))
        while (line := self._copied(0)) is not None:
            yield line

    def start(self, slot: str, lsn: str, publication: str) -> None:
        """Starts the stream of the slot with the transactions whose commit is at the position or after it."""
        names = literal(identifier(publication))
        self._checked(
            self._libpq.exec_(
                f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {lsn} (proto_version '1', "
                f"publication_names {names})".encode()
            )
        )

    def received(self, timeout_s: float) -> bytes | Alive | None:
        """The next message of the stream; None if none came in time. With 0 seconds it does not wait."""
        data = self._copied(1)
        if data == b"" and timeout_s:
            self._poll.poll(timeout_s * 1000)
        if data == b"":
            try:
                self._libpq.consume_input()
            except psycopg.Error as error:
                raise ConnectionLost(_line(str(error).encode())) from None
            data = self._copied(1)
        if data is None:
            raise ConnectionLost("PostgreSQL ended the stream")
        if data == b"":
            return None
        if data[:1] == b"w":
            return data[_DATA_AT:]
        try:
            kind, lsn, _, wants_report = _ALIVE.unpack(data)
        except struct.error:
            kind = b""
        if kind != b"k":
            raise SourceError(
                f"PostgreSQL sent {data[:1]!r} in the stream of a slot, which is neither data nor a report"
            )
        return Alive(lsn, bool(wants_report))

    def report(self, written: int, flushed: int, *, asks: bool = False) -> None:
        """Reports the received position, and the one before which PostgreSQL may forget. May ask for an answer."""
        now = time.time_ns() // 1000 - _EPOCH_US
        try:
            self._libpq.put_copy_data(_STATUS.pack(b"r", max(written, flushed), flushed, flushed, now, asks))
            self._libpq.flush()
        except psycopg.Error as error:
            raise ConnectionLost(_line(str(error).encode())) from None

    def _copied(self, is_async: int) -> bytes | None:
        """The next piece of a copy; None after the last, nothing if it would have to wait."""
        try:
            size, data = self._libpq.get_copy_data(is_async)
        except psycopg.Error as error:
            raise ConnectionLost(_line(str(error).encode())) from None
        if size < 0:
            while (result := self._libpq.get_result()) is not None:
                self._checked(result)
            return None
        return bytes(data)

    def _checked(self, result: pq.abc.PGresult) -> pq.abc.PGresult:
        if result.status not in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
            return result
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        message = _line(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message)
        if self._libpq.status != pq.ConnStatus.OK or state[:2] in ("", "08", "57"):
            raise ConnectionLost(message)
        raise QueryFailed(message, state)


def _line(message: bytes) -> str:
    return " ".join(message.decode("utf-8", "replace").split())
