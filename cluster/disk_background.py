"""What the reading thread does for the writing one: makes the next segment ahead, finishes sealed segments.

A roll finds its file made, so it does not wait for 64 MiB of zeros; a sealed segment gets the footers of its .idx and
.ledger, so that a restart does not read it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from cluster.disk_errors import is_full
from cluster.disk_files import Allocation, ShardFiles
from cluster.disk_ledger import Ledger
from cluster.disk_read import Reader
from cluster.disk_worker import Worker
from raft.codec import IDX_ROW
from raft.formats import SIDE_HEADER_SIZE
from raft.journal import (
    Journal,
    Segment,
    index_name,
    seal_index,
    spare_name,
)
from raft.operations import (
    Operation,
)


class Background:
    """Jobs of the reading thread that the writing thread asks for."""

    def __init__(self, journal: Journal, ledger: Ledger, reader: Reader, files: ShardFiles, worker: Worker) -> None:
        self._journal, self._ledger, self._reader = journal, ledger, reader
        self._files, self._worker = files, worker
        self.structure = Lock()  # held by a cut, and while a sealed segment is finished
        self.spare = Lock()  # held while a spare file is made, and from there until it has its name
        self._allocation: Allocation | None = None
        self._is_spare_asked = self._is_finish_asked = self._is_stopped = False
        self._unsealed: list[Segment] = []  # without a footer in .idx
        self._unclosed: list[Segment] = list(journal.segments[:-1])  # without a footer in .ledger
        self._known = len(journal.segments)
        self.rolls = 0
        self.on_error: Callable[[Exception], None] = _ignore

    # -- asked for by the writing thread

    def reserve(self, files: ShardFiles, spares: list[Operation]) -> None:
        """The spare files are there when it returns. Raises OSError. The caller holds `spare` until they have names."""
        allocation, self._allocation = self._allocation, None
        while allocation is not None and not allocation.step():
            pass
        files.execute(spares)

    def rolled(self) -> None:
        """Segments were added: what was the newest is sealed now. The caller holds `spare`."""
        sealed = self._journal.segments[self._known - 1 : -1]
        self._unsealed += sealed
        self._unclosed += sealed
        self.rolls += len(sealed)
        self._known = len(self._journal.segments)
        self._is_spare_asked = False

    def dropped(self) -> None:
        """Segments were dropped by a cut (the caller holds `structure`)."""
        sealed = self._journal.segments[:-1]
        self._unsealed[:] = [segment for segment in self._unsealed if segment in sealed]
        self._unclosed[:] = [segment for segment in self._unclosed if segment in sealed]
        self._known = len(self._journal.segments)

    def look(self) -> None:
        """Asks for what has become due."""
        active = self._journal.active
        if not self._is_spare_asked and active.end > active.size // 2:
            self._is_spare_asked = True
            self._worker.post(self._begin_spare)
        is_due = self._unsealed or (self._unclosed and self._ledger.last >= self._unclosed[0].last.index)
        if is_due and not self._is_finish_asked:
            self._is_finish_asked = True
            self._worker.post(self._finish_sealed)

    def stop(self) -> None:
        """Forgets the file that is being made; makes no other."""
        with self.spare:
            self._is_stopped = True
            if self._allocation is not None:
                self._allocation.abandon()
                self._allocation = None

    # -- in the reading thread

    def _begin_spare(self) -> None:
        with self.spare:
            is_there = self._files.size(spare_name(0)) >= self._journal.segment_bytes
            if self._is_stopped or self._allocation is not None or is_there:
                return
            try:
                self._allocation = Allocation(self._files.root / spare_name(0), self._journal.segment_bytes)
            except OSError:
                return  # the roll tries again, and says what is wrong
        self._worker.post(self._make_spare)

    def _make_spare(self) -> None:
        """One step, so that reads come in between."""
        with self.spare:
            if self._allocation is None:
                return  # the writing thread could not wait
            try:
                is_done = self._allocation.step()
            except OSError:
                is_done = True  # the roll tries again, and says what is wrong
            if is_done:
                self._allocation = None
                return
        self._worker.post(self._make_spare)

    def _finish_sealed(self) -> None:
        with self.structure:
            self._is_finish_asked = False
            self._reader.refresh()
            try:
                while self._unsealed:
                    segment = self._unsealed[0]
                    size = IDX_ROW.size * (segment.last.index - segment.previous.index)
                    rows = self._files.read(index_name(segment.first), SIDE_HEADER_SIZE, size)
                    self._files.execute(seal_index(segment, rows))
                    self._unsealed.pop(0)
                while self._unclosed and self._ledger.close(self._files, self._unclosed[0]):
                    self._unclosed.pop(0)
            except Exception as error:  # nobody waits for what is raised here
                if not (isinstance(error, OSError) and is_full(error)):
                    self.on_error(error)  # without room for a footer, the next start reads the whole segment


def _ignore(_: Exception) -> None:
    """Until the writing thread names its own."""
