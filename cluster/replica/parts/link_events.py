"""Takes messages and frames from peers, and the state of the links to them, for one replica.

The host calls these functions for each chunk that arrives. They step the core, or hand a frame to the module that
handles it. An error of the core ends the replica. A malformed frame raises Corrupt, and the transport then closes its
connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, ParamSpec

from raftlog.cluster.protocol.forward_frames import decode_answers, decode_forward, decode_read, decode_read_reply
from raftlog.cluster.protocol.log_frames import decode_log_reply, decode_question, is_about_log
from raftlog.cluster.replica.parts import digest_exchange, disk_exchange, reads, serving, writes
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.logging import log_event
from raftlog.raft.codec.frame import (
    FRAME_DISK,
    FRAME_FORWARD,
    FRAME_FORWARD_REPLY,
    FRAME_POINTS,
    FRAME_READ,
    FRAME_READ_REPLY,
    Frame,
)
from raftlog.raft.events import MessageIgnored
from raftlog.raft.hello import Start
from raftlog.raft.messages import AppendEntriesReply, Message
from raftlog.raft.types import NodeId

P = ParamSpec("P")
ANSWERS: Final = (FRAME_FORWARD_REPLY, FRAME_READ_REPLY)
"""Kinds that count from the peer alone that was asked, a member at that time: also if it has been removed since."""


def take_messages(replica: ReplicaState, messages: Sequence[tuple[str, Message]]) -> None:
    """Steps the core with consensus messages, all in one turn: each with the disk of its connection."""
    if replica.life.is_over:
        return
    try:
        now, steps = clock.read(), replica.writes.steps
        for disk, message in messages:
            if steps is not None and isinstance(message, AppendEntriesReply) and message.success:
                steps.acknowledged(message.sender, message.match, clock.monotonic())
            replica.core.step(message, now, disk)
    except Exception as error:
        replica.driver.fail(error)
    replica.driver.carry_out()


def take_frames(replica: ReplicaState, peer: NodeId, disk: str, frames: Sequence[Frame]) -> None:
    """Takes forwarded requests, read indexes, reports and answers of a peer with that disk. Raises Corrupt."""
    if not replica.life.is_over:
        reason = replica.core.refusal(peer, disk, clock.read())
        for frame in frames:
            if reason and frame.kind not in ANSWERS:
                refused(replica, MessageIgnored(peer, f"frame of kind {frame.kind}", reason))
            else:
                _take_frame(replica, peer, frame)
        replica.driver.turn()


def refused(replica: ReplicaState, event: MessageIgnored) -> None:
    """Counts a message or frame that this node refused. Logs it with its sender, unless there are too many lines."""
    is_member = replica.core.state.configuration.member(event.sender) is not None
    replica.metrics.count("raftlog_messages_refused_total", str(event.sender) if is_member else "others")
    lines = replica.served.refused
    if lines.allows(f"{event.sender} {event.kind}"):
        log_event(replica.logger.bind(left_out=lines.take_left_out()), event, replica.core.state.term)


def _take_frame(replica: ReplicaState, peer: NodeId, frame: Frame) -> None:
    """One frame of the bulk link. Raises Corrupt."""
    kind = frame.kind
    if is_about_log(frame):
        if kind == FRAME_READ:
            serving.take(replica, peer, decode_question(frame))
        else:
            replica.peer_log.take(peer, decode_log_reply(frame))
    elif kind == FRAME_FORWARD:
        writes.take_forwarded(replica, decode_forward(frame, peer, clock.monotonic()))
    elif kind == FRAME_FORWARD_REPLY:
        writes.take_answers(replica, peer, decode_answers(frame))
    elif kind == FRAME_READ:
        replica.reads.asked.append((peer, decode_read(frame)))
    elif kind == FRAME_POINTS:
        digest_exchange.take(replica, peer, frame)
    elif kind == FRAME_DISK:
        disk_exchange.take(replica, peer, frame)
    else:
        number, index = decode_read_reply(frame)
        if replica.reads.rounds.asked(number) == peer:
            reads.answer_read(replica, replica.identity.node, number, index)


def link_opened(replica: ReplicaState, peer: NodeId, incarnation: str, knows: int, start: Start | None) -> None:
    """A peer connected to this node. It reports its disk, the newest cluster version it knows, and its start."""
    _tell(replica, replica.core.link_opened, peer, incarnation, knows, clock.read(), start)


def hello_refused(replica: ReplicaState, peer: NodeId, incarnation: str, start: Start) -> None:
    """A process of a peer connected, and this node refused it."""
    _tell(replica, replica.core.hello_refused, peer, incarnation, clock.read(), start)


def link_closed(replica: ReplicaState, peer: NodeId) -> None:
    """The connection of a peer to this node closed."""
    _tell(replica, replica.core.link_closed, peer, clock.read())


def link_dialled(replica: ReplicaState, peer: NodeId, *, is_bulk: bool) -> None:
    """This node's own link to a peer is up. On the consensus link the core sends a leader's heartbeat at once.

    On the bulk link it sends the waiting requests and the rest of a snapshot.
    """
    _tell(replica, replica.core.link_dialled, peer, clock.read(), is_bulk=is_bulk)


def bulk_link_believed(replica: ReplicaState, peer: NodeId) -> None:
    """The peer believes this node's bulk connection now. Until then it took requests, and dropped reports."""
    disk_exchange.lost(replica, peer)


def bulk_link_closed(replica: ReplicaState, peer: NodeId) -> None:
    """The bulk link closed: frames that were sent and not answered may or may not have arrived."""
    replica.writes.pending.link_lost(peer, f"the link to node {peer} closed")
    replica.reads.rounds.lost(peer)
    replica.peer_log.lost(peer)
    disk_exchange.lost(replica, peer)
    replica.driver.wake()


def link_refused(replica: ReplicaState, peer: NodeId) -> None:
    """No process listens at that peer. If the peer led, an election may be due before the next tick."""
    _tell(replica, replica.core.link_refused, peer, clock.read())
    replica.driver.tick_when_due()


def _tell(replica: ReplicaState, step: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> None:
    if not replica.life.is_over:
        try:
            step(*arguments, **named)
        except Exception as error:
            replica.driver.fail(error)
        replica.driver.wake()
