"""What a node does about digest points, as cluster/node_points.py: commits, reports, asks, and judges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.sim.disk import SimDisk
from cluster.forwarding import decode_points, encode_points
from cluster.points import POINT_BLOCK, Points, Reports
from cluster.wire import ApiError, Code
from raft.codec import Frame
from raft.core import RaftCore
from raft.divergence import NOTE, Note
from raft.refusals import Refused
from raft.types import EntryKind, NodeId, Now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.sim.replica import Replica


class PointWork:
    """One process's; gone with it. Times are seconds of the node's own clock."""

    __slots__ = ("points", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.points = Points(replica.node)

    def check(self) -> None:
        """Raises ApiError while no majority has one state."""
        if self.points.differ:
            self.replica.world.sometimes("nothing is written because no majority has one state")
            text = f"node {self.replica.node}: states differ at {self.points.differ}"
            raise ApiError(Code.STATES_DIFFER, text)

    def follow(self, core: RaftCore, now_s: float) -> None:
        """At the end of a turn: a point that was applied is reported. Raises Diverged."""
        point = self.replica.machine.point
        self.points.is_healing = core.state.floor > 0
        if self.points.follow(point):
            self.replica.world.witness.point_applied(self.replica.node, point)
            self._ask(core, now_s)
            self._judge(core)

    def take(self, core: RaftCore, peer: NodeId, frame: Frame) -> None:
        """A replica's report. Raises Diverged."""
        incarnation, is_asking, reports = decode_points(frame)
        self.points.is_healing = core.state.floor > 0
        self.points.take(peer, incarnation, reports)
        self.replica.world.witness.point_told(self.replica.node, peer, reports)
        if is_asking:
            self._send(peer, self.points.reports(), is_asking=False)
        self._judge(core)

    def housekeeping(self, core: RaftCore, now: Now, now_s: float, *, is_leader: bool) -> None:
        """Asks again; the leader commits the next point when it is due. Raises Diverged."""
        world = self.replica.world
        self.points.is_healing = core.state.floor > 0
        if self.points.must_ask(now_s):
            self._ask(core, now_s)
            self._judge(core)
        if is_leader and self.points.is_due(self.replica.machine, world.point_entries, now_s):
            try:
                self.points.proposed(core.propose(EntryKind.COMMANDS, 1, POINT_BLOCK, now).last, now_s)
                world.count("digest points")
            except Refused:
                pass

    def _ask(self, core: RaftCore, now_s: float) -> None:
        reports = self.points.asked(now_s)
        for peer in core.state.configuration.peers(self.replica.node):
            self._send(peer, reports, is_asking=True)

    def _send(self, peer: NodeId, reports: Reports, *, is_asking: bool) -> None:
        replica = self.replica
        frame = encode_points(replica.disk.incarnation, is_asking=is_asking, reports=reports)
        replica.world.links.send(replica.node, peer, frame)

    def _judge(self, core: RaftCore) -> None:
        agreed, differ = self.points.agreed, self.points.differ
        self.points.judge(core.state.configuration, core.state.leader)
        if self.points.agreed > agreed:
            self.replica.world.count("digest points agreed")
        if self.points.differ and self.points.differ != differ:
            self.replica.requests.pending.refuse_queued(Code.STATES_DIFFER, "states differ")


def leave_note(disk: SimDisk, note: Note) -> Iterator[str]:
    """For the next start: the state was wrong. Raises DiskFailed or DiskFull."""
    disk.check()
    disk.damaged[NOTE] = "the state was wrong"  # explains a refusal; gone with the note
    yield from disk.steps(disk.running().diverged(note))
