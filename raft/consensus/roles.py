"""Defines the four roles, each with only the fields that it needs: a field that a role lacks cannot be stale.

A pre-candidate, for one, has no leader (pitfall 8: deadlock of pre-vote and check-quorum). Raft paper figure 4; thesis
sections 3.3, 3.10, 6.4, 9.6.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from raftlog.raft.changes import AddLearners
from raftlog.raft.consensus.progress import FollowerProgress
from raftlog.raft.types import NodeId


class RoleName(StrEnum):
    """A role's name, as status shows it."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class _Following:
    """The part that roles which do not lead share. The compiler makes a field of a dataclass's own attribute."""

    __slots__ = ()
    is_leader = False


class _Leading:
    """The same of the role that leads."""

    __slots__ = ()
    is_leader = True


@dataclass(slots=True)
class Follower(_Following):
    """Follows `leader` (or NOBODY), and starts an election at `deadline_ms`."""

    leader: NodeId
    contact_ms: int  # when that leader was last heard
    timeout_ms: int  # drawn once per stay in this role; each contact moves the deadline by it
    deadline_ms: int
    link_closed: bool = False  # the link from that leader closed since it was last heard
    kept: tuple[NodeId, ...] = ()  # peers whose links have stayed open since then
    hasty_ms: int | None = (
        None  # a dial to that leader was refused: an election may start then (`raftlog.raft.consensus.links`)
    )
    differs_at: int = 0  # the entry that has another header at the leader: what follows it is rejected
    rejections: int = 0  # messages rejected for that


@dataclass(slots=True)
class PreCandidate(_Following):
    """Asks whether it could win (thesis 9.6)."""

    votes: dict[NodeId, bool]
    deadline_ms: int
    link_closed: bool  # started because the leader's link closed


@dataclass(slots=True)
class Candidate(_Following):
    """Campaigns in the current term."""

    votes: dict[NodeId, bool]
    deadline_ms: int


@dataclass(slots=True)
class Transfer:
    """A hand-over under way (thesis 3.10)."""

    to: NodeId
    deadline_ms: int
    is_told: bool = False  # TimeoutNow left since the last heartbeat


@dataclass(slots=True)
class CatchUp:
    """A learner on its way to a vote, in rounds (thesis 4.2.1).

    A round ends when the learner has the log as it was when the round began.
    """

    replaces: NodeId  # the member that leaves when it gets its vote, or NOBODY
    target: int  # the end of this round
    started_ms: int
    round: int = 1


class ReadRound(NamedTuple):
    """Reads registered before `round` was opened; they may see the entries committed then."""

    round: int
    read_index: int
    contexts: tuple[int, ...]


@dataclass(slots=True)
class Leader(_Leading):
    """Leads the current term."""

    progress: dict[NodeId, FollowerProgress]  # everyone else of the configuration, in its order
    heartbeat_ms: int  # when the next heartbeat is due
    quorum_since_ms: int  # check-quorum does not look further back than this
    uncommitted_bytes: int = 0
    committed_at_heartbeat: int = -1
    is_stuck: bool = False  # nothing was committed since the last heartbeat, though something waits for it
    round: int = 0
    reads_new: list[int] = field(default_factory=list)  # registered, no round yet
    reads_open: deque[ReadRound] = field(default_factory=deque)
    reads_count: int = 0
    transfer: Transfer | None = None
    catch_ups: dict[NodeId, CatchUp] = field(default_factory=dict)
    catch_up_ms: int = 0  # when to look at them again
    next_change: AddLearners | None = None  # the second step of a replacement under the same number
    farewell_ms: int | None = None  # until then removed nodes are informed, or leadership is handed over


Role = Follower | PreCandidate | Candidate | Leader

ROLE_NAMES = {
    Follower: RoleName.FOLLOWER,
    PreCandidate: RoleName.PRE_CANDIDATE,
    Candidate: RoleName.CANDIDATE,
    Leader: RoleName.LEADER,
}
