"""Why the core refuses a request: one exception class per reason; nothing was appended, nothing will happen.

The driver turns them into `not_applied` answers (DESIGN section 1, promise 3).
"""

from __future__ import annotations

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


class ConfigurationRefused(Refused):
    """A change of the members that is not taken; the text says why."""
