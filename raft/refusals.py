"""Defines the refusals of the core: one exception class per reason; nothing was appended, nothing will happen.

The driver turns them into `not_applied` answers (docs/promises.md: three outcomes).
"""

from __future__ import annotations

from enum import StrEnum

from raftlog.raft.types import NOBODY, NodeId


class ProposalRefused(Exception):
    """The core took nothing; the same request may be made again, here or at the leader."""


class NotLeader(ProposalRefused):
    """Only a leader does this. `leader` is the known leader, or NOBODY."""

    def __init__(self, leader: NodeId = NOBODY) -> None:
        super().__init__(f"not the leader; the leader is {f'node {leader}' if leader else 'not known'}")
        self.leader = leader


class Busy(ProposalRefused):
    """`Options.uncommitted_bytes_max` is reached (pitfall 29: endless growth of an isolated leader's log): wait for
    commits."""


class ReadsFull(ProposalRefused):
    """`Options.reads_pending_max` reads wait for their round."""


class TransferInProgress(ProposalRefused):
    """Leadership is being handed to `to`: a new entry would keep it from catching up (pitfall 82: a transfer that
    leaves a trace)."""

    def __init__(self, to: NodeId) -> None:
        super().__init__(f"leadership is being handed to node {to}")
        self.to = to


class CannotTransfer(ProposalRefused):
    """No node can take the leadership, or the named one cannot."""


class WhyRefused(StrEnum):
    """Why a change of the members is not taken."""

    INVALID = "invalid"  # it names no node, a node twice, or an impossible number
    OVERLAPS = "overlaps"  # an earlier change is not finished
    NOT_READY = "not_ready"  # this leader has not committed an entry of its own term yet
    UNKNOWN_NODE = "unknown_node"
    ALREADY_MEMBER = "already_member"
    INCARNATION_REUSED = "incarnation_reused"
    LAST_VOTER = "last_voter"
    QUORUM_LOST = "quorum_lost"  # too few of the voters that would be left answer
    NOT_CAUGHT_UP = "not_caught_up"
    NOTHING_CHANGES = "nothing_changes"


class ConfigurationRefused(ProposalRefused):
    """A refused change of the members; the text names the error and the fix."""

    def __init__(self, why: WhyRefused, what: str, mend: str) -> None:
        super().__init__(f"{what}; {mend}")
        self.why = why
