"""Reads values into rows of named members, by their format: JSON, msgpack, CSV, or what an import's schema says.

A row of text cells is a `Cells`, so that "12" becomes a number there, and in JSON does not. A value that is not of its
format is an `Unreadable`, so that one bad value costs only itself.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, Final

import msgspec

from raftlog.cluster.importer.formats import access_log, rows, syslog
from raftlog.cluster.importer.formats.dialect import Dialect, is_row_open
from raftlog.cluster.importer.formats.schema import Schema

MISSING: Final = object()
"""In place of a row: the record has no value."""

CELLS: Final = "_cells"
"""Member of a row of CSV that has more or fewer cells than there are columns: all its cells."""

LINE: Final = "line"
"""Member of a plain line."""

_MAPS: Final = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})  # first bytes of a map in msgpack

Parse = Callable[[Sequence[bytes]], Iterable[Any]]


class Cells(dict[str, Any]):
    """A row of text."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A value that is not of its format, and why."""

    data: bytes
    reason: str


def parse_of(form: str, dialect: Dialect, names: Sequence[str], *, exact: bool = False) -> Parse:
    """The parser of json, msgpack or csv; with auto the parser of values without an import's schema.

    `names`: those of the columns of CSV. `exact`: numbers of JSON keep every digit, as Decimal.
    """
    match form:
        case "json":
            return exact_json if exact else _json
        case "msgpack":
            return _msgpack
        case "csv":
            return _table(dialect, names)
        case _:
            return partial(_guessed, exact_json if exact else _json)


def parse_of_import(schema: Schema, *, exact: bool = False) -> Parse:
    """The parser of the values of an import. `exact`: as of `parse_of`."""
    names = [column.name for column in schema.columns]
    return parse_of_values(schema.values, schema.dialect or Dialect(), names, exact=exact)


def parse_of_values(values: str, dialect: Dialect, names: Sequence[str], *, exact: bool = False) -> Parse:
    """The parser of values that an import calls csv, json, access, syslog or lines. `names`: those of CSV's columns."""
    match values:
        case "csv" | "json":
            return parse_of(values, dialect, names, exact=exact)
        case "access":
            return _access_lines
        case "syslog":
            return _syslog_lines
        case "lines":
            return lambda given: [_line(value) for value in given]
        case _:
            return lambda given: [Unreadable(value, f"an import of {values}") for value in given]


def _decoded(decode: Callable[[bytes], Any], slowly: Callable[[bytes], Any] | None = None) -> Parse:
    """A parser. What `decode` does not take may be read `slowly`, which raises ValueError."""

    def parse(values: Sequence[bytes]) -> list[Any]:
        try:
            return [decode(value) for value in values]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
            return [one(value) for value in values]

    def one(value: bytes) -> Any:
        try:
            return decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
            with suppress(ValueError):
                if slowly is not None:
                    return slowly(value)
            return Unreadable(value, str(error) or type(error).__name__)

    return parse


exact_json: Final = _decoded(msgspec.json.Decoder(float_hook=Decimal).decode, rows.json_slowly)
"""The parser of JSON whose numbers keep every digit."""

_json: Final = _decoded(msgspec.json.Decoder().decode, rows.json_slowly)
_msgpack: Final = _decoded(msgspec.msgpack.Decoder().decode)


def _guessed(json: Parse, values: Sequence[bytes]) -> list[Any]:
    """JSON objects and arrays, and maps of msgpack, by their first byte."""
    found: list[Any] = []
    for value in values:
        start = value.lstrip(b" \t\r\n")[:1]
        if start in (b"{", b"["):
            found += json([value])
        elif start and value[0] in _MAPS:
            found += _msgpack([value])
        else:
            found.append(Unreadable(value, "neither an object of JSON nor a map of msgpack, and of no import"))
    return found


def _table(dialect: Dialect, names: Sequence[str]) -> Parse:
    names = tuple(names)

    def parse(values: Sequence[bytes]) -> list[Any]:
        return [row if isinstance(row, Unreadable) else _named(row, names) for row in cells_of(values, dialect)]

    return parse


def _named(cells: list[str], names: tuple[str, ...]) -> Cells:
    row = Cells((name, cell or None) for name, cell in zip(names, cells, strict=False))
    if len(cells) != len(names):
        row[CELLS] = cells
    return row


def cells_of(values: Sequence[bytes], dialect: Dialect) -> list[list[str] | Unreadable]:
    """The cells of each row of CSV."""
    quote = dialect.quote.encode()
    found: list[list[str] | Unreadable] = []
    for value, row in zip(values, rows.csv_rows(values, dialect), strict=True):
        if isinstance(row, ValueError):
            found.append(Unreadable(value, str(row)))
        elif quote in value and is_row_open(value, dialect):
            found.append(Unreadable(value, "a quoted field does not end"))
        else:
            found.append(row)
    return found


def _access_lines(values: Sequence[bytes]) -> list[Any]:
    return [_access_line(value) for value in values]


def _access_line(value: bytes) -> Any:
    if not access_log.is_access_line(value):
        return Unreadable(value, "no line of an access log")
    found = {name: rows.look_in_access_log(value, name) for name in access_log.FIELDS}
    return Cells((name, each) for name, each in found.items() if each is not None)


def _syslog_lines(values: Sequence[bytes]) -> list[Any]:
    return [
        Unreadable(value, str(row)) if isinstance(row, ValueError) else Cells(row)
        for value, row in zip(values, rows.syslog_rows(values), strict=True)
    ]


def _line(value: bytes) -> Any:
    try:
        return Cells({LINE: value.decode()})
    except UnicodeDecodeError as error:
        return Unreadable(value, str(error))


FIXED_MEMBERS: Final = {"access": access_log.FIELDS, "syslog": syslog.FIELDS, "lines": (LINE,)}
"""The members of values whose format names them, and not the import's columns."""
