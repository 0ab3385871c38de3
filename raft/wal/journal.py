"""Decides what to do to the files of the log, as values: append, roll, cut, mark, keep the hard state.

The driver executes the operations in order and reports when they are done. No code here opens a file, so the server,
the simulator and the crash tests run the same decisions. Layout: docs/formats.md. Paths are relative to the folder of
one shard.

Order is what makes it safe:
- entries go behind all that was synced before, in one write, after the mark that says so;
- a segment is synced before the next one's header is written, and that header is synced before the file gets its name.
  So a file called *.seg has a valid header, and all entries before it are durable;
- before a cut, the hard state records that it has begun, and after it that it is over. The next start finishes a cut
  that a crash interrupted, and never takes it for damage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftlog.raft.codec.checks import crc32c
from raftlog.raft.codec.index_rows import IDX_ROW, index_rows
from raftlog.raft.codec.mark import MARK_SIZE, encode_mark
from raftlog.raft.types import Entry, EntryKind, HardState, Mark, ReplacedEnd, TermRun
from raftlog.raft.wal.formats import (
    HARD_STATE,
    HARD_STATE_SLOT,
    INDEX_MAGIC,
    LEDGER_MAGIC,
    LOG_FOLDER,
    SEGMENT_BYTES_LIMIT,
    SEGMENT_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    LogIdentity,
    SegmentHeader,
    Slot,
    Summary,
    encode_index_footer,
    encode_segment_header,
    encode_side_header,
    encode_slot,
    index_name,
    ledger_name,
    segment_name,
    spare_name,
)
from raftlog.raft.wal.operations import (
    Allocate,
    Create,
    Delete,
    FileOperation,
    Rename,
    Sync,
    SyncFolder,
    Truncate,
    Write,
    Zero,
)

SEGMENT_BYTES: Final = 64 << 20
FIRST_SEGMENT_BYTES: Final = 4 << 20
"""The first segment of a new log has at most so many, so that an empty node takes little disk space."""
SEGMENT_BYTES_MIN: Final = 4_096


class ImpossibleBatch(ValueError):
    """A batch that cannot follow what the log holds: a mistake of the caller, found before anything was written."""


# ---------------------------------------------------------------------------------------------------------------
# State


@dataclass(slots=True)
class Segment:
    """The known facts of one segment file. Only the newest one changes."""

    previous: Mark  # end of the entry before its first
    size: int
    last: Mark  # end of its newest entry; `previous` while it is empty
    end: int = SEGMENT_HEADER_SIZE  # where the next byte goes
    time_first_ms: int = 0
    runs: list[TermRun] = field(default_factory=list)
    configurations: list[int] = field(default_factory=list)  # indexes of its configuration entries
    first: int = field(init=False)  # index of its first record
    name: str = field(init=False)  # of its file

    def __post_init__(self) -> None:
        self.first = self.previous.index + 1
        self.name = segment_name(self.first)

    @property
    def header(self) -> SegmentHeader:
        """What the file begins with."""
        return SegmentHeader(self.previous, self.size)

    @property
    def summary(self) -> Summary:
        """What the footer of its .idx says."""
        return Summary(self.last, self.end, self.time_first_ms, tuple(self.runs), tuple(self.configurations))

    def add(self, entry: Entry, position: int) -> None:
        """Takes note of an entry at `position`, behind all others."""
        if self.last.index == self.previous.index:
            self.time_first_ms = entry.time_ms
        if not self.runs or self.runs[-1].term != entry.term:
            self.runs.append(TermRun(entry.first, entry.term))
        if entry.kind is EntryKind.CONFIGURATION and self.configurations[-1:] != [entry.index]:
            self.configurations.append(entry.index)
        self.last = entry.mark
        self.end = position + entry.size

    def add_summary(self, summary: Summary) -> None:
        """Takes over what a footer says."""
        self.last = summary.last
        self.end = summary.end
        self.time_first_ms = summary.time_first_ms
        self.runs = list(summary.runs)
        self.configurations = list(summary.configurations)


Groups = list[tuple[int, Sequence[Entry]]]
"""Entries by the segment that they go to, each with the size of its file."""


class EntryPlace(NamedTuple):
    """Where an entry was put: its .idx rows are still to be written."""

    segment: Segment
    position: int
    entry: Entry


class Journal:
    """The files of one shard's log, as they are once every operation given out so far was executed.

    Files that will be deleted are removed from here first. One thread changes it; others read beside it, from copies of
    `segments`, up to `indexed`.
    """

    __slots__ = ("cuts", "indexed", "log", "marked", "segment_bytes", "segments", "slot")

    def __init__(
        self, log: LogIdentity, segments: list[Segment], slot: Slot, segment_bytes: int = SEGMENT_BYTES, marked: int = 0
    ) -> None:
        check_segment_bytes(segment_bytes)
        self.log = log
        self.segments = segments
        self.slot = slot
        self.segment_bytes = segment_bytes
        # The newest index that a mark or a segment header says is synced.
        self.marked = max(marked, segments[-1].previous.index)
        self.indexed = segments[-1].last.index  # the newest index whose .idx rows are written: the driver's to raise
        # How often entries left the log: data read from disk before may be gone. Reported behind the change of
        # `segments` and before any file changes: a reader that saw it never meets what goes.
        self.cuts = 0

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.segments[-1]

    @property
    def last(self) -> Mark:
        """The end of the newest entry; durable whenever no append is under way."""
        return self.segments[-1].last

    @property
    def first(self) -> int:
        """The oldest index on disk."""
        return self.segments[0].first

    def segment_of(self, index: int) -> Segment:
        """The segment that holds that index; raises IndexError where the log does not.

        In a copy: another thread may take the oldest away, or put an older one in front, while this one looks.
        """
        segments = self.segments[:]
        first, last = segments[0].first, segments[-1].last.index
        if not first <= index <= last:
            raise IndexError(f"index {index} is not in the log, which holds {first} to {last}")
        return segments[bisect_right(segments, index, key=_first_of) - 1]

    # -- hard state

    def set_hard_state(
        self, state: HardState, cut: int = 0, replaced: ReplacedEnd | None = None
    ) -> tuple[list[FileOperation], list[FileOperation]]:
        """The operations that make it durable, and those that repeat it in the other slot: `keep_slot`."""
        self.slot = Slot(self.slot.sequence + 1, state, cut, replaced=replaced or self.slot.replaced)
        return keep_slot(self.log, self.slot)

    def replaces(self, after: int) -> ReplacedEnd:
        """What the hard state says before a leader's entries or snapshot replace the log after `after`: the next start
        must not take the promises that this makes void for lost ones."""
        return ReplacedEnd(*self.slot.replaced.kept(self.last), after)

    # -- append

    def check(self, entries: Sequence[Entry], after: Mark | None = None) -> None:
        """Raises ImpossibleBatch unless the entries follow each other and `after` (else the newest entry)."""
        mark = after or self.segments[-1].last
        index, crc = mark.index, mark.header_crc
        for entry in entries:
            if entry.before != index or entry.previous_crc != crc:
                raise ImpossibleBatch(
                    f"entry {entry.first}..{entry.index} of term {entry.term} does not follow the log, which ends at "
                    f"{index} with header CRC {crc:08x} (the entry names {entry.previous_crc:08x})"
                )
            index, crc = entry.index, entry.mark.header_crc

    def spares(self, entries: Sequence[Entry], groups: Groups | None = None) -> list[FileOperation]:
        """The files that must be there before `append(entries)`: the only step that may run out of space.

        `groups`, here and below: what `split(entries)` gave, if it was asked.
        """
        operations: list[FileOperation] = []
        previous = self.last
        for number, (size, group) in enumerate(groups or self.split(entries)):
            if number:
                operations += prepare_segment(self.log, previous, size, number - 1)
            if group:
                previous = group[-1].mark
        return operations

    def append(
        self, entries: Sequence[Entry], groups: Groups | None = None
    ) -> tuple[list[FileOperation], list[EntryPlace]]:
        """The operations that make `entries` durable, and where each entry goes. Call `check` and `spares` before."""
        operations: list[FileOperation] = []
        placed: list[EntryPlace] = []
        for number, (size, group) in enumerate(groups or self.split(entries)):
            if number:
                operations += self._roll(number - 1, size)
            if not group:
                continue
            segment = self.segments[-1]
            start = position = segment.end
            parts: list[bytes] = []
            if self.marked != segment.last.index:
                self.marked = segment.last.index
                parts.append(encode_mark(segment.last, position))
                position += MARK_SIZE
            for entry in group:
                placed.append(EntryPlace(segment, position, entry))
                parts += (entry.header, entry.data)
                segment.add(entry, position)
                position = segment.end
            operations += (Write(segment.name, start, b"".join(parts)), Sync(segment.name))
        return operations, placed

    def mark(self) -> list[FileOperation]:
        """A durable mark behind the newest entry, where there is none yet: at idle times and at a clean stop."""
        segment = self.active
        if self.marked == segment.last.index or segment.end + MARK_SIZE > segment.size:
            return []
        self.marked = segment.last.index
        write = Write(segment.name, segment.end, encode_mark(segment.last, segment.end))
        segment.end += MARK_SIZE
        return [write, Sync(segment.name)]

    def split(self, entries: Sequence[Entry]) -> Groups:
        """The entries by segment, with the segment's size: the active one first (perhaps with none), then new ones.

        An entry is never split; one that is larger than a segment gets one of its own size. Behind the newest entry
        there is always room for a mark.
        """
        active, end = self.segments[-1], 0
        for entry in entries:
            end += entry.size
        if active.end + MARK_SIZE + end + MARK_SIZE <= active.size:
            return [(active.size, entries)]
        groups: list[tuple[int, list[Entry]]] = [(active.size, [])]
        position = active.end + MARK_SIZE
        for entry in entries:
            if position + entry.size + MARK_SIZE > groups[-1][0]:
                position = SEGMENT_HEADER_SIZE
                groups.append((max(self.segment_bytes, position + entry.size + MARK_SIZE), []))
            groups[-1][1].append(entry)
            position += entry.size
        for size, _ in groups:
            check_segment_bytes(size)
        return list(groups)

    def _roll(self, number: int, size: int) -> list[FileOperation]:
        previous = self.last
        segment = Segment(previous, size, previous)
        self.segments.append(segment)
        self.marked = previous.index
        return make_segment(self.log, previous, size, number)

    def index_writes(self, placed: Sequence[EntryPlace]) -> list[FileOperation]:
        """The .idx rows of appended entries, one write for each segment. Raises Corrupt or UnknownVersion."""
        writes: list[FileOperation] = []
        start = 0
        while start < len(placed):
            segment = placed[start].segment
            stop = start + 1
            while stop < len(placed) and placed[stop].segment is segment:
                stop += 1
            rows = b"".join([index_rows(entry, position) for _, position, entry in placed[start:stop]])
            writes.append(Write(index_name(segment.first), row_position(segment, placed[start].entry.first), rows))
            start = stop
        return writes

    # -- cut

    def cut(self, kept: Mark, end: int) -> Iterator[list[FileOperation]]:
        """Drops every entry after `kept`, which ends at `end` of its segment: groups of operations, in order.

        The last group must be executed too before anything is appended: then the hard state no longer says that a cut
        is under way. The caller cuts the ledger of the segment that becomes the active one.
        """
        if not max(1, self.first - 1) <= kept.index <= self.last.index:
            raise ImpossibleBatch(f"a cut after {kept.index}: the log holds {self.first} to {self.last.index}")
        state = self.slot.state
        promise, repeat = self.set_hard_state(state, kept.index, self.replaces(kept.index))
        is_shorter = self.active.first > kept.index
        dropped: list[int] = []
        while len(self.segments) > 1 and self.active.first > kept.index:
            dropped.append(self.segments.pop().first)
        segment = self.active
        old_end = segment.end
        segment.last, segment.end = kept, end
        self.indexed = kept.index
        segment.runs = [run for run in segment.runs if run.first <= kept.index]
        segment.configurations = [index for index in segment.configurations if index <= kept.index]
        self.marked = segment.previous.index
        self.cuts += 1
        yield promise + repeat
        for first in dropped:
            yield drop_segment(first)
        name = segment.name
        rows, index_file = row_position(segment, kept.index + 1), index_name(segment.first)
        # Rows prove that their entries were synced. So the rows of the cut entries are durably removed before the cut
        # is over.
        yield [Zero(name, end, old_end), Sync(name), Truncate(index_file, rows), Sync(index_file)]
        # The marks that were behind `kept` are gone: without a new one, damage below it would count as a torn tail.
        if mark := self.mark():
            yield mark
        if is_shorter:  # a segment's other files are durably removed before the hard state says that the cut is over
            yield [SyncFolder(LOG_FOLDER)]
        promise, repeat = self.set_hard_state(state)
        yield promise + repeat

    # -- compact

    def compact(self, keep_after: int) -> Iterator[list[FileOperation]]:
        """Removes whole segments that end at or before `keep_after`, oldest first; the newest one always stays.

        A durable snapshot must cover `keep_after`.
        """
        while len(self.segments) > 1 and self.segments[0].last.index <= keep_after:
            dropped = self.segments.pop(0)
            self.cuts += 1
            yield drop_segment(dropped.first)

    def restart(self, mark: Mark) -> list[int]:
        """Forgets the whole log for an empty one that follows `mark`, which a durable snapshot covers.

        Returns the first indexes of its segments, sorted. The caller moves or deletes their files, and then makes the
        first segment of the new log. The next start must finish that after a crash, before it looks at the log.
        """
        firsts = [segment.first for segment in self.segments]
        self.segments[:] = [Segment(mark, self.segment_bytes, mark)]
        self.marked = self.indexed = mark.index
        self.cuts += 1
        return firsts


def begin_after(log: LogIdentity, mark: Mark, segment_bytes: int) -> list[FileOperation]:
    """An empty log that follows `mark`."""
    return [*prepare_segment(log, mark, segment_bytes), *make_segment(log, mark, segment_bytes)]


def keep_slot(log: LogIdentity, slot: Slot) -> tuple[list[FileOperation], list[FileOperation]]:
    """The operations that make a slot durable, and those that repeat it in the other place.

    What it promises may be said after the first. The second makes sure that one damaged slot never takes a node back
    to a vote that it has forgotten.
    """
    data = encode_slot(log, slot)
    one, other = (slot.sequence % 2) * HARD_STATE_SLOT, (1 - slot.sequence % 2) * HARD_STATE_SLOT
    return [Write(HARD_STATE, one, data), Sync(HARD_STATE)], [Write(HARD_STATE, other, data), Sync(HARD_STATE)]


def _first_of(segment: Segment) -> int:
    return segment.first


def check_segment_bytes(size: int) -> None:
    """Raises ValueError where segment files of that size would break the format."""
    if not SEGMENT_BYTES_MIN <= size <= SEGMENT_BYTES_LIMIT:
        raise ValueError(
            f"a segment file of {size} bytes: it must have {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_LIMIT} "
            "(positions in .idx are 32 bits wide)"
        )


def row_position(segment: Segment, index: int) -> int:
    """Where in the .idx the row of that record is."""
    return SIDE_HEADER_SIZE + IDX_ROW.size * (index - segment.first)


def prepare_segment(log: LogIdentity, previous: Mark, size: int, number: int = 0) -> list[FileOperation]:
    """Makes the three files of the segment that follows `previous`, under other names. All disk space is taken here."""
    spare = spare_name(number)
    return [
        Allocate(spare, size),
        Create(f"{spare}.idx", encode_side_header(log, INDEX_MAGIC, previous)),
        Create(f"{spare}.ledger", encode_side_header(log, LEDGER_MAGIC, previous)),
    ]


def make_segment(log: LogIdentity, previous: Mark, size: int, number: int = 0) -> list[FileOperation]:
    """Turns the prepared files into the segment that follows `previous`."""
    first, spare = previous.index + 1, spare_name(number)
    return [
        Write(spare, 0, encode_segment_header(log, SegmentHeader(previous, size))),
        Sync(spare),
        Rename(f"{spare}.idx", index_name(first)),
        Rename(f"{spare}.ledger", ledger_name(first)),
        Rename(spare, segment_name(first)),
        SyncFolder(LOG_FOLDER),
    ]


def drop_segment(first: int) -> list[FileOperation]:
    """Removes a segment, its entries first."""
    return [
        Delete(segment_name(first)),
        SyncFolder(LOG_FOLDER),
        Delete(index_name(first)),
        Delete(ledger_name(first)),
    ]


def seal_index(segment: Segment, rows: bytes) -> list[FileOperation]:
    """The footer of a sealed segment's .idx, whose rows are `rows`."""
    name = index_name(segment.first)
    position = row_position(segment, segment.last.index + 1)
    footer = encode_index_footer(segment.summary, crc32c(rows))
    return [Write(name, position, footer), Sync(name)]
