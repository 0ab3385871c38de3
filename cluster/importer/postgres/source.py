"""Reads the rows of PostgreSQL tables, and then every change of them, as a source that can be read on.

`raftlog.cluster.importer.sources` offers it as `Postgres`. docs/decisions/0022 says why nothing is lost or doubled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from raftlog.cluster.api.text import counted
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.formats.lines import InputColumn, InputFormat
from raftlog.cluster.importer.formats.schema import SCHEMA_VERSION, Schema
from raftlog.cluster.importer.postgres.catalog import check_server, check_tables, find_slot, publish, published
from raftlog.cluster.importer.postgres.changes import Changes
from raftlog.cluster.importer.postgres.connection import (
    SLOT_IN_USE,
    ConnectionLost,
    PgConnection,
    QueryFailed,
    identifier,
    literal,
    parse_conninfo,
)
from raftlog.cluster.importer.postgres.messages import decode
from raftlog.cluster.importer.postgres.snapshot import (
    SnapshotPosition,
    TableSnapshotWriter,
    aside_of,
    read_head,
    rows_of,
)
from raftlog.cluster.importer.postgres.values import KeyColumn, as_lsn, lsn_of
from raftlog.cluster.importer.source import Part, SourceError
from raftlog.cluster.runtime.file_errors import naming

RETRY_S: Final = 1.0
"""Pause before a new connection, in seconds."""

UNREACHABLE_S: Final = 60.0
"""How long a copy that does not follow tries to reach PostgreSQL again."""

REPORT_S: Final = 1.0
"""Pause between two reports of the position that is in the log."""

ALIVE_S: Final = 10.0
"""Longest pause between two reports; PostgreSQL ends a silent connection after 60 s unless set otherwise."""

IN_USE_S: Final = 90.0
"""How long to wait for a slot that an earlier connection still holds: longer than PostgreSQL takes to miss it."""

_COLUMNS: Final = (
    ("op", "string"),
    ("table", "string"),
    ("lsn", "string"),
    ("n", "integer"),
    ("xid", "integer"),
    ("time", "string"),
    ("before", "object"),
    ("after", "object"),
    ("unchanged", "array"),
    ("moved_to", "object"),
    ("moved_from", "object"),
    ("cascade", "boolean"),
    ("restart_identity", "boolean"),
)
"""Members of a record's value, as docs/postgres.md explains them. Columns of tables may change: `after` has them."""

PART_RECORDS: Final = 500
PART_BYTES: Final = 256 << 10
_WAIT_S: Final = 0.2
_STANDS_MAX: Final = 3
"""Reports without progress after which the end is reached: PostgreSQL waits for a flush that no commit needs."""


@dataclass(frozen=True, slots=True)
class PgPosition:
    """All that is read: everything before `lsn`, and `done` records of the transaction whose commit is at `commit`.

    With `snapshot`, the rows of that snapshot up to `reached`; the stream then goes on at `lsn`.
    """

    system: str
    lsn: int
    commit: int = 0
    done: int = 0
    snapshot: str = ""
    reached: SnapshotPosition = field(default_factory=SnapshotPosition)


def _position(given: Any) -> PgPosition:
    try:
        return PgPosition(**{**given, "reached": SnapshotPosition(**given["reached"])})
    except (KeyError, TypeError):
        raise SourceError(f"{given!r} is no position of a copy from PostgreSQL: name another state file") from None


