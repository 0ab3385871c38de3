"""Refuses a change of the members that would leave older history on fewer than a majority of the voters.

`raftlog.cluster.replica.parts.members` calls it before the leader proposes a change. A node that was built from a
snapshot votes long before it has fetched the log before that snapshot (`raftlog.cluster.replica.upkeep.backfill`).
If an operator replaced three nodes quickly one after the other, no voter would have that log any more. So the leader
asks every voter which part of the log its disk has. Consensus itself knows nothing of this rule.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.protocol.log_frames import QuestionKind
from raftlog.cluster.replica.log.peer_log import NoAnswer
from raftlog.cluster.replica.state import ReplicaState
from raftlog.raft.changes import AddLearners, ChangeAddresses, MemberChange, Promote, Remove, Replace
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.quorum import majority
from raftlog.raft.types import NodeId

ASK_S: Final = 1.0
"""Longest wait for the answer of a voter, in seconds. A voter that does not answer counts as one without the older log,
unless the leader's own log reaches back so far that it can send all of it."""


def voters_after(configuration: Configuration, change: MemberChange) -> tuple[NodeId, ...]:
    """The voters once the whole change is done. A change of addresses leaves the voters as they are."""
    voters = set(configuration.voters)
    match change:
        case AddLearners(members, promote):
            voters |= {member.node for member in members} if promote else set()
        case Promote(nodes):
            voters |= set(nodes)
        case Remove(nodes):
            voters -= set(nodes)
        case Replace(old, member):
            voters = (voters - {old}) | ({member.node} if old in voters else set())
        case ChangeAddresses():
            pass
    return tuple(sorted(voters))


async def check(replica: ReplicaState, change: MemberChange) -> None:
    """Raises ApiError members_changing if too few voters would have the readable log. The leader calls it."""
    configuration = replica.core.state.configuration
    after, newcomers = voters_after(configuration, change), _newcomers(configuration, change)
    if not after or (after == configuration.voters and not newcomers & set(after)):
        return
    reaches_back = replica.core.state.log.first <= replica.machine.oldest  # the leader can send what a voter lacks
    leaving = set(configuration.voters) - (set(after) - newcomers)
    asked = sorted(leaving | (set(after) - newcomers))
    doubted = leaving if reaches_back else set(asked)
    answers = await asyncio.gather(*(_lacks(replica, each, is_doubted=each in doubted) for each in asked))
    lacking = dict(zip(asked, answers, strict=True))
    sends_all = replica.core.state.log.first == 1  # else a new node begins with a snapshot
    having = [each for each in after if (sends_all if each in newcomers else not lacking[each])]
    if 2 * len(having) > len(after):
        return
    if isinstance(change, AddLearners | Promote) and not any(lacking[each] for each in configuration.voters):
        return  # the change removes no voter, and all present voters have the log
    if leaving and having and all(lacking[each] for each in leaving):
        return  # no voter leaves that has the log: a wiped one need not wait until the others have fetched it
    reasons = [f"node {each}: {why}" for each, why in lacking.items() if why]
    why = "; ".join(reasons) or "a new node begins without it"
    raise ApiError(
        Code.MEMBERS_CHANGING,
        f"{replica.name}: after this change, of the voters {list(after)} only {having or 'none'} would hold the "
        f"readable log from index {replica.machine.oldest} ({why}). Try again once the others have fetched it, add a "
        "node and wait before you remove one, or trim the log (raftlog log trim)",
        why="history",
    )


async def is_kept_by_others(replica: ReplicaState) -> bool:
    """Whether a majority of the voters has the readable log without this node. Then this node may lose its copy for a
    while, and fetch it again."""
    voters = replica.core.state.configuration.voters
    others = [each for each in voters if each != replica.identity.node]
    lacking = await asyncio.gather(*(_lacks(replica, each, is_doubted=True) for each in others))
    return lacking.count("") >= majority(len(voters))


def _newcomers(configuration: Configuration, change: MemberChange) -> set[NodeId]:
    """The nodes whose disks that change names for the first time."""
    members: tuple[Member, ...] = ()
    match change:
        case AddLearners(members, _):
            pass
        case Replace(_, member):
            members = (member,)
    known = {(each.node, each.incarnation) for each in configuration.members}
    return {each.node for each in members if (each.node, each.incarnation) not in known}


async def _lacks(replica: ReplicaState, voter: NodeId, *, is_doubted: bool) -> str:
    """The part of the readable log that this voter lacks, in words; empty if it has all of it.

    `is_doubted`: a voter that does not answer counts as one that lacks something.
    """
    if voter == replica.identity.node:
        begins, applied = replica.disk.oldest, replica.applier.applied
    else:
        try:
            had = await replica.peer_log.ask(voter, QuestionKind.STATE, timeout_s=ASK_S)
        except NoAnswer as error:
            return str(error) if is_doubted else ""
        begins, applied = had.begins, had.applied
    if begins > replica.machine.oldest:
        return f"its disk begins at {begins}, it is fetching the older log"
    if applied < replica.core.state.log.first - 1:
        return f"it has only reached {applied}"
    return ""
