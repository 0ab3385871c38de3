"""Raw chunks joined into a slab: the bytes of many entries in one piece, and where the .idx rows say each record is.

What is taken out of a slab by position is taken as opaque bytes, many at once: `at` for structures anywhere, `every`
for structures at even distances.
"""

from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from raft.codec import IDX_ROW, Corrupt, RawHeader
from spark_export.schema import KIND_COMMANDS

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[Any]
"""A structured array: one row per header."""

_COLUMNS: Final = 4  # of an .idx row: entry, block and record position, kind; u32 each
_KIND: Final = 3


@dataclass(frozen=True, slots=True)
class Slab:
    """Raw chunks joined. Per record the positions of its three headers in `segment`, and the kind of its entry; block
    and record are 0 where that has no blocks."""

    first: int
    next: int
    entry: Ints
    block: Ints
    record: Ints
    kind: Ints
    segment: memoryview
    ledger: memoryview


def join(chunks: list[tuple[RawHeader, bytes, bytes, bytes]]) -> Slab:
    """Chunks (head, rows, segment, ledger) that follow one another, as one slab. Raises Corrupt."""
    segment = bytearray().join([segment for _, _, segment, _ in chunks])
    ledger = bytearray().join([ledger for _, _, _, ledger in chunks])
    return joined([(head, rows) for head, rows, _, _ in chunks], memoryview(segment), memoryview(ledger))


def joined(chunks: list[tuple[RawHeader, bytes]], segment: memoryview, ledger: memoryview) -> Slab:
    """As `join`, of chunks whose segments and effects already lie one behind the other in memory that is ours to
    write to. Raises Corrupt."""
    rows_of = [len(rows) // IDX_ROW.size for _, rows in chunks]
    places = np.empty((_COLUMNS, sum(rows_of)), np.int64)
    begin = offset = 0
    expected = chunks[0][0].first
    for (head, rows), count in zip(chunks, rows_of, strict=True):
        if google_crc32c.value(rows) != head.rows_crc:
            raise Corrupt(f"the .idx rows of the chunk at index {head.first} fail their CRC")
        if head.first != expected or head.next - head.first != head.rows:
            raise Corrupt(f"a chunk names {head.rows} rows from {head.first} to {head.next}, expected from {expected}")
        _place(rows, offset - head.base, places[:, begin : begin + count])
        expected, begin, offset = head.next, begin + count, offset + head.segment_bytes
    return _slab(chunks[0][0].first, places, segment, ledger)


def piece(first: int, rows: bytes, base: int, segment: memoryview, ledger: memoryview) -> Slab:
    """As `joined`, of one stretch of a segment file that begins at byte `base`, with the .idx rows from `first` on as
    they are in their file."""
    places = np.empty((_COLUMNS, len(rows) // IDX_ROW.size), np.int64)
    _place(rows, -base, places)
    return _slab(first, places, segment, ledger)


def _place(rows: bytes, shift: int, places: Ints) -> None:
    places[:] = np.frombuffer(rows, "<u4").reshape(-1, _COLUMNS).T
    places[:_KIND] += shift


def _slab(first: int, places: Ints, segment: memoryview, ledger: memoryview) -> Slab:
    other = places[_KIND] != KIND_COMMANDS
    if other.any():
        places[1:_KIND, other] = 0
    entry, block, record, kind = places
    return Slab(first, first + len(entry), entry, block, record, kind, segment, ledger)


def at(buffer: memoryview, dtype: np.dtype[Any], positions: Ints) -> Rows:
    """The structures at these positions, copied out."""
    if not len(positions):
        return np.zeros(0, dtype)
    if int(positions.min()) < 0 or int(positions.max()) > len(buffer) - dtype.itemsize:
        raise Corrupt(f"a position lies outside its {len(buffer)} bytes")
    # as opaque bytes: numpy would copy a structure field by field
    anywhere = np.ndarray((len(buffer) - dtype.itemsize + 1,), f"V{dtype.itemsize}", buffer, 0, (1,))
    found: Rows = anywhere[positions].view(dtype)
    return found


def every(buffer: memoryview, dtype: np.dtype[Any], stride: int) -> Rows:
    """The structures at every `stride` bytes from the first on, where they lie."""
    return np.ndarray((len(buffer) // stride,), dtype, buffer, 0, (stride,))


def words(rows: Rows) -> Words:
    """The rows as little-endian 64-bit numbers: one line for each row."""
    count = rows.dtype.itemsize // 8
    found: Words = rows.view(np.dtype([("words", "<u8", (count,))]))["words"]
    return found


def changes_at(values: Ints) -> Ints:
    """The positions where a new run of equal values begins, 0 included."""
    if not len(values):
        return np.zeros(0, np.int64)
    return np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))


def all_equal(values: npt.NDArray[Any]) -> bool:
    """Whether there is but one value (or none)."""
    return not len(values) or bool((values == values[0]).all())
