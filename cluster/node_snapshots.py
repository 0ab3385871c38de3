"""What a node does with snapshots: saves its own, sends them to followers, receives one and puts it in force.

`raft.snapshots` says in which order; the disk's part is in `cluster.disk_receive` and `cluster.disk_write`. While one
is received and its state is built beside the old one, the node goes on: it answers heartbeats, and readers that take a
stale state. Building is a few milliseconds at a time on the event loop, but for its last part, which has a thread.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cluster import clock, dismantle
from cluster.disk_errors import NoSpace, SnapshotDamaged
from cluster.peer_protocol import WINDOW_VERSION
from cluster.snapshots import chunks_of, decode_preamble, paced
from raft.codec import Corrupt
from raft.configuration import Configuration
from raft.ready import Ready, SnapshotFetch, SnapshotInstall, SnapshotWrite
from raft.storage_snapshots import StoredSnapshot
from raft.types import Mark
from statemachine.machine import StateMachine
from statemachine.snapshot import CorruptSnapshot, Restorer

if TYPE_CHECKING:
    from cluster.node import Node

POLL_S: Final = 0.005  # how often it is looked whether disk and applying are done
RETRY_BYTES: Final = 16 << 20  # this much more log before a snapshot that found no room is tried again
DUE_SHARE: Final = 4  # a quarter of the log that is kept comes between two snapshots: both must cover what is deleted
TRAILING_PERCENT: Final = 40  # of the log that is kept are for slow followers; the rest is for what comes meanwhile
SAVED_TIMES_MAX: Final = 4  # of what is written so much is saved at most, also where the state outgrew the policy
HOLD: Final = 4  # times as much log as usual before the end of one that is being sent is not awaited any more


def state_mark(node: Node) -> tuple[Mark, int, Configuration]:
    """The end of the entry that was applied last, and the configuration in force there with its index."""
    mark = node.applier.mark
    index, configuration = next(pair for pair in reversed(node.core.state.configurations) if pair[0] <= mark.index)
    return mark, index, configuration


class SnapshotWork:
    """One node's. Not thread-safe: it belongs to the node's event loop."""

    def __init__(self, node: Node, index: int) -> None:
        """`index`: of the newest snapshot on disk, which the core and the state begin with; 0: there is none."""
        self._node = node
        self.index = index
        self._saving: asyncio.Task[None] | None = None
        self._jobs: deque[SnapshotWrite | SnapshotInstall] = deque()
        self._receiving: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._received_bytes = 0
        self.is_damaged = False  # the newest one on this disk: another is saved soon
        gauge = node.metrics.gauge
        gauge("raftlog_snapshot_index", "Newest snapshot on this disk ends here; 0: there is none", lambda: self.index)
        gauge("raftlog_snapshot_bytes", "Size of its state", lambda: node.disk.snapshot_bytes)
        gauge("raftlog_snapshot_received_bytes", "Pieces of snapshots from leaders", lambda: self._received_bytes)

    @property
    def is_saving(self) -> bool:
        """Whether this node's own state is being saved."""
        return self._saving is not None

    @property
    def is_under_way(self) -> bool:
        """Whether one is being written, this node's own or a leader's."""
        return self.is_saving or self.is_receiving or self._node.core.state.receiving is not None

    @property
    def is_receiving(self) -> bool:
        """Whether a piece is being written, or a snapshot installed."""
        return self._receiving is not None

    # -- its own ------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """The node starts with the newest one on disk: the core learns what of the log it has to keep."""
        if self.index:
            await self.saved(self._node.applier.mark)

    def save_if_due(self) -> None:
        """Begins to save the state when enough log has come since the last time, or when what was saved is damaged."""
        if self.is_damaged or self._is_due():
            self.save()

    def save(self) -> bool:
        """Begins to save the state, unless that cannot be now. Whether it began."""
        if self._saving is not None or not self._may_save():
            return False
        self._node.applier.log_bytes = self._node.applier.log_records = 0
        self._saving = self._start(self._save())
        return True

    def _is_due(self) -> bool:
        """Enough log has come for what it takes of the disk, or records for the time that a start takes."""
        applier, limits = self._node.applier, self._node.settings.limits
        due = self._due_bytes()
        if applier.log_records >= limits.snapshot_log_records:
            due = min(due, self._like_state)
        return applier.log_bytes >= due

    def _is_late(self) -> bool:
        """Whether as much log has come since this one began as makes the next one due, by its bytes alone."""
        return self._node.applier.log_bytes >= self._due_bytes()

    def _due_bytes(self) -> int:
        due = max(self._node.settings.limits.snapshot_log_bytes, self._like_state)
        due = min(due, self._kept_bytes // DUE_SHARE)
        return max(due, self._node.disk.snapshot_bytes // SAVED_TIMES_MAX)

    @property
    def _like_state(self) -> int:
        """So much log is worth the writing of the state."""
        return self._node.disk.snapshot_bytes * self._node.settings.limits.snapshot_log_percent // 100

    @property
    def _kept_bytes(self) -> int:
        """What may be kept of the log: snapshots come often enough, and the trailing log is short enough, for that."""
        return self._node.settings.retention.bytes or sys.maxsize

    def _may_save(self) -> bool:
        """Not while one is received; nor while one is being sent that would have to go, unless that takes for ever."""
        node = self._node
        if node.core.state.receiving is not None or self._receiving is not None:
            return False
        is_sending_older = any(0 < each.snapshot_index < self.index for each in node.core.status().followers)
        return not is_sending_older or node.applier.log_bytes >= HOLD * self._due_bytes()

    async def _save(self) -> None:
        """Saves the state; on a full disk once more, in the room that was given up for it."""
        try:
            had_reserve = self._node.disk.reserve_bytes > 0
            if not await self._try_to_save() and had_reserve:
                await self._try_to_save()
        finally:
            self._saving = None

    async def _try_to_save(self) -> bool:
        """Saves the state as it is now, slice by slice, while applying goes on. Whether there was room."""
        node = self._node
        applier = node.applier
        last_user = applier.last_user_index
        mark, index, configuration = state_mark(node)
        started = clock.monotonic()
        walk = node.machine.snapshot()
        try:
            while applier.written < mark.index:  # the ledger must reach the snapshot before it counts
                await asyncio.sleep(POLL_S)
            chunks = paced(chunks_of(last_user, walk), lambda: node.applier.applied, self._is_late)
            await node.disk.save_snapshot(mark, configuration, chunks, index)
            await self.saved(mark)
            node.logger.info("snapshot_saved", index=mark.index, seconds=round(clock.monotonic() - started, 3))
            return True
        except NoSpace as error:
            self.is_damaged = False  # whoever meets it again asks again: not at once, on a full disk
            applier.log_bytes = max(applier.log_bytes, self._due_bytes() - RETRY_BYTES)
            node.logger.warning("snapshot_not_saved", index=mark.index, reason=str(error))
            return False
        finally:
            walk.close()

    async def saved(self, mark: Mark) -> None:
        """A snapshot up to `mark` is durable: followers that lack more log than is resent get it instead; what follows
        one that is under way is kept for its end. The log stays on disk until it is trimmed: compaction is not
        retention."""
        node, limits = self._node, self._node.settings.limits
        self.index = mark.index
        self.is_damaged = False
        node.damage.snapshot_saved()
        trailing = max(limits.trailing_log_bytes, node.disk.snapshot_bytes * limits.trailing_log_percent // 100)
        trailing = min(trailing, self._kept_bytes * TRAILING_PERCENT // 100)
        keep_after = await node.disk.end_before(mark.index, trailing)
        if not node.syncer.has_space:  # what was trimmed is to make room, whoever may still lack it
            keep_after = max(keep_after, await node.disk.end_before(min(mark.index, node.machine.oldest - 1), 0))
        under_way = [each.snapshot_index for each in node.core.status().followers if each.snapshot_index]
        node.core.compact(mark, min([keep_after, *under_way]))

    # -- a follower's, or a leader's ------------------------------------------------------------------------------

    def carry_out(self, ready: Ready) -> None:
        """What a core wants done with snapshots that travel."""
        for fetch in ready.snapshot_fetches:
            asyncio.ensure_future(self._read(fetch)).add_done_callback(partial(self._fetched, fetch))
        self._jobs.extend(ready.snapshot_writes)
        if ready.snapshot_install is not None:
            self._jobs.append(ready.snapshot_install)
        if self._jobs and self._receiving is None:
            self._receiving = self._start(self._receive())

    async def _read(self, fetch: SnapshotFetch) -> tuple[int, bytes]:
        """A piece; before the first the whole is checked: one that is damaged here would be sent for ever."""
        disk = self._node.disk
        if fetch.offset == 0:
            try:
                await disk.check_snapshot(fetch.index)
            except SnapshotDamaged:
                self.is_damaged = self.is_damaged or fetch.index == self.index  # an older one is not sent again
                raise
        return await disk.read_snapshot(fetch.index, fetch.term, fetch.offset, fetch.bytes_max)

    def _fetched(self, fetch: SnapshotFetch, done: asyncio.Future[tuple[int, bytes]]) -> None:
        node = self._node
        if done.cancelled() or node.ended.done():
            return
        total, data = 0, b""
        if (error := done.exception()) is not None:
            node.logger.error("snapshot_not_read", index=fetch.index, peer=fetch.peer, reason=str(error))
        else:
            total, data = done.result()
        try:
            takes_several = node.transport.version_of(fetch.peer) >= WINDOW_VERSION
            node.core.snapshot_chunk(fetch, total, data, clock.read(), takes_several=takes_several)
        except Exception as failure:
            node.fail(failure)
        node.turn()

    async def _receive(self) -> None:
        """Writes pieces aside and installs, one after the other."""
        node = self._node
        try:
            while self._jobs and not node.ended.done():
                job = self._jobs.popleft()
                try:
                    if isinstance(job, SnapshotInstall):
                        await self._install(job)
                    else:
                        await self._write(job)
                except (NoSpace, SnapshotDamaged, Corrupt, CorruptSnapshot) as error:
                    node.logger.error("snapshot_not_taken", index=job.index, reason=str(error))
                    self._jobs.clear()  # the core begins anew too
                    node.core.snapshot_failed(clock.read())
                node.turn()
        finally:
            self._receiving = None

    async def _write(self, first: SnapshotWrite) -> None:
        """Writes that piece and those that wait behind it, in one trip to the disk."""
        node, pieces = self._node, [first]
        while self._jobs and isinstance(following := self._jobs[0], SnapshotWrite):
            pieces.append(following)
            self._jobs.popleft()
        for piece in pieces:
            if piece.offset == 0:
                node.logger.info("snapshot_coming", index=piece.index, bytes=piece.total)
        await node.disk.write_pieces(pieces)
        for piece in pieces:
            self._received_bytes += len(piece.data)
            node.core.snapshot_written(piece, clock.read())

    async def _install(self, install: SnapshotInstall) -> None:
        """Checks what came, builds its state beside the old one, and only then drops the log for it. Raises NoSpace,
        SnapshotDamaged, Corrupt, CorruptSnapshot, or what else ends the node."""
        node, applier = self._node, self._node.applier
        started = clock.monotonic()
        while not (node.syncer.is_idle and applier.waiting == 0 and applier.is_written):
            await asyncio.sleep(POLL_S)
        if self._saving is not None:  # what it would keep is older
            self._saving.cancel()
            await asyncio.wait([self._saving])
        received, stored = await node.disk.check_received(install.index)
        machine, last_user = await self._restore(stored)
        here = (stored.mark.index, stored.mark.term, machine.applied_index, machine.applied_term)
        if here != 2 * (install.index, install.term):
            raise SnapshotDamaged(f"{stored.folder}: it is of {here}, not of {install}")
        await node.disk.install(received, stored)
        mark, older = stored.mark, node.machine
        self.index = mark.index
        node.core.installed(mark, stored.configuration, stored.configuration_index, clock.read())
        applier.installed(machine, mark, last_user)
        node.pending.skipped(mark.index, mark.term)
        node.logger.info("snapshot_in_force", index=mark.index, seconds=round(clock.monotonic() - started, 3))
        task = self._start(_give_back(older))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _restore(self, stored: StoredSnapshot) -> tuple[StateMachine, int]:
        """The state in the snapshot, compared with the digest in it, and the last user index."""
        chunks = self._node.disk.received_chunks(stored)
        first = await anext(chunks, b"")
        last_user = decode_preamble(first)
        restorer = Restorer()
        async for chunk in chunks:
            restorer.feed(chunk)
        state = await asyncio.to_thread(dismantle.finish, restorer)
        if gc.get_freeze_count():  # this process keeps what lives long out of collections, which would walk all of it
            gc.freeze()
        return StateMachine.of(state), last_user

    # -- life -----------------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._node.fail(error)

    async def close(self, timeout_s: float) -> None:
        """Ends what is under way; a disk that hangs may keep it."""
        tasks = [task for task in (self._saving, self._receiving, *self._leaving) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)


async def _give_back(machine: StateMachine) -> None:
    for _ in dismantle.dismantle(machine):
        await asyncio.sleep(0)
