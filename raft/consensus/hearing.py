"""Decides whose messages count: those of members' disks, and of others what a node that slept must be able to take.

`RaftCore.step` asks before it looks at a message, and the replica before it takes a request or a report. A removed node
keeps its key and its certificate. If its messages counted, its term alone would stop all writes, and its entries would
replace acknowledged ones. But a node that slept through changes of the members does not know the disks that lead and
vote now. So a node that hears no leader takes messages of disks that its configuration has never named. Of a disk that
a committed configuration removed it takes none. Thesis 4.2.3; docs/decisions/0027-whose-messages-count.md.
"""

from __future__ import annotations

from typing import Final

from raftlog.raft.consensus import recall
from raftlog.raft.consensus.roles import Follower, Leader
from raftlog.raft.consensus.state import State
from raftlog.raft.messages import Message, Recall, RecallReply, is_promise
from raftlog.raft.types import NOBODY, NodeId

_WAS_REMOVED: Final = "a committed configuration removed its disk"


def refusal(state: State, peer: NodeId, disk: str) -> str:
    """Why this node takes nothing of that disk of `peer` now; "": it does. An empty `disk` is not known, and stands for
    the one that the configuration names."""
    if state.configurations[-1][1].names(peer, disk):
        return ""
    if state.has_removed(peer, disk):
        return _WAS_REMOVED
    if _hears_member(state):
        return "the configuration does not name its disk, and this node hears a leader that it names"
    return ""


def refusal_of(state: State, message: Message, disk: str) -> str:
    """The same of one message of that disk."""
    peer, configuration = message.sender, state.configurations[-1][1]
    if configuration.names(peer, disk):
        return ""
    is_unknown = configuration.member(peer) is None
    if is_promise(message):
        if not is_unknown:
            return "the configuration names another disk of that node, whose promises alone count"
        if message.term <= state.term:
            return ""  # it can raise no term, and no majority counts it
    elif isinstance(message, Recall):
        return ""  # it changes nothing
    elif isinstance(message, RecallReply):
        is_alone = configuration.voters == (state.node,)
        if not message.is_lost and (is_alone or recall.is_waiting(state)):
            # This disk may be an old copy, whose configuration does not name the node that remembers what it lost: a
            # new one, or one with a new disk. It knows the number of this process, because this node dialled it.
            return _WAS_REMOVED if any(disk == each for _, each in configuration.removed) else ""
    elif message.term < state.term:
        return ""  # it is answered with this node's term, and changes nothing
    elif is_unknown and peer == state.leader and message.term == state.term:
        return ""  # a leader that removes itself still commits that, and hands over
    return refusal(state, peer, disk)


def _hears_member(state: State) -> bool:
    """Whether this node leads as a member, or has heard its leader, a member, within the least election timeout."""
    role, configuration = state.role, state.configurations[-1][1]
    if isinstance(role, Leader):
        return configuration.member(state.node) is not None
    if not isinstance(role, Follower) or role.leader == NOBODY:
        return False
    if not configuration.names(role.leader, state.recall.said.get(role.leader, ("", 0))[0]):
        return False
    return state.now.monotonic_ms - role.contact_ms < state.options.election_timeout_min_ms
