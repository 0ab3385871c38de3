"""Prepares the next segment and finishes sealed segments, in the reading thread, for the writer thread.

`raftlog.cluster.disk.writer` asks for this work. A roll then finds its next file made. Zeros are written into that file
at the pace at which the active segment fills, and no faster than SPARE_STEP_BYTES in SPARE_STEP_S. All at once they
would hold up the syncs of the log for some tenths of a second, and at the rate of bulk appends they cost more than they
save. A sealed segment gets the footers of its .idx and .ledger, so that a restart need not read the segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from raftlog.cluster.disk.worker import Worker
from raftlog.cluster.files.errors import is_full
from raftlog.cluster.files.shard_files import Allocation, ShardFiles
from raftlog.cluster.runtime.clock import monotonic
from raftlog.raft.wal.formats import spare_name
from raftlog.raft.wal.operations import Allocate, FileOperation
from raftlog.raft.wal.reading import WalReader
from raftlog.raft.wal.storage import Storage

SPARE_FROM: Final = 8
"""The spare file is begun once one part in so many of the active segment is full."""
SPARE_STEP_BYTES: Final = 256 << 10
"""Zeros that are written and synced at once."""
SPARE_STEP_S: Final = 0.01
"""Least time between two such steps, in seconds: 26 MB/s."""


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
        # Asked: a step of the spare file is queued or runs, or no step is possible before the next roll.
        self._is_spare_asked = self._is_finish_asked = self._is_stopped = False
        self._step_s = float("-inf")  # when the newest step was asked for
        self.rolls = 0
        self.on_error: Callable[[Exception], None] = _ignore
        worker.on_error = lambda error: self.on_error(error)

    # -- called by the writer thread

    def reserve(self, files: ShardFiles, spares: Sequence[FileOperation]) -> None:
        """Makes the spare files, and blocks until they exist. Raises OSError. The caller holds `spare` until they have
        names."""
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            allocation.finish()
        files.execute(spares)
        self.rolls += sum([isinstance(operation, Allocate) for operation in spares])

    def rolled(self) -> None:
        """Segments were added to the log. The caller holds `spare`."""
        self._is_spare_asked = False

    def look(self) -> None:
        """Begins the jobs that are due."""
        if not self._is_spare_asked and self._due_bytes() > self.made_bytes:
            now = monotonic()
            if now - self._step_s >= SPARE_STEP_S:
                self._step_s = now
                self._is_spare_asked = True
                self._worker.post(self._make_spare)
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

    @property
    def made_bytes(self) -> int:
        """Zeros written into the spare file. Any thread may ask."""
        allocation = self._allocation
        return 0 if allocation is None else allocation.position

    def _due_bytes(self) -> int:
        """How many zeros the spare file should have: none until an eighth of the active segment is full, all of them
        from three quarters on."""
        active, size = self._journal.active, self._journal.segment_bytes
        return min((active.end - active.size // SPARE_FROM) * 8 * size // (5 * active.size), size)

    # -- in the reading thread

    def _make_spare(self) -> None:
        """Makes one step of the spare file, so that reads run in between. The first one makes the file."""
        with self.spare:
            name, size = spare_name(0), self._journal.segment_bytes
            if self._allocation is None and (self._is_stopped or self._files.size(name) >= size):
                return  # the writer thread made the file itself
            try:
                if self._allocation is None:
                    self._allocation = Allocation(self._files.root / name, size)
                self._allocation.step(SPARE_STEP_BYTES)
            except OSError:
                self._allocation = None  # the roll tries again, and reports the error
                return
            self._is_spare_asked = False

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