class Postgres:
    """The rows and changes of the tables of a publication, through a replication slot of its own.

    `conninfo` is libpq's connection string; libpq takes what it lacks from PGHOST, PGPASSWORD, PGPASSFILE and others.
    `snapshot` is the file for the rows that are there already. Without `follow` the reading ends with the transactions
    that were committed when it began. `again` drops a slot that is left from an earlier copy.
    """

    def __init__(
        self,
        conninfo: str,
        tables: Sequence[str] = (),
        *,
        snapshot: Path,
        slot: str = "raftlog",
        publication: str | None = None,
        follow: bool = True,
        again: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = f"PostgreSQL slot {slot}"
        self.reads_ahead = True  # its confirmations must not wait for the next change
        self.schema = Schema(
            version=SCHEMA_VERSION,
            source=slot,
            format=InputFormat.NDJSON,
            values="json",
            columns=tuple(InputColumn(*column) for column in _COLUMNS),
        )
        self._conninfo = parse_conninfo(conninfo)
        self._tables = tables
        self._snapshot = snapshot
        self._slot = slot
        self._publication = publication or slot
        self._follow = follow
        self._again = again
        self._tell = tell
        self._is_checked = False  # the tables
        self._stopped = threading.Event()
        self._has_ended = threading.Event()
        self._has_ended.set()
        self._confirmed = 0
        self._target: int | None = None

    def confirm(self, position: Any) -> None:
        """PostgreSQL may forget everything before the position. The rows of a snapshot that is in the log go too."""
        now = _position(position)
        if not now.snapshot:
            self._confirmed = now.lsn
            self._snapshot.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the reading, and reports the newest confirmed position."""
        self._stopped.set()
        self._has_ended.wait(2 * REPORT_S)

    def read(self, position: Any | None) -> Iterator[Part]:
        """The records after the position. Raises SourceError."""
        at = None if position is None else _position(position)
        if at is not None and not at.snapshot:
            self._confirmed = at.lsn
        self._has_ended.clear()
        trouble, lost_at = "", None
        try:
            while not self._stopped.is_set():
                try:
                    with closing(PgConnection(self._conninfo)) as connection:
                        check_server(connection)
                        trouble, lost_at = "", None
                        for part in self._connected(connection, at):
                            at = _position(part.position)
                            yield part
                        return
                except ConnectionLost as error:
                    lost_at = lost_at or time.monotonic()
                    if at is None or (not self._follow and time.monotonic() > lost_at + UNREACHABLE_S):
                        raise SourceError(f"PostgreSQL cannot be reached: {error}") from None
                    if str(error) != trouble:
                        trouble = str(error)
                        self._tell(f"PostgreSQL cannot be reached: {trouble}; trying again")
                    self._stopped.wait(RETRY_S)
        finally:
            self._has_ended.set()

    def _connected(self, connection: PgConnection, at: PgPosition | None) -> Iterator[Part]:
        ((system, *_),) = connection.query("IDENTIFY_SYSTEM")
        if at is None:
            at = self._begun(connection, system or "")
            yield _part([], at)
        elif at.system != system:
            raise SourceError(
                f"this is another PostgreSQL (system {system}) than the one that was copied (system {at.system})"
            )
        elif self._tables and not self._is_checked:
            check_tables(connection, self._publication, self._tables)
        self._is_checked = True  # the publication may change while this copy follows
        if at.snapshot:
            rows = rows_of(self._snapshot, at.snapshot, at.reached, PART_RECORDS, PART_BYTES)
            for records, reached in rows:
                yield _part(records, replace(at, reached=reached))
            at = PgPosition(at.system, at.lsn)
            yield _part([], at)
        self._check_slot(connection, at)
        if not self._follow and self._target is None:
            self._target = lsn_of(connection.value("SELECT pg_current_wal_flush_lsn()"))
        changes = Changes(at.lsn, at.commit, at.done, self._primary_keys(connection), self._look_up)
        self._start(connection, at)
        yield from self._streamed(connection, at, changes)

    def _primary_keys(self, connection: PgConnection) -> dict[int, tuple[KeyColumn, ...]]:
        return {each.relation.number: each.key for each in published(connection, self._publication)}

    def _look_up(self) -> dict[int, tuple[KeyColumn, ...]]:
        """The primary keys as they are now, by a connection of its own: the other one is streaming."""
        with closing(PgConnection(self._conninfo)) as connection:
            return self._primary_keys(connection)

    # -- the beginning ----------------------------------------------------------------------------------------------
    def _begun(self, connection: PgConnection, system: str) -> PgPosition:
        """Makes publication, slot and snapshot. Nothing is in the log yet, so what an earlier run left is dropped."""
        for path in (aside_of(self._snapshot), self._snapshot):
            left = read_head(path)
            if left is not None and left.system == system and find_slot(connection, left.slot) is not None:
                self._drop(connection, left.slot)
            path.unlink(missing_ok=True)
        found = find_slot(connection, self._slot)
        if found is not None:
            if not self._again or not found.is_ours:
                raise SourceError(
                    f"the slot {self._slot} is there, and no state file goes on with it: name another slot, or drop "
                    f"this one: SELECT pg_drop_replication_slot({literal(self._slot)})"
                )
            self._drop(connection, self._slot)
        publish(connection, self._publication, self._tables)
        aside = aside_of(self._snapshot)
        with naming(aside), closing(TableSnapshotWriter(self._snapshot, system, self._slot)) as writer:
            connection.query("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
            self._tell(f"making the slot {self._slot}: PostgreSQL waits for the transactions that are open now")
            ((_, lsn, *_),) = connection.query(
                f"CREATE_REPLICATION_SLOT {identifier(self._slot)} LOGICAL pgoutput (SNAPSHOT 'use')"
            )
            time_us = connection.value(
                "SELECT (extract(epoch FROM now() - '2000-01-01 00:00:00+00'::timestamptz) * 1000000)::bigint"
            )
            start = lsn_of(lsn or "")
            writer.begin(start, int(time_us))
            for each in published(connection, self._publication):
                rows = writer.table(each.relation, each.primary, connection.copy(f"COPY ({each.select}) TO STDOUT"))
                self._tell(f"{each.relation.name}: {counted(rows, 'row')}")
            connection.query("COMMIT")
            writer.finish()
        return PgPosition(system, start, snapshot=writer.id)

    def _drop(self, connection: PgConnection, slot: str) -> None:
        self._when_free(lambda: connection.query(f"SELECT pg_drop_replication_slot({literal(slot)})"))

    # -- the stream -------------------------------------------------------------------------------------------------
    def _check_slot(self, connection: PgConnection, at: PgPosition) -> None:
        """Raises SourceError if PostgreSQL has forgotten changes after the position."""
        found = find_slot(connection, self._slot)
        again = "Begin again with another state file: the log gets all rows once more, as a new snapshot"
        if found is None:
            raise SourceError(f"the slot {self._slot} is gone, and with it the changes after {as_lsn(at.lsn)}. {again}")
        if found.is_lost or not found.is_ours or found.confirmed > at.lsn:
            raise SourceError(
                f"PostgreSQL no longer has the changes after {as_lsn(at.lsn)} for the slot {self._slot}: its WAL was "
                f"removed (max_slot_wal_keep_size), or another client has read from the slot. {again}"
            )

    def _start(self, connection: PgConnection, at: PgPosition) -> None:
        self._when_free(lambda: connection.start(self._slot, as_lsn(at.lsn), self._publication))

    def _when_free(self, work: Callable[[], Any]) -> None:
        """Waits for a slot that a lost connection still holds. Raises SourceError."""
        until = time.monotonic() + IN_USE_S
        is_told = False
        while True:
            try:
                work()
                return
            except QueryFailed as error:
                if error.state != SLOT_IN_USE or time.monotonic() > until or self._stopped.is_set():
                    raise
                if not is_told:
                    self._tell(f"{error}; waiting for it")
                    is_told = True
                self._stopped.wait(_WAIT_S)

    def _streamed(self, connection: PgConnection, at: PgPosition, changes: Changes) -> Iterator[Part]:
        records: list[NewRecord] = []
        size = stands = 0
        reported = newest = -1
        report_at = moved_at = 0.0
        try:
            while not self._stopped.is_set():
                message = connection.received(0 if records else _WAIT_S)
                asks = wants_report = False
                if isinstance(message, bytes):
                    stands = 0
                    size += len(message)
                    if (decoded := decode(message)) is not None:
                        records += changes.feed(decoded)
                elif message is None:
                    asks = self._target is not None and not records
                else:
                    stands = stands + 1 if message.lsn == newest else 0
                    newest, wants_report = message.lsn, message.wants_report
                    changes.passed(newest)
                now = time.monotonic()
                if records and (message is None or len(records) >= PART_RECORDS or size >= PART_BYTES):
                    at = PgPosition(at.system, changes.lsn, changes.commit, changes.done)
                    yield _part(records, at)
                    records, size, moved_at = [], 0, now
                is_at_end = (
                    self._target is not None
                    and not records
                    and not changes.commit
                    and (changes.lsn >= self._target or stands >= _STANDS_MAX)
                )
                if (
                    not records
                    and changes.lsn > at.lsn
                    and not changes.commit
                    and (is_at_end or now >= moved_at + ALIVE_S)
                ):
                    at = PgPosition(at.system, changes.lsn)
                    yield _part([], at)
                    moved_at = now
                if is_at_end:
                    return
                pause = REPORT_S if self._confirmed != reported else ALIVE_S
                if asks or wants_report or now >= report_at + pause:
                    reported, report_at = self._confirmed, now
                    connection.report(changes.lsn, reported, asks=asks)
        finally:
            with suppress(ConnectionLost):
                connection.report(changes.lsn, self._confirmed)


def _part(records: list[NewRecord], position: PgPosition) -> Part:
    return Part(records, asdict(position))
