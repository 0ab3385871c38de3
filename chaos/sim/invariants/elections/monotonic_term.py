"""Monotonic term: a node's term never falls, whatever becomes of its process (raft paper figure 2, section 5.1).

Within one process `raftlog.raft.consensus.invariants.check_step` sees to it; here is what a restart must not forget.
"""

from __future__ import annotations

from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId

PROPERTY = "the term never falls"
SECTION = "figure 2"


class MonotonicTerm:
    """The newest term in which each node promised anything."""

    def __init__(self) -> None:
        self.promised: dict[NodeId, int] = {}

    def promises(self, node: NodeId, term: int) -> None:
        if self.promised.get(node, 0) < term:
            self.promised[node] = term

    def started(self, node: NodeId, term: int) -> None:
        if term < self.promised.get(node, 0):
            evidence = f"it starts in term {term} and had promised in {self.promised[node]}"
            raise InvariantBroken(node, PROPERTY, SECTION, evidence)
