"""What a node does with requests: propose them, forward them, ask for read indexes, and answer peers.

Plain functions on `Node`. A request that a peer forwarded is proposed here or refused, never passed on (hop 1).
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final

from cluster import clock, node_points
from cluster.forwarding import (
    answer_frames,
    decode_answers,
    decode_forward,
    decode_read,
    decode_read_reply,
    encode_forward,
    encode_read,
    encode_read_reply,
    frames_of,
)
from cluster.node_room import makes_room
from cluster.peer_log_frames import is_about_log
from cluster.requests import Request
from cluster.waiting import Reader
from cluster.wire import ApiError, Code
from raft.codec import FRAME_FORWARD, FRAME_FORWARD_REPLY, FRAME_POINTS, FRAME_READ, Frame
from raft.ready import Ready
from raft.refusals import Refused
from raft.types import NOBODY, EntryKind, NodeId

if TYPE_CHECKING:
    from cluster.node import Node

PATIENCE_S: Final = 0.01
"""A batch whose commit takes longer holds the next one up no more: on a long way several are better than one."""
READ_RETRY_S: Final = 0.02  # a leader that could not take a read is asked again after this long
APPENDED_MAX: Final = 8_192  # proposals whose time is remembered


def unavailable(node: Node) -> ApiError:
    """Why this node takes nothing now."""
    name = f"node {node.node_id}"
    if node.is_fenced:
        return ApiError(Code.FENCED, f"{name} met a disk error, or its state is wrong, and serves no more; ask another")
    if node.is_stopping:
        return ApiError(Code.SHUTTING_DOWN, f"{name} is shutting down; ask another node")
    if node.membership.is_removed:
        return ApiError(Code.NO_LEADER, f"{name} is no member of the cluster any more; ask another node")
    return ApiError(
        Code.BUSY, f"{name} has no space left on its disk; make room (it still takes a trim), or ask another node"
    )


def check(node: Node, block: bytes) -> None:
    """Raises ApiError where this request is not taken now."""
    if node.is_stopping or node.is_fenced or node.membership.is_removed or not _has_room(node, block):
        raise unavailable(node)
    node_points.check(node)


def _has_room(node: Node, block: bytes) -> bool:
    return node.syncer.has_space or makes_room(block)


def too_many_waiters(node: Node) -> ApiError:
    """The named limit is reached."""
    maximum = node.settings.limits.waiters_max
    return ApiError(Code.BUSY, f"node {node.node_id}: {maximum} readers wait already (limits.waiters_max)")


def read_index(node: Node, deadline: float) -> asyncio.Future[int]:
    """The index that a linearizable read may be answered from; this node has applied it. The future, or this call
    itself, fails with ApiError."""
    if node.is_stopping or node.is_fenced or node.membership.is_removed:
        raise unavailable(node)
    node_points.check(node)
    if len(node.reads) >= node.settings.limits.waiters_max:
        raise too_many_waiters(node)
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    node.reads.waiting.append(Reader(future, deadline))
    node.look_soon()
    return future


async def wait_applied(node: Node, index: int, deadline: float) -> None:
    """Returns once `index` is applied here. Raises ApiError future_index when it is not by then."""
    if not await wait_for(node, index, deadline):
        raise ApiError(
            Code.FUTURE_INDEX,
            f"node {node.node_id}: index {index} is not applied here within the deadline; "
            f"this node is at {node.applier.applied}",
        )


async def wait_for(node: Node, index: int, deadline: float) -> bool:
    """Whether `index` is applied here, by the deadline. Raises ApiError."""
    if node.applied >= index:
        return True
    if node.is_stopping or node.is_fenced:
        raise unavailable(node)
    if len(node.applier.waiters) >= node.settings.limits.waiters_max:
        raise too_many_waiters(node)
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    node.applier.waiters.add(index, future, index)
    try:
        async with asyncio.timeout_at(deadline):
            await future
    except TimeoutError:
        return False
    return True


def follow_leader(node: Node) -> None:
    """Called in every turn: where another leader, or another term, is news, what waits at the old one is asked again,
    or known to be lost."""
    state = node.core.state
    leader, before = state.leader, node.seen_leadership
    if before[1] == leader and before[0] == state.term:
        return
    node.seen_leadership = (state.term, leader)
    _leadership_changed(node, leader, before[1])
    node.wake()


def _leadership_changed(node: Node, leader: NodeId, before: NodeId) -> None:
    node.pending.leadership_changed()
    node.appended.clear()
    if leader != NOBODY:
        is_answering = partial(node.transport.is_answering, within_s=node.options.election_timeout_min_ms / 2_000)
        node.pending.leader_is(leader, clock.monotonic(), is_answering)
    if before != leader:
        node.reads.lost(before)


class Look(Enum):
    """Whether a turn has anything to begin."""

    GO = auto()
    AGAIN = auto()  # in the next turn of the loop: more will come
    LATER = auto()  # what is under way ends with a turn


def look(node: Node) -> Look:
    """Whether a turn would do anything with what clients ask."""
    mono, found = clock.monotonic(), Look.LATER
    if node.pending.queued:
        found = _look_at_writes(node, mono) if node.is_leader else Look.GO
    if found is not Look.GO and (at_reads := _look_at_reads(node, mono)) is not Look.LATER:
        found = at_reads
    return found


def _look_at_writes(node: Node, mono: float) -> Look:
    """One batch is under way at a time, and the next one is whole before it goes (`cluster.gather`); but for one that
    is late or large."""
    if node.pending.queued_bytes >= node.settings.limits.batch_eager_bytes:
        return Look.GO
    if node.appended and node.appended[-1][0] > node.applied:
        return Look.GO if mono - node.appended[-1][1] >= PATIENCE_S else Look.LATER
    return Look.GO if node.writes_gather.is_whole(node.pending.queued, mono) else Look.AGAIN


def _look_at_reads(node: Node, mono: float) -> Look:
    """One round is under way at a time, and the next one is whole before it begins."""
    if mono < node.reads_not_before or not node.reads.may_start(mono, node.options.heartbeat_ms / 1_000):
        return Look.LATER
    return Look.GO if node.reads_gather.is_whole(len(node.reads.waiting), mono) else Look.AGAIN


def propose_or_forward(node: Node) -> None:
    """Does with the queued requests what can be done now; without a leader they wait."""
    if node.is_leader:
        if not node.syncer.has_space:
            _refuse_for_room(node)
        if _look_at_writes(node, clock.monotonic()) is Look.GO:
            _propose(node)
        return
    leader = node.core.state.leader
    if leader == NOBODY:
        return
    node.pending.refuse_forwarded(f"node {node.node_id} does not lead any more")
    if node.transport.is_bulk_up(leader):
        _forward(node, leader)


def _propose(node: Node) -> None:
    pending = node.pending
    now = clock.read()
    mono = clock.monotonic()
    while requests := pending.take(mono, joining=True):
        data = b"".join([request.block for request in requests])
        count = sum([request.count for request in requests])
        try:
            proposed = node.core.propose(EntryKind.COMMANDS, count, data, now)
        except Refused:  # busy, or leadership is being handed over: they wait
            pending.put_back(requests)
            return
        pending.proposed(requests, proposed.term, proposed.first)
        if len(node.appended) >= APPENDED_MAX:
            del node.appended[: APPENDED_MAX // 2]
        node.appended.append((proposed.last, mono))


def _refuse_for_room(node: Node) -> None:
    """What was taken before the disk was full, and is in no log yet, needs room that is kept for what makes some."""
    kept: list[Request] = []
    why = unavailable(node)
    while requests := node.pending.take(clock.monotonic(), joining=False):
        for request in requests:
            if makes_room(request.block):
                kept.append(request)
            else:
                node.pending.refuse(request, why.code, why.message)
    node.pending.put_back(kept)


def _forward(node: Node, leader: NodeId) -> None:
    pending = node.pending
    mono = clock.monotonic()
    while requests := pending.take(mono, joining=False):
        node.metrics.forwards.labels("sent").inc(len(requests))
        for run in frames_of(requests):
            number = pending.forwarding(run, leader)
            if not node.transport.send_bulk(leader, encode_forward(number, run, mono)):
                message = f"node {node.node_id}: the link to node {leader} is full (limits.bulk_bytes_max)"
                for request in run:
                    pending.refused(request.number, Code.BUSY, message)


def start_reads(node: Node) -> None:
    """One round for everyone who waits for a read index: here at the core, or as one frame to the leader."""
    mono = clock.monotonic()
    if node.is_leader:
        for peer, number in node.peer_reads:
            _register(node, peer, number)
        node.peer_reads.clear()
    else:
        for peer, number in node.peer_reads:
            node.transport.send_bulk(peer, encode_read_reply(number, 0))
        node.peer_reads.clear()
    if _look_at_reads(node, mono) is not Look.GO:
        return
    leader = node.core.state.leader
    if node.is_leader:
        _register(node, node.node_id, node.reads.start(node.node_id, mono))
    elif leader != NOBODY and node.transport.is_bulk_up(leader):
        number = node.reads.start(leader, mono)
        if not node.transport.send_bulk(leader, encode_read(number)):
            read_again(node, number)


def _register(node: Node, peer: NodeId, number: int) -> None:
    node.context = context = node.context + 1
    try:
        node.core.read(context, clock.read())
    except Refused:
        answer_read(node, peer, number, 0)
    else:
        node.contexts[context] = (peer, number)


def finish_reads(node: Node, ready: Ready) -> None:
    """Rounds that a majority confirmed, or that came to nothing."""
    for read in ready.reads:
        answer_read(node, *node.contexts.pop(read.context), read.index)
    for failed in ready.reads_failed:
        answer_read(node, *node.contexts.pop(failed.context), 0)


def answer_read(node: Node, peer: NodeId, number: int, index: int) -> None:
    """The read index (0: none) for a round of this node or of a peer."""
    if peer != node.node_id:
        node.transport.send_bulk(peer, encode_read_reply(number, index))
    elif index:
        release_readers(node, number, index)
    else:
        read_again(node, number)


def read_again(node: Node, number: int) -> None:
    """That round came to nothing; its readers wait a little for the next."""
    node.reads.again(number)
    node.reads_not_before = clock.monotonic() + READ_RETRY_S


def release_readers(node: Node, number: int, index: int) -> None:
    """The readers of that round go on once `index` is applied here."""
    is_applied = node.applier.applied >= index
    readers = node.reads.take(number)
    for reader in readers:
        if not is_applied:
            node.applier.waiters.add(index, reader.future, index)
        elif not reader.future.done():
            reader.future.set_result(index)
    node.reads_gather.answered(len(readers), len(node.reads.waiting))
    node.look_soon()


def take_frame(node: Node, peer: NodeId, frame: Frame) -> None:
    """A frame of the bulk link. Raises Corrupt."""
    if is_about_log(frame):
        node.peer_log.take(peer, frame)
    elif frame.kind == FRAME_FORWARD:
        _take_forward(node, peer, decode_forward(frame, peer, clock.monotonic()))
    elif frame.kind == FRAME_FORWARD_REPLY:
        answers = decode_answers(frame)
        for number, first in answers.placed:
            late = node.pending.answered(number, first, answers.term)
            if late is not None:
                node.pending.settle_late(late, answers.term, *node.applier.recent.effect_of(late.last))
        for number, code in answers.refused:
            message = f"node {peer}, asked as the leader by node {node.node_id}, did not take the write: {code}"
            node.pending.refused(number, code, message)
    elif frame.kind == FRAME_READ:
        node.peer_reads.append((peer, decode_read(frame)))
    elif frame.kind == FRAME_POINTS:
        node_points.take(node, peer, frame)
    else:
        number, index = decode_read_reply(frame)
        answer_read(node, node.node_id, number, index)


def _take_forward(node: Node, peer: NodeId, requests: list[Request]) -> None:
    node.metrics.forwards.labels("taken").inc(len(requests))
    for request in requests:
        if node.is_stopping or node.is_fenced or not _has_room(node, request.block):
            node.pending.refuse(request, unavailable(node).code, "")
        elif not node.is_leader:
            node.pending.refuse(request, Code.NO_LEADER, "")
        else:
            try:
                node_points.check(node)
                node.pending.submit(request)
            except ApiError as error:
                node.pending.refuse(request, error.code, "")


def send_answers(node: Node) -> None:
    """One frame per peer with what became of the requests that it forwarded."""
    answers, node.pending.answers = node.pending.answers, []
    for peer, frame in answer_frames(answers, node.core.state.term):
        node.transport.send_bulk(peer, frame)
