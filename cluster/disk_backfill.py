"""Puts older segments in front of a log that begins behind a snapshot: written aside, checked, synced, then named.

Entries and effects come from peers. Every byte has its CRC; each entry names the header CRC of the one before it, and
the last one must be the very end that this log says it follows: so nothing else than the history of this log can be
put there. A segment gets its name last, and the newest one first, so the log is without a gap at every moment; what is
unfinished is called spare-*, which a start removes. Consensus need not know: to the core its log begins where it began.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from cluster.clock import monotonic
from cluster.disk_background import Background
from cluster.disk_errors import NoSpace, is_full
from cluster.disk_files import ShardFiles
from cluster.disk_worker import Worker
from cluster.disk_write import Writer
from raft.codec import (
    MARK_MAGIC,
    MARK_SIZE,
    Corrupt,
    UnknownVersion,
    crc32c,
    decode_entry,
    entry_mark,
    index_rows,
    previous_crc,
)
from raft.formats import (
    FRAME_HEADER_SIZE,
    INDEX_MAGIC,
    LEDGER_MAGIC,
    SEGMENT_BYTES_LIMIT,
    SEGMENT_HEADER_SIZE,
    LedgerFooter,
    Log,
    decode_frame_header,
    encode_index_footer,
    encode_ledger_footer,
    encode_segment_header,
    encode_side_header,
)
from raft.journal import (
    LOG_FOLDER,
    SEGMENT_BYTES_MIN,
    Journal,
    Segment,
    index_name,
    ledger_name,
    row_position,
    segment_name,
)
from raft.operations import Create, Delete, Operation, Rename, Sync, SyncFolder, Truncate
from raft.storage_ledger import Part
from raft.storage_read import RawSlice
from raft.types import Entry, Mark

T = TypeVar("T")

SLICE_S: Final = 0.0005
"""Checked and written in one go: the event loop, which needs the same interpreter, waits no longer than that."""
SYNC_BYTES: Final = 512 << 10
"""Written to a file between two syncs, so that a sync of the log never waits for much more."""
SEGMENTS_FREE: Final = 3
"""So many segments must fit on the disk before one is begun: what is fetched is the last that may fill it."""
ASIDE: Final = f"{LOG_FOLDER}/spare-fetched"
_KINDS: Final = ("seg", "idx", "ledger")


class PieceWrong(ValueError):
    """What a peer sent is not the history of this log; the message says how."""


class Overtaken(Exception):
    """The log begins elsewhere by now: it was trimmed, or a snapshot took its place."""


class Filling:
    """One segment on its way, entry by entry from its first to the end that this log follows. Belongs to one thread."""

    def __init__(self, files: ShardFiles, log: Log, top: Mark) -> None:
        self.top = top
        self.bytes = 0  # written so far
        self._files, self._log = files, log
        self._segment = Segment(top, 0, top)
        self._ledger = Part(0)
        self._rows_crc = 0
        self._raw = RawSlice(b"", b"", b"", 0, 0, 0)
        self._at = self._effects_at = 0
        self._unsynced = dict.fromkeys(_KINDS, 0)

    @property
    def next(self) -> int:
        """The index behind the newest entry that is written."""
        return self._segment.last.index + 1

    def begin(self, before: Mark) -> None:
        """Makes the files of a segment that follows `before`. Raises OSError."""
        self._segment = Segment(before, 0, before)
        self._ledger = Part(before.index)
        self._files.execute([
            Create(f"{ASIDE}.seg", bytes(SEGMENT_HEADER_SIZE)),
            Create(f"{ASIDE}.idx", encode_side_header(self._log, INDEX_MAGIC, before)),
            Create(f"{ASIDE}.ledger", encode_side_header(self._log, LEDGER_MAGIC, before)),
        ])  # fmt: skip

    def take(self, raw: RawSlice) -> None:
        """The entries that come next, as a peer has them on disk: `step` checks and writes them."""
        self._raw, self._at, self._effects_at = raw, 0, 0

    def step(self) -> bool:
        """Checks and writes for one slice of time; whether all that was taken is done. Raises PieceWrong or OSError."""
        raw, segment, until = self._raw, self._segment, monotonic() + SLICE_S
        start, effects_start, rows_at = segment.end, self._ledger.end, row_position(segment, self.next)
        parts: list[bytes] = []
        rows: list[bytes] = []
        frames: list[bytes] = []
        try:
            while self._at < len(raw.segment):
                if raw.segment[self._at : self._at + 4] == MARK_MAGIC:
                    self._at += MARK_SIZE
                    continue
                entry = decode_entry(raw.segment, self._at)
                self._check(entry)
                frame = self._frame(entry)
                rows.append(index_rows(entry, segment.end))
                parts += (entry.header, entry.data)
                frames.append(frame)
                segment.add(entry, segment.end)
                self._ledger.add(entry.index, len(frame))
                self._at += entry.size
                self._effects_at += len(frame)
                if monotonic() >= until:
                    break
        except (Corrupt, UnknownVersion) as error:
            raise PieceWrong(f"behind index {segment.last.index}: {error}") from error
        if parts:
            data, row_bytes, effects = b"".join(parts), b"".join(rows), b"".join(frames)
            self._rows_crc = crc32c(row_bytes, self._rows_crc)
            self._write("seg", start, data)
            self._write("idx", rows_at, row_bytes)
            self._write("ledger", effects_start, effects)
        return self._at >= len(raw.segment)

    def _check(self, entry: Entry) -> None:
        last = self._segment.last
        if (entry.before, previous_crc(entry)) != (last.index, last.header_crc):
            raise Corrupt(f"entry {entry.index} of term {entry.term} does not follow entry {last.index}")
        if entry.index > self.top.index:
            raise Corrupt(f"entry {entry.index} goes beyond {self.top.index}, where this log begins")
        if self._segment.end + entry.size + MARK_SIZE > SEGMENT_BYTES_LIMIT:
            raise Corrupt(f"a segment of more than {SEGMENT_BYTES_LIMIT} bytes")

    def _frame(self, entry: Entry) -> bytes:
        """The effects of that entry, their CRCs checked."""
        ledger, start = self._raw.ledger, self._effects_at
        index, size, crc = decode_frame_header(ledger, start)
        frame = ledger[start : start + FRAME_HEADER_SIZE + size]
        payload = frame[FRAME_HEADER_SIZE:]
        if index != entry.index or len(payload) != size or crc32c(payload) != crc:
            raise Corrupt(f"the effects beside entry {entry.index} are damaged, or those of another one")
        return frame

    def finish(self) -> Segment:
        """Ends the segment, and syncs all of it: only its name is missing. Raises PieceWrong or OSError."""
        segment, ledger = self._segment, self._ledger
        if segment.last != self.top:
            raise PieceWrong(f"it ends with {segment.last}, this log follows {self.top}")
        segment.size = max(SEGMENT_BYTES_MIN, segment.end + MARK_SIZE)
        files = self._files
        files.write(f"{ASIDE}.seg", 0, encode_segment_header(self._log, segment.header))
        files.execute([Truncate(f"{ASIDE}.seg", segment.size)])
        footer = encode_index_footer(segment.summary, self._rows_crc)
        files.write(f"{ASIDE}.idx", row_position(segment, self.next), footer)
        samples = array("Q", [0]) * (2 * len(ledger.indexes))
        samples[0::2], samples[1::2] = ledger.indexes, ledger.positions
        self._sync("ledger")  # its footer says that what is before it was synced
        files.write(f"{ASIDE}.ledger", ledger.end, encode_ledger_footer(LedgerFooter(ledger.last, ledger.end, samples)))
        self._sync(*_KINDS)
        return segment

    def _write(self, kind: str, position: int, data: bytes) -> None:
        self._files.write(f"{ASIDE}.{kind}", position, data)
        self.bytes += len(data)
        self._unsynced[kind] += len(data)
        if self._unsynced[kind] >= SYNC_BYTES:
            self._sync(kind)

    def _sync(self, *kinds: str) -> None:
        for kind in kinds:
            self._files.execute([Sync(f"{ASIDE}.{kind}")])
            self._unsynced[kind] = 0


class Backfill:
    """The front of one node's log. What is awaited belongs to the event loop; a thread of its own writes aside."""

    def __init__(
        self, journal: Journal, reading: ShardFiles, read_worker: Worker, background: Background, writer: Writer
    ) -> None:
        """`reading` and `read_worker`: the files of the reading thread, and that thread."""
        self._journal, self._reading, self._read_worker = journal, reading, read_worker
        self._background, self._writer = background, writer
        self._files = ShardFiles(reading.root)
        self._worker: Worker | None = None
        self._is_stopped = False

    @property
    def top(self) -> Mark:
        """The end that the log on disk follows."""
        return self._journal.segments[0].previous

    def piece(self, index: int) -> tuple[int, Mark] | None:
        """The first index of the segment that holds `index`, and the end before it; None: no segment does."""
        for segment in list(self._journal.segments):
            if segment.first <= index <= segment.last.index:
                return segment.first, segment.previous
        return None

    def filling(self) -> Filling:
        """A segment in front of those that are there."""
        return Filling(self._files, self._journal.log, self.top)

    async def run(self, job: Callable[[], T]) -> T:
        """Does a job of a Filling in the thread that fills. Raises PieceWrong, NoSpace or DiskFenced."""
        self._writer.check()
        if self._is_stopped:
            raise asyncio.CancelledError
        if self._worker is None:
            self._worker = Worker("disk-fill")
        try:
            return await self._worker.run(job)
        except OSError as error:
            if not is_full(error):
                self._writer.fail(error)
            raise NoSpace(f"the disk is full ({error}): there is no room for older segments") from error

    async def begin(self, filling: Filling, before: Mark) -> None:
        """As `Filling.begin`, where the disk has room."""
        await self.run(self._check_room)
        await self.run(partial(filling.begin, before))

    def _check_room(self) -> None:
        free = free_bytes(self._reading)
        wanted = SEGMENTS_FREE * self._journal.segment_bytes
        if free < wanted:
            raise NoSpace(f"{free} bytes are free on the disk: {wanted} must be before older segments are fetched")

    async def adopt(self, segment: Segment) -> None:
        """Names the files of a finished segment, and puts it in front. Raises Overtaken, NoSpace or DiskFenced."""
        self._writer.check()
        self._files.close()
        try:
            await self._read_worker.run(partial(self._adopt, segment))
        except OSError as error:
            if not is_full(error):
                self._writer.fail(error)
            raise NoSpace(f"the disk is full ({error}): older segments wait until there is room") from error

    def _adopt(self, segment: Segment) -> None:
        """In the reading thread, which reads by the list of segments; nobody cuts or compacts meanwhile."""
        journal, first = self._journal, segment.first
        with self._background.structure:
            if journal.segments[0].previous != segment.last:
                raise Overtaken
            self._background.reader.refresh()  # ledgers of these names may be known from before
            self._reading.close()  # and files
            self._reading.execute([
                Rename(f"{ASIDE}.idx", index_name(first)),
                Rename(f"{ASIDE}.ledger", ledger_name(first)),
                Rename(f"{ASIDE}.seg", segment_name(first)),
                SyncFolder(LOG_FOLDER),
            ])  # fmt: skip
            journal.segments.insert(0, segment)
            journal.cuts += 1

    async def abandon(self) -> None:
        """Removes what is unfinished. Raises DiskFenced."""
        deletes: list[Operation] = [Delete(f"{ASIDE}.{kind}") for kind in _KINDS]
        await self.run(partial(self._files.execute, deletes))

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread; what is unfinished is removed by the next start. Whether it has ended in time."""
        self._is_stopped = True
        if self._worker is not None and not self._worker.stop(timeout_s):
            return False
        self._files.close()
        return True


def free_bytes(files: ShardFiles) -> int:
    """What a process may still write on that disk."""
    told = os.statvfs(files.root)
    return told.f_bavail * told.f_frsize


def last_mark(raw: RawSlice) -> Mark:
    """The end of the newest entry of a slice, every CRC checked. Raises PieceWrong."""
    at, mark = 0, Mark()
    try:
        while at < len(raw.segment):
            if raw.segment[at : at + 4] == MARK_MAGIC:
                at += MARK_SIZE
                continue
            entry = decode_entry(raw.segment, at)
            mark, at = entry_mark(entry), at + entry.size
    except (Corrupt, UnknownVersion) as error:
        raise PieceWrong(str(error)) from error
    return mark
