"""Fits members of values into typed columns, and keeps aside what does not fit: pure.

Never does a part of a value vanish unseen: `Fit` has the converted value, the rest that found no place, and whether a
part was of the wrong type. A column takes a text for a text, and a number only without loss. A column of strings takes
any value: other types become JSON, as Spark's from_json does it.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

NOTHING: Final = object()
"""The rest of a value that fits as a whole."""

MISFITS: Final = (pa.ArrowException, TypeError, ValueError, LookupError, OverflowError, InvalidOperation)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TRUTHS: Final = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}
_NOT_FINITE: Final = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}
_INTEGERS_MAX: Final = {pa.int8(): 1 << 7, pa.int16(): 1 << 15, pa.int32(): 1 << 31, pa.int64(): 1 << 63}
_EXACT_MAX: Final = {pa.float32(): 1 << 24, pa.float64(): 1 << 53}  # integers up to here have a place of their own
_DIGITS: Final = 77  # of which the quotients of two decimals of 38 digits have fewer


class Fit(NamedTuple):
    """A value as Arrow takes it for a type, what found no place, and whether some part was of another type."""

    value: Any
    rest: Any = NOTHING
    is_misfit: bool = False


_NULL: Final = Fit(None)


def column(values: list[Any], kind: pa.DataType, is_text: Sequence[bool] | None) -> tuple[pa.Array, dict[int, Fit]]:
    """The values as a column, and those of which a part found no place, by their number.

    `is_text`: which values are text cells, where some are; a number is read from those.
    """
    if pa.types.is_struct(kind):
        return _structures(values, kind, is_text)
    if pa.types.is_list(kind) and (made := _lists(values, kind)) is not None:
        return made, {}
    is_same = is_text is None or pa.types.is_string(kind)
    if is_same and {*map(type, values)} <= _EXACT.get(kind, _NONE):
        try:
            return pa.array(values, kind), {}
        except MISFITS:
            pass  # some value is too large, or no Unicode text
    fits = [fit(value, kind, is_text is not None and is_text[place]) for place, value in enumerate(values)]
    return pa.array([each.value for each in fits], kind), {
        place: each for place, each in enumerate(fits) if each.rest is not NOTHING
    }


def _structures(
    values: list[Any], kind: pa.DataType, is_text: Sequence[bool] | None
) -> tuple[pa.Array, dict[int, Fit]]:
    """As `fit` for each structure, member by member."""
    known = {each.name for each in kind}
    is_dict = [isinstance(value, dict) for value in values]
    rests: dict[int, dict[str, Any]] = {}
    wrong: set[int] = set()
    children = []
    for each in kind:
        name = each.name
        made, left = column(
            [value.get(name) if isinstance(value, dict) else None for value in values], each.type, is_text
        )
        children.append(made)
        for place, part in left.items():
            rests.setdefault(place, {})[name] = part.rest
            if part.is_misfit:
                wrong.add(place)
    for place, value in enumerate(values):
        if is_dict[place] and not value.keys() <= known:
            rests.setdefault(place, {}).update({name: part for name, part in value.items() if name not in known})
    found = {place: Fit(None, rest, place in wrong) for place, rest in rests.items()}
    found |= {
        place: Fit(None, value, is_misfit=True)
        for place, value in enumerate(values)
        if value is not None and not is_dict[place]
    }
    is_null = pa.array([not each for each in is_dict], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=[*kind], mask=is_null), found


def _lists(values: list[Any], kind: pa.DataType) -> pa.Array | None:
    """The lists as a column; None unless each value is a list, or none, of which every part fits."""
    if not {*map(type, values)} <= {list, type(None)}:
        return None
    parts, left = column([part for value in values if value for part in value], kind.value_type, None)
    if left:
        return None
    ends = itertools.accumulate((len(value or ()) for value in values), initial=0)
    is_null = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(pa.array([*ends], pa.int32()), parts, type=kind, mask=is_null)


_NONE: Final[frozenset[type]] = frozenset()
_EXACT: Final = {
    pa.string(): frozenset({str, type(None)}),
    pa.int64(): frozenset({int, type(None)}),
    pa.float64(): frozenset({float, type(None)}),
    pa.bool_(): frozenset({bool, type(None)}),
}
"""Types of Python that Arrow takes for a column as they are."""


def fit(value: Any, kind: pa.DataType, is_text: bool = False) -> Fit:
    """One value of any type into the type of its column."""
    if value is None:
        return _NULL
    if pa.types.is_struct(kind):
        return _structure(value, kind, is_text)
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            return Fit(None, value, is_misfit=True)
        return _whole(value, [fit(each, kind.value_type) for each in value])
    if pa.types.is_map(kind):
        if not isinstance(value, dict):
            return Fit(None, value, is_misfit=True)
        names = [name if isinstance(name, str) else json_text(name) for name in value]
        made = _whole(value, [fit(each, kind.item_type) for each in value.values()])
        return made if made.value is None else made._replace(value=[*zip(names, made.value, strict=True)])
    try:
        return Fit(_converter(kind)(value, kind, is_text))
    except MISFITS:
        return Fit(None, value, is_misfit=True)


def _structure(value: Any, kind: pa.DataType, is_text: bool) -> Fit:
    if not isinstance(value, dict):
        return Fit(None, value, is_misfit=True)
    types = {each.name: each.type for each in kind}
    made, rest, is_misfit = {}, {}, False
    for name, each in value.items():
        if name not in types:
            rest[name] = each
            continue
        part = fit(each, types[name], is_text)
        made[name] = part.value
        is_misfit |= part.is_misfit
        if part.rest is not NOTHING:
            rest[name] = part.rest
    return Fit(made, rest or NOTHING, is_misfit)


def _whole(value: Any, parts: list[Fit]) -> Fit:
    """Of a list or a map: all parts fit, or the whole is kept aside, for a rest has no place in a list."""
    if any(part.is_misfit for part in parts):
        return Fit(None, value, is_misfit=True)
    rest = NOTHING if all(part.rest is NOTHING for part in parts) else value
    return Fit([part.value for part in parts], rest)


# ---------------------------------------------------------------------------------------------------------------
# Simple types: a function from a value, its type, and whether it is a text cell. Each raises one of MISFITS.


def _converter(kind: pa.DataType) -> Callable[[Any, pa.DataType, bool], Any]:
    if kind in _INTEGERS_MAX:
        return _integer
    if kind in _EXACT_MAX:
        return _number
    if pa.types.is_timestamp(kind):
        return _timestamp
    return _decimal if pa.types.is_decimal(kind) else _OTHERS[kind]


def _string(value: Any, kind: pa.DataType, is_text: bool) -> str:
    text = value if isinstance(value, str) else value.decode() if isinstance(value, bytes) else json_text(value)
    text.encode()  # half a pair of surrogates is no Unicode
    return text


def _binary(value: Any, kind: pa.DataType, is_text: bool) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError("neither bytes nor text")


def _boolean(value: Any, kind: pa.DataType, is_text: bool) -> bool:
    if isinstance(value, bool):
        return value
    if is_text:
        return _TRUTHS[value]
    raise TypeError("no boolean")


def _integer(value: Any, kind: pa.DataType, is_text: bool) -> int:
    if is_text:
        if not _INTEGER.fullmatch(value):
            raise ValueError("no integer")
        value = int(value)
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not -_INTEGERS_MAX[kind] <= value < _INTEGERS_MAX[kind]:
        raise TypeError("no integer of this size")
    return value


def _number(value: Any, kind: pa.DataType, is_text: bool) -> float:
    if isinstance(value, str):
        if value.lower() in _NOT_FINITE:  # as Parquet's become text in JSON
            return _NOT_FINITE[value.lower()]
        if not is_text:
            raise TypeError("text")
        if not _NUMBER.fullmatch(value):
            raise ValueError("no number")
        value = int(value) if _INTEGER.fullmatch(value) else float(value)
    if type(value) not in (int, float) or (isinstance(value, int) and abs(value) > _EXACT_MAX[kind]):
        raise TypeError("no number that fits")
    number = float(value)
    if math.isfinite(number) and kind == pa.float32() and abs(number) > 3.4028235677973366e38:
        raise OverflowError("too large for float")
    if is_text and math.isinf(number):
        raise OverflowError("too large for double")
    return number


def _decimal(value: Any, kind: pa.DataType, is_text: bool) -> Decimal:
    if is_text and not _NUMBER.fullmatch(value):
        raise ValueError("no number")
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise TypeError("no number")
    with localcontext() as context:
        context.prec = _DIGITS
        exact = Decimal(repr(value) if isinstance(value, float) else value)
        if not exact.is_finite() or (exact and exact.adjusted() >= kind.precision - kind.scale):
            raise ValueError("too large")
        made = exact.quantize(Decimal(1).scaleb(-kind.scale))
        if made != exact:
            raise ValueError("too many digits")
        return made


def _timestamp(value: Any, kind: pa.DataType, is_text: bool) -> datetime:
    when = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def _date(value: Any, kind: pa.DataType, is_text: bool) -> date:
    return date.fromisoformat(value)


_OTHERS: Final[dict[pa.DataType, Callable[[Any, pa.DataType, bool], Any]]] = {
    pa.string(): _string,
    pa.binary(): _binary,
    pa.bool_(): _boolean,
    pa.date32(): _date,
}


def json_text(value: Any) -> str:
    """The value as JSON text, as from_json and get_json_object take it."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return json.dumps(value, default=str)
