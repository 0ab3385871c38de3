"""Gets read indexes for linearizable reads: from the core as the leader, else from the leader; and waits for indexes.

The replica calls these functions in its turns. All readers of one turn share one round.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.protocol.batching import LATER, BatchDecision
from raftlog.cluster.protocol.forward_frames import encode_read, encode_read_reply
from raftlog.cluster.protocol.request import NEVER
from raftlog.cluster.protocol.waiters import ReadWaiter
from raftlog.cluster.replica.parts import digest_exchange, disk_exchange
from raftlog.cluster.replica.parts.writes import unavailable
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.runtime import clock
from raftlog.raft.ready import Ready
from raftlog.raft.refusals import ProposalRefused
from raftlog.raft.types import NOBODY, NodeId

READ_RETRY_S: Final = 0.02  # a leader that could not take a read is asked again after this long


def check(replica: ReplicaState) -> None:
    """Raises ApiError if the replica does not take a linearizable read now."""
    life = replica.life
    if life.is_stopping or life.is_fenced or replica.members.is_removed:
        raise unavailable(replica)
    if replica.watch.points.differ or replica.life.only_here:
        raise digest_exchange.refusal(replica)
    check_waiters(replica)


def check_waiters(replica: ReplicaState) -> None:
    """Raises ApiError busy if `limits.waiters_max` readers wait already: for a read round or for an index."""
    maximum = replica.settings.limits.waiters_max
    if len(replica.reads.rounds) + len(replica.applier.waiters) >= maximum:
        raise ApiError(Code.BUSY, f"{replica.name}: {maximum} readers wait already (limits.waiters_max)")


def check_serving(replica: ReplicaState) -> None:
    """Raises ApiError if the replica is stopping or fenced."""
    if replica.life.is_stopping or replica.life.is_fenced:
        raise unavailable(replica)


def look(replica: ReplicaState, mono: float) -> BatchDecision:
    """Whether a round begins now: it does once all expected readers have asked."""
    reads = replica.reads
    if mono < reads.not_before or not reads.rounds.may_start(mono, replica.options.heartbeat_ms / 1_000):
        return LATER
    return reads.batching.look(len(reads.rounds.waiting), mono)


def start_reads(replica: ReplicaState, mono: float, *, is_due: bool) -> None:
    """Registers the rounds that followers asked for. If a round is due here, begins one for all waiting readers.

    The leader begins it at its core. A follower sends one frame to the leader.
    """
    reads, node, links = replica.reads, replica.identity.node, replica.links
    is_leader = replica.is_leader
    if reads.asked:
        asked, reads.asked = reads.asked, []
        for peer, number in asked:
            if is_leader:
                _register(replica, peer, number)
            else:
                links.send_bulk(peer, encode_read_reply(number, 0))
    if not is_due:
        return
    if is_leader:
        _register(replica, node, reads.rounds.start(node, mono))
    elif (leader := replica.core.state.leader) != NOBODY and links.is_bulk_up(leader):
        number = reads.rounds.start(leader, mono)
        if not links.send_bulk(leader, encode_read(number)):
            _read_again(replica, number)


def _register(replica: ReplicaState, peer: NodeId, number: int) -> None:
    reads = replica.reads
    reads.context = context = reads.context + 1
    try:
        replica.core.read(context, clock.read())
    except ProposalRefused:
        answer_read(replica, peer, number, 0)
    else:
        reads.contexts[context] = (peer, number)


def finish_reads(replica: ReplicaState, ready: Ready) -> None:
    """Answers the rounds that a majority confirmed, and the rounds that failed."""
    contexts = replica.reads.contexts
    for read in ready.reads:
        answer_read(replica, *contexts.pop(read.context), read.index)
    for failed in ready.reads_failed:
        answer_read(replica, *contexts.pop(failed.context), 0)


def answer_read(replica: ReplicaState, peer: NodeId, number: int, index: int) -> None:
    """Takes the read index (0: none) of a round of this node or of a peer."""
    if peer != replica.identity.node:
        replica.links.send_bulk(peer, encode_read_reply(number, index))
    elif index:
        _release_readers(replica, number, index)
    else:
        _read_again(replica, number)


def ask_again(replica: ReplicaState, mono: float) -> None:
    """Rounds that the leader has not answered within the longest election timeout are asked for again. The leader
    answers on a link of its own, and what that loses neither node hears. The housekeeping calls it."""
    replica.reads.rounds.overdue(replica.identity.node, mono - replica.options.election_timeout_max_ms / 1_000)


def _read_again(replica: ReplicaState, number: int) -> None:
    """That round failed; its readers wait a little for the next one."""
    replica.reads.rounds.again(number)
    replica.reads.not_before = clock.monotonic() + READ_RETRY_S


def _release_readers(replica: ReplicaState, number: int, index: int) -> None:
    """Answers the readers of that round once `index` is applied here."""
    is_applied = replica.applier.applied >= index
    readers = replica.reads.rounds.take(number)
    is_held = not is_applied and not replica.syncer.has_space and index > replica.core.state.log.last.index
    for reader in readers:
        if is_held and not reader.future.done():
            reader.future.set_exception(disk_exchange.unread(replica, index))
        elif not is_applied:
            replica.applier.waiters.add(index, reader)
        elif not reader.future.done():
            reader.future.set_result(index)
    replica.reads.batching.answered(len(readers), len(replica.reads.rounds.waiting))
    replica.driver.look_soon()


async def wait_applied(replica: ReplicaState, index: int, deadline: float) -> None:
    """Returns once `index` is applied here. Raises ApiError future_index when it is not by then."""
    if not await wait_for(replica, index, deadline):
        raise ApiError(
            Code.FUTURE_INDEX,
            f"{replica.name}: index {index} is not applied here within the deadline; "
            f"this node is at {replica.applier.applied}",
        )


async def wait_for(replica: ReplicaState, index: int, deadline: float) -> bool:
    """Waits until `index` is applied here, or until the deadline. Returns whether it is applied. Raises ApiError."""
    if replica.applier.applied >= index:
        return True
    check_serving(replica)
    check_waiters(replica)
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replica.applier.waiters.add(index, ReadWaiter(future, NEVER))  # the time-out below answers it
    try:
        async with asyncio.timeout_at(deadline):
            await future
    except TimeoutError:
        return False
    return True
