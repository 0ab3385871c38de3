"""Lets this node's links follow the configuration, and begins and awaits member changes and hand-overs.

The replica calls `follow` after each turn; the HTTP routes call `change` and `transfer`.
`raftlog.raft.consensus.membership` decides which nodes are members. `raftlog.raft.consensus.reconfiguration` proposes
the later steps of a change, and says what the driver has to do.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config import cluster_file
from raftlog.cluster.replica.parts.reads import check_serving, wait_for
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import history_guard
from raftlog.cluster.runtime import clock
from raftlog.raft import changes
from raftlog.raft.changes import MemberChange
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus import recall
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.consensus.state import State
from raftlog.raft.events import ChangeGivenUp, Event
from raftlog.raft.refusals import (
    CannotTransfer,
    ConfigurationRefused,
    NotLeader,
    ProposalRefused,
    TransferInProgress,
    WhyRefused,
)
from raftlog.raft.types import NOBODY, Entry, NodeId

FIRST_BYTES_MAX: Final = 1 << 20  # bound of the first entry, which is a configuration
POLL_S: Final = 0.001  # how often a hand-over, which takes a few milliseconds, is looked at
_PASSING: Final = (WhyRefused.OVERLAPS, WhyRefused.NOT_READY)


# ---------------------------------------------------------------------------------------------------------------
# Following the configuration.


def begin(replica: ReplicaState) -> None:
    """Dials the members of the newest configuration on disk. Older configurations show only whether this disk was one.

    A snapshot replaces the older ones. A node that the cluster began with was a member all the same.
    """
    cluster, own = replica.members.cluster, replica.identity
    first = [] if cluster is None or cluster.cluster.join else [cluster.configuration()]
    known = [*first, *(each for _, each in replica.core.state.configurations)]
    replica.members.was_member = any(each.names(own.node, own.incarnation) for each in known)
    follow(replica, replica.core.state.leader)


def follow(replica: ReplicaState, leader: NodeId) -> None:
    """Moves the links after a change of the configuration in force. Called after every turn."""
    membership, state = replica.members, replica.core.state
    configuration = state.configurations[-1][1]
    progress = len(state.role.progress) if isinstance(state.role, Leader) else 0
    seen = (len(state.configurations), leader, progress)
    strangers = _strangers(replica, leader)
    if configuration is not membership.followed or seen != membership.seen or strangers != membership.strangers:
        is_news = configuration is not membership.followed
        membership.followed, membership.seen, membership.strangers = configuration, seen, strangers
        membership.is_member = configuration.names(replica.identity.node, replica.identity.incarnation)
        membership.was_member |= membership.is_member
        # A joining node's log may have only the first addresses of members; its join file has the current ones.
        is_joining = membership.cluster is not None and not membership.was_member
        known = membership.cluster.configuration().members if is_joining and membership.cluster else ()
        replica.links.set_members(configuration, (*known, *strangers), _leaving(state))
        if is_news:
            replica.logger.info(
                "members",
                index=state.configurations[-1][0],
                voters=configuration.voters,
                outgoing=configuration.outgoing,
                learners=configuration.learners,
            )
    if not membership.is_member or membership.is_removed:
        _tell_removed(replica)


def _strangers(replica: ReplicaState, leader: NodeId) -> tuple[Member, ...]:
    """The nodes to dial that the configuration here does not name, or not so. The members may have been changed while
    this node was down. The leader must get its answers, or it never sends the entries that say so. A node that knows no
    leader gives its vote to any candidate with a newer log. And while this node asks for lost promises, any of them may
    know of one. Those that are dialled once stay, while they are connected.
    """
    met = replica.links.strangers
    if not met:
        return ()
    dialled = {each.node for each in replica.members.strangers}
    takes_any = leader == NOBODY or recall.is_waiting(replica.core.state)
    return tuple(each for node, each in met.items() if takes_any or node == leader or node in dialled)


def _leaving(state: State) -> set[NodeId]:
    """The nodes outside the configuration in force whose links stay open.

    Members of the configuration before it stay until the new one is committed. The leader that this node follows
    stays. A leader also keeps the links to all nodes of its Progress table. It needs their answers if it removed
    itself, and it sends a removed node the commit of its removal.
    """
    leaving = {member.node for _, earlier in state.configurations for member in earlier.members}
    leaving.add(state.leader)
    if isinstance(state.role, Leader):
        leaving.update(state.role.progress)
    return leaving


def _tell_removed(replica: ReplicaState) -> None:
    membership, state = replica.members, replica.core.state
    is_removed = membership.was_member and not membership.is_member and _is_final(state)
    if is_removed and not membership.is_removed:
        replica.logger.warning(
            "removed",
            index=state.configurations[-1][0],
            mend="this node is no member any more and may be stopped; its data folder is of no use to another node",
        )
    membership.is_removed = is_removed


def _is_final(state: State) -> bool:
    """Whether the newest configuration cannot be taken back: it is committed, or it follows a joint one.

    A leader leaves a joint configuration only once that one is committed. Every later leader then leaves it the same
    way. A removed node needs this after a restart, because no leader sends it the commit index any more.
    """
    *earlier, (index, _) = state.configurations
    return index <= state.log.committed or (bool(earlier) and bool(earlier[-1][1].outgoing))


def note(replica: ReplicaState, event: Event) -> None:
    """Keeps the reason if the core gave up a change."""
    if isinstance(event, ChangeGivenUp):
        replica.members.given_up[event.node] = event.reason


async def first_entry(replica: ReplicaState) -> Entry:
    """The entry at index 1, for a join file. Raises ApiError.

    It comes from the log. If a snapshot replaced it there, it comes from the node's cluster file or join file.
    """
    try:
        found = await replica.reader.entries(1, 1, FIRST_BYTES_MAX)
        if found:
            return found[0][0]
    except ApiError as error:
        if error.code not in (Code.COMPACTED, Code.DEADLINE) or replica.members.cluster is None:
            raise
    assert replica.members.cluster is not None, "index 1 is applied on every member"
    return cluster_file.first_entry(replica.members.cluster)


# ---------------------------------------------------------------------------------------------------------------
# Changing.


async def change(replica: ReplicaState, change: MemberChange, deadline: float) -> int:
    """Begins a change. Returns the index of the configuration that begins it, once it is committed and applied here.

    Raises ApiError. no_leader, members_changing, members_refused: nothing happened. leader_lost, timeout: unknown.
    """
    check_serving(replica)
    if replica.is_leader:
        await history_guard.check(replica, change)
    try:
        index = replica.core.propose_configuration(change, clock.read())
    except ProposalRefused as refused:
        raise _refusal(replica, refused) from refused
    replica.members.given_up.clear()
    state = replica.core.state
    term, begun = state.log.term_at(index), state.configurations[-1][1]
    replica.driver.wake()
    try:
        is_applied = await wait_for(replica, index, deadline)
    except ApiError as error:
        message = f"{replica.name}: the change is in its log at index {index}; then: {error.message}"
        raise ApiError(Code.LEADER_LOST, message) from error
    if not is_applied:
        raise ApiError(
            Code.TIMEOUT,
            f"{replica.name}: the change is in its log at index {index} and was not committed by the deadline; "
            "GET /v1/members shows whether it is in force",
        )
    if (code := outcome(state, index, term, begun)) is Code.OVERWRITTEN:
        raise ApiError(code, f"{replica.name}: another leader's entry took the place of the change")
    if code is not None:
        message = f"{replica.name}: a snapshot took the place of the log at index {index} before the outcome was known"
        raise ApiError(code, f"{message}; GET /v1/members shows whether the change is in force")
    return index


def outcome(state: State, index: int, term: int | None, begun: Configuration) -> Code | None:
    """What became of the change that `begun` began at `index` in `term`, once `index` is applied; None: it was
    committed. Where a snapshot took the place of the log, only the configuration in force may still show it."""
    found = state.log.term_at(index)
    if found == term or (found is None and state.configuration in (begun, changes.left(begun))):
        return None
    return Code.LEADER_LOST if found is None else Code.OVERWRITTEN


async def transfer(replica: ReplicaState, to: NodeId, deadline: float) -> float:
    """Hands leadership to `to` (NOBODY: the voter with the longest log).

    Returns the seconds until this node heard from the new leader. Raises ApiError: no_leader, members_changing,
    members_refused (this node still leads), leader_lost, timeout (unknown).
    """
    check_serving(replica)
    started, term = clock.monotonic(), replica.core.state.term
    try:
        to = replica.core.transfer(to, clock.read())
    except ProposalRefused as refused:
        raise _refusal(replica, refused) from refused
    replica.driver.wake()
    while True:
        await asyncio.sleep(POLL_S)
        state = replica.core.state
        if replica.life.is_over:
            raise ApiError(Code.LEADER_LOST, f"{replica.name} ended while it handed over to node {to}")
        if isinstance(state.role, Leader):
            if state.role.transfer is None and replica.core.state.term == term:
                message = f"{replica.name} leads on: node {to} did not take over (raft.transfer_timeout_ms)"
                raise ApiError(Code.MEMBERS_REFUSED, message, why="not_taken_over")
            if replica.core.state.term != term:
                return clock.monotonic() - started  # leadership came back to this node, in a newer term
        elif state.leader != NOBODY:
            return clock.monotonic() - started
        if clock.monotonic() >= deadline:
            raise ApiError(Code.TIMEOUT, f"{replica.name}: no new leader was heard by the deadline")


def _refusal(replica: ReplicaState, refused: ProposalRefused) -> ApiError:
    name = replica.name
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
