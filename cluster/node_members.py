"""What a node does about members: its links follow the configuration; changes and hand-overs are begun and awaited.

Plain functions on `Node`, and what it remembers of its membership. Who is a member is decided in `raft.membership`,
what follows by itself in `raft.reconfiguration`, which also says what a driver has to do.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cluster import clock, cluster_file, node_kept
from cluster.cluster_file import ClusterFile
from cluster.node_requests import unavailable, wait_for
from cluster.wire import ApiError, Code
from raft.changes import Change
from raft.configuration import Configuration
from raft.events import ChangeGivenUp, Event
from raft.refusals import (
    CannotTransfer,
    ConfigurationRefused,
    NotLeader,
    Refused,
    TransferInProgress,
    WhyRefused,
)
from raft.roles import Leader
from raft.state import State
from raft.types import NOBODY, Entry, NodeId

if TYPE_CHECKING:
    from cluster.node import Node

FIRST_BYTES_MAX: Final = 1 << 20  # of the first entry: a configuration
POLL_S: Final = 0.001  # how often a hand-over, which takes a few milliseconds, is looked at
_PASSING: Final = (WhyRefused.OVERLAPS, WhyRefused.NOT_READY)


@dataclass(slots=True)
class Membership:
    """What a node remembers: whether it belongs, what its links know, why changes were given up."""

    cluster: ClusterFile | None  # whom to dial before the log says so
    was_member: bool = False  # a configuration named this very disk
    is_member: bool = False  # the one in force does
    is_removed: bool = False  # a committed one does not any more
    followed: Configuration | None = None
    seen: tuple[int, NodeId, int] = (0, NOBODY, 0)
    given_up: dict[NodeId, str] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------------------
# Following the configuration.


def begin(node: Node) -> None:
    """Dials whom the configurations on disk name; of older ones only whether this disk was a member counts.

    A snapshot takes the place of the older ones. A node that the cluster began with was a member all the same.
    """
    cluster = node.membership.cluster
    first = [] if cluster is None or cluster.cluster.join else [cluster.configuration()]
    known = [*first, *(each for _, each in node.core.state.configurations)]
    node.membership.was_member = any(_names(node, each) for each in known)
    follow(node)


def follow(node: Node) -> None:
    """Called after every turn: where the configuration in force moved, the links do."""
    membership, state = node.membership, node.core.state
    configuration = state.configuration
    progress = len(state.role.progress) if isinstance(state.role, Leader) else 0
    seen = (len(state.configurations), state.leader, progress)
    if configuration is not membership.followed or seen != membership.seen:
        is_news = configuration is not membership.followed
        membership.followed, membership.seen = configuration, seen
        membership.is_member = _names(node, configuration)
        membership.was_member |= membership.is_member
        # A node that is to join may know members by their first addresses only: the join file has those of today.
        is_joining = membership.cluster is not None and not membership.was_member
        known = membership.cluster.configuration().members if is_joining and membership.cluster else ()
        node.transport.set_members(configuration, known, _leaving(state))
        if is_news:
            node.logger.info(
                "members", index=state.configurations[-1][0], voters=configuration.voters,
                outgoing=configuration.outgoing, learners=configuration.learners,
            )  # fmt: skip
    if not membership.is_member or membership.is_removed:
        _tell_removed(node)


def _leaving(state: State) -> set[NodeId]:
    """Whose links stay though the configuration in force does not name them: members of the one before, until this one
    is committed; a leader that removed itself, which needs the answers of the others for that; whoever is being told
    by its leader that it is out."""
    leaving = {member.node for _, earlier in state.configurations for member in earlier.members}
    leaving.add(state.leader)
    if isinstance(state.role, Leader):
        leaving.update(state.role.progress)
    return leaving


def _tell_removed(node: Node) -> None:
    membership, state = node.membership, node.core.state
    is_removed = membership.was_member and not membership.is_member and _is_final(state)
    if is_removed and not membership.is_removed:
        node.logger.warning(
            "removed", index=state.configurations[-1][0],
            mend="this node is no member any more and may be stopped; its data folder is of no use to another node",
        )  # fmt: skip
    membership.is_removed = is_removed


def _is_final(state: State) -> bool:
    """Whether the newest configuration cannot be taken back: it is committed, or it follows a joint one.

    A leader leaves a joint configuration only once that one is committed, and then every later leader leaves it the
    same way. A removed node that is started again needs this: no leader tells it what is committed.
    """
    *earlier, (index, _) = state.configurations
    return index <= state.log.committed or (bool(earlier) and bool(earlier[-1][1].outgoing))


def _names(node: Node, configuration: Configuration) -> bool:
    member = configuration.member(node.node_id)
    return member is not None and member.incarnation == node.incarnation


def note(node: Node, event: Event) -> None:
    """Takes note of an event of the core."""
    if isinstance(event, ChangeGivenUp):
        node.membership.given_up[event.node] = event.reason


async def first_entry(node: Node) -> Entry:
    """The entry at index 1, for a join file: from the log, or, where a snapshot took its place, as the cluster file or
    the join file of this node has it. Raises ApiError."""
    try:
        found = await node.reader.entries(1, 1, FIRST_BYTES_MAX)
        if found:
            return found[0][0]
    except ApiError as error:
        if error.code not in (Code.COMPACTED, Code.DEADLINE) or node.membership.cluster is None:
            raise
    assert node.membership.cluster is not None, "index 1 is applied on every member"
    return cluster_file.first_entry(node.membership.cluster)


# ---------------------------------------------------------------------------------------------------------------
# Changing.


async def change(node: Node, change: Change, deadline: float) -> int:
    """Begins a change; the index of the configuration that begins it, once it is committed and applied here.

    Raises ApiError: no_leader, members_changing, members_refused (nothing happened), or leader_lost, timeout (unknown).
    """
    if node.is_stopping or node.is_fenced:
        raise unavailable(node)
    if node.is_leader:
        await node_kept.check(node, change)
    try:
        index = node.core.propose_configuration(change, clock.read())
    except Refused as refused:
        raise _refusal(node, refused) from refused
    node.membership.given_up.clear()
    term = node.core.state.log.term_at(index)
    node.wake()
    try:
        is_applied = await wait_for(node, index, deadline)
    except ApiError as error:
        message = f"node {node.node_id}: the change is in its log at index {index}; then: {error.message}"
        raise ApiError(Code.LEADER_LOST, message) from error
    if not is_applied:
        raise ApiError(
            Code.TIMEOUT,
            f"node {node.node_id}: the change is in its log at index {index} and was not committed by the deadline; "
            "GET /v1/members tells what became of it",
        )
    if node.core.state.log.term_at(index) != term:
        raise ApiError(Code.OVERWRITTEN, f"node {node.node_id}: another leader's entry took the place of the change")
    return index


async def transfer(node: Node, to: NodeId, deadline: float) -> float:
    """Hands leadership to `to` (NOBODY: whoever has most); seconds until the new leader was heard here.

    Raises ApiError: no_leader, members_changing, members_refused (this node leads on), leader_lost, timeout (unknown).
    """
    if node.is_stopping or node.is_fenced:
        raise unavailable(node)
    started, term = clock.monotonic(), node.term
    try:
        to = node.core.transfer(to, clock.read())
    except Refused as refused:
        raise _refusal(node, refused) from refused
    node.wake()
    while True:
        await asyncio.sleep(POLL_S)
        state = node.core.state
        if node.ended.done():
            raise ApiError(Code.LEADER_LOST, f"node {node.node_id} ended while it handed over to node {to}")
        if isinstance(state.role, Leader):
            if state.role.transfer is None and node.term == term:
                message = f"node {node.node_id} leads on: node {to} did not take over (raft.transfer_timeout_ms)"
                raise ApiError(Code.MEMBERS_REFUSED, message, why="not_taken_over")
            if node.term != term:
                return clock.monotonic() - started  # it came back, in a newer term
        elif state.leader != NOBODY:
            return clock.monotonic() - started
        if clock.monotonic() >= deadline:
            raise ApiError(Code.TIMEOUT, f"node {node.node_id}: no new leader was heard by the deadline")


def _refusal(node: Node, refused: Refused) -> ApiError:
    name = f"node {node.node_id}"
    match refused:
        case NotLeader():
            return ApiError(Code.NO_LEADER, f"{name} does not lead: ask the leader")
        case TransferInProgress():
            return ApiError(Code.MEMBERS_CHANGING, f"{name}: {refused}; try again in a moment", why="handing_over")
        case CannotTransfer():
            return ApiError(Code.MEMBERS_REFUSED, f"{name}: {refused}", why="cannot_transfer")
        case ConfigurationRefused():
            code = Code.MEMBERS_CHANGING if refused.why in _PASSING else Code.MEMBERS_REFUSED
            return ApiError(code, f"{name}: {refused}", why=str(refused.why))
    return ApiError(Code.BUSY, f"{name}: {refused}")
