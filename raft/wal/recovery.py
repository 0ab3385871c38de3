"""Judges the files of a starting node: which part is intact, a torn tail or damage, and how to repair it.

The rule: a bad record is damage if anything in the files proves that it was synced. Any other bad record is a torn
tail, which is cut. The proofs are the header of a later segment (all before it was synced when it was made), the newest
snapshot, and those of `raftlog.raft.wal.evidence`. Damaged files are not written to. Protocol-Aware Recovery (FAST'18).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from raftlog.raft.codec.checks import Corrupt, crc32c
from raftlog.raft.codec.entry import ENTRY_MAGIC, HEADER_SIZE, decode_header, entry_of
from raftlog.raft.codec.index_rows import IDX_ROW, index_rows
from raftlog.raft.codec.mark import MARK_MAGIC, MARK_SIZE, decode_mark, encode_mark
from raftlog.raft.types import GENESIS, Entry, EntryKind, Mark
from raftlog.raft.wal.evidence import header_after, newest_frame, synced_until
from raftlog.raft.wal.formats import (
    HARD_STATE,
    HARD_STATE_SLOT,
    INDEX_MAGIC,
    LOG_FOLDER,
    SEGMENT_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    SLOT_SIZE,
    ForeignFile,
    LogIdentity,
    SegmentHeader,
    Slot,
    check_side_header,
    decode_index_footer,
    decode_segment_header,
    decode_slot,
    encode_index_footer,
    encode_side_header,
    index_name,
    segment_firsts,
    segment_name,
)
from raftlog.raft.wal.journal import Segment, drop_segment
from raftlog.raft.wal.operations import (
    WINDOW,
    Create,
    Delete,
    FileOperation,
    Files,
    Sync,
    SyncFolder,
    Write,
    Zero,
    end_of_bytes,
)


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that was durable cannot be read any more."""

    file: str
    position: int
    index: int  # the newest index before it that is intact
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: damaged at byte {self.position}, after index {self.index}: {self.reason}"


