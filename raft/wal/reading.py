"""Reads the log by index: entries, raw slices with rows and effects, the end of an entry, the first index of a time.

The server reads in a separate thread, from segments to which the writer thread keeps appending. Reading ends at an
index whose rows were written. A cut that comes between makes the answer empty, never wrong.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from raftlog.raft.codec.block import RECORD_SIZE
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.entry import HEADER_SIZE, EntryHeader, decode_entry, decode_header
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.codec.mark import MARK_MAGIC, MARK_SIZE
from raftlog.raft.types import Entry, Mark
from raftlog.raft.wal.formats import index_name, ledger_name
from raftlog.raft.wal.journal import ImpossibleBatch, Journal, Segment, row_position
from raftlog.raft.wal.ledger import Ledger
from raftlog.raft.wal.operations import Files
from raftlog.raft.wal.recovery import Damage, Damaged

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RawSlice:
    """Whole entries of one segment as on disk (durable marks among them), with their rows and effects.

    `rows` are of the records `first` to `next - 1`. Their positions count from the start of the segment file; `segment`
    has the bytes from `base` on. If there are no entries (yet), all are empty and `first == next`.
    """

    rows: bytes
    segment: bytes
    ledger: bytes
    base: int
    first: int
    next: int


def entries_in(segment: bytes) -> Iterator[Entry]:
    """The entries in bytes of a segment, without the durable marks among them. Raises Corrupt or UnknownVersion."""
    at = 0
    while at < len(segment):
        if segment[at : at + 4] == MARK_MAGIC:
            at += MARK_SIZE
            continue
        entry = decode_entry(segment, at)
        yield entry
        at += entry.size


class WalReader:
    """Reading one shard's log. `forget` is called when a cut may have replaced files that `files` has open."""

    __slots__ = ("_cuts", "_files", "_forget", "_journal", "_ledger")

    def __init__(self, journal: Journal, ledger: Ledger, files: Files, forget: Callable[[], None]) -> None:
        self._journal, self._ledger, self._files, self._forget = journal, ledger, files, forget
        self._cuts = journal.cuts

    def entries(self, after: int, to: int, bytes_max: int) -> tuple[Entry, ...]:
        """Consecutive entries of one segment after the end `after` up to the end `to`; at least one, about `bytes_max`.

        () where the log holds none of them, or no entry ends at `after`. Raises Damaged.
        """
        cuts = self.refresh()
        try:
            segment = self._journal.segment_of(after + 1)
            to = min(to, segment.last.index, self._journal.indexed)
            if to <= after:
                return ()
            position = self._position(segment, after + 1)
            header = self._header(segment, position, after + 1)
            if header.index - header.count != after:
                return ()
            size = min(max(bytes_max, HEADER_SIZE + header.length), segment.end - position)
            if size <= 0:
                return ()  # it was cut meanwhile
            buffer = self._files.read(segment.name, position, size)
            entries: list[Entry] = []
            offset, index = 0, after
            while index < to and offset + HEADER_SIZE <= len(buffer):
                if buffer[offset : offset + 4] == MARK_MAGIC:
                    offset += MARK_SIZE
                    continue
                if entries and offset + HEADER_SIZE + decode_header(buffer, offset).length > len(buffer):
                    break
                entry = decode_entry(buffer, offset)
                if entry.before != index:
                    raise Corrupt(f"entry {entry.index} stands behind entry {index}")
                entries.append(entry)
                index, offset = entry.index, offset + entry.size
            return tuple(entries)
        except IndexError:
            return ()
        except (Corrupt, UnknownVersion) as error:
            return self._damaged(cuts, segment, after, error, ())

    def raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        """The entries of one segment from the one that holds `from_index` to the one that holds `to_index`.

        Segment bytes are bounded by `bytes_max` (but at least one entry), entries by the effects that are written.
        Raises Damaged.
        """
        cuts = self.refresh()
        to_index = min(to_index, self._ledger.last)
        nothing = RawSlice(b"", b"", b"", 0, from_index, from_index)
        if from_index > to_index:
            return nothing
        try:
            segment = self._journal.segment_of(from_index)
            base = self._position(segment, from_index)
            header = self._header(segment, base, from_index)
            first, first_end = header.index - header.count + 1, header.index
            last_index = min(to_index, segment.last.index)
            last_position, last = self._last_entry(segment, from_index, last_index, base, bytes_max)
            end = last_position + HEADER_SIZE + last.length
            rows_position = row_position(segment, first)
            rows_size = row_position(segment, last.index + 1) - rows_position
            rows = self._files.read(index_name(segment.first), rows_position, rows_size)
            content = self._files.read(segment.name, base, end - base)
            ledger_start, ledger_end = self._ledger.find(self._files, segment, first_end, last.index)
            effects = self._files.read(ledger_name(segment.first), ledger_start, ledger_end - ledger_start)
            if (len(rows), len(content), len(effects)) != (rows_size, end - base, ledger_end - ledger_start):
                raise Corrupt("a file ends too early")
            if cuts != self._journal.cuts:
                return nothing
            return RawSlice(rows, content, effects, base, first, last.index + 1)
        except IndexError:
            return nothing
        except (Corrupt, UnknownVersion) as error:
            return self._damaged(cuts, segment, from_index - 1, error, nothing)

    def find_time(self, time_ms: int) -> int:
        """First index of the first entry with that time or a later one; last + 1 where there is none."""
        while True:
            cuts = self.refresh()
            found = self._find_time(time_ms, cuts)
            if cuts == self._journal.cuts:  # else the segment may be gone, and its end is no answer
                return found

    def _find_time(self, time_ms: int, cuts: int) -> int:
        last = self._journal.indexed
        segments = self._journal.segments[:]  # a copy: the writing thread may take the oldest away meanwhile
        number = bisect_left(segments, time_ms, key=lambda segment: segment.last.time_ms)
        if number == len(segments):
            return last + 1
        segment = segments[number]
        low, high = segment.first, min(segment.last.index, last) + 1
        try:
            while low < high:
                middle = (low + high) // 2
                header = self._header(segment, self._position(segment, middle), middle)
                if header.time_ms < time_ms:
                    low = header.index + 1
                else:
                    high = header.index - header.count + 1
            return low
        except (Corrupt, UnknownVersion) as error:
            return self._damaged(cuts, segment, low - 1, error, last + 1)

    def mark(self, index: int) -> tuple[Mark, int]:
        """The end of an entry, and the position behind it in its segment. Raises Damaged or ImpossibleBatch."""
        self.refresh()
        segment = self._journal.segment_of(index)
        try:
            position = self._position(segment, index)
            header = self._header(segment, position, index)
        except (Corrupt, UnknownVersion) as error:
            raise Damaged(Damage(segment.name, 0, index - 1, str(error))) from error
        if header.index != index:
            raise ImpossibleBatch(f"no entry ends at {index}: the one that holds it ends at {header.index}")
        mark = Mark(index, header.term, header.crc, header.time_ms, header.clock_ms)
        return mark, position + HEADER_SIZE + header.length

    def refresh(self) -> int:
        """Returns how often the log was cut so far. After a new cut it closes files that the cut may have replaced.

        It also forgets its notes about ledgers that were removed while they were read.
        """
        cuts = self._journal.cuts
        if cuts != self._cuts:
            self._forget()
            self._ledger.forget(self._journal.segments)
            self._cuts = cuts
        return cuts

    def _damaged(self, cuts: int, segment: Segment, index: int, error: ValueError, nothing: T) -> T:
        """`nothing` where the log was cut meanwhile; else raises Damaged."""
        if cuts != self._journal.cuts:
            return nothing
        raise Damaged(Damage(segment.name, 0, index, str(error))) from error

    def _position(self, segment: Segment, index: int) -> int:
        """Where the header of the entry that holds a record is, from its row."""
        row = self._files.read(index_name(segment.first), row_position(segment, index), IDX_ROW.size)
        if len(row) != IDX_ROW.size:
            raise Corrupt(f"{index_name(segment.first)} has no row of record {index}")
        position: int = IDX_ROW.unpack(row)[0]
        return position

    def _header(self, segment: Segment, position: int, index: int) -> EntryHeader:
        """The header of the entry that holds a record."""
        header = decode_header(self._files.read(segment.name, position, HEADER_SIZE))
        if not header.index - header.count < index <= header.index:
            raise Corrupt(f"the row of record {index} leads to entry {header.index} of {header.count} records")
        return header

    def _last_entry(
        self, segment: Segment, from_index: int, to_index: int, base: int, bytes_max: int
    ) -> tuple[int, EntryHeader]:
        """Where the last entry starts that a slice from `base` on may hold, and its header."""
        count = min(to_index - from_index + 1, bytes_max // RECORD_SIZE + 1)
        rows = self._files.read(index_name(segment.first), row_position(segment, from_index), IDX_ROW.size * count)
        if len(rows) != IDX_ROW.size * count:
            raise Corrupt(f"{index_name(segment.first)} ends before record {from_index + count - 1}")
        positions = memoryview(rows).cast("I")[0::4]
        number = bisect_right(positions, base + bytes_max) - 1
        position = positions[number]
        header = self._header(segment, position, from_index + number)
        if position > base and position + HEADER_SIZE + header.length > base + bytes_max:
            number = bisect_left(positions, position) - 1
            position = positions[number]
            header = self._header(segment, position, from_index + number)
        return position, header
