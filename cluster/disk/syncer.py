"""Brings batches to the disk, one at a time, and calls back when each is durable.

A replica has one. `raftlog.raft.ready.SyncQueue` collects entries that come during a sync. If the disk is full, the
batch goes back into the queue, and its first entry is tried again until there is space. Until then only hard states go
to the disk, with the messages that need no more: so a full disk still votes, campaigns and follows a leader.
`has_space` is true while no batch waits for space and the disk has its whole reserve
(`raftlog.cluster.files.reserve`). Soon after the last sync it writes a durable mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from raftlog.cluster.config.settings import DiskSettings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.errors import NoSpace
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.logging import Logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.ready import Ready, SyncBatch, SyncQueue

NO_SPACE_RETRY_S: Final = 0.2


class Syncer:
    """Syncs batches. Calls `synced` with each durable batch, and `failed` with an error that cannot be retried."""

    def __init__(
        self,
        disk: Disk,
        settings: DiskSettings,
        *,
        synced: Callable[[SyncBatch], None],
        failed: Callable[[BaseException], None],
        metrics: Metrics,
        logger: Logger,
    ) -> None:
        self.has_space = True
        self.is_waiting = False  # for disk space
        self._disk = disk
        self._synced = synced
        self._failed = failed
        self._metrics = metrics
        self._logger = logger
        self._first: Ready | None = None  # all that is queued, if it is one Ready
        self._queue = SyncQueue()
        self._batch: SyncBatch | None = None
        self._is_retry_due = False  # the entries that wait for disk space are to be tried again
        self.is_busy = False  # a sync is under way
        self.has_queued = False  # a batch waits for `start`
        self.started = 0.0  # start of the newest sync
        self._ended = clock.monotonic()
        self._mark_idle_s = settings.mark_idle_ms / 1_000
        self._sync_s = 0.0  # how long the newest sync took
        self._mark_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether everything is durable."""
        return not (self.is_busy or self.has_queued)

    def add(self, ready: Ready) -> None:
        """Queues the durable part of a Ready. The first one needs no queue: mostly it is the next batch."""
        if not self.has_queued:
            self.has_queued, self._first = True, ready
            return
        self._queue_first()
        self._queue.add(ready)

    def _queue_first(self) -> None:
        if self._first is not None:
            self._queue.add(self._first)
            self._first = None

    def start(self) -> SyncBatch | None:
        """Begins the next sync unless one is under way. Returns a batch at once if it needs no disk."""
        if self.is_busy or not self.has_queued:
            return None
        if self.is_waiting and not self._is_retry_due:
            batch = self._queue.take_promises()
            if batch.hard_state is None and not batch.messages:
                return None
        elif self.is_waiting:
            batch, self._is_retry_due = self._queue.take_first(), False
            self.has_queued = not self._queue.is_empty
        else:
            first, self._first, self.has_queued = self._first, None, False
            if first is None:
                batch = self._queue.take()
            else:
                batch = SyncBatch(first.hard_state, first.cut_after, first.entries, first.messages_after_sync)
        if batch.hard_state is None and batch.cut_after is None and not batch.entries:
            return batch
        self._batch, self.is_busy = batch, True
        self.started = clock.monotonic()
        self._disk.carry_out(batch, self._done)
        return None

    def close(self) -> None:
        """Begins no further sync."""
        self._is_closed = True
        if self._mark_timer is not None:
            self._mark_timer.cancel()

    def _mark_after(self, wait_s: float) -> None:
        if self._mark_timer is None and not self._is_closed:
            self._mark_timer = asyncio.get_running_loop().call_later(wait_s, self._mark_if_idle)

    def _mark_if_idle(self) -> None:
        """Writes a durable mark once nothing was synced for `mark_idle_s`, or for as long as the newest sync took.

        On a slow disk a mark must not delay the next request of every client.
        """
        self._mark_timer = None
        if self._is_closed:
            return
        idle_s = max(self._mark_idle_s, self._sync_s)
        wait_s = self._ended + idle_s - clock.monotonic() if self.is_idle else idle_s
        if wait_s > 0:
            self._mark_after(wait_s)
            return
        asyncio.ensure_future(self._disk.write_mark()).add_done_callback(self._marked)

    def _marked(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, NoSpace):
            self._mark_after(NO_SPACE_RETRY_S)
        elif error is not None:
            self._failed(error)

    def _begin(self) -> None:
        """Begins the next sync, and hands over a batch that needs no disk."""
        if not self._is_closed and (batch := self.start()) is not None:
            self._synced(batch)

    def _retry(self) -> None:
        self._is_retry_due = True
        self._begin()

    def _done(self, done: asyncio.Future[None]) -> None:
        batch = self._batch
        if done.cancelled() or self._is_closed or batch is None:
            return
        error = done.exception()
        self._batch, self.is_busy = None, False
        if isinstance(error, NoSpace):
            self._queue_first()
            self._queue.put_back(batch)
            self.has_queued = self.is_waiting = True
            self._full(str(error))
            asyncio.get_running_loop().call_later(NO_SPACE_RETRY_S, self._retry)
            self._begin()
            return
        if batch.entries or batch.cut_after is not None:
            self.is_waiting = False
        if error is not None:
            self._failed(error)
            return
        self.look_for_disk_space()
        self._ended = clock.monotonic()
        self._sync_s = self._ended - self.started
        if self._mark_timer is None:
            self._mark_after(self._mark_idle_s)
        self._metrics.histograms["raftlog_sync_seconds"].observe(self._sync_s)
        self._synced(batch)

    def look_for_disk_space(self) -> None:
        """Logs once when the disk has become full, and once when it has space again."""
        if self._disk.reserve.is_used:
            self._full("the reserve file was needed")
        elif not self.has_space and not self.is_waiting:
            self.has_space = True
            self._logger.info("disk_has_room_again")

    def _full(self, reason: str) -> None:
        if self.has_space:
            self.has_space = False
            self._logger.error(
                "disk_full",
                reason=reason,
                mend="free disk space, then the node goes on by itself; until then it only accepts requests that free "
                "space: `raftlog log trim`",
            )
