"""Applies committed entries in bounded slices, settles and wakes who waits, and writes the effects to the ledger.

Visible as soon as applied: the ledger only repeats what replay would make again, so nobody waits for it. What readers
take from the disk is bounded by `written`. DESIGN section 4 (ledger) and 5 (steps 6 and 7).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from cluster import clock
from cluster.apply import last_user_index, log_entry
from cluster.disk import Disk
from cluster.disk_errors import NoSpace
from cluster.pending import Pending
from cluster.recent import Recent
from cluster.settings import LimitSettings
from cluster.waiting import IndexWaiters
from raft.codec import entry_mark
from raft.retention import bytes_on_disk
from raft.types import Entry, Mark
from statemachine.effects import encode_effects
from statemachine.machine import StateMachine

NO_SPACE_RETRY_S: Final = 0.2


class Applier:
    """Owns the state machine. `run` does a slice of work; what is behind it, `written` and so on, is read-only."""

    def __init__(
        self,
        machine: StateMachine,
        disk: Disk,
        pending: Pending,
        *,
        limits: LimitSettings,
        applied: Mark,
        last_user: int,
        ledger_last: int,
        failed: Callable[[BaseException], None],
        wake: Callable[[], None],
    ) -> None:
        """`applied` is where the restored state stands; `ledger_last` up to where the disk has effects already."""
        self.machine = machine
        self.waiters = IndexWaiters()
        self.recent = Recent(limits.recent_bytes_max)
        self.mark = applied
        self.applied = applied.index
        self.last_user_index = last_user
        self.written = ledger_last
        self.applied_at = clock.monotonic()  # when the newest entry was applied: the cluster clock goes on from it
        self.log_bytes = self.log_records = 0  # applied since the last snapshot; bytes as they count on disk
        self._disk = disk
        self._pending = pending
        self._limits = limits
        self._slice_s = limits.apply_slice_ms / 1_000
        self._failed = failed
        self._wake = wake
        self._queue: deque[Entry] = deque()
        self._frames: list[bytes] = []
        self._frames_bytes = 0
        self._frames_last = 0
        self._writing: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> int:
        """Committed entries not yet applied."""
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        """Whether effects may be queued for the ledger."""
        return self._frames_bytes <= self._limits.ledger_queue_bytes_max

    @property
    def is_written(self) -> bool:
        """Whether the ledger has everything that was applied."""
        return self.written >= self.applied

    @property
    def clock_ms(self) -> int:
        """The cluster clock as it would be in an entry made now."""
        return self.machine.clock_ms + int((clock.monotonic() - self.applied_at) * 1_000)

    def add(self, entries: Iterable[Entry]) -> None:
        """Committed entries, in order."""
        self._queue.extend(entries)

    def run(self) -> bool:
        """Applies for one slice of time; whether it applied anything. `waiting` tells if there is more.

        Raises what the state machine or the codec raises on an entry they do not know: the node must stop.
        """
        queue = self._queue
        if not queue or not self.has_room:
            return False
        until = clock.monotonic() + self._slice_s
        while queue:
            self._apply(queue.popleft())
            if clock.monotonic() >= until or not self.has_room:
                break
        self.applied_at = clock.monotonic()
        self.waiters.applied(self.applied)
        self._write()
        return True

    def installed(self, machine: StateMachine, mark: Mark, last_user: int) -> None:
        """A leader's snapshot up to `mark` took the place of log and state; everything before it is written."""
        assert not self._queue, "nothing is applied meanwhile"
        assert not self._frames_bytes, "and everything is written"
        self.machine = machine
        self.mark = mark
        self.applied = self.written = mark.index
        self.last_user_index = last_user
        self.applied_at = clock.monotonic()
        self.log_bytes = self.log_records = 0
        self.recent = Recent(self._limits.recent_bytes_max)
        self.waiters.applied(mark.index)

    def _apply(self, entry: Entry) -> None:
        command = log_entry(entry)
        effects = self.machine.apply(command)
        frame = encode_effects(effects)
        index = entry.index
        self.applied = index
        self.mark = entry_mark(entry)
        self.log_bytes += bytes_on_disk(entry, len(frame))
        self.log_records += entry.count
        user = last_user_index(command, effects)
        if user is not None:
            self.last_user_index = user
        self._frames.append(frame)
        self._frames_bytes += len(frame)
        self._frames_last = index
        self.recent.add(entry, effects, len(frame), self.written)
        self._pending.applied(index, entry.term, command.requests, effects)

    def _write(self) -> None:
        """One call at a time; what is applied meanwhile goes with the next. The disk drops what it has already."""
        if self._frames and self._writing is None:
            frames, last, size = self._frames, self._frames_last, self._frames_bytes
            self._frames = []
            writing = self._disk.write_effects(frames)
            if writing.done() and not writing.exception():
                self._frames_bytes -= size
                self.written = last
            else:
                self._writing = writing
                writing.add_done_callback(lambda done: self._wrote(done, last, size))

    def _wrote(self, done: asyncio.Future[None], last: int, size: int) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._taken(last, size)
        elif isinstance(error, NoSpace):  # the disk keeps them, and should not be given many more
            asyncio.get_running_loop().call_later(NO_SPACE_RETRY_S, self._taken, last, size)
        else:
            self._failed(error)

    def _taken(self, last: int, size: int) -> None:
        self._writing = None
        self._frames_bytes -= size
        self.written = max(self.written, last)
        self._write()
        if self._queue:
            self._wake()
