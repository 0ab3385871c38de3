"""Makes a record of a row: JSON with the table, the operation, both images and the place in PostgreSQL's log.

`raftlog.cluster.importer.postgres.changes` calls it for the stream, `snapshot` for rows. Booleans, numbers
and JSON keep their types, with every digit. Times are ISO 8601. Every other type is PostgreSQL's own text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from raftlog.cluster.api.text import counted
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.postgres.messages import UNCHANGED, MessageError, Relation, Row, Value
from raftlog.statemachine.commands import KEY_BYTES_MAX

ROW_BYTES_MAX: Final = 4 << 20
"""Most bytes of one change as JSON; a request may have 8 MiB."""

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_MS: Final = 946_684_800_000

_encode: Final = msgspec.json.Encoder().encode
_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
_TIME: Final = re.compile(rb"[0-9]{4,}-[0-9]{2}-[0-9]{2} [0-9:]{8}(?:\.[0-9]+)?(?:\+00)?").fullmatch


def as_lsn(lsn: int) -> str:
    """The position in PostgreSQL's log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """The position of PostgreSQL's text."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


# -- one value: PostgreSQL's text as JSON -----------------------------------------------------------------------------
def _text(value: bytes) -> bytes:
    return _encode(value.decode())


def _bool(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def _number(value: bytes) -> bytes:
    return value if _NUMBER(value) else _text(value)  # NaN and Infinity are no numbers in JSON


def _json(value: bytes) -> bytes:
    try:
        return bytes(_raw(value.replace(b"\n", b" ").replace(b"\r", b" ")))  # in a string they are escaped
    except msgspec.MsgspecError:
        return _text(value)


def _time(value: bytes) -> bytes:
    """ISO 8601 of a time in UTC, or without a zone. Infinite times, and those before Christ, stay as they are."""
    if not _TIME(value):
        return _text(value)
    return b'"%b"' % value.replace(b" ", b"T").replace(b"+00", b"Z")


_FORMS: Final[dict[int, Callable[[bytes], bytes]]] = {
    16: _bool,
    **dict.fromkeys((20, 21, 23, 26, 700, 701, 1700), _number),  # int8, int2, int4, oid, float4, float8, numeric
    **dict.fromkeys((114, 3802), _json),  # json, jsonb
    **dict.fromkeys((1114, 1184), _time),  # timestamp, timestamptz
}


# -- one row --------------------------------------------------------------------------------------------------------
class Place(NamedTuple):
    """Where a change stands in PostgreSQL's log: what all records of a transaction say."""

    lsn: bytes  # of the commit; of a snapshot, its position
    rest: bytes  # transaction and time, as members of a JSON object
    time_ms: int


def place_of(lsn: int, xid: int | None, time_us: int) -> Place:
    """The place of a transaction. The time is in microseconds since 2000. Raises MessageError."""
    try:
        time = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        raise MessageError(f"PostgreSQL sent a commit at {time_us} microseconds after 2000, which is no time") from None
    shown = time.isoformat(timespec="microseconds").replace("+00:00", "Z")
    rest = f'"xid":{"null" if xid is None else xid},"time":"{shown}"'
    return Place(as_lsn(lsn).encode(), rest.encode(), _EPOCH_MS + time_us // 1000)


class KeyColumn(NamedTuple):
    """A column of a primary key, as PostgreSQL's catalog has it now.

    `place` is its place among the columns of every message of the table, from 0. It is None if the place may have been
    another one: a column before it was dropped, or is not published.
    """

    name: str
    type: int
    place: int | None


def names_of_key(relation: Relation, key: Sequence[KeyColumn]) -> tuple[str, ...] | None:
    """The names that the columns of the key have in the relation; None if they are not certain.

    The relation is as old as the change that follows it, and the key is of now: a column may have another name since.
    """
    names: set[str] = set()
    for column in key:
        found = relation.columns[column.place : column.place + 1] if column.place is not None else ()
        if not found or (column.name != found[0].name and column.type != found[0].type):
            found = tuple(each for each in relation.columns if each.name == column.name)
        names.update(each.name for each in found)
    return tuple(sorted(names)) if len(names) == len(key) else None


class PgTable:
    """A table with what its rows need: names, conversions, and the columns of the key.

    `primary` are the columns of the primary key. They matter if the replica identity is full, which names no key.
    """

    def __init__(self, relation: Relation, primary: Sequence[str] = ()) -> None:
        self.name = relation.name
        self.relation = relation
        self._columns = [
            (b"%b:" % _encode(each.name), _FORMS.get(each.type, _text), each.name) for each in relation.columns
        ]
        wanted = set(primary) if relation.identity == "f" else {each.name for each in relation.columns if each.is_key}
        self._key = [number for number, each in enumerate(relation.columns) if each.name in wanted]
        self._name = _encode(self.name)
        self._newest: list[tuple[Value, bytes]] = [(None, start + b"null") for start, _, _ in self._columns]

    def image(self, row: Row) -> tuple[bytes, list[str]]:
        """The columns as JSON, and the names of those whose value is not logged. Raises MessageError."""
        self.check(row)
        members: list[bytes] = []
        unchanged: list[str] = []
        newest = self._newest  # value and member of each column
        for at, value in enumerate(row):
            known, member = newest[at]
            if value == known:  # most columns of an update, and many of neighbouring rows
                members.append(member)
            elif value is UNCHANGED:
                unchanged.append(self._columns[at][2])
            else:
                start, form, name = self._columns[at]
                try:
                    member = start + (b"null" if value is None else form(value))
                except UnicodeDecodeError:
                    raise self._not_text(name) from None
                members.append(member)
                newest[at] = (value, member)
        return b"{%b}" % b",".join(members), unchanged

    def key_image(self, row: Row) -> bytes:
        """The columns of the key alone, as JSON."""
        return b"{%b}" % b",".join([self._columns[number][0] + self._of_key(number, row) for number in self._key])

    def key(self, row: Row | None) -> bytes:
        """The record's key: a JSON array of the table and the values of its key. Raises MessageError."""
        key = b"[%b]" % b",".join(
            [self._name, *([] if row is None else [self._of_key(each, row) for each in self._key])]
        )
        if len(key) > KEY_BYTES_MAX:
            raise MessageError(
                f"a row of {self.name} has a key of {len(key)} bytes: the limit is {KEY_BYTES_MAX}. Choose a shorter "
                f"one: ALTER TABLE {self.name} REPLICA IDENTITY USING INDEX …"
            )
        return key

    def has_same_key(self, one: Row, other: Row) -> bool:
        """Whether both rows have the same key."""
        return all(one[each] == other[each] for each in self._key)

    def filled(self, new: Row, old: Row, is_full: bool) -> Row:
        """The new row, with the old row's values where none is logged. Of an old row that is not full, its key."""
        known = range(len(old)) if is_full else self._key
        return [old[at] if each is UNCHANGED and at in known else each for at, each in enumerate(new)]

    def check(self, row: Row) -> None:
        """Raises MessageError if the row has not the table's columns."""
        if len(row) != len(self._columns):
            raise MessageError(f"{self.name}: a row has {counted(len(row), 'column')}, the table {len(self._columns)}")

    def record(self, key: bytes, op: bytes, place: Place, number: int, members: bytes) -> NewRecord:
        """The record of one change. Raises MessageError if it is too large."""
        value = b'{"op":"%b","table":%b,"lsn":"%b","n":%d,%b,%b}' % (
            op,
            self._name,
            place.lsn,
            number,
            place.rest,
            members,
        )
        if len(value) > ROW_BYTES_MAX:
            raise MessageError(
                f"a change of {self.name} has {len(value)} bytes as JSON: the limit is {ROW_BYTES_MAX}. Leave a column "
                f"out: ALTER PUBLICATION … SET TABLE {self.name} (column, …)"
            )
        return NewRecord(value, key, (), place.time_ms)

    def _of_key(self, number: int, row: Row) -> bytes:
        value = row[number]
        _, form, name = self._columns[number]
        if value is UNCHANGED:
            raise MessageError(f"{self.name}: a row comes without the value of {name}, which is of its key")
        try:
            return b"null" if value is None else form(value)
        except UnicodeDecodeError:
            raise self._not_text(name) from None

    def _not_text(self, column: str) -> MessageError:
        return MessageError(f"{self.name}: a value of column {column} is not UTF-8")


def unescaped(fields: Iterable[bytes]) -> Row:
    """The values of one line of `COPY … TO STDOUT`, split at its tabs."""
    return [
        None if field == b"\\N" else _ESCAPES.sub(_unescape, field) if b"\\" in field else field for field in fields
    ]


_ESCAPES: Final = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def _unescape(found: re.Match[bytes]) -> bytes:
    return _ESCAPED.get(found[1], found[1])
