"""What the writing thread does: makes batches durable, then writes .idx rows, effects and the second hard state slot.

The first error of a write or sync fences the disk for good: the kernel may have dropped the pages, so a retry that
succeeds would lie (fsyncgate; Rebello et al., ATC'20). Only running out of space before a byte of an entry is written,
or in files that can be made anew, is back-pressure.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from cluster.clock import monotonic
from cluster.disk_background import Background
from cluster.disk_errors import DiskFenced, NoSpace, is_full
from cluster.disk_files import ShardFiles
from cluster.disk_ledger import Ledger
from cluster.disk_read import Reader
from raft.journal import (
    ImpossibleBatch,
    Journal,
    Placed,
)
from raft.operations import (
    Operation,
)
from raft.ready import SyncBatch
from raft.types import Entry, HardState

SYNC_BUCKETS_S: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


@dataclass(slots=True)
class Counters:
    """What the writing thread did so far."""

    batches: int = 0
    entries: int = 0
    entry_bytes: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    sync_slowest_s: float = 0.0


class Writer:
    """The writing side of a disk. Everything but `fence`, `frames` and the counters belongs to the writing thread."""

    def __init__(self, journal: Journal, ledger: Ledger, files: ShardFiles, background: Background) -> None:
        self._journal, self._ledger, self._files = journal, ledger, files
        self._background = background
        self._reader = Reader(journal, ledger, files)
        self._repeat: list[Operation] = []  # the hard state for its second slot
        self._placed: list[Placed] = []  # appended entries whose .idx rows are not written
        self.frames: deque[tuple[int, bytes]] = deque()  # effects not written
        self.fence: DiskFenced | None = None
        self.counters = Counters()
        self.buckets = [0] * (len(SYNC_BUCKETS_S) + 1)
        files.on_sync = self._sync
        background.on_error = self._fence_quietly

    def carry_out(self, batch: SyncBatch) -> None:
        """Makes a batch durable: hard state, then cut, then entries. Raises DiskFenced, NoSpace or ImpossibleBatch.

        After NoSpace the very same batch may be carried out again: what was done of it is not done twice.
        """
        self.check()
        try:
            self._write_rows()
            if batch.hard_state is not None:
                self._keep(batch.hard_state)
            if batch.cut_after is not None and batch.cut_after < self._journal.last.index:
                self._cut(batch.cut_after, batch.entries)
            if batch.entries:
                self._append(batch.entries)
        except OSError as error:
            self.fail(error)
        self.counters.batches += 1

    def finish(self) -> None:
        """What may follow the promise; never raises. What finds no space is tried again before the next batch."""
        if self.fence is not None:
            return
        try:
            repeat, self._repeat = self._repeat, []
            self._files.execute(repeat)
            self._write_rows()
            self._write_frames()
            self._background.look()
        except NoSpace:
            pass
        except Exception as error:  # also an entry that cannot be indexed: nobody waits for what is raised here
            self._fence_quietly(error)

    def flush(self) -> None:
        """Rows and effects are in their files. Raises NoSpace or DiskFenced."""
        self.check()
        try:
            self._write_rows()
            self._write_frames()
        except OSError as error:
            self.fail(error)

    def mark(self) -> None:
        """A durable mark behind the newest entry. Raises DiskFenced or NoSpace."""
        self.flush()
        try:
            self._files.execute(self._journal.mark())
        except OSError as error:
            self.fail(error)

    def check(self) -> None:
        """Raises DiskFenced once anything has failed."""
        if self.fence is not None:
            raise self.fence

    def fail(self, error: OSError) -> NoReturn:
        """Fences the disk, for good."""
        self.fence = _fenced(error)
        raise self.fence from error

    def _fence_quietly(self, error: Exception) -> None:
        self.fence = self.fence or _fenced(error)

    # -- the parts of a batch

    def _keep(self, state: HardState) -> None:
        old = self._journal.slot.state
        state = replace(state, boot=old.boot)  # this start's, whatever the caller remembers
        if state == old:
            return
        if state.term < old.term or (state.term == old.term and old.vote not in (0, state.vote)):
            raise ImpossibleBatch(f"hard state {state} after {old}: a term never falls, a vote never changes in it")
        promise, self._repeat = self._journal.set_hard_state(state)
        self._files.execute(promise)

    def _cut(self, after: int, entries: tuple[Entry, ...]) -> None:
        if after < self._ledger.last:
            raise ImpossibleBatch(f"a cut after {after}: entries up to {self._ledger.last} were applied")
        kept, end = self._reader.mark(after)
        self._journal.check(entries, after=kept)
        with self._background.structure:
            dropped = [segment.first for segment in self._journal.segments if segment.first > after]
            for operations in self._journal.cut(kept, end):
                self._files.execute(operations)
            self._repeat = []  # the cut wrote both slots
            self._ledger.reopen(self._files, self._journal.active, dropped)
            self._background.dropped()

    def _append(self, entries: tuple[Entry, ...]) -> None:
        self._journal.check(entries)
        if spares := self._journal.spares(entries):
            with self._background.spare:
                try:
                    self._background.reserve(self._files, spares)
                except OSError as error:
                    _raise_full(error)
                    raise
                self._write(entries)
                self._background.rolled()
        else:
            self._write(entries)
        self.counters.entries += len(entries)
        self.counters.entry_bytes += sum([entry.size for entry in entries])

    def _write(self, entries: tuple[Entry, ...]) -> None:
        operations, placed = self._journal.append(entries)
        self._files.execute(operations)
        self._placed += placed

    def _write_rows(self) -> None:
        if not self._placed:
            return
        try:
            self._files.execute(self._journal.index_writes(self._placed))
        except OSError as error:
            _raise_full(error)
            raise
        self._journal.indexed = self._placed[-1].entry.index
        self._placed = []

    def _write_frames(self) -> None:
        """Effects of entries that are in the log, in one write for each segment; those that are there are skipped."""
        frames, ledger, journal = self.frames, self._ledger, self._journal
        while frames and (index := frames[0][0]) <= journal.indexed:
            if index <= ledger.last:
                frames.popleft()  # replayed after a restart
                continue
            segment = journal.segment_of(index)
            last = min(segment.last.index, journal.indexed)
            part: list[tuple[int, bytes]] = []
            while frames and frames[0][0] <= last:
                frame = frames.popleft()
                if not part or frame[0] > part[-1][0]:
                    part.append(frame)
            try:
                ledger.write(self._files, segment, part)
            except OSError as error:
                frames.extendleft(reversed(part))
                _raise_full(error)
                raise

    def _sync(self, name: str) -> None:
        started = monotonic()
        self._files.sync(name)
        seconds = monotonic() - started
        counters = self.counters
        counters.syncs += 1
        counters.sync_seconds += seconds
        counters.sync_slowest_s = max(counters.sync_slowest_s, seconds)
        for i, bound in enumerate(SYNC_BUCKETS_S):
            if seconds <= bound:
                self.buckets[i] += 1
                return
        self.buckets[-1] += 1


def _raise_full(error: OSError) -> None:
    """Raises NoSpace where that is what the operating system says."""
    if is_full(error):
        raise NoSpace(f"the disk is full ({error}): writes wait until there is room") from error


def _fenced(error: Exception) -> DiskFenced:
    where = f" ({os.fspath(error.filename)})" if isinstance(error, OSError) and error.filename else ""
    return DiskFenced(
        f"the disk failed{where}: {error}; this process writes no more, because a retry could claim what was lost. "
        "Look at the disk, then start the node again"
    )
