"""Types the columns of a sink: how a member of a value becomes a cell of the store; pure.

The names of the types are those of Spark SQL. A value that does not fit loses nothing: it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from math import isfinite, isinf
from typing import Any, Final

import msgspec

from raftlog.cluster.importer.formats.rows import BOOLEANS

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DECIMAL: Final = re.compile(r"decimal\(([0-9]{1,2}), ?([0-9]{1,2})\)")

PLAIN_DIGITS_MAX: Final = 200_000
"""Most digits of a number without an exponent; `numeric` of PostgreSQL has at most 131,072 before the point. The twelve
bytes 1e999999999 would take a gigabyte."""

_EXACT: Final = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)

_encode: Final = msgspec.json.Encoder(decimal_format="number").encode

Cast = Callable[[Any], Any]
"""From a value of JSON, msgpack or CSV to a cell. Raises ValueError or TypeError with the reason."""


class ColumnError(ValueError):
    """A column of a sink's settings that cannot be. The message says why."""


def cast_of(kind: str) -> Cast:
    """The cast to a type by its name. Raises ColumnError."""
    if (found := _CASTS.get(kind)) is not None:
        return found
    if (decimal := _DECIMAL.fullmatch(kind)) is not None:
        return _decimal(int(decimal[1]), int(decimal[2]))
    raise ColumnError(f"{kind!r} is no type: it is one of {', '.join(_CASTS)}, decimal(p,s)")


def number_text(value: float | Decimal) -> str:
    """A number in one form: every digit, without an exponent, and without zeros at the end. Only one that would have
    more than `PLAIN_DIGITS_MAX` zeros before or behind its digits keeps an exponent."""
    if isinstance(value, float):
        text = repr(value)
        if "e" not in text and "n" not in text:  # neither an exponent nor nan, inf
            return text.removesuffix(".0")
        value = Decimal(text)
    value = Decimal(value)
    if abs(value.adjusted()) > PLAIN_DIGITS_MAX:
        return str(_EXACT.normalize(value))
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError("no UTF-8 text: use the type binary") from None
    return json_text(value)


def _bounded(bits: int) -> Cast:
    limit = 1 << (bits - 1)

    def integer(value: Any) -> int:
        if type(value) is int and -limit <= value < limit:
            return value
        if isinstance(value, str | bytes):
            text = value if isinstance(value, str) else _string(value)
            if not _INTEGER.fullmatch(text):
                raise ValueError("no integer")
            value = int(text)
        elif isinstance(value, float | Decimal) and isfinite(value) and value == int(value):  # finite: below 1e309
            value = int(value)
        if type(value) is not int:
            raise ValueError("no integer")
        if not -limit <= value < limit:
            raise ValueError(f"no integer of {bits} bits")
        return value

    return integer


def _double(value: Any) -> float:
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else _string(value)
        if not _NUMBER.fullmatch(text):
            raise ValueError("no number")
        return float(text)
    if type(value) not in (int, float, Decimal):
        raise ValueError("no number")
    if isinf(number := float(value)):
        raise ValueError("too large for double")
    return number


def _decimal(precision: int, scale: int) -> Cast:
    if scale > precision:
        raise ColumnError(f"decimal({precision},{scale}) has more digits behind the point than in all")
    unit, digits = Decimal(1).scaleb(-scale), Context(prec=precision or 1)

    def decimal(value: Any) -> Decimal:
        if isinstance(value, bytes):
            value = _string(value)
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
            raise ValueError("no number")
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            raise ValueError("no number")
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if exact and exact.adjusted() >= precision - scale:
            raise ValueError(f"too large for decimal({precision},{scale})")
        try:
            made = exact.quantize(unit, context=digits)
        except InvalidOperation:
            raise ValueError(f"too large for decimal({precision},{scale})") from None
        if made != exact:
            raise ValueError(f"more digits than decimal({precision},{scale}) has")
        return made

    return decimal


def _boolean(value: Any) -> bool:
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    found = BOOLEANS.get(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("no boolean")
    return found


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(_text_of_time(value))
    except ValueError:
        raise ValueError("no date of ISO 8601") from None


def _timestamp(value: Any) -> datetime:
    try:
        when = value if isinstance(value, datetime) else datetime.fromisoformat(_text_of_time(value))
    except ValueError:
        raise ValueError("no time of ISO 8601") from None
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def _text_of_time(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise ValueError("neither bytes nor text")


def json_text(value: Any) -> str:
    """The value as JSON; its numbers keep every digit."""
    return _encode(value).decode()


def columns_of(rows: Iterable[Mapping[str, Any]], fraction: str) -> dict[str, str]:
    """Columns for the members of these rows, each of a type that all its values have; string if they have several.

    Numbers with a fraction are of the type `fraction`. Members whose name has a point or a colon are left out: a place
    cannot name them.
    """
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            found = kinds.setdefault(name, set())
            if value is not None:
                found.add(_kind_of(value, fraction))
    return {
        name: f"value.{name}:{_common(found, fraction)}"
        for name, found in kinds.items()
        if name and "." not in name and ":" not in name
    }


def _kind_of(value: Any, fraction: str) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "bigint" if -(1 << 63) <= value < 1 << 63 else "string"
        case float() | Decimal():
            return fraction
        case bytes():
            return "binary"
        case dict() | list():
            return "json"
        case _:
            return "string"


def _common(kinds: set[str], fraction: str) -> str:
    if kinds == {"bigint", fraction}:
        return fraction
    return next(iter(kinds)) if len(kinds) == 1 else "string"


_CASTS: Final[Mapping[str, Cast]] = {
    "string": _string,
    "int": _bounded(32),
    "bigint": _bounded(64),
    "double": _double,
    "boolean": _boolean,
    "date": _date,
    "timestamp": _timestamp,
    "binary": _binary,
    "json": json_text,
}
