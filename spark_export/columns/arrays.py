"""Builds Arrow arrays over numpy's memory: numbers, names, binaries of one length, nulls, some nested values.

`pyarrow.array` imports pandas, which takes a process half a second and 40 MB, and each of Spark's Python processes is
one. So what every batch needs is made of buffers.
"""

from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftlog.raft.codec.checks import INDEX_MAX, Corrupt
from raftlog.spark_export.columns.schema import ARROW
from raftlog.spark_export.columns.slab import Rows

Mask = npt.NDArray[np.bool_]
Where = Mask | bool
"""In which rows: a mask, or all or none."""
Names = tuple[str | None, ...]
_CONSTANT_ROWS: Final = 1 << 16  # constant columns of up to so many rows are slices of one that is kept


def integers(values: npt.NDArray[np.int64], valid: Where = True) -> pa.Array:
    """64-bit numbers."""
    return _fixed(pa.int64(), values, valid)


def booleans(values: Mask, valid: Where = True) -> pa.Array:
    """Truths."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [_validity(valid), _bits(values)])


def numbers(name: str, values: npt.NDArray[Any], valid: Where = True) -> pa.Array:
    """A column of 64-bit numbers (or timestamps in microseconds) over `values`."""
    if valid is False:
        return nulls(name, len(values))
    return _fixed(ARROW.field(name).type, values, valid)


def times(name: str, milliseconds: npt.NDArray[np.int64], valid: Where = True) -> pa.Array:
    """A column of timestamps. Raises Corrupt where one does not fit."""
    for extreme in (int(milliseconds.min()), int(milliseconds.max())):
        if abs(extreme) > INDEX_MAX:
            raise Corrupt(f"a time of {extreme} ms since 1970 is beyond what a timestamp holds")
    return numbers(name, milliseconds * 1000, valid)


def even(each: Rows) -> pa.Array:
    """Binaries of one length. Found by their offsets they would take two to three times as long."""
    offsets = np.arange(len(each) + 1, dtype=np.int32)
    offsets *= each.itemsize
    return pa.Array.from_buffers(
        pa.binary(), len(each), [None, pa.py_buffer(offsets), pa.py_buffer(each.view(np.uint8))]
    )


def nulls(name: str, count: int) -> pa.Array:
    """A column without a value."""
    if count > _CONSTANT_ROWS:
        return pa.nulls(count, ARROW.field(name).type)
    return _many_nulls(name).slice(0, count)


def texts(name: str, names: Names, each: npt.NDArray[Any]) -> pa.Array:
    """A column of names by number; a number without a name is null."""
    first = int(each[0])
    if len(each) <= _CONSTANT_ROWS and (each == first).all():
        return nulls(name, len(each)) if names[first] is None else _many(names, first).slice(0, len(each))
    return _named(names).take(_fixed(pa.int64(), each, True))


def some_of(name: str, count: int, values: dict[int, Any]) -> pa.Array:
    """A nested column: null but for a few rows."""
    if not values:
        return nulls(name, count)
    places = np.zeros(count, np.int64)
    valid = np.zeros(count, bool)
    rows = np.fromiter(values, np.int64, len(values))
    places[rows] = np.arange(len(values))
    valid[rows] = True
    return pa.array(list(values.values()), ARROW.field(name).type).take(integers(places, valid))


def _fixed(kind: pa.DataType, values: npt.NDArray[Any], valid: Where) -> pa.Array:
    data = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(kind, len(data), [_validity(valid), pa.py_buffer(data)])


def _validity(valid: Where) -> pa.Buffer | None:
    assert valid is not False, "a column without a value is made by `nulls`"
    return None if valid is True or valid.all() else _bits(valid)


def _bits(mask: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


@cache
def _many_nulls(name: str) -> pa.Array:
    return pa.nulls(_CONSTANT_ROWS, ARROW.field(name).type)


@lru_cache(maxsize=64)
def _many(names: Names, number: int) -> pa.Array:
    return _named(names).take(integers(np.full(_CONSTANT_ROWS, number, np.int64)))


@cache
def _named(names: Names) -> pa.Array:
    coded = [(name or "").encode() for name in names]
    ends = np.cumsum([0, *map(len, coded)], dtype=np.int32)
    valid = np.array([name is not None for name in names])
    buffers = [_validity(valid), pa.py_buffer(ends), pa.py_buffer(b"".join(coded))]
    return pa.Array.from_buffers(pa.string(), len(names), buffers)
