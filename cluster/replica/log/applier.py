"""Applies committed entries in bounded slices, settles and wakes waiting requests, and writes effects to the ledger.
Keeps the newest entries with their effects in memory, for readers that follow closely.

The replica calls `run` in its turns. Clients see an entry as soon as it is applied, without waiting for the ledger:
after a crash, replay makes the same effects again. Readers that read the log from the disk end at `ledger.written`.
See docs/promises.md: one write, in order.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Final

from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.errors import NoSpace
from raftlog.cluster.protocol.proposals import Pending
from raftlog.cluster.protocol.waiters import IndexWaiters
from raftlog.cluster.records.entries import last_user_index, log_entry
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.block import decode_blocks
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.types import Entry, EntryKind, Mark
from raftlog.statemachine.commands import LogEntry, Result
from raftlog.statemachine.effects import Effects, RequestEffect, encode_effects
from raftlog.statemachine.machine import StateMachine

NO_SPACE_RETRY_S: Final = 0.2
_OVERHEAD: Final = 512  # bytes of the objects of one entry, beside its contents,
_REQUEST: Final = 200  # per request with an effect of its own,
_CHANGE: Final = 400  # and per key that it changed; also an estimate for the garbage collector's walk
_DROP: Final = 8  # an eighth is dropped at a time, so that the lists move seldom


Applied = tuple[Entry, Effects]


class Recent:
    """A run of consecutive applied entries, oldest dropped first."""

    __slots__ = ("_bytes_max", "_ends", "_pairs", "_sizes", "bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0  # of memory that the entries take, estimated
        self._ends: list[int] = []
        self._pairs: list[Applied] = []
        self._sizes: list[int] = []

    def add(self, entry: Entry, effects: Effects, effects_bytes: int, keep_after: int) -> None:
        """Adds the entry after the newest one. Drops nothing after `keep_after`: the disk does not have that yet."""
        size = entry.size + effects_bytes + _OVERHEAD
        for request in effects.requests:
            size += _REQUEST + _CHANGE * len(request.changes)
        self._ends.append(entry.index)
        self._pairs.append((entry, effects))
        self._sizes.append(size)
        self.bytes += size
        if self.bytes > self._bytes_max:
            self._drop(keep_after)

    def _drop(self, keep_after: int) -> None:
        target = self._bytes_max - self._bytes_max // _DROP
        droppable = bisect_left(self._ends, keep_after + 1)
        count = 0
        while count < droppable and self.bytes > target:
            self.bytes -= self._sizes[count]
            count += 1
        del self._ends[:count], self._pairs[:count], self._sizes[:count]

    def read(self, from_index: int, limit: int, bytes_max: int) -> list[Applied] | None:
        """Entries that contain or follow `from_index`, until `limit` records or `bytes_max` bytes; at least one if one
        exists. None: the first of them is not in memory any more."""
        position = bisect_left(self._ends, from_index)
        if position == len(self._ends):
            return []
        if self._pairs[position][0].first > from_index:
            return None
        found: list[Applied] = []
        size = 0
        for pair, length in zip(self._pairs[position:], self._sizes[position:], strict=True):
            size += length
            if found and size > bytes_max:
                break
            found.append(pair)
            if pair[0].index - from_index + 1 >= limit:
                break
        return found

    def effect_of(self, last: int) -> tuple[RequestEffect | None, int]:
        """The effect of the request whose last record has that index, and the term of its entry; for
        `Pending.settle_late`. Term 0: the entry is not in memory. No effect: no request ends there."""
        found = self.read(last, 1, 1)
        if not found:
            return None, 0
        entry, effects = found[0]
        if entry.kind is not EntryKind.COMMANDS:
            return None, entry.term
        end = entry.before
        for position, block in enumerate(decode_blocks(entry.data)):
            end += block.count
            if end == last:
                plain = RequestEffect(Result.APPLIED, effects.revision)
                return (plain if effects.is_plain else effects.requests[position]), entry.term
        return None, entry.term


class LedgerQueue:
    """Effects on their way to the ledger, which ends at `written`. One call of the disk runs at a time; effects that
    come meanwhile go with the next call."""

    def __init__(
        self, disk: Disk, written: int, *, failed: Callable[[BaseException], None], taken: Callable[[], None]
    ) -> None:
        """The disk already has effects up to `written`. `taken` is called after a call of the disk that had to wait."""
        self.written = written
        self.frames: list[bytes] = []  # encoded effects that the disk does not have yet
        self.bytes = 0  # effects that the ledger has not taken yet, those of `frames` among them
        self._disk, self._failed, self._on_taken = disk, failed, taken
        self._writing: asyncio.Future[None] | None = None

    def write(self, last: int) -> None:
        """Writes the queued effects, which end with those of entry `last`. The disk drops effects that it has."""
        if self.frames and self._writing is None:
            frames, size = self.frames, self.bytes
            self.frames = []
            writing = self._disk.write_effects(frames)
            if writing.done() and not writing.exception():
                self.bytes -= size
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
        elif isinstance(error, NoSpace):  # the disk keeps them queued, and should not get many more
            asyncio.get_running_loop().call_later(NO_SPACE_RETRY_S, self._taken, last, size)
        else:
            self._failed(error)

    def _taken(self, last: int, size: int) -> None:
        self._writing = None
        self.bytes -= size
        self.written = max(self.written, last)
        self._on_taken()


class Applier:
    """Owns the state machine. `run` applies one slice; callers only read the other attributes, such as `applied`."""

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
        """`applied` is the index of the restored state. The disk already has effects up to `ledger_last`."""
        self.machine = machine
        self.waiters = IndexWaiters()
        self.recent = Recent(limits.recent_bytes_max)
        self.mark = applied
        self.applied = applied.index
        self.last_user_index = last_user
        self.ledger = LedgerQueue(disk, ledger_last, failed=failed, taken=self._taken)
        self.applied_at = clock.monotonic()  # when the newest entry was applied; the cluster clock counts from it
        self.log_bytes = self.log_records = 0  # applied since the last snapshot; bytes as they count on disk
        self.grown_bytes = 0  # of the state at most, since the newest snapshot
        self._pending = pending
        self._limits = limits
        self._slice_s = limits.apply_slice_ms / 1_000
        self._wake = wake
        self.waiting: deque[Entry] = deque()  # committed entries that are not applied yet, in order

    @property
    def is_written(self) -> bool:
        """Whether the ledger has everything that was applied."""
        return self.ledger.written >= self.applied

    @property
    def clock_ms(self) -> int:
        """The cluster clock that an entry made now would carry."""
        return self.machine.clock_ms + int((clock.monotonic() - self.applied_at) * 1_000)

    def run(self) -> bool:
        """Applies entries for one slice of time. Returns whether it applied any; `waiting` has those left.

        A slice ends with a digest point, so that the state is compared there before anything behind it is answered.
        Raises the error of the state machine or the codec on an entry that they do not know: the node must stop.
        """
        waiting, ledger, bytes_max = self.waiting, self.ledger, self._limits.ledger_queue_bytes_max
        if not waiting or ledger.bytes > bytes_max:
            return False
        until, point = clock.monotonic() + self._slice_s, self.machine.point
        while waiting:
            self._apply(waiting.popleft())
            self.applied_at = clock.monotonic()
            if self.applied_at >= until or ledger.bytes > bytes_max or self.machine.point is not point:
                break
        if self.waiters.heap:
            self.waiters.applied(self.applied)
        ledger.write(self.applied)
        return True

    def installed(self, machine: StateMachine, mark: Mark, last_user: int) -> None:
        """A leader's snapshot up to `mark` replaced log and state. The ledger needs nothing before it."""
        assert not self.waiting, "nothing is applied meanwhile"
        assert not self.ledger.bytes, "and everything is written"
        self.machine = machine
        self.mark = mark
        self.applied = self.ledger.written = mark.index
        self.last_user_index = last_user
        self.applied_at = clock.monotonic()
        self.log_bytes = self.log_records = self.grown_bytes = 0
        self.recent = Recent(self._limits.recent_bytes_max)
        self.waiters.applied(mark.index)

    def begin_counting(self) -> None:
        """The replica begins to save a snapshot: `log_bytes` and `log_records` count from here."""
        self.log_bytes = self.log_records = 0

    def count_at_least(self, log_bytes: int) -> None:
        """The snapshot was not saved: counts at least `log_bytes`, as if that much log had come since the last one."""
        self.log_bytes = max(self.log_bytes, log_bytes)

    def _apply(self, entry: Entry) -> tuple[LogEntry, Effects]:
        command = log_entry(entry)
        effects = self.machine.apply(command)
        frame = encode_effects(effects)
        index = entry.index
        self.applied = index
        self.mark = entry.mark
        size = entry.size + IDX_ROW.size * entry.count + len(frame)
        self.log_bytes += size
        self.log_records += entry.count
        if not effects.is_plain and any(each.changes or each.answer for each in effects.requests):
            self.grown_bytes += size
        user = last_user_index(command, effects)
        if user is not None:
            self.last_user_index = user
        ledger = self.ledger
        ledger.frames.append(frame)
        ledger.bytes += len(frame)
        self.recent.add(entry, effects, len(frame), ledger.written)
        self._pending.applied(index, entry.term, command.requests, effects)
        return command, effects

    def _taken(self) -> None:
        self.ledger.write(self.applied)
        if self.waiting:
            self._wake()
