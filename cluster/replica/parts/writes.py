"""Admits writes, proposes them as the leader, forwards them as a follower, and answers the peers that forwarded some.

The replica calls `check` for each write of a client, and the others in its turns. A request that a peer forwarded is
proposed here or refused, never forwarded again.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.protocol.batching import GO, LATER, BatchDecision
from raftlog.cluster.protocol.forward_frames import Answers, answer_frames, encode_forward, frames_of
from raftlog.cluster.protocol.request import Inflight
from raftlog.cluster.replica.parts import digest_exchange, disk_exchange
from raftlog.cluster.replica.state import APPENDED_MAX, ReplicaState
from raftlog.cluster.replica.upkeep.disk_space import frees_disk_space
from raftlog.cluster.runtime import clock
from raftlog.raft.refusals import ProposalRefused
from raftlog.raft.types import NOBODY, EntryKind, NodeId

PATIENCE_S: Final = 0.01
"""Longest wait for the commit of a batch, in seconds; then the next batch goes too. On a slow network several batches
under way are faster."""


def check(replica: ReplicaState, block: bytes) -> None:
    """Raises ApiError if the replica does not take this write now. On a full disk it takes those that free space."""
    life = replica.life
    if (
        life.is_stopping
        or life.is_fenced
        or replica.members.is_removed
        or not ((replica.syncer.has_space and replica.disks.takes_writes) or frees_disk_space(block))
    ):
        raise unavailable(replica)
    if replica.watch.points.differ or replica.life.only_here:
        raise digest_exchange.refusal(replica)


def unavailable(replica: ReplicaState) -> ApiError:
    """The reason why this replica takes no request now."""
    name, life = replica.name, replica.life
    if life.is_fenced:
        return ApiError(Code.FENCED, f"{name} met a disk error, or its state is wrong, and serves no more; ask another")
    if life.is_stopping:
        return ApiError(Code.SHUTTING_DOWN, f"{name} is shutting down; ask another node")
    if replica.members.is_removed:
        return ApiError(Code.NO_LEADER, f"{name} is no member of the cluster any more; ask another node")
    return disk_exchange.refusal(replica)


def look(replica: ReplicaState, mono: float) -> BatchDecision:
    """Whether the queued writes go now. A follower forwards them at once. A leader waits until the batch before is
    applied and this one is complete, but not if it is late or large. Until it has heard a majority's clock, its own may
    be hours behind, and the records that it stamps would be old for retention by age."""
    pending, appended = replica.writes.pending, replica.writes.appended
    if replica.core.state.role.is_leader and not replica.disks.knows_time:
        return LATER
    if not replica.core.state.role.is_leader or pending.queued_bytes >= replica.settings.limits.batch_eager_bytes:
        return GO
    if appended and appended[-1][0] > replica.applier.applied:
        return GO if mono - appended[-1][1] >= PATIENCE_S else LATER
    return replica.writes.batching.look(len(pending.queue), mono)


def propose_or_forward(replica: ReplicaState, mono: float, *, is_due: bool) -> None:
    """As the leader, proposes the queued requests if they are due; else forwards them. Without a leader they wait."""
    if replica.core.state.role.is_leader:
        if not (replica.syncer.has_space and replica.disks.takes_writes):
            _refuse_on_full_disk(replica)
        if is_due:
            _propose(replica, mono)
        return
    leader = replica.core.state.leader
    if leader == NOBODY:
        return
    replica.writes.pending.refuse_forwarded(f"{replica.name} does not lead any more")
    if replica.links.is_bulk_up(leader):
        _forward(replica, leader, mono)


def _propose(replica: ReplicaState, mono: float) -> None:
    pending, appended = replica.writes.pending, replica.writes.appended
    now = clock.read()
    while pending.queue:
        requests, blocks, count = pending.take(mono, joining=True)
        if not requests:
            return
        try:
            proposed = replica.core.propose(EntryKind.COMMANDS, count, b"".join(blocks), now)
        except ProposalRefused:  # the core is busy or hands leadership over: the requests wait
            pending.put_back(requests)
            return
        pending.proposed(requests, proposed.term, proposed.first)
        if len(appended) >= APPENDED_MAX:
            del appended[: APPENDED_MAX // 2]
        appended.append((proposed.last, mono))


def _refuse_on_full_disk(replica: ReplicaState) -> None:
    """Refuses the queued requests that need disk space, because the rest is kept for requests that free some.

    They were queued before the disk was full, and are in no log yet.
    """
    pending = replica.writes.pending
    kept: list[Inflight] = []
    why = unavailable(replica)
    while requests := pending.take(clock.monotonic(), joining=False)[0]:
        for request in requests:
            if frees_disk_space(request.block):
                kept.append(request)
            else:
                pending.refuse(request, why.code, why.message)
    pending.put_back(kept)


def _forward(replica: ReplicaState, leader: NodeId, mono: float) -> None:
    pending = replica.writes.pending
    while requests := pending.take(mono, joining=False)[0]:
        replica.metrics.count("raftlog_forwards_total", "sent", len(requests))
        for run in frames_of(requests):
            number = pending.forwarding(run, leader)
            if not replica.links.send_bulk(leader, encode_forward(number, run, mono)):
                message = f"{replica.name}: the link to node {leader} is full (limits.bulk_bytes_max)"
                for request in run:
                    pending.refused(request.number, Code.BUSY, message)


def leadership_changed(replica: ReplicaState, leader: NodeId) -> None:
    """Another leader or term: forwards waiting requests again, or fails those whose outcome is unknown."""
    replica.writes.pending.leadership_changed()
    replica.writes.appended.clear()
    replica.clock.proposed = 0  # a clock entry may have been cut, and so may a digest point
    replica.watch.points.leadership_changed()
    if leader != NOBODY:
        within_s = replica.options.election_timeout_min_ms / 2_000
        is_answering = partial(replica.links.is_answering, within_s=within_s)
        replica.writes.pending.leader_is(leader, clock.monotonic(), is_answering)


def take_forwarded(replica: ReplicaState, requests: list[Inflight]) -> None:
    """Queues or refuses the requests that a peer forwarded."""
    replica.metrics.count("raftlog_forwards_total", "taken", len(requests))
    pending = replica.writes.pending
    for request in requests:
        try:
            check(replica, request.block)
            if not replica.is_leader:
                pending.refuse(request, Code.NO_LEADER, "")
            else:
                pending.submit(request)
        except ApiError as error:
            pending.refuse(request, error.code, "")


def take_answers(replica: ReplicaState, peer: NodeId, answers: Answers) -> None:
    """Takes the leader's answers to forwarded requests: their indexes, or why it did not take them."""
    pending, node = replica.writes.pending, replica.identity.node
    for number, first in answers.placed:
        if not pending.is_asked(number, peer):
            continue
        late = pending.answered(number, first, answers.term)
        if late is not None:
            pending.settle_late(late, answers.term, *replica.applier.recent.effect_of(late.last))
    for number, code in answers.refused:
        if not pending.is_asked(number, peer):
            continue
        message = f"node {peer}, asked as the leader by node {node}, did not take the write: {code}"
        if code is Code.DISK_FULL:
            message = f"node {node}: {disk_exchange.refusal_of(replica, peer)}"
        pending.refused(number, code, message)


def send_answers(replica: ReplicaState) -> None:
    """Sends each peer the outcomes of the requests that it forwarded.

    A peer that restarted forwards requests as soon as its own link is open. This node's link to it may open up
    to `peer.redial_max_ms` later. A frame that no link takes waits for `send_again`. Without its answer, the peer's
    client would wait until its deadline.
    """
    answers = replica.writes.pending.take_answers()
    for peer, frame in answer_frames(answers, replica.core.state.term):
        if not replica.links.send_bulk(peer, frame):
            replica.writes.unsent.append((peer, frame))


def send_again(replica: ReplicaState) -> None:
    """Sends the answers that no link took before. The housekeeping calls it."""
    unsent = replica.writes.unsent
    for _ in range(len(unsent)):
        peer, frame = unsent.popleft()
        if not replica.links.send_bulk(peer, frame):
            unsent.append((peer, frame))
