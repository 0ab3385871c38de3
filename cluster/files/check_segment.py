"""Checks every byte of one segment and its .idx: CRCs, the chain of entries, zeros, each row against its record.

`raftlog disk check` and scrubbing call it. The .idx is compared with the segment, and not only with its own CRC. A row
that was wrong when the footer was written has a good CRC.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from raftlog.cluster.files.findings import (
    HEALS,
    HEALS_ONCE_READ,
    NEWER_CODE,
    NEXT_START,
    NOT_READ,
    REMOVE,
    REREAD,
    FileHealth,
    Finding,
    Steps,
)
from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.codec.index_rows import IDX_ROW, index_rows
from raftlog.raft.codec.mark import MARK_SIZE
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import GENESIS, EntryKind, HardState, Mark
from raftlog.raft.wal.formats import (
    INDEX_MAGIC,
    SEGMENT_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    ForeignFile,
    LogIdentity,
    SegmentHeader,
    Slot,
    check_side_header,
    decode_index_footer,
    decode_segment_header,
    index_name,
    segment_name,
)
from raftlog.raft.wal.journal import Segment, row_position
from raftlog.raft.wal.operations import Files, Zero, end_of_bytes
from raftlog.raft.wal.recovery import ScannedEntry, recover_log, scan

_MOVE = "move it to where it belongs, or away"
_ROWS_BYTES = 1 << 16  # bytes of rows compared in one step


@dataclass(slots=True)
class SegmentReport:
    """The facts about one segment after it was read."""

    segment: Segment
    is_whole: bool = True  # it holds every entry that it should hold
    ends: array[int] = field(default_factory=lambda: array("Q"))  # indexes of its entries
    configurations: list[tuple[int, Configuration]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def header_of(log: LogIdentity, files: Files, first: int) -> SegmentHeader | Finding:
    """The header of the segment whose name says `first`, or why its entries cannot be looked at."""
    name = segment_name(first)
    try:
        header = decode_segment_header(log, files.read(name, 0, SEGMENT_HEADER_SIZE))
    except Corrupt as error:
        what = f"{error}: its entries were not looked at"
        return Finding(name, FileHealth.DAMAGED, what, 0, first - 1, HEALS)
    except ForeignFile as error:
        return Finding(name, FileHealth.FOREIGN, str(error), 0, mend=_MOVE)
    except UnknownVersion as error:
        return Finding(name, FileHealth.NEWER, str(error), 0, mend=NEWER_CODE)
    if header.first != first:
        what = f"it is a copy of, or should be called, {segment_name(header.first)}"
        return Finding(name, FileHealth.FOREIGN, what, 0, mend=_MOVE)
    if first == 1 and header.previous != GENESIS:
        return Finding(name, FileHealth.DAMAGED, "the first segment names an entry before it", 0, 0, HEALS)
    return header


class _Rows:
    """Compares the rows that a segment should have with its .idx, a window at a time."""

    def __init__(self, files: Files, segment: Segment) -> None:
        self._files, self._name = files, index_name(segment.first)
        self._position = SIDE_HEADER_SIZE
        self._waiting: list[bytes] = []
        self._size = 0
        self.crc = 0
        self.wrong: int | None = None  # byte of the first row that differs
        self.is_short = False  # rows are not there yet, or zero

    def add(self, rows: bytes) -> None:
        """Adds the rows of the next entry."""
        self._waiting.append(rows)
        self._size += len(rows)
        if self._size >= _ROWS_BYTES:
            self.compare()

    def compare(self) -> None:
        """Compares as many rows as wait."""
        wanted = b"".join(self._waiting)
        self._waiting, self._size = [], 0
        self.crc = crc32c(wanted, self.crc)
        found = self._files.read(self._name, self._position, len(wanted))
        if found != wanted and self.wrong is None and not self.is_short:
            same = _same(found, wanted)
            if any(found[same:]):
                self.wrong = self._position + same
            else:
                self.is_short = True
        self._position += len(wanted)

    @property
    def end(self) -> int:
        """The position after the compared rows."""
        return self._position


def looking_at_segment(
    log: LogIdentity,
    files: Files,
    header: SegmentHeader,
    following: SegmentHeader | None,
    durable: int = 0,
    cut: int = 0,
) -> Steps[SegmentReport]:
    """Reads a segment and its .idx, in steps, one for each entry. `following` is the header of the next segment; None:
    this is the newest one.

    `durable`: an index that is synced by other evidence. `cut`: if not 0, a cut after that index had begun.
    """
    name = segment_name(header.first)
    segment = Segment(header.previous, header.size, header.previous)
    looked = SegmentReport(segment)
    rows = _Rows(files, segment)
    tell = looked.findings.append
    ended = ScannedEntry(SEGMENT_HEADER_SIZE, None, SEGMENT_HEADER_SIZE)
    try:
        for found in scan(files, name, header, stop_after=cut or None):
            ended = found
            if found.is_mark_damaged:
                mend = REREAD if following else NEXT_START
                what = "a durable mark between two entries that belong together"
                tell(Finding(name, FileHealth.DAMAGED, what, found.position - MARK_SIZE, segment.last.index, mend))
            if (entry := found.entry) is None:
                break
            rows.add(index_rows(entry, found.position))
            segment.add(entry, found.position)
            looked.ends.append(entry.index)
            if entry.kind is EntryKind.CONFIGURATION:
                looked.configurations.append((entry.index, decode_configuration(entry.data)))
            yield
    except UnknownVersion as error:
        tell(Finding(name, FileHealth.NEWER, str(error), segment.end, segment.last.index, NEWER_CODE))
        looked.is_whole = False
    except Corrupt as error:
        mend = HEALS_ONCE_READ if following else HEALS
        tell(Finding(name, FileHealth.DAMAGED, str(error), ended.position, segment.last.index, mend))
        looked.is_whole = False
    rows.compare()
    if files.size(name) < header.size:
        what = f"cut short: {files.size(name)} of {header.size} bytes"
        tell(Finding(name, FileHealth.DAMAGED, what, files.size(name), segment.last.index, HEALS))
    elif (end := end_of_bytes(files, name, header.size, files.size(name))) > header.size:
        tell(
            Finding(
                name,
                FileHealth.DAMAGED,
                f"bytes up to {end} behind the end of the segment",
                header.size,
                None,
                NOT_READ,
            )
        )
    if looked.is_whole:
        if following is not None:
            _check_sealed(files, looked, ended, header, following.previous)
        else:
            _check_newest(log, files, looked, header, durable, cut)
    if not looked.findings:
        tell(Finding(name, FileHealth.INTACT, _contents(looked)))
    looked.findings += _check_index(log, files, looked, rows, is_sealed=following is not None)
    return looked


def _contents(looked: SegmentReport) -> str:
    segment = looked.segment
    if not looked.ends:
        return f"no entry yet; the next is {segment.first}"
    terms = [run.term for run in segment.runs]
    span = f"term {terms[0]}" if len(terms) == 1 else f"terms {terms[0]} to {terms[-1]}"
    return f"records {segment.first} to {segment.last.index} in {len(looked.ends)} entries, {span}"


def _check_sealed(files: Files, looked: SegmentReport, ended: ScannedEntry, header: SegmentHeader, end: Mark) -> None:
    """A sealed segment must end with the entry that the header of the next one names."""
    segment, name = looked.segment, segment_name(header.first)
    if segment.last != end:
        looked.is_whole = False
        reason = ended.reason or "the entries end"
        if segment.last.index == end.index:
            what = f"its last entry is {end.index}, but not the one that the next segment follows"
        else:
            what = f"{reason}; the next segment follows entry {end.index} of term {end.term}"
        looked.findings.append(
            Finding(name, FileHealth.DAMAGED, what, ended.position, segment.last.index, _LOST.format(HEALS_ONCE_READ))
        )
    elif (last := end_of_bytes(files, name, ended.position, header.size)) > ended.position:
        what = f"bytes up to {last} behind the last entry, where there should be zeros"
        looked.findings.append(Finding(name, FileHealth.DAMAGED, what, ended.position, segment.last.index, NOT_READ))


_LOST = "what this node had acknowledged is not all there; {}"


def _check_newest(
    log: LogIdentity, files: Files, looked: SegmentReport, header: SegmentHeader, durable: int, cut: int
) -> None:
    """Judges the end of the newest segment with the code of a start, on this segment alone."""
    segment, name = looked.segment, segment_name(header.first)
    recovery = recover_log(log, _Alone(files, name), Slot(0, HardState(), cut), durable)
    if (damage := recovery.damage) is not None:
        looked.is_whole = False
        mend = _LOST.format(HEALS)
        looked.findings.append(Finding(name, FileHealth.DAMAGED, damage.reason, damage.position, damage.index, mend))
        return
    segment.end = recovery.segments[0].end
    for operation in recovery.operations:
        if isinstance(operation, Zero):
            size = operation.end - operation.start
            what = f"a torn tail of {size} bytes: nothing in the files says that it was synced"
            if cut:
                what = f"{size} bytes behind index {cut}, which are being cut off"
            mend = "nothing: the next start cuts it"
            looked.findings.append(
                Finding(name, FileHealth.UNFINISHED, what, operation.start, segment.last.index, mend)
            )


class _Alone:
    """The files of a shard, as if it had only one segment."""

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._name = files, name
        self.size, self.read = files.size, files.read

    def names(self, folder: str) -> list[str]:
        """The name of that segment only."""
        return [self._name.removeprefix(f"{folder}/")]


# ---------------------------------------------------------------------------------------------------------------
# .idx


def _check_index(
    log: LogIdentity, files: Files, looked: SegmentReport, rows: _Rows, *, is_sealed: bool
) -> Iterator[Finding]:
    segment = looked.segment
    name = index_name(segment.first)
    mend = REMOVE if is_sealed else NEXT_START
    size = files.size(name)
    if size < 0:
        yield Finding(name, FileHealth.MISSING, "there is no such file", mend=NEXT_START)
        return
    try:
        check_side_header(log, INDEX_MAGIC, segment.previous, files.read(name, 0, SIDE_HEADER_SIZE))
    except Corrupt as error:
        yield Finding(name, FileHealth.DAMAGED, str(error), 0, None, NEXT_START)
        return
    except ForeignFile as error:
        yield Finding(name, FileHealth.FOREIGN, str(error), 0, None, NEXT_START)
        return
    except UnknownVersion as error:
        yield Finding(name, FileHealth.NEWER, str(error), 0, None, NEWER_CODE)
        return
    if rows.wrong is not None:
        index = segment.first + (rows.wrong - SIDE_HEADER_SIZE) // IDX_ROW.size
        what = f"the row of record {index} is not what the segment says"
        yield Finding(name, FileHealth.DAMAGED, what, rows.wrong, index - 1, mend)
        return
    if rows.is_short and (is_sealed or size >= rows.end):
        what = f"rows are missing or zero; it should have them up to record {segment.last.index}"
        yield Finding(name, FileHealth.DAMAGED if is_sealed else FileHealth.UNFINISHED, what, size, None, NEXT_START)
        return
    if not looked.is_whole:
        what = (
            f"its first {segment.last.index - segment.previous.index} rows; there is nothing to compare the others with"
        )
        yield Finding(name, FileHealth.INTACT, what)
    elif not is_sealed:
        yield from _check_open_end(files, name, size, rows, segment)
    else:
        yield _check_footer(files, name, size, rows, segment)


def _check_open_end(files: Files, name: str, size: int, rows: _Rows, segment: Segment) -> Iterator[Finding]:
    count = max(0, min(size, rows.end) - SIDE_HEADER_SIZE) // IDX_ROW.size
    if rows.is_short or size != rows.end:
        what = f"{count} rows for {segment.last.index - segment.previous.index} records"
        if end_of_bytes(files, name, rows.end, size) > rows.end and size % IDX_ROW.size:
            yield Finding(name, FileHealth.DAMAGED, f"{what}, and bytes that are no row", rows.end, None, NEXT_START)
        else:
            yield Finding(name, FileHealth.UNFINISHED, what, min(size, rows.end), None, NEXT_START)
    else:
        yield Finding(name, FileHealth.INTACT, f"{count} rows, no footer yet")


def _check_footer(files: Files, name: str, size: int, rows: _Rows, segment: Segment) -> Finding:
    position = row_position(segment, segment.last.index + 1)
    footer = files.read(name, position, max(0, size - position))
    if not any(footer):
        what = "no footer yet: the next start reads the whole segment"
        return Finding(name, FileHealth.UNFINISHED, what, position, None, NEXT_START)
    try:
        summary, rows_crc = decode_index_footer(footer)
    except Corrupt as error:
        return Finding(name, FileHealth.DAMAGED, str(error), position, None, NEXT_START)
    except UnknownVersion as error:
        return Finding(name, FileHealth.NEWER, str(error), position, None, NEWER_CODE)
    own = segment.summary
    if rows_crc != rows.crc:
        return Finding(name, FileHealth.DAMAGED, "its footer was made for other rows", position, None, REMOVE)
    if (summary.last, summary.runs, summary.configurations, summary.time_first_ms) != (
        own.last,
        own.runs,
        own.configurations,
        own.time_first_ms,
    ):
        return Finding(
            name, FileHealth.DAMAGED, "its footer does not say what the segment says", position, None, REMOVE
        )
    return Finding(name, FileHealth.INTACT, f"{segment.last.index - segment.previous.index} rows and the footer")


# ---------------------------------------------------------------------------------------------------------------


def _same(one: bytes, other: bytes) -> int:
    """The number of equal bytes at the start of both, in whole rows."""
    size = IDX_ROW.size
    for offset in range(0, min(len(one), len(other)), size):
        if one[offset : offset + size] != other[offset : offset + size]:
            return offset
    return min(len(one), len(other)) // size * size
