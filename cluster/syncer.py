"""Brings to the disk what must be durable, one batch at a time, and says when it is.

`raft.ready.SyncQueue` gathers what comes while a sync is under way; a full disk is tried again until there is room.
There is room while nothing waits for it and the disk has its reserve (`cluster.disk_reserve`). Soon after the last sync
a durable mark says that it is synced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cluster import clock
from cluster.disk import Disk
from cluster.disk_errors import NoSpace
from cluster.logging import Logger
from cluster.metrics import Metrics
from cluster.settings import DiskSettings
from raft.ready import Ready, SyncBatch, SyncQueue

NO_SPACE_RETRY_S: Final = 0.2


class Syncer:
    """The way to the disk. `synced` is called with each batch that is durable, `failed` with what cannot be mended."""

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
        self.is_waiting = False  # for room
        self._disk = disk
        self._synced = synced
        self._failed = failed
        self._metrics = metrics
        self._logger = logger
        self._queue = SyncQueue()
        self._batch: SyncBatch | None = None
        self.started = 0.0  # the newest sync
        self._ended = clock.monotonic()
        self._mark_idle_s = settings.mark_idle_ms / 1_000
        self._sync_s = 0.0  # how long the newest one took
        self._mark_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether a sync is under way."""
        return self._batch is not None

    @property
    def is_idle(self) -> bool:
        """Whether everything is durable."""
        return self._batch is None and self._queue.is_empty

    def add(self, ready: Ready) -> None:
        """Queues the durable part of a Ready."""
        self._queue.add(ready)

    def start(self) -> SyncBatch | None:
        """Begins the next sync unless one is under way; a batch that needs no disk is given back at once."""
        if self._batch is not None or self._queue.is_empty:
            return None
        batch = self._queue.take()
        if batch.hard_state is None and batch.cut_after is None and not batch.entries:
            return batch
        self._batch = batch
        self.started = clock.monotonic()
        self._carry_out()
        return None

    def close(self) -> None:
        """Nothing more begins."""
        self._is_closed = True
        if self._mark_timer is not None:
            self._mark_timer.cancel()

    def _mark_after(self, wait_s: float) -> None:
        if self._mark_timer is None and not self._is_closed:
            self._mark_timer = asyncio.get_running_loop().call_later(wait_s, self._mark_if_idle)

    def _mark_if_idle(self) -> None:
        """A durable mark of its own, once nothing was synced for `mark_idle_s`, or for as long as the newest sync took:
        on a slow disk a mark must not hold up the next request of every client."""
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

    def _carry_out(self) -> None:
        if self._batch is not None and not self._is_closed:
            asyncio.ensure_future(self._disk.carry_out(self._batch)).add_done_callback(self._done)

    def _done(self, done: asyncio.Future[None]) -> None:
        batch = self._batch
        if done.cancelled() or self._is_closed or batch is None:
            return
        error = done.exception()
        if isinstance(error, NoSpace):
            self.is_waiting = True
            self._full(str(error))
            asyncio.get_running_loop().call_later(NO_SPACE_RETRY_S, self._carry_out)
            return
        self._batch, self.is_waiting = None, False
        if error is not None:
            self._failed(error)
            return
        self.look_for_room()
        self._ended = clock.monotonic()
        self._sync_s = self._ended - self.started
        self._mark_after(self._mark_idle_s)
        self._metrics.sync_seconds.observe(self._sync_s)
        self._synced(batch)

    def look_for_room(self) -> None:
        """Says once when the disk has become full, and once when it has room again."""
        if self._disk.reserve_bytes == 0:
            self._full("what was kept in reserve is in use")
        elif not self.has_space and not self.is_waiting:
            self.has_space = True
            self._logger.info("disk_has_room_again")

    def _full(self, reason: str) -> None:
        if self.has_space:
            self.has_space = False
            self._logger.error(
                "disk_full", reason=reason,
                mend="make room: the node goes on by itself; until then it takes what makes room: `raftlog log trim`",
            )  # fmt: skip
