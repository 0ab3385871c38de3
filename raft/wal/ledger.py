"""Writes and finds the effects of entries in the ledgers, the files beside their segments.

A frame is `raftlog.statemachine.effects.encode_effects` of one entry; only its head is read here
(`raftlog.raft.wal.formats`). Frames are not synced one by one; after a crash damaged effects are cut and replayed.
Every SAMPLE_BYTES the position of a frame is remembered. A sealed, complete ledger keeps these samples in its footer,
so that a restart does not read it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from typing import Final

from raftlog.raft.codec.checks import Corrupt, crc32c
from raftlog.raft.types import Mark
from raftlog.raft.wal.formats import (
    FRAME_HEADER_SIZE,
    LEDGER_FOOTER_SIZE,
    LEDGER_MAGIC,
    SIDE_HEADER_SIZE,
    ForeignFile,
    LedgerFooter,
    LogIdentity,
    bare_frames,
    check_side_header,
    decode_frame_header,
    decode_ledger_footer,
    encode_ledger_footer,
    encode_side_header,
    ledger_footer_bytes,
    ledger_name,
    peek_frame,
)
from raftlog.raft.wal.journal import Segment
from raftlog.raft.wal.operations import Create, FileOperation, Files, Sync, Truncate, Write

SAMPLE_BYTES: Final = 64 << 10
PARTS_MAX: Final = 64  # ledgers whose samples are in memory; only those not complete may be more
WINDOW: Final = 1 << 20
_REACH: Final = 8
"""Number of frames that are first read together after one without a payload; it doubles with each step. Effects of
plain appends have no payload, and a log of entries of one record has thousands of them between two samples.
"""


class LedgerPart:
    """The known facts of one ledger file."""

    __slots__ = ("end", "indexes", "is_closed", "last", "positions")

    def __init__(self, before: int) -> None:
        self.last = before  # index of the newest entry whose effects are in it
        self.end = SIDE_HEADER_SIZE
        self.is_closed = False  # complete and synced, with a footer
        self.indexes = array("Q")
        self.positions = array("Q")

    def add(self, index: int, size: int) -> None:
        """Takes note of a frame at the end."""
        if not self.positions or self.end - self.positions[-1] >= SAMPLE_BYTES:
            self.positions.append(self.end)
            self.indexes.append(index)
        self.end += size
        self.last = index  # last: the thread that finds all there writes the footer after it


class Ledger:
    """All ledgers of a shard. Writing belongs to the writing thread; `find`, `close`, `closed` and `unsynced` to the
    reading one."""

    __slots__ = ("_log", "_parts", "last")

    def __init__(self, log: LogIdentity) -> None:
        self._log = log
        # By the first index of the segment. Both threads add and remove: so copies are walked.
        self._parts: dict[int, LedgerPart] = {}
        self.last = 0  # newest entry with effects

    # -- restart

    def recover(
        self, files: Files, segments: list[Segment], notices: list[str], durable: int = 0
    ) -> list[FileOperation]:
        """Finds how far the effects reach without a gap; the operations cut the rest.

        Effects up to `durable`, the newest snapshot, were synced before that snapshot existed. Later ones may be only
        in the page cache. There a failed sync loses them, even if later syncs succeed (fsyncgate). So the replay from
        that snapshot writes them again.
        """
        operations: list[FileOperation] = []
        self.last = segments[0].previous.index
        is_whole, is_torn = True, False
        for segment in segments:
            if is_whole:
                part, is_torn = self._load(files, segment, durable, is_sealed=segment is not segments[-1])
            else:
                part = LedgerPart(segment.previous.index)
            name = ledger_name(segment.first)
            size = files.size(name)
            if part.end == SIDE_HEADER_SIZE and not part.is_closed:
                operations.append(Create(name, encode_side_header(self._log, LEDGER_MAGIC, segment.previous)))
            elif not part.is_closed and size != part.end:
                operations.append(Truncate(name, part.end))
            if size > part.end and is_torn:
                notices.append(f"{name}: {size - part.end} bytes behind index {part.last} are made again by replay")
            if is_whole:
                self.last = part.last
            is_whole = is_whole and part.last == segment.last.index
            self._remember(segment.first, part)
        return operations

    def _load(self, files: Files, segment: Segment, durable: int, *, is_sealed: bool) -> tuple[LedgerPart, bool]:
        """The ledger of a segment from its footer, else by checking every frame up to `durable`; and whether it ends
        before that."""
        name = ledger_name(segment.first)
        part = LedgerPart(segment.previous.index)
        try:
            check_side_header(self._log, LEDGER_MAGIC, segment.previous, files.read(name, 0, SIDE_HEADER_SIZE))
        except (Corrupt, ForeignFile):
            return part, True  # made again
        end = min(durable, segment.last.index)
        footer = read_footer(files, name) if is_sealed and segment.last.index <= durable else None
        if footer is not None and footer.last == segment.last.index:
            part.last, part.end, part.is_closed = footer.last, footer.end, True
            part.indexes, part.positions = footer.samples[0::2], footer.samples[1::2]
            return part, False
        buffer, base = b"", 0
        while part.last < end:
            offset = part.end - base
            if len(buffer) - offset < FRAME_HEADER_SIZE:
                buffer, base, offset = files.read(name, part.end, WINDOW), part.end, 0
            try:
                index, payload_bytes, payload_crc = decode_frame_header(buffer, offset)
            except Corrupt:
                return part, True
            size = FRAME_HEADER_SIZE + payload_bytes
            if offset + size > len(buffer):
                buffer, base, offset = files.read(name, part.end, max(WINDOW, size)), part.end, 0
            payload = buffer[offset + FRAME_HEADER_SIZE : offset + size]
            if len(payload) != payload_bytes or crc32c(payload) != payload_crc or not part.last < index <= end:
                return part, True
            part.add(index, size)
        return part, False

    def _remember(self, first: int, part: LedgerPart) -> LedgerPart:
        """The part that counts: the other thread may have been there first."""
        part = self._parts.setdefault(first, part)
        self._trim(first)
        return part

    def _trim(self, kept: int) -> None:
        """Forgets complete ledgers, oldest first; those not complete are needed: nothing else knows how far they go.

        The newest effects stay too: a cut may open their ledger again, in the other thread, between the two steps here.
        It opens no older one, because it keeps all that was applied.
        """
        excess = len(self._parts) - PARTS_MAX
        if excess <= 0:
            return
        parts = self._parts.copy().items()
        complete = [first for first, part in parts if part.is_closed and part.last < self.last and first != kept]
        for first in complete[:excess]:
            self._parts.pop(first, None)

    # -- writing

    def place(self, files: Files, segment: Segment, frames: Sequence[tuple[int, bytes]]) -> list[FileOperation]:
        """What writes the effects of entries of one segment, in order; `placed` once they are there."""
        part = self._part(files, segment)
        return [Write(ledger_name(segment.first), part.end, b"".join([frame for _, frame in frames]))]

    def placed(self, segment: Segment, frames: Sequence[tuple[int, bytes]]) -> None:
        """Takes note of frames that were written where `place` said."""
        part = self._parts[segment.first]  # `place` has looked
        for index, frame in frames:
            part.add(index, len(frame))
        self.last = part.last

    def close(self, files: Files, segment: Segment) -> list[FileOperation] | None:
        """What syncs the ledger of a sealed segment and writes its footer; `closed` once that is done.

        [] where it has one, None while effects are missing.
        """
        part = self._part(files, segment)
        if part.is_closed:
            return []
        if part.last != segment.last.index:
            return None
        samples = array("Q", [0]) * (2 * len(part.indexes))
        samples[0::2], samples[1::2] = part.indexes, part.positions
        name = ledger_name(segment.first)
        footer = encode_ledger_footer(LedgerFooter(part.last, part.end, samples))
        return [Sync(name), Write(name, part.end, footer)]

    def closed(self, files: Files, segment: Segment) -> None:
        """Takes note of the footer."""
        self._part(files, segment).is_closed = True
        self._trim(0)

    def reopen(self, files: Files, segment: Segment, dropped: list[int]) -> list[FileOperation]:
        """After a cut: the ledgers of dropped segments are gone, the one of the newest segment may grow again."""
        for first in dropped:
            self._parts.pop(first, None)
        part = self._part(files, segment)
        if not part.is_closed:
            return []
        part.is_closed = False
        return [Truncate(ledger_name(segment.first), part.end)]

    def forget(self, segments: list[Segment]) -> None:
        """Only the ledgers of `segments` are left: after a compaction. In either thread."""
        for first in list(self._parts):  # a copy, as in `unsynced`: the other thread adds and forgets, too
            if first < segments[0].first:
                self._parts.pop(first, None)

    def restart(self, mark: Mark) -> None:
        """All ledgers are gone; effects go on behind `mark`."""
        self._parts.clear()
        self.last = mark.index

    def unsynced(self) -> list[int]:
        """First indexes of the segments whose ledgers may not be synced."""
        parts = self._parts.copy()  # the writing thread adds the ledger of a new segment meanwhile
        return [first for first, part in parts.items() if not part.is_closed and part.end > SIDE_HEADER_SIZE]

    # -- reading

    def find(self, files: Files, segment: Segment, first: int, last: int) -> tuple[int, int]:
        """Where the effects of the entries that end from `first` to `last` start and end in the segment's ledger.

        Raises Corrupt where they are not there.
        """
        part = self._part(files, segment)
        start, _, _ = self._walk(files, segment, part, first)
        position, index, size = self._walk(files, segment, part, last)
        if index != last:
            raise Corrupt(f"{ledger_name(segment.first)}: no effects of entry {last}, but of {index}")
        return start, position + size

    def _walk(self, files: Files, segment: Segment, part: LedgerPart, index: int) -> tuple[int, int, int]:
        """Position, index and size of the first frame whose index is at least `index`."""
        name = ledger_name(segment.first)
        sample = max(0, bisect_right(part.indexes, index) - 1)
        position = part.positions[sample] if part.positions else SIDE_HEADER_SIZE
        buffer, base = b"", 0
        reach = _REACH
        while position < part.end:
            offset = position - base
            if len(buffer) - offset < FRAME_HEADER_SIZE:
                buffer, base, offset = files.read(name, position, SAMPLE_BYTES + FRAME_HEADER_SIZE), position, 0
                if len(buffer) < FRAME_HEADER_SIZE:
                    break
            found, size = peek_frame(buffer, offset)
            if size == 0:
                break
            if found >= index:
                return position, found, size
            if size > FRAME_HEADER_SIZE:
                position, reach = position + size, _REACH
                continue
            whole = (min(len(buffer), part.end - base) - offset) // FRAME_HEADER_SIZE
            bare = bare_frames(buffer, offset, max(1, min(reach, whole)))
            before = bisect_left(range(bare), index, key=partial(_index_of, buffer, offset))
            position += FRAME_HEADER_SIZE * before
            reach = 2 * reach if bare == reach else _REACH
        raise Corrupt(f"{name}: no effects of entry {index} at byte {position} of {part.end}")

    def _part(self, files: Files, segment: Segment) -> LedgerPart:
        """The part of a segment; a complete one that was forgotten is read again from its footer."""
        part = self._parts.get(segment.first)
        if part is None:
            part = LedgerPart(segment.previous.index)
            if segment.last.index <= self.last:
                part, _ = self._load(files, segment, segment.last.index, is_sealed=True)
            part = self._remember(segment.first, part)
        return part


def _index_of(buffer: bytes, offset: int, number: int) -> int:
    return peek_frame(buffer, offset + number * FRAME_HEADER_SIZE)[0]


def read_footer(files: Files, name: str) -> LedgerFooter | None:
    """The footer of a ledger file, or None where it has none that is intact."""
    size = files.size(name)
    try:
        tail = files.read(name, max(0, size - LEDGER_FOOTER_SIZE), LEDGER_FOOTER_SIZE)
        wanted = ledger_footer_bytes(tail)
        return decode_ledger_footer(files.read(name, max(0, size - wanted), wanted), size)
    except Corrupt:
        return None
