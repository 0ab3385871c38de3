"""What a node does for retention: as the leader it proposes what the policy lets go of; it deletes what was trimmed.

`raft.retention` decides both; DESIGN section 4. The oldest index moves by a record in the log alone, so it is the same
on every node; the files of a node follow when its snapshots cover what goes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cluster import clock
from cluster.wire import ApiError
from raft.codec import Record, encode_block
from raft.retention import Policy, trim_before
from statemachine.commands import Operation

if TYPE_CHECKING:
    from cluster.node import Node

LOOK_S: Final = 0.5  # a leader proposes at most one trim in this time, and a node looks for what may be deleted
DEADLINE_S: Final = 10.0  # of a trim


class RetentionWork:
    """One node's. Not thread-safe: it belongs to the node's event loop."""

    def __init__(self, node: Node) -> None:
        settings = node.settings.retention
        self._node = node
        self._policy = Policy(settings.bytes, settings.age_ms, settings.held_bytes)
        self._task: asyncio.Task[None] | None = None
        self._look_at = 0.0
        self.looks = 0  # so often it was looked what may go
        self._deleted = 0
        gauge = node.metrics.gauge
        gauge("raftlog_log_bytes", "Segment files of the log on this disk", lambda: node.disk.segment_bytes)
        gauge("raftlog_segments_deleted", "Segments deleted since the start", lambda: self._deleted)

    def look_if_due(self, mono: float) -> None:
        """Begins to look for what may go, now and then; one look at a time."""
        if self._task is None and mono >= self._look_at:
            self._look_at = mono + LOOK_S
            self._task = asyncio.get_running_loop().create_task(self._look())
            self._task.add_done_callback(self._looked)

    async def _look(self) -> None:
        node = self._node
        deleted = await node.disk.compact(node.machine.oldest, node.core.state.log.first)
        if deleted:
            self._deleted += deleted
            node.logger.info("log_deleted", segments=deleted, first=node.disk.oldest)
        if self._policy.is_on and node.is_leader and not node.is_stopping:
            pieces, machine = await node.disk.pieces(), node.machine
            coming, lowest = node.settings.disk.segment_bytes, machine.consumers.lowest()
            before = trim_before(self._policy, pieces, machine.oldest, machine.time_ms, coming, lowest)
            if before is not None:
                await self._trim(before)

    async def _trim(self, before: int) -> None:
        node = self._node
        block = encode_block([Record(int(Operation.TRIM), argument=before)])
        try:
            done = await node.submit(block, 1, deadline=clock.monotonic() + DEADLINE_S)
        except ApiError as error:  # the next look asks again
            node.logger.info("log_not_trimmed", before=before, reason=error.message)
        else:
            node.logger.info("log_trimmed", oldest=node.machine.oldest, index=done.last)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self.looks += 1
        if not task.cancelled() and (error := task.exception()) is not None:
            self._node.fail(error)

    async def close(self, timeout_s: float) -> None:
        """Ends what is under way: what is not deleted is looked at again after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=timeout_s)
