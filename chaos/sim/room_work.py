"""What a node does about the room and the speed of disks, as cluster/node_disks.py: reports, and acts as the leader.

A disk of the simulator is full or has room; there is no reserve, and nothing that a trim deletes makes room on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster.disk_reports import (
    DiskReport,
    Disks,
    Handover,
    Reports,
    Rules,
    SyncTimes,
    Why,
    decode_report,
    encode_report,
)
from cluster.wire import ApiError, Code
from raft.codec import Frame
from raft.core import RaftCore
from raft.refusals import Refused
from raft.roles import Leader
from raft.types import NodeId, Now
from statemachine.versions import CLUSTER_VERSION

if TYPE_CHECKING:
    from chaos.sim.replica import Replica

RULES: Final = Rules(full_pause_ms=3_000, slow_us=50_000, slow_factor=4, slow_pause_ms=60_000)
"""The defaults of the server's settings."""

ROOMY: Final = 1 << 30
"""Free bytes of a disk that is not full."""


class RoomWork:
    """One process's; gone with it."""

    __slots__ = ("_last_ms", "_let_go", "_replica", "_reports", "_times", "_trim_index", "takes_writes")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._reports = Reports()
        self._times = SyncTimes()
        self._last_ms: dict[Why, int] = {}
        self._let_go, self._trim_index = 0, 0
        self.takes_writes = True

    @property
    def own(self) -> DiskReport:
        """This node's disk."""
        is_full = not self._replica.work.has_space
        return DiskReport(is_full, 0 if is_full else ROOMY, int(is_full), 0, self._times.median_us)

    @property
    def has_room(self) -> bool:
        """Whether a write that needs room is taken here."""
        return self._replica.work.has_space and self.takes_writes

    def check(self) -> None:
        """Raises ApiError where it is not."""
        if not self.has_room:
            raise ApiError(Code.DISK_FULL, f"node {self._replica.node}: no room")

    def take(self, peer: NodeId, frame: Frame) -> None:
        """A peer's report."""
        self._reports.take(peer, decode_report(frame))

    def lost(self, peer: NodeId) -> None:
        """The bulk link to that peer closed."""
        self._reports.lost(peer)

    def look(self, core: RaftCore, now: Now) -> None:
        """Tells the peers what is news; as the leader, acts on what all disks say."""
        replica, now_s = self._replica, now.monotonic_ms / 1_000
        work = replica.work
        under_way_us = replica.world.now_us - work.sync_began_us if work.sync_began_us else 0
        self._times.look(now_s, work.syncs, work.sync_us / 1e6, under_way_us / 1e6)
        oldest = getattr(replica.machine, "oldest", 0)
        if oldest != self._let_go:
            self._let_go, self._trim_index = oldest, replica.applied_index
        own = self.own
        for peer in self._speaking(core):
            if self._reports.is_due(peer, own, now_s) and replica.world.links.send(
                replica.node, peer, encode_report(own)
            ):
                self._reports.told(peer, own, now_s)
        self.takes_writes = True
        if isinstance(core.state.role, Leader):
            self._lead(core, now)

    def _speaking(self, core: RaftCore) -> list[NodeId]:
        """Members that are connected and know reports: not those whose programs are to be upgraded."""
        replica = self._replica
        if replica.hello.knows < CLUSTER_VERSION:
            return []
        greeted, peers = replica.greeted, core.state.configuration.peers(replica.node)
        return [peer for peer in peers if peer in greeted and greeted[peer].knows >= CLUSTER_VERSION]

    def _lead(self, core: RaftCore, now: Now) -> None:
        replica, told = self._replica, core.status()
        since_ms = now.monotonic_ms - core.state.options.election_timeout_max_ms
        disks = Disks(
            node=replica.node, configuration=told.configuration,
            reports=self._reports.of(self._speaking(core)) | {replica.node: self.own}, followers=told.followers,
            answering=[each.node for each in told.followers if each.last_contact_ms >= since_ms],
        )  # fmt: skip
        self.takes_writes = disks.takes_writes
        holds = disks.holds(self._trim_index, ROOMY)
        core.hold(holds)
        if holds:
            replica.world.sometimes("a full follower is sent no entries")
        if not disks.takes_writes and not disks.own.is_full:
            replica.world.sometimes("no majority has room")
        handover = disks.handover(RULES, self._last_ms, now.monotonic_ms)
        if handover is not None:
            self._hand_over(core, handover, now)

    def _hand_over(self, core: RaftCore, handover: Handover, now: Now) -> None:
        try:
            core.transfer(handover.to, now)
        except Refused:
            return
        self._last_ms[handover.why] = now.monotonic_ms
        replica = self._replica
        is_full = handover.why is Why.FULL
        replica.world.sometimes("a full leader hands over" if is_full else "a leader with a slow disk hands over")
        pause_ms = RULES.full_pause_ms if is_full else RULES.slow_pause_ms
        replica.world.witness.handed_over(replica.node, replica.life, handover, now.monotonic_ms, pause_ms)
