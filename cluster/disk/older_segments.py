"""Adds older segments in front of a log that begins after a snapshot: written aside, checked, synced, then named.

`raftlog.cluster.replica.upkeep.backfill` drives it. Entries and effects come from peers, or from the log that the
snapshot replaced here (`raftlog.cluster.disk.kept_segments`). Every byte has its CRC, and each entry names the header
CRC of the one before it. The last entry must be the one that this log follows, so only the
history of this log can be added. A segment gets its name last, and the newest comes first, so the log never has a gap.
Unfinished files are called spare-*, and a start removes them. For the core the log still begins where it began.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final, TypeVar

from raftlog.cluster.disk.kept_segments import KeptSegment, KeptSegments
from raftlog.cluster.disk.segment_chores import Background
from raftlog.cluster.disk.worker import Worker
from raftlog.cluster.disk.writer import Writer
from raftlog.cluster.files.errors import NoSpace, is_full
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.entry import decode_entry
from raftlog.raft.codec.index_rows import index_rows
from raftlog.raft.codec.mark import MARK_MAGIC, MARK_SIZE
from raftlog.raft.types import Entry, Mark
from raftlog.raft.wal.formats import (
    INDEX_MAGIC,
    LEDGER_MAGIC,
    LOG_FOLDER,
    SEGMENT_BYTES_LIMIT,
    SEGMENT_HEADER_SIZE,
    LedgerFooter,
    LogIdentity,
    encode_index_footer,
    encode_ledger_footer,
    encode_segment_header,
    encode_side_header,
    index_name,
    intact_frame,
    ledger_name,
    segment_name,
)
from raftlog.raft.wal.journal import SEGMENT_BYTES_MIN, Journal, Segment, row_position
from raftlog.raft.wal.kept_log import give_back
from raftlog.raft.wal.ledger import LedgerPart
from raftlog.raft.wal.operations import Create, Delete, FileOperation, Rename, Sync, SyncFolder, Truncate
from raftlog.raft.wal.reading import RawSlice, entries_in

T = TypeVar("T")

SLICE_S: Final = 0.0005
"""Seconds of checking and writing without a pause: longest wait of the event loop, which needs the interpreter."""
SYNC_BYTES: Final = 512 << 10
"""Bytes written to a file between two syncs, so that a sync of the log never waits for much more."""
SEGMENTS_FREE: Final = 3
"""Segments that must fit on the disk before one is begun: fetched history must never fill the disk."""
ASIDE: Final = f"{LOG_FOLDER}/spare-fetched"
_KINDS: Final = ("seg", "idx", "ledger")


class PieceWrong(ValueError):
    """The entries of a peer are not the history of this log; the message says how they differ."""


class LogMoved(Exception):
    """The log begins elsewhere now: it was trimmed, or a snapshot replaced it."""


class SegmentFill:
    """One segment that is filled, from its first entry to the one before this log. Belongs to one thread."""

    def __init__(self, files: ShardFiles, log: LogIdentity, top: Mark, *, is_alone: bool = False) -> None:
        """`is_alone`: no node runs beside it, so it neither pauses nor syncs before its end."""
        self.top = top
        self._is_alone = is_alone
        self.bytes = 0  # written so far
        self._files, self._log = files, log
        self._segment = Segment(top, 0, top)
        self._ledger = LedgerPart(0)
        self._rows_crc = 0
        self._raw = RawSlice(b"", b"", b"", 0, 0, 0)
        self._at = self._effects_at = 0
        self._unsynced = dict.fromkeys(_KINDS, 0)

    @property
    def next(self) -> int:
        """The index after the newest written entry."""
        return self._segment.last.index + 1

    @property
    def end(self) -> Mark:
        """The end of the newest written entry."""
        return self._segment.last

    def begin(self, before: Mark) -> None:
        """Makes the files of a segment that follows the mark `before`. Raises OSError."""
        self._segment = Segment(before, 0, before)
        self._ledger = LedgerPart(before.index)
        self._files.execute(
            [
                Create(f"{ASIDE}.seg", bytes(SEGMENT_HEADER_SIZE)),
                Create(f"{ASIDE}.idx", encode_side_header(self._log, INDEX_MAGIC, before)),
                Create(f"{ASIDE}.ledger", encode_side_header(self._log, LEDGER_MAGIC, before)),
            ]
        )

    def take(self, raw: RawSlice) -> None:
        """Takes the next entries, as a peer has them on disk; `step` checks and writes them."""
        self._raw, self._at, self._effects_at = raw, 0, 0

    def step(self) -> bool:
        """Checks and writes for one slice of time.

        Returns whether all taken entries are done. Raises PieceWrong, OSError.
        """
        raw, segment, until = self._raw, self._segment, clock.monotonic() + (inf if self._is_alone else SLICE_S)
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
                frame = intact_frame(raw.ledger, self._effects_at, entry.index)
                rows.append(index_rows(entry, segment.end))
                parts += (entry.header, entry.data)
                frames.append(frame)
                segment.add(entry, segment.end)
                self._ledger.add(entry.index, len(frame))
                self._at += entry.size
                self._effects_at += len(frame)
                if clock.monotonic() >= until:
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
        if (entry.before, entry.previous_crc) != (last.index, last.header_crc):
            raise Corrupt(f"entry {entry.index} of term {entry.term} does not follow entry {last.index}")
        if entry.index > self.top.index:
            raise Corrupt(f"entry {entry.index} goes beyond {self.top.index}, where this log begins")
        if self._segment.end + entry.size + MARK_SIZE > SEGMENT_BYTES_LIMIT:
            raise Corrupt(f"a segment of more than {SEGMENT_BYTES_LIMIT} bytes")

    def finish(self) -> Segment:
        """Ends the segment and syncs all of it; only its name is missing. Raises PieceWrong or OSError."""
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
        self._sync("ledger")  # its footer says that everything before it was synced
        files.write(f"{ASIDE}.ledger", ledger.end, encode_ledger_footer(LedgerFooter(ledger.last, ledger.end, samples)))
        self._sync(*_KINDS)
        return segment

    def _write(self, kind: str, position: int, data: bytes) -> None:
        self._files.write(f"{ASIDE}.{kind}", position, data)
        self.bytes += len(data)
        self._unsynced[kind] += len(data)
        if self._unsynced[kind] >= SYNC_BYTES and not self._is_alone:
            self._sync(kind)

    def _sync(self, *kinds: str) -> None:
        for kind in kinds:
            self._files.execute([Sync(f"{ASIDE}.{kind}")])
            self._unsynced[kind] = 0


class Backfill:
    """Manages the front of one node's log. Coroutines belong to the event loop; a thread of its own writes aside."""

    def __init__(
        self,
        journal: Journal,
        files: ShardFiles,
        reading: ShardFiles,
        read_worker: Worker,
        background: Background,
        writer: Writer,
        *,
        begin_worker: Callable[[], Worker],
        free: Callable[[], int] | None = None,
    ) -> None:
        """`begin_worker` starts the writing thread, whose files are `files`.

        `reading` and `read_worker`: the reading thread with its files.
        `free` measures the free space of the disk; None: `free_bytes` measures it."""
        self._journal, self._files, self._reading, self._read_worker = journal, files, reading, read_worker
        self._background, self._writer = background, writer
        self._free, self._begin_worker = free, begin_worker
        self._worker: Worker | None = None
        self._is_stopped = False
        self.kept = KeptSegments(files, journal.log)

    @property
    def top(self) -> Mark:
        """The mark that the log on disk follows."""
        return self._journal.segments[0].previous

    def piece(self, index: int) -> tuple[int, Mark] | None:
        """The first index of the segment that holds `index`, and the mark before it; None: no segment holds it."""
        for segment in list(self._journal.segments):
            if segment.first <= index <= segment.last.index:
                return segment.first, segment.previous
        return None

    def filling(self) -> SegmentFill:
        """A new segment in front of the log."""
        return SegmentFill(self._files, self._journal.log, self.top)

    async def run(self, job: Callable[[], T]) -> T:
        """Runs a job of a Filling in the filling thread. Raises PieceWrong, NoSpace or DiskFenced."""
        self._writer.check()
        if self._is_stopped:
            raise asyncio.CancelledError
        if self._worker is None:
            self._worker = self._begin_worker()
        try:
            return await self._worker.run(job)
        except OSError as error:
            if not is_full(error):
                self._writer.fail(error)
            raise NoSpace(f"the disk is full ({error}): there is no room for older segments") from error

    async def begin(self, filling: SegmentFill, before: Mark) -> None:
        """As `SegmentFill.begin`, if the disk has enough space."""
        await self.run(self._check_disk_space)
        await self.run(partial(filling.begin, before))

    def _check_disk_space(self) -> None:
        free = free_bytes(self._reading) if self._free is None else self._free()
        wanted = SEGMENTS_FREE * self._journal.segment_bytes
        if free < wanted:
            raise NoSpace(f"{free} bytes are free on the disk: {wanted} must be before older segments are fetched")

    async def adopt(self, segment: Segment) -> None:
        """Names the files of a finished segment and adds it to the log. Raises LogMoved, NoSpace or DiskFenced."""
        await self._add(segment, name_segment(segment.first))

    async def give_back(self, kept: KeptSegment) -> None:
        """Moves a kept segment back into the log as it is. Raises LogMoved, NoSpace or DiskFenced."""
        assert kept.segment is not None, kept
        await self._add(kept.segment, give_back(kept.first))

    async def _add(self, segment: Segment, operations: list[FileOperation]) -> None:
        self._writer.check()
        self._files.close()
        try:
            await self._read_worker.run(partial(self._add_now, segment, operations))
        except OSError as error:
            if not is_full(error):
                self._writer.fail(error)
            raise NoSpace(f"the disk is full ({error}): older segments wait until there is room") from error

    def _add_now(self, segment: Segment, operations: list[FileOperation]) -> None:
        """Runs in the reading thread, which reads by the list of segments; no cut or compaction runs meanwhile."""
        journal = self._journal
        with self._background.structure:
            if journal.segments[0].previous != segment.last:
                raise LogMoved
            self._background.reader.refresh()  # the reader may know older ledgers of these names
            self._reading.close()  # and the files too
            self._reading.execute(operations)
            journal.segments.insert(0, segment)

    async def abandon(self) -> None:
        """Removes unfinished files. Raises DiskFenced."""
        deletes: list[FileOperation] = [Delete(f"{ASIDE}.{kind}") for kind in _KINDS]
        await self.run(partial(self._files.execute, deletes))

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread. Returns whether it ended in time. The next start removes unfinished files."""
        self._is_stopped = True
        if self._worker is not None and not self._worker.stop(timeout_s):
            return False
        self._files.close()
        return True


def name_segment(first: int) -> list[FileOperation]:
    """Names the files of a finished segment: its entries come last, so that a segment in the log has all its files."""
    return [
        Rename(f"{ASIDE}.idx", index_name(first)),
        Rename(f"{ASIDE}.ledger", ledger_name(first)),
        Rename(f"{ASIDE}.seg", segment_name(first)),
        SyncFolder(LOG_FOLDER),
    ]


def free_bytes(files: ShardFiles) -> int:
    """Bytes that an unprivileged process may still write on that disk."""
    space = os.statvfs(files.root)
    return space.f_bavail * space.f_frsize


def last_mark(raw: RawSlice) -> Mark:
    """The mark after the newest entry of a slice; checks every CRC. Raises PieceWrong."""
    mark = Mark()
    try:
        for entry in entries_in(raw.segment):
            mark = entry.mark
    except (Corrupt, UnknownVersion) as error:
        raise PieceWrong(str(error)) from error
    return mark
