"""Splits an input into lines, and turns lines into records; pure.

The importer and the demo call it. The value of a record is the line's bytes without the line end, or with `select` a
JSON object of the selected fields. The format only finds key, headers and the client's time. A line is rejected only if
it is blank, or if its key, headers or selected fields cannot be read.
"""

from __future__ import annotations

import io
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import count, repeat
from typing import Any, Final, NamedTuple

import msgspec

from raftlog.cluster.api.text import counted
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.formats import access_log, rows, syslog
from raftlog.cluster.importer.formats.dialect import Dialect, closed_row, is_row_open
from raftlog.cluster.importer.formats.times import ISO, Read, TimeRule, reader
from raftlog.raft.codec.block import encode_headers
from raftlog.statemachine.commands import KEY_BYTES_MAX

LINE_BYTES_MAX: Final = 1 << 20
"""Most bytes of a line with a record, which must easily fit into a request. A longer line is rejected."""

LONG_LINE_BYTES_MAX: Final = 16 << 20
"""Most bytes of a line that is rejected: it is held in memory, and put among the rejected lines."""

ROW_BYTES_MAX: Final = 64 << 10
"""Most bytes of a CSV row over several lines."""


HEADERS_BYTES_MAX: Final = 64 << 10
"""Most bytes of the headers of a record, as they are stored: the default of `limits.record_headers_bytes_max`."""


class InputFormat(StrEnum):
    """The format of an input. Rows of the last three are read as lines of NDJSON."""

    NDJSON = "ndjson"
    CSV = "csv"
    TSV = "tsv"
    ACCESS = "access"
    SYSLOG = "syslog"
    LINES = "lines"  # any text or bytes, without key and time
    JSON = "json"  # an array of objects, or objects over several lines
    PARQUET = "parquet"
    ARROW = "arrow"


TABLES: Final = (InputFormat.CSV, InputFormat.TSV)
OBJECTS: Final = (InputFormat.NDJSON, InputFormat.JSON, InputFormat.PARQUET, InputFormat.ARROW)
_FIXED: Final = {InputFormat.ACCESS: access_log.FIELDS, InputFormat.SYSLOG: syslog.FIELDS}


class InputError(ValueError):
    """The whole input cannot be imported. The message says why and what to do."""

    exit_code = 1  # of the command line


class Line(NamedTuple):
    """A line of the input, or a CSV row over several lines: its number from 1, its bytes with the line end, and its
    number of lines."""

    number: int
    raw: bytes
    lines: int = 1

    @property
    def data(self) -> bytes:
        """Its bytes without the line end."""
        return self.raw.removesuffix(b"\n")


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """A line without a valid record, and the reason."""

    number: int
    reason: str
    data: bytes


class InputColumn(msgspec.Struct, frozen=True):
    """A field of the input, and its type: integer, number, boolean, string, object, array or json."""

    name: str
    type: str


class InputOptions(msgspec.Struct, frozen=True):
    """How to read the lines of one input.

    `columns`: the names of a CSV file's columns. `types`: the fields found in the first batch. Without `times`, values
    of the field `time` are ISO 8601 or Unix milliseconds. `names`: the names in the first line of the first CSV file,
    which every further file must repeat; they differ from `columns` where the user gave other names.
    """

    format: InputFormat
    key: str | None = None
    time: str | None = None
    columns: tuple[str, ...] = ()
    dialect: Dialect = Dialect()
    headers: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    times: TimeRule | None = None
    types: tuple[InputColumn, ...] = ()
    charset: str = "utf-8"
    names: tuple[str, ...] = ()

    @property
    def has_time(self) -> bool:
        """Whether every record should have a time."""
        return self.time is not None or self.format in _FIXED


def suffix_of(name: str) -> str:
    """The end of a file's name without that of a compression: `csv` of a.csv.gz."""
    name = name.lower()
    for end in (".gz", ".zst", ".bz2", ".xz"):
        name = name.removesuffix(end)
    return name.rpartition(".")[2]


