"""Raw chunks joined into a slab: the bytes of many entries in one piece, and where the .idx rows say each record is.

What is taken out of a slab by position is taken as opaque bytes, many at once: `at` for structures anywhere. Headers,
which are looked at field by field, are turned while they are in the processor's nearest cache (`Heads`): field by field
where they lie, each look would fetch all of them from farther away again.
"""

from collections.abc import Iterator
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
"""A structured array: one row per structure."""

_TURNED_BYTES: Final = 36 << 10  # of headers that are turned at once: three quarters of a processor's nearest cache
_COLUMNS: Final = 4  # of an .idx row: entry, block and record position, kind; u32 each
_KIND: Final = 3


@dataclass(frozen=True, slots=True)
class Slab:
    """Raw chunks joined. Per record the positions of its three headers in `segment`, and the kind of its entry; block
    and record are 0 where that has no blocks. `is_brief`: of the effects of each chunk there are the first and the last
    (`raft.codec.RawHeader`)."""

    first: int
    next: int
    entry: Ints
    block: Ints
    record: Ints
    kind: Ints
    segment: memoryview
    ledger: memoryview
    is_brief: bool


def join(chunks: list[tuple[RawHeader, bytes, bytes, bytes]]) -> Slab:
    """Chunks (head, rows, segment, ledger) that follow one another, as one slab. Raises Corrupt."""
    segment = bytearray().join([segment for _, _, segment, _ in chunks])
    ledger = bytearray().join([ledger for _, _, _, ledger in chunks])
    return joined([(head, rows) for head, rows, _, _ in chunks], memoryview(segment), memoryview(ledger))


def joined(chunks: list[tuple[RawHeader, bytes]], segment: memoryview, ledger: memoryview) -> Slab:
    """As `join`, of chunks whose segments and effects already lie one behind the other in memory that is ours to
    write to, all or none of them brief. Raises Corrupt."""
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
    return _slab(chunks[0][0].first, places, segment, ledger, is_brief=chunks[0][0].is_brief)


def piece(first: int, rows: bytes, base: int, segment: memoryview, ledger: memoryview, *, is_brief: bool) -> Slab:
    """As `joined`, of one stretch of a segment file that begins at byte `base`, with the .idx rows from `first` on as
    they are in their file."""
    places = np.empty((_COLUMNS, len(rows) // IDX_ROW.size), np.int64)
    _place(rows, -base, places)
    return _slab(first, places, segment, ledger, is_brief=is_brief)


def _place(rows: bytes, shift: int, places: Ints) -> None:
    places[:] = np.frombuffer(rows, "<u4").reshape(-1, _COLUMNS).T
    places[:_KIND] += shift


def _slab(first: int, places: Ints, segment: memoryview, ledger: memoryview, *, is_brief: bool) -> Slab:
    other = places[_KIND] != KIND_COMMANDS
    if other.any():
        places[1:_KIND, other] = 0
    entry, block, record, kind = places
    return Slab(first, first + len(entry), entry, block, record, kind, segment, ledger, is_brief)


def at(buffer: memoryview, dtype: np.dtype[Any], positions: Ints) -> Rows:
    """The structures at these positions, copied out."""
    if not len(positions):
        return np.zeros(0, dtype)
    found: Rows = _anywhere(buffer, dtype, positions)[positions].view(dtype)
    return found


def _anywhere(buffer: memoryview, dtype: np.dtype[Any], positions: Ints) -> Rows:
    """The structures at each byte, as opaque bytes: numpy would copy them field by field. Raises Corrupt where one at
    these positions would not be whole."""
    if int(positions.min()) < 0 or int(positions.max()) > len(buffer) - dtype.itemsize:
        raise Corrupt(f"a position lies outside its {len(buffer)} bytes")
    return np.ndarray((len(buffer) - dtype.itemsize + 1,), f"V{dtype.itemsize}", buffer, 0, (1,))


@dataclass(frozen=True, slots=True)
class Heads:
    """Headers of one kind. `lines` are their 64-bit words, little-endian: a line for each word, in it a place for each
    header, or a single one where all have the same. A name gives that field of all of them."""

    dtype: np.dtype[Any]
    count: int
    lines: tuple[Words, ...]

    @classmethod
    def of(cls, dtype: np.dtype[Any], turned: Words) -> "Heads":
        """Of whole lines."""
        return cls(dtype, turned.shape[1], tuple([line[:1] if all_equal(line) else line for line in turned]))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._spread(self.few(name))

    def few(self, name: str) -> npt.NDArray[Any]:
        """That field of all of them, or one value where their words are the same."""
        assert self.dtype.fields is not None
        kind, offset = self.dtype.fields[name][:2]
        line: npt.NDArray[Any] = self.lines[offset // 8].view(kind)
        return line[offset % 8 // kind.itemsize :: 8 // kind.itemsize]

    def word(self, number: int) -> Words:
        """That word of all of them."""
        return self._spread(self.lines[number])

    def part(self, dtype: np.dtype[Any], byte: int) -> "Heads":
        """What begins at that byte of each of them."""
        return Heads(dtype, self.count, self.lines[byte // 8 : (byte + dtype.itemsize) // 8])

    def _spread(self, few: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return few if len(few) == self.count else np.broadcast_to(few, (self.count,))


def heads_at(buffer: memoryview, dtype: np.dtype[Any], positions: Ints) -> Heads:
    """The headers at these positions, copied out."""
    turned = np.empty((dtype.itemsize // 8, len(positions)), "<u8")
    if len(positions):
        anywhere = _anywhere(buffer, dtype, positions)
        if stride := _stride(positions):
            return heads_every(buffer[int(positions[0]) :], dtype, stride, len(positions))
        for some in _stretches(len(positions), dtype):
            turned[:, some] = anywhere[positions[some]].view("<u8").reshape(-1, len(turned)).T
    return Heads.of(dtype, turned)


def heads_every(buffer: memoryview, dtype: np.dtype[Any], stride: int, count: int) -> Heads:
    """The `count` headers at every `stride` bytes from the first on, copied out."""
    size = dtype.itemsize // 8
    rows = np.ndarray((count, size), "<u8", buffer, 0, (stride, 8))
    turned = np.empty((size, count), "<u8")
    for some in _stretches(count, dtype):
        turned[:, some] = rows[some].T
    return Heads.of(dtype, turned)


def _stride(positions: Ints) -> int:
    """How far they lie apart, 0 where that differs."""
    if len(positions) < 2:
        return 0
    step = int(positions[1] - positions[0])
    if step <= 0 or int(positions[-1] - positions[0]) != step * (len(positions) - 1):
        return 0
    return step if bool((np.diff(positions) == step).all()) else 0


def _stretches(count: int, dtype: np.dtype[Any]) -> Iterator[slice]:
    each = _TURNED_BYTES // dtype.itemsize
    return (slice(begin, begin + each) for begin in range(0, count, each))


def changes_at(values: Ints) -> Ints:
    """The positions where a new run of equal values begins, 0 included."""
    if not len(values):
        return np.zeros(0, np.int64)
    return np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))


def all_equal(values: npt.NDArray[Any]) -> bool:
    """Whether there is but one value (or none)."""
    return not len(values) or bool(values[0] == values[-1] and (values == values[0]).all())
