"""Decodes the messages of PostgreSQL's output plugin `pgoutput`, protocol version 1.

`raftlog.cluster.importer.postgres.changes` calls it. PostgreSQL documents the bytes under "Logical Replication Message
Formats". A message that breaks the format raises MessageError, and nothing else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from raftlog.cluster.importer.source import SourceError

FULL: Final = "f"
"""The replica identity under which PostgreSQL logs every column of the old row."""

_BEGIN: Final = struct.Struct(">QQI")
_COMMIT: Final = struct.Struct(">BQQQ")
_RELATION: Final = struct.Struct(">I")
_COLUMN: Final = struct.Struct(">Ii")
_TRUNCATE: Final = struct.Struct(">IB")
_LENGTH: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">H")


class MessageError(SourceError):
    """Bytes that are no message of this protocol."""


class UnchangedValue(Enum):
    """The value of a large column that an update did not change: PostgreSQL does not log it."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = UnchangedValue.UNCHANGED

Value: TypeAlias = bytes | UnchangedValue | None
"""A column's value as PostgreSQL writes it in text; None is NULL."""

Row: TypeAlias = list[Value]


@dataclass(frozen=True, slots=True)
class PgColumn:
    """A column: its name, the number of its type, and whether it belongs to the replica identity."""

    name: str
    type: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is from here on. `identity` is d (primary key), i (an index), f (all columns) or n (nothing)."""

    number: int
    name: str  # with its schema
    identity: str
    columns: tuple[PgColumn, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins. `lsn` is the position of its commit, `time_us` that commit's time in PostgreSQL's epoch."""

    lsn: int
    time_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction ends. What follows has its commit at `end` or later."""

    lsn: int
    end: int


class RowInserted(NamedTuple):  # tuples: one for each change, and they are made three times as fast
    """A new row."""

    relation: int
    new: Row


class RowUpdated(NamedTuple):
    """A changed row. `old` is there if the identity changed or is full; without `is_full` only its key is."""

    relation: int
    old: Row | None
    is_full: bool
    new: Row


class RowDeleted(NamedTuple):
    """A deleted row. Without `is_full` only its key is known."""

    relation: int
    old: Row
    is_full: bool


@dataclass(frozen=True, slots=True)
class TablesTruncated:
    """Tables that were emptied by one command."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


Message: TypeAlias = Relation | Begin | Commit | RowInserted | RowUpdated | RowDeleted | TablesTruncated


def decode(data: bytes) -> Message | None:
    """The message; None for one that changes no row (a type's name, an origin, a message of an application)."""
    try:
        return _decode(data)
    except (IndexError, struct.error):
        raise MessageError(_where(data, len(data), "the message ends too early")) from None


def _decode(data: bytes) -> Message | None:
    kind = data[:1]
    match kind:
        case b"I":
            (relation,) = _RELATION.unpack_from(data, 1)
            _expect(data, 5, b"N")
            new, at = _row(data, 6)
            found: Message = RowInserted(relation, new)
        case b"U":
            (relation,) = _RELATION.unpack_from(data, 1)
            old, at, how = None, 5, data[5:6]
            if how in (b"K", b"O"):
                old, at = _row(data, 6)
            _expect(data, at, b"N")
            new, at = _row(data, at + 1)
            found = RowUpdated(relation, old, how == b"O", new)
        case b"D":
            (relation,) = _RELATION.unpack_from(data, 1)
            how = data[5:6]
            if how != b"O":
                _expect(data, 5, b"K")
            old, at = _row(data, 6)
            found = RowDeleted(relation, old, how == b"O")
        case b"B":
            found, at = Begin(*_BEGIN.unpack_from(data, 1)), 1 + _BEGIN.size
        case b"C":
            _, lsn, end, _ = _COMMIT.unpack_from(data, 1)
            found, at = Commit(lsn, end), 1 + _COMMIT.size
        case b"R":
            found, at = _relation(data)
        case b"T":
            count, flags = _TRUNCATE.unpack_from(data, 1)
            at = 1 + _TRUNCATE.size + _RELATION.size * count
            if at > len(data):
                raise IndexError
            relations = struct.unpack_from(f">{count}I", data, 1 + _TRUNCATE.size)
            found = TablesTruncated(relations, bool(flags & 1), bool(flags & 2))
        case b"Y" | b"O" | b"M":
            return None
        case b"":
            raise MessageError("PostgreSQL sent an empty message")
        case _:
            raise MessageError(_where(data, 0, f"{kind!r} is no message of pgoutput's protocol version 1"))
    if at != len(data):
        raise MessageError(_where(data, at, "the message is longer than what it says"))
    return found


def _relation(data: bytes) -> tuple[Relation, int]:
    (number,) = _RELATION.unpack_from(data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity = chr(data[at])
    (count,) = _COUNT.unpack_from(data, at + 1)
    at += 3
    columns: list[PgColumn] = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        type, _ = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(PgColumn(column, type, bool(flags & 1)))
    return Relation(number, f"{schema or 'pg_catalog'}.{name}", identity, tuple(columns)), at


def _row(data: bytes, at: int) -> tuple[Row, int]:
    (count,) = _COUNT.unpack_from(data, at)
    at += 2
    size = len(data)
    length_at = _LENGTH.unpack_from
    row: Row = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 0x74:  # t
            (length,) = length_at(data, at)
            at += 4
            end = at + length
            if end > size:
                raise IndexError
            row.append(data[at:end])
            at = end
        elif kind == 0x6E:  # n
            row.append(None)
        elif kind == 0x75:  # u
            row.append(UNCHANGED)
        else:
            raise MessageError(_where(data, at - 1, f"{bytes([kind])!r} is no kind of value: n, t and u are"))
    return row, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise IndexError
    try:
        return data[at:end].decode(), end + 1
    except UnicodeDecodeError:
        raise MessageError(_where(data, at, "a name is not UTF-8")) from None


def _expect(data: bytes, at: int, kind: bytes) -> None:
    if data[at : at + 1] != kind:
        raise MessageError(_where(data, at, f"{data[at : at + 1]!r} is not {kind!r}, which begins a row here"))


def _where(data: bytes, at: int, what: str) -> str:
    """Names the fault, with the kind and size of the message and not its content, which is the user's data."""
    return f"PostgreSQL sent a message that cannot be read (kind {data[:1]!r}, {len(data)} bytes, byte {at}): {what}"
