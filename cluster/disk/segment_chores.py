"""Prepares the next segment and finishes sealed segments, in the reading thread, for the writer thread.

`raftlog.cluster.disk.writer` asks for this work. A roll then finds its next file made, and does not wait for 64 MiB of
zeros. The zeros are written at the pace at which the active segment fills: all at once they would hold up the syncs of
the log for some tenths of a second. A sealed segment gets the footers of its .idx and .ledger, so that a restart need
not read the segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from raftlog.cluster.disk.worker import Worker
from raftlog.cluster.files.errors import is_full
from raftlog.cluster.files.shard_files import Allocation, ShardFiles
from raftlog.raft.wal.formats import spare_name
from raftlog.raft.wal.operations import FileOperation
from raftlog.raft.wal.reading import WalReader
from raftlog.raft.wal.storage import Storage

SPARE_STEP_BYTES: Final = 256 << 10
"""Zeros that are written and synced at once where the spare file keeps pace; one that is behind takes larger steps."""


class Background:
    """Jobs of the reading thread that the writer thread asks for."""

    def __init__(self, storage: Storage, reader: WalReader, files: ShardFiles, worker: Worker) -> None:
        self._storage, self._journal, self.reader = storage, storage.journal, reader
        self._files, self._worker = files, worker
        # Held by each job that takes segments out of the log or adds them in front (a cut, a trim, a snapshot from a
        # leader, a fetched segment), and while a sealed one is finished.
        self.structure = Lock()
        self.spare = Lock()  # held while a spare file is made, and from there until it has its name
        self._allocation: Allocation | None = None
        # Asked: a step of the spare file is queued or runs, or the file is complete.
        self._is_spare_asked = self._is_finish_asked = self._is_stopped = False
        self.made_bytes = 0  # of the spare file
        self.rolls = 0
        self.on_error: Callable[[Exception], None] = _ignore
        worker.on_error = lambda error: self.on_error(error)

    # -- called by the writer thread

    def reserve(self, files: ShardFiles, spares: Sequence[FileOperation]) -> None:
        """Makes the spare files, and blocks until they exist. Raises OSError. The caller holds `spare` until they have
        names."""
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            allocation.is_gentle = False  # the batch that needs the file waits
            while not allocation.step():
                pass
        files.execute(spares)
        self.rolls += len(spares)

    def rolled(self) -> None:
        """Segments were added to the log. The caller holds `spare`."""
        self.made_bytes = 0
        self._is_spare_asked = False

    def look(self) -> None:
        """Begins the jobs that are due."""
        if not self._is_spare_asked and self._due_bytes() > self.made_bytes:
            self._is_spare_asked = True
            self._worker.post(self._make_spare if self.made_bytes else self._begin_spare)
        if self._storage.is_finish_due and not self._is_finish_asked:
            self._is_finish_asked = True
            self._worker.post(self._finish_sealed)

    def stop(self, timeout_s: float) -> bool:
        """Stops making spare files. Returns whether the disk released the current one in time: it may hang."""
        if not self.spare.acquire(timeout=timeout_s):
            return False
        try:
            self._is_stopped = True
            if self._allocation is not None:
                self._allocation.abandon()
                self._allocation = None
        finally:
            self.spare.release()
        return True

    # -- in the reading thread

    def _begin_spare(self) -> None:
        with self.spare:
            is_there = self._files.size(spare_name(0)) >= self._journal.segment_bytes
            if self._is_stopped or self._allocation is not None or is_there:
                return
            try:
                path = self._files.root / spare_name(0)
                self._allocation = Allocation(path, self._journal.segment_bytes, is_gentle=True)
            except OSError:
                return  # the roll tries again, and reports the error
        self._worker.post(self._make_spare)

    def _make_spare(self) -> None:
        """Makes one step of a spare file, so that reads run in between."""
        with self.spare:
            allocation = self._allocation
            if allocation is None:
                return  # the writer thread made the file itself
            try:
                is_done = allocation.step(max(SPARE_STEP_BYTES, self._due_bytes() - allocation.position))
            except OSError:
                is_done = True  # the roll tries again, and reports the error
            self.made_bytes = allocation.position
            if is_done:
                self._allocation = None
                return
            if self._due_bytes() <= allocation.position:
                self._is_spare_asked = False  # until the writer thread looks again
                return
        self._worker.post(self._make_spare)

    def _due_bytes(self) -> int:
        """How much of the spare file should exist: none until an eighth of the active segment is full, all of it from
        three quarters on. Both threads ask."""
        active = self._journal.active
        return min((active.end - active.size // 8) * 8 // 5, active.size)

    def _finish_sealed(self) -> None:
        with self.structure:
            self._is_finish_asked = False
            self.reader.refresh()
            try:
                for _, operations in self._storage.finish_sealed(self._files):
                    self._files.execute(operations)
            except Exception as error:  # no caller waits for an error here
                if not (isinstance(error, OSError) and is_full(error)):
                    self.on_error(error)  # without space for a footer, the next start reads the whole segment


def _ignore(_: Exception) -> None:
    """The default until the writer thread sets its own."""
