"""One vote: a node votes at most once in a term, restarts included (figure 2, section 5.2; thesis 3.8)."""

from __future__ import annotations

from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId

PROPERTY = "one vote per term"
SECTION = "5.2"


class OneVote:
    """Every vote ever given."""

    def __init__(self) -> None:
        self.votes: dict[tuple[NodeId, int], NodeId] = {}

    def votes_for(self, node: NodeId, term: int, candidate: NodeId) -> None:
        """A vote leaves its voter; a candidate's own counts too. Raises InvariantBroken."""
        voted = self.votes.setdefault((node, term), candidate)
        if voted != candidate:
            evidence = f"in term {term} for node {candidate}, and before for node {voted}"
            raise InvariantBroken(node, PROPERTY, SECTION, evidence)

    def forget(self, node: NodeId, after: int) -> None:
        """No candidate counted that node's votes in terms after that one, and the node has forgotten them."""
        for key in [key for key in self.votes if key[0] == node and key[1] > after]:
            del self.votes[key]

    def started(self, node: NodeId, term: int, vote: NodeId) -> None:
        """A node starts with what its disk remembers. Raises InvariantBroken."""
        voted = self.votes.get((node, term))
        if voted is not None and voted != vote:
            evidence = f"in term {term} for node {voted}; it starts with a vote for node {vote}"
            raise InvariantBroken(node, PROPERTY, SECTION, evidence)
