"""Defines the records that a client appends, checks their types, and packs many of them into the body of a request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, cast

import msgspec

from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.cluster.client.arguments import require, require_bytes

encode: Final = msgspec.msgpack.Encoder().encode
_BYTES: Final = frozenset((bytes, type(None)))
_INT: Final = frozenset((int, type(None)))


class NewRecord(NamedTuple):
    """A record to append. `time_ms` is the client's event time; headers may repeat."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    time_ms: int | None = None


def check_record(record: NewRecord, where: str = "") -> None:
    """Raises TypeError for a field of a wrong type, ValueError for a wrong time; `where` stands before its name."""
    if type(record) is not NewRecord:
        require(record, (where or "record.")[:-1], (NewRecord,), "NewRecord")
    value, key, headers, time_ms = record
    require_bytes(value, f"{where}value", optional=True)
    require_bytes(key, f"{where}key", optional=True)
    if time_ms is not None:
        require(time_ms, f"{where}time_ms", (int,), "int or None")
    for each in cast(Any, headers):
        if not isinstance(each, tuple | list) or len(each) != 2:
            raise TypeError(f"{where}headers: {each!r} is no pair: give (str, bytes)")
        name, content = each
        require(name, f"{where}headers: a name", (str,), "str")
        require_bytes(content, f"{where}headers: the value of {name!r}")


def pack(records: Sequence[NewRecord]) -> bytes:
    """The records as msgpack: each is its value, or [key, value, time_ms, headers]. Raises TypeError, ValueError."""
    columns = _columns_of(records)
    if columns is not None:
        values, keys, times = columns
        is_bare = {*keys, *times} == {None} and None not in values
        return encode(values if is_bare else [*zip(keys, values, times, repeat(None))])
    for number, record in enumerate(records):
        check_record(record, f"records[{number}].")
    return encode(
        [
            value
            if value is not None and key is None and time_ms is None and not named
            else [key, value, time_ms, [[name, each] for name, each in named] or None]
            for value, key, named, time_ms in records
        ]
    )


def _columns_of(records: Sequence[NewRecord]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]] | None:
    """Values, keys and times of the records; None if a record has headers, a field of another type, or a wrong time.

    Whole columns are checked and packed at a third of the cost of single records.
    """
    if {*map(type, records)} != {NewRecord}:
        return None
    values, keys, named, times = zip(*records, strict=True)
    if any(named) or not {*map(type, values), *map(type, keys)} <= _BYTES or not {*map(type, times)} <= _INT:
        return None
    given = [time_ms for time_ms in times if time_ms is not None]
    if given and not 0 <= min(given) <= max(given) <= NUMBER_MAX:
        return None
    return values, keys, times
