"""Refuses a change of the members that would leave older history on fewer than a majority of the voters.

A node that was built from a snapshot votes long before it has fetched the log before that (`cluster.node_backfill`).
Who replaced three nodes one after the other without waiting would be left with voters none of which has it. The leader
asks every voter what its disk has, before it proposes; consensus itself knows nothing of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cluster.peer_log import NoAnswer
from cluster.peer_log_frames import What
from cluster.wire import ApiError, Code
from raft.changes import AddLearners, Change, ChangeAddresses, Promote, Remove, Replace
from raft.configuration import Configuration, Member
from raft.types import NodeId

if TYPE_CHECKING:
    from cluster.node import Node

ASK_S: Final = 1.0
"""So long the voters are waited for: who does not answer counts as one that has nothing, where that can be."""


def voters_after(configuration: Configuration, change: Change) -> tuple[NodeId, ...]:
    """Who votes once all of that change is done; those that vote now where nothing changes for them."""
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


async def check(node: Node, change: Change) -> None:
    """Raises ApiError members_changing where too few voters would have what may be read; the leader's part."""
    configuration = node.core.state.configuration
    after, newcomers = voters_after(configuration, change), _newcomers(configuration, change)
    if not after or (after == configuration.voters and not newcomers & set(after)):
        return
    reaches_back = node.core.state.log.first <= node.machine.oldest  # whoever lacks something gets it from the leader
    asked = sorted({*after, *configuration.voters} - newcomers)
    answers = await asyncio.gather(*(_lacks(node, each, is_doubted=not reaches_back) for each in asked))
    lacking = dict(zip(asked, answers, strict=True))
    having = [each for each in after if (reaches_back if each in newcomers else not lacking[each])]
    if 2 * len(having) > len(after):
        return
    if isinstance(change, AddLearners | Promote) and not any(lacking[each] for each in configuration.voters):
        return  # nothing is taken away, and nobody is being waited for
    told = [f"node {each}: {why}" for each, why in lacking.items() if why]
    raise ApiError(
        Code.MEMBERS_CHANGING,
        f"node {node.node_id}: of the voters {list(after)} that this leads to only {having or 'none'} would have the "
        f"log from {node.machine.oldest} on, which may still be read ({'; '.join(told) or 'a new node begins without'})"
        ": try again once they have fetched it, add a node and wait before one is removed, or let the older log go "
        "(raftlog log trim)",
        why="history",
    )


async def is_kept_by_others(node: Node) -> bool:
    """Whether a majority of the voters has what may be read, this one not counted: then it may be without it for a
    while, and fetch it again."""
    voters = node.core.state.configuration.voters
    others = [each for each in voters if each != node.node_id]
    lacking = await asyncio.gather(*(_lacks(node, each, is_doubted=True) for each in others))
    return 2 * lacking.count("") > len(voters)


def _newcomers(configuration: Configuration, change: Change) -> set[NodeId]:
    """Whose disks that change names for the first time."""
    members: tuple[Member, ...] = ()
    match change:
        case AddLearners(members, _):
            pass
        case Replace(_, member):
            members = (member,)
    known = {(each.node, each.incarnation) for each in configuration.members}
    return {each.node for each in members if (each.node, each.incarnation) not in known}


async def _lacks(node: Node, voter: NodeId, *, is_doubted: bool) -> str:
    """What that voter has not of the log that may be read; empty: it has all of it. `is_doubted`: also who says
    nothing may lack something."""
    if voter == node.node_id:
        begins, applied = node.disk.oldest, node.applied
    else:
        try:
            had = await node.peer_log.ask(voter, What.STATE, timeout_s=ASK_S)
        except NoAnswer as error:
            return str(error) if is_doubted else ""
        begins, applied = had.begins, had.applied
    if begins > node.machine.oldest:
        return f"its disk begins at {begins}, it fetches what is older"
    if applied < node.core.state.log.first - 1:
        return f"it has only reached {applied}"
    return ""
