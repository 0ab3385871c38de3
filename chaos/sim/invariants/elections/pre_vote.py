"""Pre-vote: a candidate had the pre-votes of a majority, or its leader asked it to campaign (thesis 9.6, 3.10).

Without it a node that hears no leader raises the term again and again, and deposes the leader when it returns.
"""

from __future__ import annotations

from raftlog.chaos.sim.invariants.known import Knowledge, is_quorum
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.messages import RequestVote, RequestVoteReply, TimeoutNow
from raftlog.raft.types import NodeId

PROPERTY = "pre-vote"
SECTION = "thesis 9.6"


class PreVote:
    """The pre-votes granted, and the nodes that a leader asked to campaign."""

    def __init__(self) -> None:
        self._granted: dict[tuple[NodeId, int], list[NodeId]] = {}  # (candidate, term) -> nodes that granted
        self._asked: dict[NodeId, int] = {}  # node -> term of the leader that handed over

    def grants(self, message: RequestVoteReply) -> None:
        voters = self._granted.setdefault((message.to, message.request_term), [])
        if message.sender not in voters:
            voters.append(message.sender)

    def hands_over(self, message: TimeoutNow) -> None:
        self._asked[message.to] = max(message.term, self._asked.get(message.to, 0))

    def campaigns(self, known: Knowledge, message: RequestVote) -> None:
        """A candidate asks for votes. Which configuration it asked under is not known when its request leaves, so any
        will do. Raises InvariantBroken."""
        node, term = message.sender, message.term
        if message.transfer:
            if self._asked.get(node, 0) < term - 1:
                newest = self._asked.get(node)
                evidence = f"it campaigns in term {term} without pre-votes; its newest TimeoutNow is of {newest}"
                raise InvariantBroken(node, PROPERTY, "thesis 3.10", evidence)
            return
        granted = [node, *self._granted.get((node, term), ())]  # a slow disk may hold the request back for long
        if not any(is_quorum(configuration, granted) for configuration in known.configurations.values()):
            raise InvariantBroken(node, PROPERTY, SECTION, f"it campaigns in term {term}; pre-votes of {granted}")
