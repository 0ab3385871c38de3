"""What a node does about digest points: commits them, reports its value, asks for the others' and acts on them.

Plain functions on `Node`, and what it remembers of them. Whom a majority makes right is decided in `cluster.points`. A
node whose state is wrong ends (`node_end.fail`); where no majority is equal, all refuse writes and linearizable reads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster import clock
from cluster.forwarding import decode_points, encode_points
from cluster.points import POINT_BLOCK, Diverged, Points
from cluster.wire import ApiError, Code, DigestStatus
from raft.codec import Frame
from raft.refusals import Refused
from raft.types import EntryKind, NodeId, Now

if TYPE_CHECKING:
    from cluster.node import Node


@dataclass(slots=True)
class PointWatch:
    """What a node remembers beside `points`. Times are seconds of `clock.monotonic`."""

    points: Points
    agreed_at: float | None = None
    noting: asyncio.Future[None] | None = None  # the state is wrong: a note for the next start is written

    @classmethod
    def of(cls, node: NodeId) -> PointWatch:
        """A new process's."""
        return cls(Points(node))


def follow(node: Node) -> None:
    """Called after every turn: a point that was applied is reported, and the others' values are asked for."""
    points = node.watch.points
    points.is_healing = node.core.state.floor > 0
    if points.follow(node.machine.point):
        _ask(node, clock.monotonic())
        _judge(node)


def take(node: Node, peer: NodeId, frame: Frame) -> None:
    """A replica's report. Raises Corrupt."""
    incarnation, is_asking, reports = decode_points(frame)
    points = node.watch.points
    points.is_healing = node.core.state.floor > 0
    points.take(peer, incarnation, reports)
    if is_asking:
        node.transport.send_bulk(peer, encode_points(node.incarnation, is_asking=False, reports=points.reports()))
    _judge(node)


def housekeeping(node: Node, now: Now, mono: float) -> None:
    """Asks again as long as the newest point is not agreed; the leader commits the next one when it is due."""
    points = node.watch.points
    points.is_healing = node.core.state.floor > 0
    if points.must_ask(mono):
        _ask(node, mono)
        _judge(node)  # the members may have changed
    machine, every = node.machine, node.settings.limits.digest_point_entries
    if node.is_leader and points.is_due(machine, every, mono):
        try:
            points.proposed(node.core.propose(EntryKind.COMMANDS, 1, POINT_BLOCK, now).last, mono)
        except Refused:
            pass  # busy or handing over: later


def check(node: Node) -> None:
    """Raises ApiError while the replicas' states differ and nobody knows which is right."""
    if node.watch.points.differ:
        raise refusal(node)


def refusal(node: Node) -> ApiError:
    """Why nothing is taken then."""
    return ApiError(
        Code.STATES_DIFFER,
        f"node {node.node_id}: at digest point {node.watch.points.differ} no majority of the replicas has one state; "
        "nothing is written until one has (docs/operations.md)",
    )


def status(node: Node) -> DigestStatus:
    """For `/v1/status`."""
    watch = node.watch
    points = watch.points
    age_ms = -1 if watch.agreed_at is None else int((clock.monotonic() - watch.agreed_at) * 1_000)
    return DigestStatus(points.count, points.newest, points.agreed, age_ms, points.differ)


def register_gauges(node: Node) -> None:
    """For /metrics."""
    gauge, watch = node.metrics.gauge, node.watch
    gauge("raftlog_digest_points", "Digest points applied since the start", lambda: watch.points.count)
    gauge("raftlog_digest_point_index", "Newest of them", lambda: watch.points.newest)
    gauge("raftlog_digest_agreed_index", "Newest at which this state is a majority's", lambda: watch.points.agreed)
    gauge(
        "raftlog_digest_agreed_age_seconds", "Since that was found; -1: never",
        lambda: -1.0 if watch.agreed_at is None else clock.monotonic() - watch.agreed_at,
    )  # fmt: skip
    gauge("raftlog_digests_differ", "1 while no majority has one state: no writes", lambda: bool(watch.points.differ))


def _ask(node: Node, mono: float) -> None:
    frame = encode_points(node.incarnation, is_asking=True, reports=node.watch.points.asked(mono))
    for peer in node.core.state.configuration.peers(node.node_id):
        node.transport.send_bulk(peer, frame)


def _judge(node: Node) -> None:
    watch, state = node.watch, node.core.state
    points = watch.points
    agreed, differ = points.agreed, points.differ
    try:
        points.judge(state.configuration, state.leader)
    except Diverged as error:
        node.fail(error)
        return
    if points.agreed > agreed:
        watch.agreed_at = clock.monotonic()
        node.logger.debug("digest_point_agreed", index=points.agreed)
    if points.differ and points.differ != differ:
        node.logger.error(
            "states_differ", index=points.differ, agreed=points.agreed, then="no writes until a majority has one state"
        )
        node.pending.refuse_queued(Code.STATES_DIFFER, refusal(node).message)
    elif differ and not points.differ:
        node.logger.warning("states_agree_again", index=points.agreed)
