"""Parses lines into rows of named fields, and fields into keys, headers and JSON values; pure.

`raftlog.cluster.importer.formats.lines` calls it. A row that cannot be parsed is returned as its ValueError, so that
one bad line costs only itself.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from raftlog.cluster.importer.formats import access_log, syslog
from raftlog.cluster.importer.formats.dialect import Dialect, cells_of

InputRow = Any
"""A parsed row: a dict of fields, a list of cells, or the ValueError that parsing raised."""

Look = Callable[[Any, str], object]
TOO_DEEP: Final = "JSON nested too deeply"
_INTEGER: Final = re.compile(r"-?(?:0|[1-9]\d*)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_COMMA_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:,\d+)?")
COMMA_NUMBER: Final = "comma_number"
"""Type of a CSV column of numbers with a decimal comma."""
BOOLEANS: Final = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}
"""The spellings of booleans in CSV."""
_INT64: Final = 2**63


def json_rows(values: Sequence[bytes]) -> Iterator[InputRow]:
    """The objects in lines of JSON."""
    for data in values:
        try:
            yield json_object(data)
        except ValueError as error:
            yield error


def json_object(data: bytes) -> dict[str, Any]:
    """The object in a line of JSON. Raises ValueError."""
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        fields = json_slowly(data)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def json_slowly(data: bytes) -> object:
    """JSON that may have NaN, numbers beyond all floats, or half a pair of surrogates. Raises ValueError."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error


def csv_rows(values: Sequence[bytes], dialect: Dialect) -> Iterator[InputRow]:
    """The cells of each row. All rows are parsed at once if each ends with its line, which is the usual case."""
    try:
        texts = [data.decode("utf-8").rstrip("\r\n") for data in values]
        rows = [*cells_of(texts, dialect)]
    except (UnicodeDecodeError, csv.Error):
        rows = []
    if len(rows) == len(values):
        yield from rows
        return
    for data in values:
        try:
            text = data.decode("utf-8").rstrip("\r\n")
            yield next(cells_of([text], dialect), [])
        except UnicodeDecodeError as error:
            yield ValueError(f"not a CSV row: {error}; if the file has another charset, give --charset")
        except csv.Error as error:
            why, _, _ = str(error).partition(" - do you need")  # the rest is for programmers
            yield ValueError(f"not a CSV row: {why}")


def syslog_rows(values: Sequence[bytes]) -> Iterator[InputRow]:
    """The fields of syslog lines."""
    for data in values:
        fields = syslog.fields_of(data.decode("utf-8", "replace").rstrip("\r"))
        yield fields if fields is not None else ValueError("no line of syslog (RFC 5424 or 3164)")


def look_in_access_log(line: InputRow, name: str) -> object:
    """A field of a line of an access log."""
    found = access_log.read_field(line, name)
    return None if found is None else found.decode("utf-8", "surrogateescape")


def look_in_object(fields: InputRow, name: str) -> object:
    """The field of that name, else the one that its dotted parts reach through objects; None if there is none."""
    if name in fields:
        return fields[name]
    value: object = fields
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def look_in_cells(columns: Sequence[str]) -> Look:
    """A function that finds a cell by the name of its column."""
    places = {name: at for at, name in reversed([*enumerate(columns)])}

    def look(cells: InputRow, name: str) -> object:
        at = places[name]
        return cells[at] if at < len(cells) else None

    return look


def key_fault(name: str, values: Sequence[object]) -> str:
    """Why these values of the first rows are no keys: all are objects or arrays. Empty: some are."""
    if any(not isinstance(value, dict | list) for value in values):
        return ""
    inside = f", as --key {name}.{next(iter(values[0]))}" if isinstance(values[0], dict) and values[0] else ""
    return (
        f"a key is text or a number, and this is an object or an array in each row of the first {len(values)} that "
        f"have it; name a field inside it{inside}"
    )


def as_key(value: object, name: str) -> bytes:
    """The bytes of a key. Raises ValueError if the value is missing, or is neither text nor a number."""
    match value:
        case None:
            raise ValueError(f"no {name}")
        case str():
            return as_bytes(value, name)
        case bool() | int() | float():
            return json.dumps(value).encode()
        case _:
            raise ValueError(f"{name} is not text or a number")


def as_bytes(value: object, name: str) -> bytes:
    """Text as it is, anything else as JSON. Raises ValueError."""
    try:
        if isinstance(value, str):
            return value.encode("utf-8", "surrogateescape")
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise ValueError(f"{name} is not Unicode text") from error


def finite(value: object) -> object:
    """The value with NaN and infinity as text, which JSON does not have as numbers."""
    match value:
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {str(name): finite(each) for name, each in value.items()}
        case list() | tuple():
            return [finite(each) for each in value]
        case _:
            return value


def typed(value: object, type: str | None) -> object:
    """A field as JSON has it. A CSV cell that does not fit its column's type stays text; an empty one is null."""
    if not isinstance(value, str):
        return finite(value)
    if type is None or type == "string":
        return value
    if not value:
        return None
    match type:
        case "boolean":
            return BOOLEANS.get(value, value)
        case "integer" if _INTEGER.fullmatch(value):
            return int(value)
        case "number" if _NUMBER.fullmatch(value):
            return msgspec.Raw(value.encode())  # the digits as they are
        case "comma_number" if _COMMA_NUMBER.fullmatch(value):
            return msgspec.Raw(value.replace(",", ".").encode())
    return value


def type_of(value: object) -> str | None:
    """The type of a JSON value; None for null."""
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            return "integer" if -_INT64 <= value < _INT64 else "number"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


def type_of_text(text: object) -> str | None:
    """The type of a CSV cell; None for an empty one. A number with a leading zero is text."""
    if not isinstance(text, str) or not text:
        return None
    if text in BOOLEANS:
        return "boolean"
    if _INTEGER.fullmatch(text):
        return "integer" if -_INT64 <= int(text) < _INT64 else "number"
    return "number" if _NUMBER.fullmatch(text) else "string"


def type_of_cells(cells: Sequence[str], delimiter: str) -> str:
    """The type that holds every cell of a column of CSV.

    Numbers may have a decimal comma where cells are not separated by commas. 1,234 alone could be a thousand, so that
    one cell must have another number of digits behind its comma.
    """
    found = common_type([kind for cell in cells if (kind := type_of_text(cell)) is not None] or ["string"])
    digits = {len(cell.partition(",")[2]) for cell in cells if "," in cell}
    if (
        found == "string"
        and delimiter != ","
        and digits - {3}
        and all(_COMMA_NUMBER.fullmatch(each or "0") for each in cells)
    ):
        return COMMA_NUMBER
    return found


def common_type(types: Sequence[str]) -> str:
    """One type for all values of a column: `string` if nothing else holds them."""
    distinct = sorted({*types})
    if len(distinct) == 1:
        return distinct[0]
    return "number" if distinct == ["integer", "number"] else "json" if {"object", "array"} & {*distinct} else "string"