def detect(name: str, first_line: bytes) -> InputFormat:
    """The format, by the file's name and its first line. Raises InputError."""
    suffix = suffix_of(name)
    start = first_line.removeprefix(b"\xef\xbb\xbf").lstrip()
    if suffix in ("ndjson", "jsonl"):
        return InputFormat.NDJSON
    if start.startswith(b"{"):
        return InputFormat.NDJSON if start.rstrip().endswith(b"}") or suffix != "json" else InputFormat.JSON
    if start.startswith(b"[") and (suffix == "json" or start[1:].lstrip()[:1] in (b"", b"{")):
        return InputFormat.JSON
    if access_log.is_access_line(first_line):
        return InputFormat.ACCESS
    if syslog.is_syslog_line(first_line):
        return InputFormat.SYSLOG
    if suffix in ("csv", "tsv"):
        return InputFormat(suffix)
    raise InputError(
        f"the format of {name} is not clear from its name or its first line; give --format (lines: any text)"
    )


def holds_several(line: bytes) -> bool:
    """Whether a line is several JSON objects, one behind the other, and not one."""
    start = line.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start.startswith(b"{") or re.search(rb"\}[\s,]*\{", start) is None:
        return False
    try:
        text = start.decode()
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return text[end:].lstrip(" \t\r\n,").startswith("{")


def check_fields(reading: InputOptions) -> None:
    """Checks that the format has the requested fields. Raises InputError."""
    format = reading.format
    if format is InputFormat.ACCESS and reading.time is not None:
        raise InputError("--time: an access log has its time in its own place; leave the option out")
    given = [("--key", reading.key), ("--time", reading.time)]
    given += [("--headers", name) for name in reading.headers] + [("--select", name) for name in reading.select]
    for what, name in given:
        if name is None:
            continue
        if format is InputFormat.LINES:
            raise InputError(f"{what} {name}: plain lines have no fields; leave it out, or give another --format")
        if format in _FIXED and name not in _FIXED[format]:
            kind = "an access log" if format is InputFormat.ACCESS else "a syslog line"
            raise InputError(f"{what} {name}: of {kind} it is one of {', '.join(_FIXED[format])}")
        if format in TABLES and name not in reading.columns:
            raise InputError(f"{what} {name}: the first line has no such column; it has {', '.join(reading.columns)}")


