"""What a node does about the room and the speed of disks: tells its peers of its own, and as the leader acts on theirs.

A leader hands over for its disk, sends full followers no entries, and refuses writes that no majority has room for.
What it does and when is decided in `cluster.disk_reports`. Called several times a second (`cluster.node_end`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import clock
from cluster.disk_reports import (
    PEER_VERSION,
    DiskReport,
    Disks,
    Handover,
    Reports,
    Rules,
    SyncTimes,
    Why,
    all_lacks,
    decode_report,
    encode_report,
)
from cluster.wire import ApiError, Code
from raft.codec import Frame
from raft.progress import Hold
from raft.refusals import Refused
from raft.types import NOBODY, NodeId, Now

if TYPE_CHECKING:
    from cluster.node import Node
    from cluster.settings import LimitSettings


def rules(limits: LimitSettings) -> Rules:
    """What the settings say about handing over."""
    return Rules(
        limits.disk_full_pause_ms, 1_000 * limits.disk_slow_ms, limits.disk_slow_factor, limits.disk_slow_pause_ms
    )


class DiskWork:
    """One node's. Not thread-safe: it belongs to the node's event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._rules = rules(node.settings.limits)
        self._times = SyncTimes()
        self._reports = Reports()
        self._last_ms: dict[Why, int] = {}
        self.holds: dict[NodeId, Hold] = {}  # followers that are sent no entries, while this node leads
        self.takes_writes = True  # as the leader: whether a majority has room
        self.handed_over: tuple[Handover, int] | None = None  # the newest one that this process began, and when
        metrics = node.metrics
        metrics.gauges(
            "raftlog_disk_full", "1: that node's disk is full, as this node knows", "node",
            lambda: {str(each): float(report.is_full) for each, report in self.reports().items()},
        )  # fmt: skip
        metrics.gauge(
            "raftlog_disk_lacks_bytes", "Room that this disk lacks to take writes", lambda: self.own.lacks_bytes
        )
        metrics.gauge("raftlog_followers_held", "Full followers that are sent no entries", lambda: len(self.holds))

    # -- reports ----------------------------------------------------------------------------------------------------

    @property
    def own(self) -> DiskReport:
        """This node's disk."""
        node, reserve = self._node, self._node.disk.reserve
        is_full = not node.syncer.has_space
        lacks_bytes = reserve.lacks_bytes if is_full else 0
        takes_to = node.room.takes_to if is_full else 0
        return DiskReport(is_full, reserve.free_bytes, lacks_bytes, takes_to, self._times.median_us)

    def reports(self) -> dict[NodeId, DiskReport]:
        """Of this node, and of each member that is connected and speaks of its disk."""
        return self._reports.of(self._speaking()) | {self._node.node_id: self.own}

    def _speaking(self) -> list[NodeId]:
        """Members that are connected and know reports."""
        node = self._node
        peers = node.core.state.configuration.peers(node.node_id)
        return [peer for peer in peers if node.transport.version_of(peer) >= PEER_VERSION]

    def take(self, peer: NodeId, frame: Frame) -> None:
        """A peer's report; a leader acts on urgent news at once. Raises Corrupt."""
        report, before = decode_report(frame), self._reports.of((peer,)).get(peer)
        self._reports.take(peer, report)
        if self._node.is_leader and report.is_urgent_after(before):
            self._lead(clock.read())

    def lost(self, peer: NodeId) -> None:
        """The bulk link to that peer closed: what was told on it may not have arrived."""
        self._reports.lost(peer)

    def _tell(self, mono: float) -> None:
        own = self.own
        for peer in self._speaking():
            if self._reports.is_due(peer, own, mono) and self._node.transport.send_bulk(peer, encode_report(own)):
                self._reports.told(peer, own, mono)

    # -- what follows -----------------------------------------------------------------------------------------------

    def look(self, now: Now, mono: float) -> None:
        """Tells the peers what is news; as the leader, acts on what all disks say."""
        statistics = self._node.disk.statistics()
        self._times.look(mono, statistics.syncs, statistics.sync_seconds, self._node.disk.stalled_ms() / 1_000)
        self._tell(mono)
        if not self._node.is_leader:
            self.holds, self.takes_writes = {}, True
            return
        self._lead(now)

    def disks(self) -> Disks:
        """What this node, the leader, knows of all disks now."""
        node = self._node
        told = node.core.status()
        since_ms = node.core.state.now.monotonic_ms - node.options.election_timeout_max_ms
        answering = [each.node for each in told.followers if each.last_contact_ms >= since_ms]
        return Disks(
            node=node.node_id, configuration=told.configuration, reports=self.reports(), followers=told.followers,
            answering=answering,
        )  # fmt: skip

    def _lead(self, now: Now) -> None:
        node, disks = self._node, self.disks()
        self.takes_writes = disks.takes_writes
        holds = disks.holds(node.room.trim_index, node.disk.snapshot_bytes)
        if holds != self.holds:
            if holds.keys() - self.holds.keys():
                meaning = "their disks are full: they are sent no entries while a majority can do without them"
                node.logger.warning("followers_held", nodes=sorted(holds), meaning=meaning)
            elif not holds:
                node.logger.info("followers_released", nodes=sorted(self.holds))
            self.holds = holds
            node.wake()
        node.core.hold(holds)  # always: a change of the members makes their progress anew
        if max(report.takes_to for report in disks.reports.values()) > node.core.state.log.last.index:
            node.room.move_log()
        handover = disks.handover(self._rules, self._last_ms, now.monotonic_ms)
        if handover is not None and not node.is_stopping:
            self._hand_over(handover, disks, now)

    def _hand_over(self, handover: Handover, disks: Disks, now: Now) -> None:
        node, own = self._node, disks.own
        try:
            node.core.transfer(handover.to, now)
        except Refused:
            return  # one is under way
        self._last_ms[handover.why] = now.monotonic_ms
        self.handed_over = handover, now.monotonic_ms
        node.metrics.handovers.labels(str(handover.why)).inc()
        node.logger.warning(
            "handing_over", to=handover.to, why=str(handover.why), lacks_bytes=own.lacks_bytes,
            sync_ms=own.sync_us / 1_000, sync_ms_there=disks.reports[handover.to].sync_us / 1_000,
        )  # fmt: skip
        node.wake()

    def best(self) -> NodeId:
        """Whom to hand over to for any other reason: a voter that has room, or NOBODY for the most caught up."""
        return self.disks().best() or NOBODY

    def told_handover(self) -> tuple[str, int]:
        """The newest hand-over that this process began, in words, and how many milliseconds ago; ("", 0): none."""
        if self.handed_over is None:
            return "", 0
        handover, when_ms = self.handed_over
        why = "its disk was full" if handover.why is Why.FULL else "its disk was much slower than those of a majority"
        return f"to node {handover.to}, because {why}", self._node.core.state.now.monotonic_ms - when_ms

    # -- what clients are told --------------------------------------------------------------------------------------

    def refusal(self) -> ApiError:
        """Why a write is not taken here now."""
        node, reports = self._node, self.reports()
        name, lacking = f"node {node.node_id}", all_lacks(reports)
        voters = node.core.state.configuration.voters
        if voters == (node.node_id,):
            why = f"{name}, the only voter, has no room on its disk: {lacking}"
        elif node.is_leader and not self.disks().has_room:
            numbers = ", ".join(map(str, voters))
            why = f"no majority of the voters {numbers} answers and has room on its disk: {lacking}"
        elif node.is_leader:
            why = f"{name}, which leads, has no room on its disk, and hands over to a voter that has: {lacking}"
        else:
            why = f"{name} has no room on its disk, other nodes may: {lacking}"
        return ApiError(Code.DISK_FULL, f"{why}; make room there (it still takes a trim), or ask again")

    def refusal_of(self, leader: NodeId) -> str:
        """What a client is told where the leader took no write that this node passed on."""
        return f"no majority has room, says node {leader}, the leader: {all_lacks(self.reports()) or 'ask again'}"

    def unread(self, index: int) -> ApiError:
        """Why a read as of `index` is not answered: full disks are sent no entries."""
        last = self._node.core.state.log.last.index
        lacking = all_lacks({self._node.node_id: self.own})
        text = (
            f"node {self._node.node_id} has no room on its disk ({lacking}), and its log ends at {last}, before {index}"
        )
        return ApiError(Code.DISK_FULL, f"{text}: ask another node")
