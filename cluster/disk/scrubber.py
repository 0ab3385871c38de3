"""Scrubs the files of a running node in a thread (`raftlog.cluster.files.scrub`), slowly enough not to disturb it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Final

from raftlog.cluster.files.findings import Finding
from raftlog.cluster.files.scrub import Looker, Waits
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.cluster.runtime.clock import monotonic, thread_s

SLICE_S: Final = 0.0005
"""Processor seconds of checking without a pause: longest wait of the event loop, which needs the interpreter."""
SHARE: Final = 20
"""After each slice the thread pauses this many times as long: it takes at most a twentieth of a processor."""
BUSY_S: Final = 0.1
"""Longest wait of a slice for a busy writer thread, in seconds."""
BUSY_LOOK_S: Final = 0.002


OnFindings = Callable[[list[Finding]], None]
OnFailure = Callable[[Exception], None]


class CountedFiles(ShardFiles):
    """Files that are only read, and whose read bytes are counted."""

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
    """A thread that reads all files, pauses, and begins again. Any thread may read its numbers."""

    def __init__(
        self,
        looker: Looker,
        found: OnFindings,
        is_busy: Callable[[], bool],
        failed: OnFailure,
        *,
        bytes_per_second: int,
        pause_s: float,
    ) -> None:
        """That thread calls `found` with the findings of one place, and `failed` with the error of a round that ended
        early. `is_busy`: whether the writer thread has work."""
        self._looker, self._found, self._is_busy, self._failed = looker, found, is_busy, failed
        self._bytes_per_second, self._pause_s = bytes_per_second, pause_s
        self._stop = Event()
        self._thread = Thread(target=self._work, name="disk-scrub", daemon=True)
        self.rounds = 0
        self.ended_at: float | None = None  # end of the newest round, in seconds of `clock.monotonic`
        if bytes_per_second:
            self._thread.start()

    @property
    def bytes(self) -> int:
        """Bytes read since the start."""
        return self._looker.files.bytes

    @property
    def file(self) -> str:
        """The file that is being read; empty if none."""
        return self._looker.file

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread. Returns whether it ended in time."""
        self._stop.set()
        if self._bytes_per_second:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- in the thread

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self._round()
            except Exception as error:  # a folder that cannot be listed now, or a defect: the next round reads again
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
        """Runs as many steps as fit in a slice, then a pause."""
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
