"""Read linearizability: a read sees everything that was committed, or read, before it began (thesis section 6.4)."""

from __future__ import annotations

from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId

PROPERTY = "read linearizability"
SECTION = "thesis 6.4"


class ReadLinearizability:
    """What each waiting read must at least see."""

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        self._floors: dict[tuple[NodeId, int], int] = {}

    def began(self, node: NodeId, context: int) -> None:
        """A node takes a read. Whatever any node calls committed by now may have been acknowledged, or read."""
        self._floors[node, context] = self._known.newest[0]

    def ready(self, node: NodeId, context: int, index: int) -> None:
        """It may be answered from a state that has applied `index`. Raises InvariantBroken."""
        floor = self._floors.pop((node, context), 0)
        if index < floor:
            evidence = f"a read may be answered as of {index}; {floor} was committed before it began"
            raise InvariantBroken(node, PROPERTY, SECTION, evidence)

    def crashed(self, node: NodeId) -> None:
        """No client waits at that node any more."""
        for key in [key for key in self._floors if key[0] == node]:
            del self._floors[key]
