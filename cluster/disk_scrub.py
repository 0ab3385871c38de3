"""Reads the files of a running node in a thread of its own (`cluster.scrubbing`), at a pace that nobody feels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Final

from cluster.clock import monotonic, thread_s
from cluster.disk_files import ShardFiles
from cluster.disk_findings import Finding
from cluster.scrubbing import Looker, Waits

SLICE_S: Final = 0.0005
"""Read and checked in one go, in time on a processor: the event loop, which needs the same one, waits no longer."""
SHARE: Final = 20
"""A slice is followed by a pause of so many times its length: no more than a twentieth of a processor."""
BUSY_S: Final = 0.1
"""A slice waits so long for a writing thread that has work, then it comes all the same."""
BUSY_LOOK_S: Final = 0.002


Found = Callable[[list[Finding]], None]
Failed = Callable[[Exception], None]


class CountedFiles(ShardFiles):
    """Files that are only read; they count how much."""

    __slots__ = ("bytes",)

    def __init__(self, root: Path) -> None:
        super().__init__(root, read_only=True)
        self.bytes = 0

    def read(self, name: str, position: int, size: int) -> bytes:
        """As ShardFiles."""
        data = super().read(name, position, size)
        self.bytes += len(data)
        return data


class Scrub:
    """A thread that reads everything, pauses, and begins anew. Its numbers may be read by any thread."""

    def __init__(
        self,
        looker: Looker,
        found: Found,
        is_busy: Callable[[], bool],
        failed: Failed,
        *,
        bytes_per_second: int,
        pause_s: float,
    ) -> None:
        """`found` is told in that thread what is wrong in one place, `failed` why a round ended early; `is_busy`: the
        writing thread has work."""
        self._looker, self._found, self._is_busy, self._failed = looker, found, is_busy, failed
        self._bytes_per_second, self._pause_s = bytes_per_second, pause_s
        self._stop = Event()
        self._thread = Thread(target=self._work, name="disk-scrub", daemon=True)
        self.rounds = 0
        self.ended_at: float | None = None  # the newest round, in seconds of `clock.monotonic`
        if bytes_per_second:
            self._thread.start()

    @property
    def bytes(self) -> int:
        """Read so far."""
        return self._looker.files.bytes

    @property
    def file(self) -> str:
        """That is being read; empty: none is."""
        return self._looker.file

    def stop(self, timeout_s: float) -> bool:
        """Ends it. Returns whether it has ended in time."""
        self._stop.set()
        if self._bytes_per_second:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- in the thread

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self._round()
            except Exception as error:  # a folder that cannot be listed now, or a defect: the next round looks again
                self._looker.end()
                self._failed(error)
            self._stop.wait(self._pause_s)
        self._looker.end()

    def _round(self) -> None:
        for seconds in self._sliced(self._looker.round(self._found)):
            if self._stop.wait(seconds):
                return
        self.rounds += 1
        self.ended_at = monotonic()

    def _sliced(self, steps: Waits) -> Waits:
        """As many steps as fit in a slice, then a pause."""
        is_over = False
        while not is_over:
            waited = 0.0
            while self._is_busy() and waited < BUSY_S:
                waited += BUSY_LOOK_S
                yield BUSY_LOOK_S
            began, read, seconds = thread_s(), self.bytes, 0.0
            until = began + SLICE_S
            while seconds == 0.0 and thread_s() < until:
                if (step := next(steps, None)) is None:
                    is_over = True
                    break
                seconds = step
            took = thread_s() - began
            yield max(seconds, SHARE * took, (self.bytes - read) / max(1, self._bytes_per_second))
