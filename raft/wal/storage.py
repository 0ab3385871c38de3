"""Turns a SyncBatch into operations in their order, and decides what may follow the promise.

`Storage` gives out steps: what a driver (the server's writing thread, the simulator) executes, in order, before it asks
for the next. A driver that fails in between drops the rest of them; undone steps are then given out again.
Decisions about one file are `raftlog.raft.wal.journal`'s and `raftlog.raft.wal.ledger`'s; nothing here opens a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from raftlog.raft.codec.checks import crc32c
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import Entry, HardState
from raftlog.raft.wal import divergence
from raftlog.raft.wal.formats import (
    INDEX_MAGIC,
    LOG_FOLDER,
    SEGMENT_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    encode_side_header,
    index_name,
    ledger_name,
)
from raftlog.raft.wal.journal import (
    EntryPlace,
    ImpossibleBatch,
    Journal,
    Segment,
    drop_segment,
    make_segment,
    prepare_segment,
    seal_index,
)
from raftlog.raft.wal.kept_log import KEPT, keep_segments
from raftlog.raft.wal.ledger import Ledger
from raftlog.raft.wal.operations import Delete, FileOperation, Files, MakeFolder, Sync, SyncFolder, Write
from raftlog.raft.wal.reading import WalReader
from raftlog.raft.wal.recovery import sealed_rows
from raftlog.raft.wal.snapshot_files import Pieces, drop_old, end_install


class StepKind:
    """Which part of the work a step is: plain numbers, because naming a member of an enum costs more than a step."""

    ROWS: Final = 1  # .idx rows of entries appended before
    EFFECTS: Final = 2  # ledger frames
    FOOTERS: Final = 3  # of sealed segments
    SPARES: Final = 4  # the files that an append or an install needs: all new disk space is taken here
    HARD_STATE: Final = 5
    REPEAT: Final = 6  # the hard state in its second slot
    CUT: Final = 7
    ENTRIES: Final = 8
    MARK: Final = 9
    COMPACT: Final = 10
    INSTALL: Final = 11


PLACED_MAX: Final = 64
"""So many entries may wait for `finish` to write their rows; then a driver that does not come to it does so with a
batch."""

WorkStep = tuple[int, Sequence[FileOperation]]
"""Its part, and operations to execute in order before the next step is asked for."""


class Storage:
    """The writing side of one shard. `files` reads it. `finish_sealed` may run in another thread than the rest, never
    while a step of part CUT is under way; everything else belongs to one thread."""

    __slots__ = (
        "_are_rows_owed",
        "_placed",
        "_reader",
        "_repeat",
        "_rows_crc",
        "_taken",
        "files",
        "frames",
        "journal",
        "ledger",
        "unclosed",
        "unsealed",
    )

    def __init__(self, journal: Journal, ledger: Ledger, files: Files, reader: WalReader) -> None:
        self.journal, self.ledger, self.files = journal, ledger, files
        self._reader = reader
        self._repeat: list[FileOperation] = []  # the hard state for its second slot
        self._placed: list[EntryPlace] = []  # appended entries whose .idx rows are not written
        self._are_rows_owed = False  # they were tried and found no space: no new segment is begun before them
        self.frames: deque[tuple[int, bytes]] = deque()  # effects not looked at: index of the entry, its frame
        self._taken: list[tuple[int, bytes]] = []  # taken out of `frames`, not written
        # CRC of the rows that each .idx got, from its first one on; None: not known. The start has just written these.
        rows = files.read(index_name(journal.active.first), SIDE_HEADER_SIZE, _rows_size(journal.active))
        self._rows_crc: dict[str, int | None] = {index_name(journal.active.first): crc32c(rows)}
        self.unsealed: list[Segment] = []  # without a footer in .idx
        self.unclosed: list[Segment] = list(journal.segments[:-1])  # without a footer in .ledger

    def is_final(self, part: int, *, is_full: bool) -> bool:
        """Whether nothing may be written any more after a failure in that part: a retry could acknowledge lost data.

        Only a full disk in a part that loses nothing is back-pressure: then the same call may be made again.
        """
        return not (is_full and part <= StepKind.SPARES)

    # -- a batch

    def carry_out(self, batch: SyncBatch) -> Iterator[WorkStep]:
        """Makes a batch durable: hard state, then cut, then entries. Raises ImpossibleBatch, or Damaged by a cut.

        After a step that may wait the very same batch may be carried out again: done steps are not done twice.
        """
        if batch.hard_state is not None:
            yield from self._keep(batch.hard_state)  # before any step that may wait for disk space
        is_late = len(self._placed) >= PLACED_MAX and not self._are_rows_owed
        if self._placed and (batch.cut_after is not None or is_late):
            yield from self.write_rows()  # before a cut may take their entries; else no step waits for them
        if batch.cut_after is not None and batch.cut_after < self.journal.last.index:
            yield from self._cut(batch.cut_after, batch.entries)
        if entries := batch.entries:
            journal = self.journal
            journal.check(entries)
            groups = journal.split(entries)
            spares = journal.spares(entries, groups) if len(groups) > 1 else []
            if spares:
                if self._are_rows_owed:
                    yield from self.write_rows()  # so the rows of a segment at most wait for disk space
                yield (StepKind.SPARES, spares)
            operations, placed = journal.append(entries, groups)
            yield (StepKind.ENTRIES, operations)
            self._placed += placed
            if spares:
                sealed = journal.segments[-len(groups) : -1]  # from the end: an older one may have come in front
                self.unsealed += sealed
                self.unclosed += sealed

    def finish(self) -> Iterator[WorkStep]:
        """What may follow the promise: the second slot, rows, effects. What finds no space is tried again later, rows
        before the next batch."""
        if self._repeat:
            repeat, self._repeat = self._repeat, []
            yield (StepKind.REPEAT, repeat)
        if self._placed:
            yield from self.write_rows()
        if self.frames or self._taken:
            yield from self.write_frames()

    def flush(self) -> Iterator[WorkStep]:
        """Rows and effects are in their files."""
        yield from self.write_rows()
        yield from self.write_frames()

    def mark(self) -> Iterator[WorkStep]:
        """A durable mark behind the newest entry: after a short idle time, and at a clean stop."""
        yield from self.flush()
        if operations := self.journal.mark():
            yield (StepKind.MARK, operations)

    def leave_to_start(self, names: Sequence[str]) -> Iterator[WorkStep]:
        """Removes files that were derived from others, so that the next start derives them again.

        It first writes a mark behind the newest entry: damage below the mark is no torn tail.
        """
        yield from self.mark()
        yield (StepKind.MARK, [*(Delete(name) for name in names), SyncFolder(LOG_FOLDER)])

    def diverged(self, note: divergence.DivergenceNote) -> Iterator[WorkStep]:
        """The state is not the majority's: the next start has to rebuild it."""
        yield (StepKind.MARK, divergence.keep(self.journal.log, note))

    def _keep(self, state: HardState) -> Iterator[WorkStep]:
        old = self.journal.slot.state
        state = replace(state, boot=old.boot)  # the boot counter of this start, not the caller's
        if state == old:
            return
        if state.term < old.term or (state.term == old.term and old.vote not in (0, state.vote)):
            raise ImpossibleBatch(f"hard state {state} after {old}: a term never falls, a vote never changes in it")
        promise, self._repeat = self.journal.set_hard_state(state)
        yield (StepKind.HARD_STATE, promise)

    def _cut(self, after: int, entries: tuple[Entry, ...]) -> Iterator[WorkStep]:
        yield (StepKind.CUT, ())  # from here on no thread finishes a segment, or puts an older one in front
        if after < self.ledger.last:
            raise ImpossibleBatch(f"a cut after {after}: entries up to {self.ledger.last} were applied")
        oldest = self.journal.segments[0]
        if after == oldest.previous.index:  # all that came behind a snapshot
            kept, end = oldest.previous, SEGMENT_HEADER_SIZE
        else:
            kept, end = self._reader.mark(after)
        self.journal.check(entries, after=kept)
        dropped = [segment.first for segment in self.journal.segments if segment.first > after]
        for operations in self.journal.cut(kept, end):
            yield (StepKind.CUT, operations)
        self._repeat = []  # the cut wrote both slots
        for first in dropped:
            self._rows_crc.pop(index_name(first), None)
        self._rows_crc[index_name(self.journal.active.first)] = None
        if operations := self.ledger.reopen(self.files, self.journal.active, dropped):
            yield (StepKind.CUT, operations)
        self._segments_dropped()

    def _segments_dropped(self) -> None:
        sealed = self.journal.segments[:-1]
        self.unsealed[:] = [segment for segment in self.unsealed if segment in sealed]
        self.unclosed[:] = [segment for segment in self.unclosed if segment in sealed]

    # -- compaction and a snapshot from a leader; as CUT, neither while `finish_sealed` is under way

    def compact(self, keep_after: int) -> Iterator[WorkStep]:
        """Removes unneeded segments: all of them end at or before `keep_after`, which a durable snapshot
        covers (`raftlog.raft.wal.retention.may_go`).

        The segments are forgotten with the first step, so the steps may be carried out beside any others, also in
        another thread. There is one step for each segment, oldest first. After a crash the log begins with the first
        remaining one.
        """
        steps: list[WorkStep] = [(StepKind.COMPACT, operations) for operations in self.journal.compact(keep_after)]
        self.ledger.forget(self.journal.segments)
        self._segments_dropped()
        yield from steps

    def install(self, received: Pieces) -> Iterator[WorkStep]:
        """Makes a snapshot that came from a leader the newest one, and begins the log again after it.

        The segments with applied entries are kept beside the log (`raftlog.raft.wal.kept_log`): perhaps no other node
        has their records any more. A crash before the snapshot has its name leaves the log as it was; a later one is
        finished at the next start. Raises SnapshotDamaged where it fails its check: then nothing is changed.
        """
        mark, applied = received.check(self.files).mark, self.ledger.last
        if mark.index <= applied:
            raise ImpossibleBatch(f"a snapshot of {mark.index}: entries up to {applied} were applied")
        journal = self.journal
        yield from self.sync_ledgers()  # the effects of the kept entries: no replay makes them again
        # The old log frees no space for the new one, so all that is new is made before the snapshot has its name.
        yield (StepKind.SPARES, [*prepare_segment(journal.log, mark, journal.segment_bytes), MakeFolder(KEPT)])
        yield (StepKind.SPARES, received.prepare())
        promise, repeat = journal.set_hard_state(journal.slot.state, replaced=journal.replaces(mark.index))
        yield (StepKind.HARD_STATE, promise + repeat)
        yield (StepKind.INSTALL, received.finish())
        self._placed, self._are_rows_owed, self._repeat = [], False, []
        self._rows_crc.clear()
        self.frames.clear()
        self._taken.clear()
        firsts = journal.restart(mark)
        self.ledger.restart(mark)
        self._segments_dropped()
        for operations in map(drop_segment, [first for first in reversed(firsts) if first > applied]):
            yield (StepKind.INSTALL, operations)
        yield (StepKind.INSTALL, keep_segments([first for first in firsts if first <= applied]))
        yield (StepKind.INSTALL, make_segment(journal.log, mark, journal.segment_bytes))
        yield (StepKind.INSTALL, end_install(mark.index))
        yield (StepKind.INSTALL, drop_old(self.files))

    # -- what may follow

    def write_rows(self) -> Iterator[WorkStep]:
        """The .idx rows of entries appended before."""
        if not self._placed:
            return
        writes = self.journal.index_writes(self._placed)
        self._are_rows_owed = True
        yield (StepKind.ROWS, writes)
        self._rows_written(writes)

    def _rows_written(self, writes: Sequence[FileOperation]) -> None:
        for write in writes:
            crc = self._rows_crc.get(write.name, 0)
            if crc is not None and isinstance(write, Write):
                self._rows_crc[write.name] = crc32c(write.data, crc)
        self.journal.indexed = self._placed[-1].entry.index
        self._placed, self._are_rows_owed = [], False

    def write_frames(self) -> Iterator[WorkStep]:
        """Effects of entries that are in the log, in one write for each segment; those that are there are skipped."""
        taken, ledger, journal = self._taken, self.ledger, self.journal
        while self.frames:  # others may add to it meanwhile
            frame = self.frames.popleft()
            if not taken or frame[0] > taken[-1][0]:
                taken.append(frame)
        while taken and (index := taken[0][0]) <= journal.indexed:
            if index <= ledger.last:
                del taken[0]  # replayed after a restart
                continue
            active = journal.active
            segment = active if index > active.previous.index else journal.segment_of(index)
            last = min(segment.last.index, journal.indexed)
            part = taken if taken[-1][0] <= last else [frame for frame in taken if frame[0] <= last]
            yield (StepKind.EFFECTS, ledger.place(self.files, segment, part))
            ledger.placed(segment, part)
            del taken[: len(part)]

    # -- sealed segments

    @property
    def has_frames(self) -> bool:
        """Whether effects wait to be written."""
        return bool(self.frames or self._taken)

    @property
    def is_finish_due(self) -> bool:
        """Whether `finish_sealed` has anything to do. It may be at it in its thread: so copies are looked at."""
        return self._is_seal_due or any(self.ledger.last >= segment.last.index for segment in self.unclosed[:1])

    @property
    def _is_seal_due(self) -> bool:
        return any(segment.last.index <= self.journal.indexed for segment in self.unsealed[:1])

    def finish_sealed(self, files: Files) -> Iterator[WorkStep]:
        """The footers of sealed segments, so that a restart need not read them. `files`: those of this thread.

        A footer makes its rows count as right for ever. So rows that read back differently, or are older than a cut,
        are made again from the segment. If the segment is damaged, the next start reports it.
        """
        while self._is_seal_due:
            segment = self.unsealed[0]
            name, size = index_name(segment.first), _rows_size(segment)
            mends: list[FileOperation] = []
            rows = files.read(name, SIDE_HEADER_SIZE, size)
            if crc32c(rows) != self._rows_crc.get(name):
                rows = sealed_rows(files, segment)
                header = encode_side_header(self.journal.log, INDEX_MAGIC, segment.previous)
                mends.append(Write(name, 0, header + rows))
            if len(rows) == size:
                yield (StepKind.FOOTERS, [*mends, *seal_index(segment, rows)])
            self.unsealed.pop(0)
            self._rows_crc.pop(name, None)
        while self.unclosed and (operations := self.ledger.close(files, self.unclosed[0])) is not None:
            if operations:
                yield (StepKind.FOOTERS, operations)
                self.ledger.closed(files, self.unclosed[0])
            self.unclosed.pop(0)

    def sync_ledgers(self) -> Iterator[WorkStep]:
        """Effects are durable: before a snapshot that covers them, or that replaces the log."""
        if names := self.ledger.unsynced():
            yield (StepKind.FOOTERS, [Sync(ledger_name(first)) for first in names])


def _rows_size(segment: Segment) -> int:
    return IDX_ROW.size * (segment.last.index - segment.previous.index)
