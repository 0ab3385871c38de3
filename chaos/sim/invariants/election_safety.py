"""Election safety: at most one leader in a term (raft paper figure 3, section 5.2)."""

from __future__ import annotations

from raft.invariants import InvariantBroken
from raft.types import NodeId

PROPERTY = "election safety"
SECTION = "figure 3"


class ElectionSafety:
    """Who led each term."""

    __slots__ = ("leaders",)

    def __init__(self) -> None:
        self.leaders: dict[int, NodeId] = {}

    def became_leader(self, node: NodeId, term: int) -> None:
        """A node leads a term from now on. Raises InvariantBroken."""
        leader = self.leaders.setdefault(term, node)
        if leader != node:
            raise InvariantBroken(node, PROPERTY, SECTION, f"node {leader} led term {term} too")
