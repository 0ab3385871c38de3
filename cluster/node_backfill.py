"""What a node that was built from a snapshot does in the background: it fetches the older log from its peers.

Segment by segment, the newest missing one first, so that the log on disk has no gap at any moment and a restart goes on
where this one stopped. `cluster.disk_backfill` checks and writes, `cluster.peer_log` asks. It takes a small share of
the time of the loop and of the disk, and gives way to all else: to trims, snapshots, damage and a full disk.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from cluster import clock
from cluster.disk_backfill import Filling, Overtaken, PieceWrong, last_mark
from cluster.disk_errors import NoSpace
from cluster.peer_log import NoAnswer
from cluster.peer_log_frames import Had, What
from cluster.wire import BackfillStatus
from raft.types import GENESIS, Mark, NodeId

if TYPE_CHECKING:
    from cluster.node import Node

RETRY_S: Final = 2.0
"""Until it is tried anew where no peer gave anything, or the disk is full."""
AVOID_S: Final = 60.0
"""So long a peer is not asked whose entries failed their check: it may have another disk by then."""
SHARE: Final = 4
"""A slice is followed by a pause of so many times its length: no more than a fifth of the interpreter."""
BYTES_PER_SECOND: Final = 16 << 20
"""Written at most: an eighth of what an ordinary disk takes, which others use too."""


class BackfillWork:
    """One node's. Not thread-safe: it belongs to the node's event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._task: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._avoided: dict[NodeId, float] = {}  # whose entries were wrong: until when
        self._waits = ""  # why it waits, as told last
        self._began: tuple[int, float] | None = None  # where the log began, and when
        self._segments = self._bytes = self._wrong = 0
        gauge = node.metrics.gauge
        gauge("raftlog_disk_oldest_index", "Oldest index on this node's disk", lambda: node.disk.oldest)
        gauge("raftlog_backfill_missing", "Records that may be read, and only peers have", lambda: self.missing)
        gauge("raftlog_backfill_segments", "Older segments fetched from peers", lambda: self._segments)
        gauge("raftlog_backfill_bytes", "Bytes written for them", lambda: self._bytes)
        gauge("raftlog_backfill_wrong", "Pieces of peers that failed their check", lambda: self._wrong)

    @property
    def missing(self) -> int:
        """Records that may be read and that this disk has not."""
        return max(0, self._node.disk.oldest - self._node.machine.oldest)

    def status(self) -> BackfillStatus:
        """For `/v1/status`."""
        return BackfillStatus(self.missing, self._segments, self._bytes, self._waits)

    def look_if_due(self, mono: float) -> None:
        """Begins to fetch where something is missing; one segment at a time."""
        if self._node.disk.oldest <= self._node.machine.oldest:
            self._end()
        elif self._task is None and mono >= self._not_before and self._may_go_on():
            self._task = asyncio.get_running_loop().create_task(self._fill())
            self._task.add_done_callback(self._filled)

    def _may_go_on(self) -> bool:
        node = self._node
        is_calm = node.is_ready and not node.damage.is_known and not node.snapshots.is_receiving
        return is_calm and node.syncer.has_space

    def _end(self) -> None:
        if self._began is not None:
            oldest, since = self._began
            self._began, self._waits = None, ""
            self._node.logger.info(
                "backfill_done", oldest=self._node.disk.oldest, was=oldest, segments=self._segments, bytes=self._bytes,
                seconds=round(clock.monotonic() - since, 1),
            )  # fmt: skip

    async def _fill(self) -> None:
        """One segment, from the first peer that has it."""
        node = self._node
        if self._began is None:
            self._began = (node.disk.oldest, clock.monotonic())
            node.logger.info("backfill_begins", first=node.machine.oldest, last=node.disk.oldest - 1)
        told: dict[NodeId, str] = {}
        try:
            for peer in node.peer_log.peers():
                if self._avoided.get(peer, 0.0) > clock.monotonic():
                    told[peer] = "what it gave was wrong"
                    continue
                try:
                    await self._piece(peer)
                except NoAnswer as error:
                    told[peer] = str(error)
                except PieceWrong as error:
                    self._wrong += 1
                    self._avoided[peer] = clock.monotonic() + AVOID_S
                    told[peer] = str(error)
                    node.logger.error("backfill_wrong", peer=peer, reason=str(error), mend="`raftlog disk check` there")
                else:
                    self._waits = ""
                    return
            self._wait("; ".join(f"node {peer}: {why}" for peer, why in sorted(told.items())) or "there is no peer")
        except Overtaken:
            pass  # the next look sees where the log begins now
        except NoSpace as error:
            self._wait(str(error))
        try:
            await node.disk.backfill.abandon()
        except NoSpace:
            pass

    def _wait(self, why: str) -> None:
        self._not_before = clock.monotonic() + RETRY_S
        if why != self._waits:
            self._waits = why
            self._node.logger.warning("backfill_waits", missing=self.missing, reason=why)

    async def _piece(self, peer: NodeId) -> None:
        """The segment of that peer in which this log's beginning lies, up to there. Raises NoAnswer, PieceWrong,
        Overtaken, NoSpace or DiskFenced."""
        node, fill = self._node, self._node.disk.backfill
        filling = fill.filling()
        top = filling.top
        had = await node.peer_log.ask(peer, What.PIECE, top.index)
        start = min(max(had.first, node.machine.oldest), top.index)
        raw = await node.peer_log.slice(peer, start, top.index)
        await fill.begin(filling, await self._before(peer, raw.first, had))
        while True:
            await self._write(filling, partial(filling.take, raw))
            if filling.next > top.index:
                break
            if fill.top != top or node.machine.oldest > top.index or not self._may_go_on():
                raise Overtaken
            raw = await node.peer_log.slice(peer, filling.next, top.index)
        segment = await fill.run(filling.finish)
        await fill.adopt(segment)
        self._segments += 1
        self._bytes += filling.bytes
        node.logger.info("backfill_segment", first=segment.first, last=top.index, peer=peer, bytes=filling.bytes)

    async def _before(self, peer: NodeId, first: int, had: Had) -> Mark:
        """The end before the entry that begins with `first`: from the entry itself, but where that is gone everywhere
        from the head of the peer's segment; its CRC is checked by the entry that follows."""
        if first == 1:
            return GENESIS
        try:
            mark = last_mark(await self._node.peer_log.slice(peer, first - 1, first - 1))
        except NoAnswer as error:
            if not error.is_certain or (first, had.before.index) != (had.first, first - 1):
                raise
            return had.before
        if mark.index != first - 1:
            raise PieceWrong(f"no entry ends before index {first}")
        return mark

    async def _write(self, filling: Filling, take: partial[None]) -> None:
        """Checks and writes what was taken, a little at a time."""
        fill, began, size = self._node.disk.backfill, clock.monotonic(), filling.bytes
        take()
        is_done = False
        while not is_done:
            started = clock.monotonic()
            is_done = await fill.run(filling.step)
            await asyncio.sleep(SHARE * (clock.monotonic() - started))
        await asyncio.sleep((filling.bytes - size) / BYTES_PER_SECOND - (clock.monotonic() - began))

    def _filled(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._node.fail(error)

    async def close(self, timeout_s: float) -> None:
        """Ends what is under way: the next start begins that segment anew."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=timeout_s)