class Damaged(ValueError):
    """Raised with a `Damage`."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage))
        self.damage = damage


class HardStateDamaged(ValueError):
    """Neither slot of the hard state can be read: this node may not vote, nor count as one that has not voted."""


# ---------------------------------------------------------------------------------------------------------------
# Hard state


def recover_hard_state(log: LogIdentity, files: Files) -> tuple[Slot, list[str]]:
    """The newest intact slot, and the notices to report. Raises HardStateDamaged, UnknownVersion or ForeignFile."""
    slots: list[Slot] = []
    reasons: list[str] = []
    for number in range(2):
        try:
            slots.append(decode_slot(log, files.read(HARD_STATE, number * HARD_STATE_SLOT, SLOT_SIZE)))
        except Corrupt as error:
            reasons.append(f"{HARD_STATE}: slot {number}: {error}")
    if not slots:
        raise HardStateDamaged("; ".join(reasons))
    return max(slots, key=lambda slot: slot.sequence), reasons


# ---------------------------------------------------------------------------------------------------------------
# Scanning one segment


class ScannedEntry(NamedTuple):
    """One intact entry and where it is; or, as the last of a scan, why it ended (`entry` is None)."""

    position: int
    entry: Entry | None
    from_mark: int  # where the newest durable mark so far starts, or what follows the header if there is none
    reason: str = ""  # of the end; empty at a clean one: zeros
    is_mark_damaged: bool = False  # the mark right before the entry


class Window:
    """A sliding view of a file: any range of up to WINDOW bytes, or more for one large entry."""

    __slots__ = ("_base", "_buffer", "_files", "_name", "_size")

    def __init__(self, files: Files, name: str, size: int) -> None:
        self._files, self._name, self._size = files, name, size
        self._base, self._buffer = 0, b""

    def at(self, position: int, size: int) -> tuple[bytes, int]:
        """A buffer and the offset in it at which up to `size` bytes of `position` start (fewer at the end)."""
        offset = position - self._base
        if offset < 0 or offset + size > len(self._buffer):
            wanted = min(max(WINDOW, size), max(0, self._size - position))
            self._base, self._buffer = position, self._files.read(self._name, position, wanted)
            offset = 0
        return self._buffer, offset


def scan(files: Files, name: str, header: SegmentHeader, stop_after: int | None = None) -> Iterator[ScannedEntry]:
    """The intact entries of a segment in order, then one ScannedEntry that says where and why it ends.

    Chain, index and CRCs are checked, so an old but valid block is noticed. A damaged mark between two entries that
    belong together is passed over: it says nothing that they do not. Raises UnknownVersion.
    """
    window = Window(files, name, header.size)
    position, from_mark = SEGMENT_HEADER_SIZE, SEGMENT_HEADER_SIZE
    index, term, crc = header.previous.index, header.previous.term, header.previous.header_crc
    passed = 0  # MARK_SIZE while a damaged mark has just been passed over
    while stop_after is None or index < stop_after:
        buffer, offset = window.at(position, HEADER_SIZE)
        try:
            magic = buffer[offset : offset + 4]
            if magic == ENTRY_MAGIC:
                head = decode_header(buffer, offset)
                size = HEADER_SIZE + head.length
                buffer, offset = window.at(position, size)
                entry = entry_of(head, buffer, offset)
                if head.index - head.count != index or head.previous_crc != crc:
                    raise Corrupt(f"an intact entry {head.index} of term {head.term} that belongs elsewhere")
                yield ScannedEntry(position, entry, from_mark, "", bool(passed))
                index, term, crc = head.index, head.term, head.crc
                position += size
                passed = 0
                continue
            if magic == MARK_MAGIC and not passed:
                mark = decode_mark(buffer, offset, position)
                if (mark.index, mark.term, mark.header_crc) != (index, term, crc):
                    raise Corrupt(f"a durable mark of {mark.index} behind entry {index}")
                from_mark = position
                position += MARK_SIZE
                continue
            reason = "" if not passed and not any(buffer[offset : offset + HEADER_SIZE]) else "no entry starts here"
        except Corrupt as error:
            reason = str(error)
        if passed or not reason or header_after(*window.at(position + MARK_SIZE, HEADER_SIZE), index, crc) is None:
            yield ScannedEntry(position - passed, None, from_mark, reason)
            return
        passed = MARK_SIZE
        position += MARK_SIZE
    yield ScannedEntry(position, None, from_mark)


# ---------------------------------------------------------------------------------------------------------------
# The whole log


@dataclass(slots=True)
class Recovery:
    """What the log folder holds. Where there is `damage`, nothing may be written, and `segments` end before it."""

    segments: list[Segment] = field(default_factory=list)
    tail: tuple[Entry, ...] = ()  # the newest entries
    damage: Damage | None = None
    notices: list[str] = field(default_factory=list)  # findings and repairs, for people
    # To execute in order, before anything else; then a new hard state that names no cut.
    operations: list[FileOperation] = field(default_factory=list)
    rebuild: list[Segment] = field(default_factory=list)  # sealed, without a usable .idx: `rebuild_index`
    marked: int = 0  # the newest index that a mark or header says is synced
    applied: int = 0  # the newest intact entry with effects in the newest .ledger; 0: none


def recover_log(
    log: LogIdentity, files: Files, slot: Slot, durable: int = 0, tail_bytes_max: int = 8 << 20
) -> Recovery:
    """Reads the log folder and decides. `durable` is an index known to be synced otherwise (the newest snapshot's).

    Raises UnknownVersion or ForeignFile: then another version, or another node, wrote these files.
    """
    recovery = Recovery()
    firsts = _list_segments(files, recovery)
    if slot.cut:
        recovery.notices.append(f"a cut of the log after index {slot.cut} had begun: it is finished now")
        while len(firsts) > 1 and firsts[-1] > slot.cut:  # the oldest may follow a snapshot that the cut keeps
            recovery.operations += drop_segment(firsts.pop())
    try:
        headers = [_read_header(log, files, first) for first in firsts]
        if not headers:
            raise Damaged(Damage(LOG_FOLDER, 0, 0, "there is no segment"))
        _check_newest(files, firsts[-1], slot.cut)
        for header, following in pairwise(headers):
            _recover_sealed(log, files, header, following.previous, recovery)
        _recover_active(log, files, headers[-1], slot.cut, durable, tail_bytes_max, recovery)
    except Damaged as error:
        recovery.damage = error.damage
        recovery.operations.clear()
        recovery.rebuild.clear()
    return recovery


def _list_segments(files: Files, recovery: Recovery) -> list[int]:
    """First indexes of all segments, sorted; spare files and what has no segment are dropped."""
    names = files.names(LOG_FOLDER)
    firsts = segment_firsts(names)
    known = [segment_name(first) for first in firsts]
    for name in names:
        path = f"{LOG_FOLDER}/{name}"
        stem = path.rpartition(".")[0]
        if name.startswith("spare-") or (name.endswith((".idx", ".ledger")) and f"{stem}.seg" not in known):
            recovery.operations.append(Delete(path))
        elif name.endswith(".seg") and path not in known:
            recovery.notices.append(f"{path} is not the name of a segment: left alone")
    return firsts


def _check_newest(files: Files, newest: int, cut: int) -> None:
    """Raises Damaged where a segment behind the newest one is gone and was in use: else the log would just be shorter.

    Without this check the log would just be shorter. The segment's .idx or .ledger shows the loss. They are longer than
    a header only once the segment has its name for good, and a cut that drops the segment removes them first. `cut`: a
    cut that is under way.
    """
    stems: dict[int, int] = {}  # first missing index: the newest record that has a row
    for name in files.names(LOG_FOLDER):
        stem, _, kind = name.rpartition(".")
        if kind not in ("idx", "ledger") or not stem.isdigit() or int(stem) <= newest or 0 < cut < int(stem):
            continue
        if (behind := files.size(f"{LOG_FOLDER}/{name}") - SIDE_HEADER_SIZE) > 0:
            rows = behind // IDX_ROW.size if kind == "idx" else 0
            stems[int(stem)] = max(stems.get(int(stem), 0), int(stem) - 1 + rows)
    if stems:
        first, last = min(stems), max(stems.values())
        what = f"index {first} to {last}" if last >= first else f"index {first} on"
        reason = f"the file is missing, and with it what its .idx and .ledger name: {what}"
        raise Damaged(Damage(segment_name(first), 0, first - 1, reason))


def _read_header(log: LogIdentity, files: Files, first: int) -> SegmentHeader:
    name = segment_name(first)
    try:
        header = decode_segment_header(log, files.read(name, 0, SEGMENT_HEADER_SIZE))
    except Corrupt as error:
        raise Damaged(Damage(name, 0, first - 1, str(error))) from error
    if header.first != first:
        raise ForeignFile(f"{name} is a segment that starts at {header.first}")
    if first == 1 and header.previous != GENESIS:
        raise Damaged(Damage(name, 0, 0, "the first segment names an entry before it"))
    if files.size(name) < header.size:
        raise Damaged(
            Damage(name, files.size(name), first - 1, f"the file is shorter than the {header.size} bytes made")
        )
    return header


def _recover_sealed(log: LogIdentity, files: Files, header: SegmentHeader, end: Mark, recovery: Recovery) -> None:
    """A segment that another follows: its .idx describes it, else it is scanned."""
    segment = Segment(header.previous, header.size, header.previous)
    try:
        read_index_footer(log, files, segment, end)
    except Corrupt as error:
        found, name = None, segment.name
        mends: list[FileOperation] = []
        for found in scan(files, name, header):
            if found.entry is not None:
                if found.is_mark_damaged:
                    mends.append(_mended(name, found, segment.last, recovery.notices))
                segment.add(found.entry, found.position)
            else:
                segment.end = found.position  # behind the durable mark that may follow the last entry
        if segment.last != end:
            raise Damaged(_sealed_damage(segment, found, end)) from error
        if mends:
            recovery.operations += [*mends, Sync(name)]
        recovery.notices.append(f"{index_name(segment.first)} is made again: {error}")
        recovery.rebuild.append(segment)
    recovery.segments.append(segment)


def _mended(name: str, found: ScannedEntry, before: Mark, notices: list[str]) -> FileOperation:
    """The operation that makes the damaged mark before that entry again: readers skip only intact marks."""
    position = found.position - MARK_SIZE
    notices.append(f"{name}: the durable mark at byte {position} was damaged: it is made again")
    return Write(name, position, encode_mark(before, position))


def _sealed_damage(segment: Segment, found: ScannedEntry | None, end: Mark) -> Damage:
    position, reason = (found.position, found.reason) if found else (SEGMENT_HEADER_SIZE, "")
    reason = f"{reason or 'the entries end'}; the next segment follows entry {end.index} of term {end.term}"
    return Damage(segment.name, position, segment.last.index, reason)


def read_index_footer(log: LogIdentity, files: Files, segment: Segment, end: Mark) -> None:
    """Fills the segment from its .idx; every byte of that file is checked. Raises Corrupt where it cannot be used."""
    name = index_name(segment.first)
    try:
        check_side_header(log, INDEX_MAGIC, segment.previous, files.read(name, 0, SIDE_HEADER_SIZE))
    except ForeignFile as error:
        raise Corrupt(str(error)) from error
    position = SIDE_HEADER_SIZE
    footer_position = position + IDX_ROW.size * (end.index - segment.previous.index)
    crc = 0
    while position < footer_position:
        rows = files.read(name, position, min(WINDOW, footer_position - position))
        if not rows:
            raise Corrupt("its rows are cut short")
        crc = crc32c(rows, crc)
        position += len(rows)
    summary, rows_crc = decode_index_footer(files.read(name, position, max(0, files.size(name) - position)))
    if summary.last != end or rows_crc != crc:
        raise Corrupt("its rows fail their CRC" if summary.last == end else "it is of other entries")
    segment.add_summary(summary)


def sealed_rows(files: Files, segment: Segment) -> bytes:
    """The .idx rows of a sealed segment, from the segment itself; fewer where it is damaged."""
    all_found = scan(files, segment.name, segment.header)
    return b"".join([index_rows(found.entry, found.position) for found in all_found if found.entry is not None])


def rebuild_index(log: LogIdentity, files: Files, segment: Segment) -> list[FileOperation]:
    """Makes the .idx of a sealed segment again from the segment itself."""
    content = sealed_rows(files, segment)
    name = index_name(segment.first)
    header = encode_side_header(log, INDEX_MAGIC, segment.previous)
    return [
        Create(name, header + content + encode_index_footer(segment.summary, crc32c(content))),
        Sync(name),
        SyncFolder(LOG_FOLDER),
    ]


def _recover_active(
    log: LogIdentity,
    files: Files,
    header: SegmentHeader,
    cut: int,
    durable: int,
    tail_bytes_max: int,
    recovery: Recovery,
) -> None:
    """The newest segment: scanned whole, its torn tail cut, the part after its last mark written again."""
    segment = Segment(header.previous, header.size, header.previous)
    name = segment.name
    tail: deque[Entry] = deque()
    tail_bytes = 0
    rows: list[bytes] = []
    mends: list[FileOperation] = []
    ended = ScannedEntry(SEGMENT_HEADER_SIZE, None, SEGMENT_HEADER_SIZE)
    newest_entry: Entry | None = None  # the segment gets only those that matter: a start reads many
    for found in scan(files, name, header, stop_after=cut or None):
        if (entry := found.entry) is None:
            ended = found
            break
        if found.is_mark_damaged:
            mark = segment.previous if newest_entry is None else newest_entry.mark
            mends.append(_mended(name, found, mark, recovery.notices))
        if newest_entry is None or entry.term != newest_entry.term or entry.kind is EntryKind.CONFIGURATION:
            segment.add(entry, found.position)
        newest_entry = entry
        try:
            rows.append(index_rows(entry, found.position))
        except Corrupt as error:
            raise Damaged(Damage(name, found.position, entry.before, str(error))) from error
        tail.append(entry)
        tail_bytes += entry.size
        while tail_bytes > tail_bytes_max and len(tail) > 1:
            tail_bytes -= tail.popleft().size
    if newest_entry is not None:
        segment.add(newest_entry, ended.position)
    segment.end = ended.position
    recovery.segments.append(segment)
    recovery.tail = tuple(tail)

    applied = newest_frame(files, segment)
    recovery.applied = min(applied, segment.last.index)
    bytes_end = end_of_bytes(files, name, ended.position, header.size)
    if cut:  # the proof that the following part was synced is about to go, too
        newest, why = cut, f"a cut after index {cut} is under way"
    else:
        newest, why = synced_until(files, segment, durable, applied, bytes_end)
    if newest > segment.last.index:
        reason = f"{ended.reason or 'the entries end'}; {why}"
        raise Damaged(Damage(name, ended.position, segment.last.index, reason))
    if bytes_end > ended.position:
        notice = f"{name}: a torn tail of {bytes_end - ended.position} bytes behind index {segment.last.index} was cut "
        notice += f"({ended.reason or 'bytes behind the end'}): nothing in the files says that it was synced"
        recovery.notices += [] if cut else [notice]
        recovery.operations.append(Zero(name, ended.position, bytes_end))
    is_mark_last = ended.from_mark + MARK_SIZE == ended.position and ended.from_mark > SEGMENT_HEADER_SIZE
    recovery.marked = segment.last.index if is_mark_last else segment.previous.index
    # The bytes read may be only in the page cache (a kill before the sync, a failed sync): write them again, then sync.
    again = files.read(name, ended.from_mark, ended.position - ended.from_mark)
    index = encode_side_header(log, INDEX_MAGIC, segment.previous) + b"".join(rows)
    recovery.operations += [Write(name, ended.from_mark, again), Sync(name)]
    if mends:
        recovery.operations += [*mends, Sync(name)]
    # Synced, so that no older content comes back after a power cut: it would have rows of cut entries.
    index_file = index_name(segment.first)
    recovery.operations += [Create(index_file, index), Sync(index_file), SyncFolder(LOG_FOLDER)]