def pieces_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of the chunks, each with its line end. A chunk without bytes is passed on.

    A line that is far too long is passed on in parts: the splitter of lines refuses it, and names its number.
    """
    rest: list[bytes] = []  # of a line that has not ended
    size = 0
    for chunk in chunks:
        if not chunk:
            yield b""
            continue
        if size > LINE_BYTES_MAX and b"\n" not in chunk:  # not joined with each chunk
            lines = [chunk]
        else:
            lines = io.BytesIO(b"".join([*rest, chunk])).readlines()
            rest, size = [], 0
        if not lines[-1].endswith(b"\n"):
            rest.append(lines.pop())
            size += len(rest[-1])
        yield from lines
        if size > LONG_LINE_BYTES_MAX:
            yield b"".join(rest)
            rest, size = [], 0
    if rest:
        yield b"".join(rest)


def split_lines(pieces: Iterable[bytes], reading: InputOptions, number: int = 1) -> Iterator[Line]:
    """Splits `pieces` into the lines of the input from number `number` on. Raises InputError.

    Each piece ends with its line end, except perhaps the last one. CSV lines are joined while a quoted field is open,
    because it may hold line ends. A quote that is not closed within `ROW_BYTES_MAX` belongs to its own line alone.
    An empty piece means that the input has no more for now; it is returned as a line without bytes.
    """
    source = iter(pieces)
    waiting: deque[bytes] = deque()  # read, not yet returned
    quote = reading.dialect.quote.encode() if reading.format in TABLES else None
    is_closed = closed_row(reading.dialect).fullmatch
    new = partial(tuple.__new__, Line)  # at half of the cost, which a line feels
    while True:
        if waiting:
            piece = waiting.popleft()
        elif (piece := next(source, None)) is None:  # type: ignore[assignment]
            return
        if len(piece) > LINE_BYTES_MAX:
            if len(piece) > LONG_LINE_BYTES_MAX:
                raise InputError(
                    f"line {number} has more than {LONG_LINE_BYTES_MAX} bytes, so that it cannot even be rejected: cut "
                    f"it out of the file"
                )
            is_whole = True
        else:
            is_whole = quote is None or quote not in piece or is_closed(piece) is not None
        if is_whole:
            taken = 1 if piece else 0
            yield new((number, piece, taken))
            number += taken
            continue
        waiting.appendleft(piece)
        taken = _row_lines(source, waiting, reading.dialect)
        yield Line(number, b"".join(waiting.popleft() for _ in range(taken)), taken)
        number += taken


def _row_lines(source: Iterator[bytes], waiting: deque[bytes], dialect: Dialect) -> int:
    """The number of lines of a row whose first line has an open quote. Reads ahead into `waiting` as far as needed."""
    row = b""
    for taken in count(1):
        if taken > len(waiting):
            while (piece := next(source, None)) == b"":
                pass  # the rest of the row is not written yet
            if piece is None:
                return 1
            waiting.append(piece)
        row += waiting[taken - 1]
        if dialect.quote.encode() in waiting[taken - 1] and not is_row_open(row, dialect):
            return taken
        if len(row) > ROW_BYTES_MAX:
            return 1
    raise AssertionError("count has no end")


def read_batch(lines: Sequence[Line], reading: InputOptions) -> list[NewRecord | RejectedLine]:
    """The record in each line, or the reason why it has none."""
    values = [raw.removesuffix(b"\n") for _, raw, _ in lines]
    is_plain = not (reading.key or reading.time or reading.headers or reading.select or reading.format in _FIXED)
    if all(map(bytes.strip, values)) and max(map(len, values), default=0) <= LINE_BYTES_MAX:
        if is_plain:
            return [*map(_record, zip(values, repeat(None), repeat(()), repeat(None)))]
        if reading.format in TABLES and not reading.headers and not reading.select:
            columns = _columns_of([*parse(values, reading)], reading)
            if columns is not None:
                return [*map(_record, zip(values, columns[0], repeat(()), columns[1]))]
    build = _builder(reading)
    found: list[NewRecord | RejectedLine] = []
    for line, data, row in zip(lines, values, parse(values, reading), strict=True):
        if not data.strip():
            found.append(RejectedLine(line.number, "blank line", data))
            continue
        if len(data) > LINE_BYTES_MAX:
            reason = f"{len(data):,} bytes: a record of a line has at most {LINE_BYTES_MAX:,}"
            found.append(RejectedLine(line.number, reason, data))
            continue
        try:
            found.append(build(data, row))
        except ValueError as error:
            found.append(RejectedLine(line.number, str(error), data))
    return found


_record: Final = partial(tuple.__new__, NewRecord)
"""Makes a record of its four fields in a tuple, in half of the time."""


def _columns_of(parsed: Sequence[rows.InputRow], reading: InputOptions) -> tuple[Iterable[Any], Iterable[Any]] | None:
    """The keys and times of the rows; None if one of them is no row, or has none of the fields, or a bad key. Whole
    columns are read in half of the time of single rows, and give the same."""
    places = [reading.columns.index(name) for name in (reading.key, reading.time) if name is not None]
    if {*map(type, parsed)} != {list} or min(map(len, parsed)) <= max(places):
        return None
    keys: Iterable[bytes | None] = repeat(None)
    if reading.key is not None:
        keys = found = [row[places[0]].encode() for row in parsed]
        sizes = [*map(len, found)]
        if not 0 < min(sizes) <= max(sizes) <= KEY_BYTES_MAX:
            return None
    read_value = _value_reader(reading) if reading.time is not None else None
    return keys, repeat(None) if read_value is None else [read_value(row[places[-1]]) for row in parsed]


def parse(values: Sequence[bytes], reading: InputOptions) -> Iterator[rows.InputRow]:
    """The row in each line, by the format."""
    match reading.format:
        case InputFormat.CSV | InputFormat.TSV:
            return rows.csv_rows(values, reading.dialect)
        case InputFormat.ACCESS | InputFormat.LINES:
            return iter(values)
        case InputFormat.SYSLOG:
            return rows.syslog_rows(values)
        case _:
            return rows.json_rows(values)


def odd(row: rows.InputRow, reading: InputOptions) -> str | None:
    """Why a parsed row is not like the others, although it has a record."""
    if isinstance(row, ValueError):
        return str(row)
    if reading.format in TABLES and len(row) != len(reading.columns):
        return f"{counted(len(row), 'cell')}, not {len(reading.columns)}"
    return None


def look_of(reading: InputOptions) -> rows.Look:
    """A function that finds a field of a parsed row by its name; None if the row does not have it."""
    if reading.format in TABLES:
        return rows.look_in_cells(reading.columns)
    return rows.look_in_access_log if reading.format is InputFormat.ACCESS else rows.look_in_object


def _builder(reading: InputOptions) -> Callable[[bytes, rows.InputRow], NewRecord]:
    """A function from a line and its row to the record. It raises ValueError if the line has none."""
    look, time_of = look_of(reading), _time_reader(reading)
    key_name, headers, select = reading.key, reading.headers, reading.select
    is_access = reading.format is InputFormat.ACCESS
    is_table = reading.format in TABLES
    must_parse = bool(key_name is not None or headers or select)
    types = {column.name: column.type for column in reading.types} if is_table else {}

    def build(data: bytes, row: rows.InputRow) -> NewRecord:
        if isinstance(row, ValueError):
            if must_parse:
                raise row
            return NewRecord(data)
        key = None
        if key_name is not None:
            found = look(row, key_name)
            if found is None and is_access:
                raise ValueError(f"no {key_name} can be read")
            key = rows.as_key(found, key_name)
            if not 0 < len(key) <= KEY_BYTES_MAX:
                raise ValueError(f"{key_name} has {len(key)} bytes: a key must have 1 to {KEY_BYTES_MAX}")
        pairs: tuple[tuple[str, bytes], ...] = ()
        if headers:
            pairs = tuple(
                (name, rows.as_bytes(each, name)) for name in headers if (each := look(row, name)) is not None
            )
            if (size := len(encode_headers(pairs))) > HEADERS_BYTES_MAX:
                raise ValueError(f"headers of {size:,} bytes: a record has at most {HEADERS_BYTES_MAX:,}")
        value = data
        if select:
            fields = {name: rows.typed(look(row, name), types.get(name)) for name in select}
            if not is_table:
                fields = {name: each for name, each in fields.items() if each is not None}
            value = rows.as_bytes(fields, "the row")
        return NewRecord(value, key, pairs, None if time_of is None else time_of(row))

    return build


def _time_reader(reading: InputOptions) -> Read | None:
    if reading.format is InputFormat.ACCESS:
        return lambda line: _read_access_time(access_log.time_of(line))
    name = reading.time or ("time" if reading.format is InputFormat.SYSLOG else None)
    if name is None:
        return None
    look, read_value = look_of(reading), _value_reader(reading)
    return lambda row: read_value(look(row, name))


def _value_reader(reading: InputOptions) -> Read:
    return _read_iso_or_ms if reading.times is None else reader(reading.times)


_read_access_time: Final = reader(TimeRule(access_log.TIME))
_read_iso: Final = reader(TimeRule(ISO))
_read_ms: Final = reader(TimeRule("ms"))


def _read_iso_or_ms(value: Any) -> int | None:
    if isinstance(value, float):
        return None
    ms = _read_ms(value)
    return ms if ms is not None else _read_iso(value)
