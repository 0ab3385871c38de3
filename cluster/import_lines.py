"""Lines of an input to records: NDJSON, CSV and access logs; pure.

The value of a record is the line's bytes unchanged (without the line end); the format only finds the key and the
client's time. A line is rejected only when its key cannot be read, or when it is blank.
"""

from __future__ import annotations

import csv
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import count
from typing import Any, Final, NamedTuple

from cluster import access_log
from cluster.client_requests import NewRecord
from statemachine.commands import KEY_BYTES_MAX

LINE_BYTES_MAX: Final = 1 << 20
"""The longest line: one record must fit into a request by far."""

ROW_BYTES_MAX: Final = 64 << 10
"""The longest CSV row over several lines."""


class InputFormat(StrEnum):
    """How to find key and time in a line."""

    NDJSON = "ndjson"
    CSV = "csv"
    ACCESS = "access"
    LINES = "lines"  # any text or bytes: there is no key and no time in them


class InputError(ValueError):
    """The input as a whole cannot be taken: says why and what to do."""


class Line(NamedTuple):
    """A line (or a CSV row over several) of the input: its number from 1, its bytes with the line end, and how many
    lines it takes."""

    number: int
    raw: bytes
    lines: int = 1

    @property
    def data(self) -> bytes:
        """Its bytes without the line end."""
        return self.raw.removesuffix(b"\n")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that is no record, and why."""

    number: int
    reason: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read the lines of one input. `columns` are those of a CSV file's first line."""

    format: InputFormat
    key: str | None = None
    time: str | None = None
    columns: tuple[str, ...] = ()


def detect(name: str, first_line: bytes) -> InputFormat:
    """The format, by the file's name and its first line. Raises InputError."""
    suffix = name.lower().rpartition(".")[2]
    if suffix in ("ndjson", "jsonl") or first_line.lstrip().startswith(b"{"):
        return InputFormat.NDJSON
    if suffix in ("csv", "tsv"):
        return InputFormat.CSV
    if access_log.is_access_line(first_line):
        return InputFormat.ACCESS
    raise InputError(
        f"the format of {name} cannot be told from its name or its first line; give --format (lines: of any text)"
    )


def begin(format: InputFormat, key: str | None, time: str | None, first_line: bytes) -> Reading:
    """Checks what was asked for against the format and the first line. Raises InputError."""
    columns: tuple[str, ...] = ()
    match format:
        case InputFormat.CSV:
            columns = tuple(_csv_fields(first_line.removeprefix(b"\xef\xbb\xbf")))
            for what, name in (("--key", key), ("--time", time)):
                if name is not None and name not in columns:
                    raise InputError(f"{what} {name}: the first line has no such column; it has {', '.join(columns)}")
        case InputFormat.ACCESS:
            if key is not None and key not in access_log.FIELDS:
                raise InputError(f"--key {key}: of an access log it is one of {', '.join(access_log.FIELDS)}")
            if time is not None:
                raise InputError("--time: an access log has its time in its own place; leave the option out")
        case InputFormat.LINES:
            for what, name in (("--key", key), ("--time", time)):
                if name is not None:
                    raise InputError(
                        f"{what} {name}: plain lines have no fields; leave it out, or give another --format"
                    )
        case InputFormat.NDJSON:
            pass
    return Reading(format, key, time, columns)


def split_lines(pieces: Iterable[bytes], reading: Reading, number: int = 1) -> Iterator[Line]:
    """`pieces`, each ended by its line end (the last perhaps not), as the lines of the input from `number` on.

    Of CSV, lines are joined while their quotes are odd, for a quoted field may hold line ends; a quote that is not
    closed within `ROW_BYTES_MAX` belongs to its own line alone. Raises InputError.
    """
    source = iter(pieces)
    waiting: deque[bytes] = deque()  # read, not yet given
    while True:
        if not waiting:
            if (piece := next(source, None)) is None:
                return
            waiting.append(piece)
        taken = 1
        if reading.format is InputFormat.CSV and waiting[0].count(b'"') % 2:
            taken = _row_lines(source, waiting)
        data = b"".join(waiting.popleft() for _ in range(taken))
        if len(data) > LINE_BYTES_MAX:
            raise InputError(f"line {number} has more than {LINE_BYTES_MAX} bytes; cut it, or split the input")
        yield Line(number, data, taken)
        number += taken


def _row_lines(source: Iterator[bytes], waiting: deque[bytes]) -> int:
    """How many lines the row takes whose first has an open quote; reads on into `waiting` as far as needed."""
    size = quotes = 0
    for taken in count(1):
        if taken > len(waiting):
            if (piece := next(source, None)) is None:
                return 1
            waiting.append(piece)
        size += len(waiting[taken - 1])
        quotes += waiting[taken - 1].count(b'"')
        if quotes % 2 == 0:
            return taken
        if size > ROW_BYTES_MAX:
            return 1
    raise AssertionError("count has no end")


def read(line: Line, reading: Reading) -> NewRecord | Rejected:
    """The line as a record, or why it is none."""
    data = line.data
    if not data.strip():
        return Rejected(line.number, "blank line", data)
    try:
        key, time_ms = _key_and_time(data, reading)
    except ValueError as error:
        return Rejected(line.number, str(error), data)
    if key is not None and not 0 < len(key) <= KEY_BYTES_MAX:
        return Rejected(line.number, f"a key of {len(key)} bytes: it must have 1 to {KEY_BYTES_MAX}", data)
    return NewRecord(data, key, (), time_ms)


def _key_and_time(data: bytes, reading: Reading) -> tuple[bytes | None, int | None]:
    """Raises ValueError when the key cannot be read; a time that cannot be read is no time."""
    if reading.format is InputFormat.ACCESS:
        key = None
        if reading.key is not None and (key := access_log.read_field(data, reading.key)) is None:
            raise ValueError(f"no {reading.key} can be read")
        return key, access_log.read_time_ms(data)
    if reading.key is None and reading.time is None:
        return None, None
    try:
        fields = _json_fields(data) if reading.format is InputFormat.NDJSON else _csv_row(data, reading.columns)
    except ValueError:
        if reading.key is None:
            return None, None
        raise
    key = None if reading.key is None else _as_key(_look_up(fields, reading.key), reading.key)
    return key, None if reading.time is None else _as_time_ms(_look_up(fields, reading.time))


def _json_fields(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def _csv_row(data: bytes, columns: tuple[str, ...]) -> dict[str, Any]:
    return dict(zip(columns, _csv_fields(data), strict=False))


def _csv_fields(data: bytes) -> list[str]:
    try:
        return next(csv.reader([data.decode("utf-8").rstrip("\r")], strict=False), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"not a CSV row: {error}") from error


def _look_up(fields: dict[str, Any], name: str) -> object:
    """The field of that name, else the one reached through objects by its dotted parts; None if there is none."""
    if name in fields:
        return fields[name]
    value: object = fields
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def _as_key(value: object, name: str) -> bytes:
    match value:
        case None:
            raise ValueError(f"no {name}")
        case str():
            try:
                return value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(f"{name} is not Unicode text") from error
        case bool() | int() | float():
            return json.dumps(value).encode()
        case _:
            raise ValueError(f"{name} is not text or a number")


def _as_time_ms(value: object) -> int | None:
    """Unix milliseconds, or ISO 8601 (without a zone: UTC)."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < 2**53 else None
    if not isinstance(value, str):
        return None
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    ms = round(when.timestamp() * 1000)
    return ms if ms >= 0 else None
