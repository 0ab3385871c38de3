"""Why the core refuses a request: one exception class per reason; nothing was appended, nothing will happen.

The driver turns them into `not_applied` answers (DESIGN section 1, promise 3).
"""

from __future__ import annotations

from enum import StrEnum

from raft.types import NOBODY, NodeId


class Refused(Exception):
    """The core took nothing; the same request may be made again, here or at the leader."""


class NotLeader(Refused):
    """Only a leader does this. `leader` is who is known to lead, or NOBODY."""

    def __init__(self, leader: NodeId = NOBODY) -> None:
        super().__init__(f"not the leader; the leader is {f'node {leader}' if leader else 'not known'}")
        self.leader = leader


class Busy(Refused):
    """`Options.uncommitted_bytes_max` is reached (pitfall 29): wait for commits."""


class ReadsFull(Refused):
    """`Options.reads_pending_max` reads wait for their round."""


class TransferInProgress(Refused):
    """Leadership is being handed to `to`: a new entry would keep it from catching up (pitfall 82)."""

    def __init__(self, to: NodeId) -> None:
        super().__init__(f"leadership is being handed to node {to}")
        self.to = to


class CannotTransfer(Refused):
    """There is nobody to hand leadership to, or that node cannot take it."""


class WhyRefused(StrEnum):
    """Why a change of the members is not taken."""

    INVALID = "invalid"  # it names nobody, somebody twice, or an impossible number
    OVERLAPS = "overlaps"  # an earlier change is not finished
    NOT_READY = "not_ready"  # this leader has not committed an entry of its own term yet
    UNKNOWN_NODE = "unknown_node"
    ALREADY_MEMBER = "already_member"
    INCARNATION_REUSED = "incarnation_reused"
    LAST_VOTER = "last_voter"
    QUORUM_LOST = "quorum_lost"  # too few of the voters that would be left answer
    NOT_CAUGHT_UP = "not_caught_up"
    NOTHING_CHANGES = "nothing_changes"


class ConfigurationRefused(Refused):
    """A change of the members that is not taken; the text names what is wrong, and how to mend it."""

    def __init__(self, why: WhyRefused, what: str, mend: str) -> None:
        super().__init__(f"{what}; {mend}")
        self.why = why
        self.what = what
        self.mend = mend
