"""Joins raw chunks into a slab: the bytes of many entries in one piece, and the place of each record by the .idx rows.

Bytes that are taken from a slab by position are taken as opaque bytes, many at once: `at` for structures anywhere.
Headers are transposed while they lie in the processor's nearest cache (`Heads`). Reading field by field from the slab
would fetch all of them from a farther cache for each field.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from raftlog.raft.codec.block import BLOCK_SIZE, RECORD_SIZE
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.entry import HEADER_SIZE
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.codec.raw import RawHeader
from raftlog.spark_export.columns.schema import KIND_COMMANDS

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[Any]
"""A structured array: one row per structure."""

Runs = tuple[range, ...]
"""Where structures begin: stretches of them at even distances."""

LOW: Final = 0xFFFF_FFFF
"""The lower half of a 64-bit word of a header."""

RUN_ROWS: Final = 512
"""Fewest rows in a run, on average, for which work run by run is faster."""
_TURNED_BYTES: Final = 36 << 10  # of headers that are turned at once: three quarters of a processor's nearest cache
_SINGLE_SIZE: Final = HEADER_SIZE + BLOCK_SIZE + RECORD_SIZE
_COLUMNS: Final = 4  # of an .idx row: entry, block and record position, kind; u32 each
_KIND: Final = 3


@dataclass(frozen=True, slots=True)
class Slab:
    """Raw chunks joined into one piece.

    For each record: the positions of its three headers in `segment`, and the kind of its entry. Block and record are 0
    when the entry has no blocks. `is_brief`: of each chunk's effects, only the first and the last are here
    (`raftlog.raft.codec.raw.RawHeader`). `runs`: the positions of the entries, run by run. They are empty unless each
    entry holds one command, its headers lie side by side, and most entries lie at even distances. `is_blanked`: its
    first entry names none before it (`RawHeader`).
    """

    first: int
    next: int
    entry: Ints
    block: Ints
    record: Ints
    kind: Ints
    segment: memoryview
    ledger: memoryview
    is_brief: bool
    runs: Runs
    is_blanked: bool = False


def join(chunks: list[tuple[RawHeader, bytes, bytes, bytes]]) -> Slab:
    """Chunks (head, rows, segment, ledger) that follow one another, as one slab. Raises Corrupt."""
    segment = bytearray().join([segment for _, _, segment, _ in chunks])
    ledger = bytearray().join([ledger for _, _, _, ledger in chunks])
    return joined([(head, rows) for head, rows, _, _ in chunks], memoryview(segment), memoryview(ledger))


def joined(chunks: list[tuple[RawHeader, bytes]], segment: memoryview, ledger: memoryview) -> Slab:
    """Chunks (head, rows) that follow one another, as one slab. Raises Corrupt.

    Their segments and effects lie one behind the other in memory that this process may write to. Either all or none of
    them are brief. A blanked one is alone.
    """
    expected = chunks[0][0].first
    for head, rows in chunks:
        if google_crc32c.value(rows) != head.rows_crc:
            raise Corrupt(f"the .idx rows of the chunk at index {head.first} fail their CRC")
        if head.first != expected or head.next - head.first != head.rows or len(rows) != head.rows * IDX_ROW.size:
            raise Corrupt(f"a chunk names {head.rows} rows from {head.first} to {head.next}, expected from {expected}")
        expected = head.next
    parts = [(rows, head.base, head.segment_bytes) for head, rows in chunks]
    head = chunks[0][0]
    slab = slab_of(head.first, parts, segment, ledger, is_brief=head.is_brief)
    return replace(slab, is_blanked=True) if head.is_blanked else slab


def slab_of(
    first: int, parts: list[tuple[bytes, int, int]], segment: memoryview, ledger: memoryview, *, is_brief: bool
) -> Slab:
    """Of parts of a segment, each with its .idx rows, where it begins in its file, and how many bytes it has."""
    count = sum(len(rows) for rows, _, _ in parts) // IDX_ROW.size
    if runs := _runs(parts, count):
        entry = np.concatenate([np.arange(run.start, run.stop, run.step) for run in runs])
        block, record = entry + HEADER_SIZE, entry + (HEADER_SIZE + BLOCK_SIZE)
        kind = np.broadcast_to(np.int64(KIND_COMMANDS), (count,))
        return Slab(first, first + count, entry, block, record, kind, segment, ledger, is_brief, runs)
    places = np.empty((_COLUMNS, count), np.int64)
    begin = offset = 0
    for rows, base, size in parts:
        end = begin + len(rows) // IDX_ROW.size
        places[:, begin:end] = np.frombuffer(rows, "<u4").reshape(-1, _COLUMNS).T
        places[:_KIND, begin:end] += offset - base
        begin, offset = end, offset + size
    other = places[_KIND] != KIND_COMMANDS
    if other.any():
        places[1:_KIND, other] = 0
    entry, block, record, kind = places
    return Slab(first, first + count, entry, block, record, kind, segment, ledger, is_brief, ())


def _runs(parts: list[tuple[bytes, int, int]], count: int) -> Runs:
    """`Slab.runs`, from the rows alone: the headers later show which entries are really there."""
    runs: list[range] = []
    offset = 0
    for rows, base, size in parts:
        if len(rows) < 3 * IDX_ROW.size:
            return ()
        pairs = np.frombuffer(rows, "<u8")  # of an entry's position and its block's, of a record's and the kind
        step = int(pairs[3]) - int(pairs[1])
        if not _SINGLE_SIZE <= step < 1 << 32 or int(pairs[5]) - int(pairs[3]) != step:
            return ()  # lengths differ: there is nothing to look for
        grown = pairs[2:] - pairs[:-2]
        breaks = np.flatnonzero((grown[0::2] != (step << 32 | step)) | (grown[1::2] != step)) + 1
        if (len(runs) + len(breaks) + 1) * RUN_ROWS > count:
            return ()
        for begin, end in pairwise([0, *breaks.tolist(), len(rows) // IDX_ROW.size]):
            entry, block, record, kind = IDX_ROW.unpack_from(rows, begin * IDX_ROW.size)
            if (block - entry, record - entry, kind) != (HEADER_SIZE, HEADER_SIZE + BLOCK_SIZE, KIND_COMMANDS):
                return ()
            place = entry - base + offset
            runs.append(range(place, place + (end - begin) * step, step))
        offset += size
    return tuple(runs)


def at(buffer: memoryview, dtype: np.dtype[Any], positions: Ints) -> Rows:
    """The structures at these positions, copied out."""
    if not len(positions):
        return np.zeros(0, dtype)
    found: Rows = _anywhere(buffer, dtype, positions)[positions].view(dtype)
    return found


def each_of(buffer: memoryview, dtype: np.dtype[Any], runs: Runs, offset: int) -> Rows:
    """The structures that lie `offset` bytes behind each place of the runs, copied out as opaque bytes."""
    found = np.empty(sum(map(len, runs)), dtype)
    for place, run in _placed(runs):
        found[place] = np.ndarray((len(run),), dtype, buffer, run.start + offset, (run.step,))
    return found


def _placed(runs: Runs) -> Iterator[tuple[slice, range]]:
    """Each run, with which of all structures are its own."""
    begin = 0
    for run in runs:
        end = begin + len(run)
        yield slice(begin, end), run
        begin = end


def _anywhere(buffer: memoryview, dtype: np.dtype[Any], positions: Ints) -> Rows:
    """The structures at each byte, as opaque bytes: numpy would copy them field by field. Raises Corrupt where one at
    these positions would not be whole."""
    _check_inside(buffer, dtype, int(positions.min()), int(positions.max()))
    return np.ndarray((len(buffer) - dtype.itemsize + 1,), f"V{dtype.itemsize}", buffer, 0, (1,))


def _check_inside(buffer: memoryview, dtype: np.dtype[Any], first: int, last: int) -> None:
    """Raises Corrupt where the structure at the first or at the last of some positions would not be whole."""
    if first < 0 or last > len(buffer) - dtype.itemsize:
        raise Corrupt(f"a position lies outside its {len(buffer)} bytes")


@dataclass(frozen=True, slots=True)
class Heads:
    """Headers of one kind. `lines` are their 64-bit words, little-endian, one line per word.

    A line has one place for each header, or a single place when all headers have the same word. Attributes named as the
    fields give that field of all headers.
    """

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
        for some in _stretches(len(positions), dtype):
            turned[:, some] = anywhere[positions[some]].view("<u8").reshape(-1, len(turned)).T
    return Heads.of(dtype, turned)


def heads_of(buffer: memoryview, dtype: np.dtype[Any], runs: Runs) -> Heads:
    """The headers at each place of the runs, copied out. Raises Corrupt where one would not be whole."""
    turned = np.empty((dtype.itemsize // 8, sum(map(len, runs))), "<u8")
    for place, run in _placed(runs):
        _check_inside(buffer, dtype, run[0], run[-1])
        rows = np.ndarray((len(run), len(turned)), "<u8", buffer, run.start, (run.step, 8))
        for some in _stretches(len(run), dtype):
            turned[:, place][:, some] = rows[some].T
    return Heads.of(dtype, turned)


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
