"""Keeps the rows that tables had when a slot was made in a file, until all of them are in the log.

`raftlog.cluster.importer.postgres.source` writes and reads it. PostgreSQL's snapshot ends with its connection, so a
second reading of the tables would see other rows. Nothing goes into the log before the file is complete; after that,
reading can go on at any line (docs/decisions/0022).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.postgres.messages import PgColumn, Relation
from raftlog.cluster.importer.postgres.values import PgTable, Place, place_of, unescaped
from raftlog.cluster.importer.source import SourceError
from raftlog.cluster.runtime.file_errors import create_private, sync_folder

_VERSION: Final = 1
_END_OF_TABLE: Final = b"\\.\n"


class SnapshotHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line, written before the slot is made: a file that is left behind names the slot to drop."""

    raftlog_snapshot: int
    id: str
    system: str
    slot: str


class _Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The second line: where the stream goes on, and when."""

    lsn: int
    time_us: int  # since 2000


class _TableHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The line before the rows of a table; a line with `\\.` is after them."""

    name: str
    identity: str
    columns: list[tuple[str, int, bool]]
    primary: tuple[str, ...]


_encode: Final = msgspec.json.Encoder().encode
_head: Final = msgspec.json.Decoder(SnapshotHead).decode
_origin: Final = msgspec.json.Decoder(_Origin).decode
_table: Final = msgspec.json.Decoder(_TableHead).decode


@dataclass(frozen=True, slots=True)
class SnapshotPosition:
    """Where the reading of a snapshot stands: the line of the table's head, the next line, and the rows so far."""

    table: int = 0  # 0: before the first table
    at: int = 0
    rows: int = 0


def read_head(path: Path) -> SnapshotHead | None:
    """The first line of the file; None if there is no file, or a file that ends in its first line."""
    try:
        with path.open("rb") as file:
            return _head(file.readline())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


class TableSnapshotWriter:
    """Writes a snapshot beside its place. `finish` puts it there."""

    def __init__(self, path: Path, system: str, slot: str) -> None:
        self._path = path
        self._aside = aside_of(path)
        self.id = secrets.token_hex(8)
        self._file = create_private(self._aside)
        self._line(SnapshotHead(_VERSION, self.id, system, slot))
        self._sync()
        self._head_bytes = self._file.tell()
        self._is_finished = False

    def begin(self, lsn: int, time_us: int) -> None:
        """The slot is made."""
        self._line(_Origin(lsn, time_us))

    def table(self, relation: Relation, primary: tuple[str, ...], rows: Iterator[bytes]) -> int:
        """Writes one table; returns the number of rows."""
        columns = [(each.name, each.type, each.is_key) for each in relation.columns]
        self._line(_TableHead(relation.name, relation.identity, columns, primary))
        count = 0
        for row in rows:
            self._file.write(row)
            count += 1
        self._file.write(_END_OF_TABLE)
        return count

    def finish(self) -> None:
        """Makes the file durable and complete."""
        self._sync()
        self._file.close()
        self._aside.replace(self._path)
        sync_folder(self._path.parent)
        self._is_finished = True

    def close(self) -> None:
        """Closes the file. Of one that is not finished its first line stays aside; the disk may be full of the rest."""
        with suppress(OSError):
            self._file.close()
        if not self._is_finished:
            os.truncate(self._aside, self._head_bytes)

    def _line(self, value: msgspec.Struct) -> None:
        self._file.write(_encode(value) + b"\n")

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        sync_folder(self._path.parent)


def aside_of(path: Path) -> Path:
    """The file of a snapshot that is not complete."""
    return path.with_name(f"{path.name}.new")


def rows_of(
    path: Path, id: str, reached: SnapshotPosition, batch: int, bytes_max: int
) -> Iterator[tuple[list[NewRecord], SnapshotPosition]]:
    """The records after a position, some at a time, each with the position after them. Raises SourceError, OSError."""
    head = read_head(path)
    if head is None or head.id != id:
        raise SourceError(
            f"{path} is missing, or of another snapshot: it has rows that are not in the log yet. Put it back, or "
            f"begin again with another state file and another slot"
        )
    with path.open("rb") as file:
        file.readline()
        origin = _origin(file.readline())
        place = place_of(origin.lsn, None, origin.time_us)
        at, rows, table_at = reached.at or file.tell(), reached.rows, reached.table
        table: PgTable | None = None
        if table_at:
            file.seek(table_at)
            table = _opened(file.readline())
        file.seek(at)
        records: list[NewRecord] = []
        size = 0
        for line in file:
            start, at = at, at + len(line)
            if table is None:
                table, table_at = _opened(line), start
            elif line == _END_OF_TABLE:
                table, table_at = None, 0
            else:
                rows += 1
                records.append(_record(table, line, place, rows))
                size += len(line)
                if len(records) >= batch or size >= bytes_max:
                    yield records, SnapshotPosition(table_at, at, rows)
                    records, size = [], 0
        if records:
            yield records, SnapshotPosition(table_at, at, rows)


def _opened(line: bytes) -> PgTable:
    head = _table(line)
    columns = tuple(PgColumn(*each) for each in head.columns)
    return PgTable(Relation(0, head.name, head.identity, columns), head.primary)


def _record(table: PgTable, line: bytes, place: Place, number: int) -> NewRecord:
    row = unescaped(line[:-1].split(b"\t"))
    members = b'"before":null,"after":%b' % table.image(row)[0]
    return table.record(table.key(row), b"snapshot", place, number, members)
