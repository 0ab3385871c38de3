"""Writes cells as text and as JSON, for stores whose values have no types; pure.

For `raftlog sink verify` a cell that is read back is the same: numbers keep every digit, and bytes stay bytes.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from math import isfinite
from typing import Any, Final

import msgspec

from raftlog.cluster.sinks.changes import UNCHANGED, StoreRow
from raftlog.cluster.sinks.columns import number_text
from raftlog.cluster.sinks.mapping import SinkColumn

encode_json: Final = msgspec.json.Encoder(decimal_format="number").encode
_encode_sorted: Final = msgspec.json.Encoder(decimal_format="number", order="sorted").encode
decode_json: Final = msgspec.json.Decoder(float_hook=Decimal).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_PLACES: Final = re.compile(r"\{([^{}]*)\}")


def text_of(cell: Any, column: SinkColumn) -> bytes:
    """A cell that is not None as text; bytes stay as they are. Raises ValueError, TypeError."""
    kind = type(cell)
    if kind is str:
        return str.encode(cell)
    if kind is int:
        return b"%d" % cell
    if kind is float:
        return number_text(cell).encode()
    match cell:
        case bytes():
            return cell
        case bool():
            return b"true" if cell else b"false"
        case Decimal() if column.kind is not None:
            return format(cell, "f").encode()  # 9.50 of decimal(10,2)
        case Decimal():
            return number_text(cell).encode()
        case date():  # also a datetime
            return cell.isoformat().encode()
        case _:
            return _encode_sorted(cell)


def cell_of_text(text: bytes, column: SinkColumn) -> str | bytes:
    """The cell that `text_of` wrote: a string, or bytes of a binary column or without UTF-8."""
    if column.kind != "binary":
        with suppress(UnicodeDecodeError):
            return text.decode()
    return text


def members_of(columns: Iterable[SinkColumn], row: StoreRow) -> dict[str, Any]:
    """The cells of a row as members of a JSON object, without those that the change does not know; bytes as base64.

    Raises ValueError.
    """
    cells = zip(columns, row, strict=True)
    return {column.name: member_of(cell, column) for column, cell in cells if cell is not UNCHANGED}


def cells_of_json(text: bytes, columns: Iterable[SinkColumn]) -> dict[str, Any]:
    """The cells of an object that `members_of` made, by name; none of any other text."""
    try:
        members = _decode_members(text)
    except msgspec.MsgspecError:
        return {}
    return {column.name: _cell(members[column.name], column) for column in columns if column.name in members}


def member_of(cell: Any, column: SinkColumn) -> Any:
    """A cell as a member of a JSON object. Raises ValueError."""
    match cell:
        case str() if column.kind == "json":
            return msgspec.Raw(cell.encode())
        case bytes() if column.kind != "binary":
            raise ValueError(f"{column.name} is no UTF-8 text: give it the type binary")
        case float() if not isfinite(cell):
            return number_text(cell)  # JSON has no such number
        case date():
            return cell.isoformat()
        case _:
            return cell


def _cell(member: msgspec.Raw, column: SinkColumn) -> Any:
    value = decode_json(member)
    if value is not None and column.kind == "json":
        return bytes(member).decode()
    if isinstance(value, str) and column.kind == "binary":
        with suppress(ValueError):
            return b64decode(value)
    return value


class KeyTemplate:
    """Names rows by their primary key: `customer:{id}`. Two rows never have the same name."""

    def __init__(self, template: str, primary_key: Sequence[str]) -> None:
        """Raises ValueError."""
        parts = _PLACES.split(template)
        names = parts[1::2]
        if sorted(names) != sorted(primary_key):
            wanted = ", ".join(f"{{{name}}}" for name in primary_key)
            raise ValueError(
                f"key is {template!r}: it names each column of the primary key once, and no other: {wanted}"
            )
        if "" in parts[2:-1:2]:
            raise ValueError(f"key is {template!r}: it has text between two columns, so that their values stay apart")
        self.text = template
        self._literals = [part.encode() for part in parts[::2]]
        self._at = [primary_key.index(name) for name in names]  # of each place, which column of the primary key
        pattern = b"(.*?)".join(re.escape(part) for part in self._literals)
        self._pattern = re.compile(pattern, re.DOTALL)

    def name(self, key: Sequence[bytes]) -> bytes:
        """The name of the row with this primary key. Raises ValueError for one that `key_of` would not give back."""
        pieces = [self._literals[0]]
        for at, literal in zip(self._at, self._literals[1:], strict=True):
            pieces += (key[at], literal)
        name = b"".join(pieces)
        if len(key) > 1 and self.key_of(name) != [*key]:
            raise ValueError(f"the values of its key have text that stands between columns in {self.text}")
        return name

    def key_of(self, name: bytes) -> list[bytes]:
        """The primary key of the row with this name."""
        found = self._pattern.fullmatch(name)
        assert found is not None
        return [found[1 + self._at.index(each)] for each in range(len(self._at))]
