"""Commits digest points, reports this replica's digest to the peers, asks for their digests, and acts on them.

The replica calls `follow` after each new digest point, and the housekeeping calls `housekeeping`.
`raftlog.cluster.protocol.digest_points` decides which digest is the majority's. A node whose state is wrong ends
(`raftlog.cluster.replica.shutdown.fail`). If no majority has one state, all nodes refuse writes and linearizable reads.
"""

from __future__ import annotations

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.status import DigestStatus, ReplicaDigest
from raftlog.cluster.protocol.digest_points import POINT_BLOCK, Diverged
from raftlog.cluster.protocol.forward_frames import decode_points, encode_points
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.frame import Frame
from raftlog.raft.refusals import ProposalRefused
from raftlog.raft.types import EntryKind, NodeId, Now


def follow(replica: ReplicaState) -> None:
    """Reports a digest point that was just applied, and asks the peers for their digests. Called after a turn in which
    the state machine came to another point."""
    points = replica.watch.points
    points.is_healing = replica.core.state.recall.floor > 0
    if points.follow(replica.machine.point):
        _ask(replica, clock.monotonic())
        _judge(replica)


def take(replica: ReplicaState, peer: NodeId, report: Frame) -> None:
    """Takes the report of a peer. Raises Corrupt."""
    incarnation, is_asking, reports = decode_points(report)
    points = replica.watch.points
    points.is_healing = replica.core.state.recall.floor > 0
    points.take(peer, incarnation, reports)
    if is_asking:
        frame = encode_points(replica.identity.incarnation, is_asking=False, reports=points.reports())
        replica.links.send_bulk(peer, frame)
    _judge(replica)


def housekeeping(replica: ReplicaState, now: Now, mono: float) -> None:
    """Asks again until the newest point is agreed. The leader commits the next point when it is due."""
    points = replica.watch.points
    points.is_healing = replica.core.state.recall.floor > 0
    if points.must_ask(mono):
        _ask(replica, mono)
        _judge(replica)  # the members may have changed
    machine, every = replica.machine, replica.settings.limits.digest_point_entries
    if replica.is_leader and replica.disks.knows_time and points.is_due(machine, every, mono):
        try:
            points.proposed(replica.core.propose(EntryKind.COMMANDS, 1, POINT_BLOCK, now).last, mono)
        except ProposalRefused:
            pass  # busy or handing over: later


def refusal(replica: ReplicaState) -> ApiError:
    """The reason why no request is taken while the states differ, or while this log has committed entries that its
    leader lacks."""
    if replica.life.only_here:
        return ApiError(Code.STATES_DIFFER, f"{replica.name}: {replica.life.only_here}")
    differ = replica.watch.points.differ
    return ApiError(
        Code.STATES_DIFFER,
        f"{replica.name}: at digest point {differ} no majority of the replicas has one state; "
        "nothing is written until one has (docs/operations/causes.md, A wrong state)",
    )


def status(replica: ReplicaState) -> DigestStatus:
    """The digest part of `/v1/status`."""
    watch = replica.watch
    points = watch.points
    age_ms = -1 if watch.agreed_at is None else int((clock.monotonic() - watch.agreed_at) * 1_000)
    rows = points.newest_reports(replica.core.state.configuration)
    replicas = [ReplicaDigest(node, index, value.hex(), is_same) for node, index, value, is_same in rows]
    return DigestStatus(points.count, points.newest, points.agreed, age_ms, points.differ, replicas)


def _ask(replica: ReplicaState, mono: float) -> None:
    frame = encode_points(replica.identity.incarnation, is_asking=True, reports=replica.watch.points.asked(mono))
    for peer in replica.core.state.configuration.peers(replica.identity.node):
        replica.links.send_bulk(peer, frame)


def _judge(replica: ReplicaState) -> None:
    watch, state = replica.watch, replica.core.state
    points = watch.points
    agreed, differ = points.agreed, points.differ
    try:
        points.judge(state.configuration, state.leader)
    except Diverged as error:
        replica.driver.fail(error)
        return
    if points.agreed > agreed:
        watch.agreed_at = clock.monotonic()
        replica.logger.debug("digest_point_agreed", index=points.agreed)
    if points.differ and points.differ != differ:
        replica.logger.error(
            "states_differ", index=points.differ, agreed=points.agreed, then="no writes until a majority has one state"
        )
        replica.writes.pending.refuse_queued(Code.STATES_DIFFER, refusal(replica).message)
    elif differ and not points.differ:
        replica.logger.warning("states_agree_again", index=points.agreed)
