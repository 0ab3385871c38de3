"""Election safety: at most one leader in a term (raft paper figure 3, section 5.2)."""

from __future__ import annotations

from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId

PROPERTY = "election safety"
SECTION = "figure 3"


class ElectionSafety:
    """The leader of each term. Two processes of one node, on a disk and its copy, are two leaders."""

    def __init__(self) -> None:
        self.leaders: dict[int, tuple[NodeId, int]] = {}

    def became_leader(self, node: NodeId, term: int, run: int = 0) -> None:
        """A process of a node leads a term from now on. Raises InvariantBroken."""
        leader, other = self.leaders.setdefault(term, (node, run))
        if leader != node:
            raise InvariantBroken(node, PROPERTY, SECTION, f"node {leader} led term {term} too")
        if other and other != run:
            raise InvariantBroken(node, PROPERTY, SECTION, f"another process of it led term {term} too: {other:016x}")

    def forgotten(self, term: int) -> None:
        """The leader of that term died before its own vote was durable: it may lead that term again."""
        if term in self.leaders:
            self.leaders[term] = (self.leaders[term][0], 0)
