"""State machine safety: nodes apply the same entries in the same order, none left out (figure 3, section 5.4.3)."""

from __future__ import annotations

from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import Entry, NodeId

PROPERTY = "state machine safety"
SECTION = "figure 3"


class StateMachineSafety:
    """How far each node has applied, as a position among the committed entries."""

    def __init__(self) -> None:
        self.positions: dict[NodeId, int] = {}  # how many committed entries its state holds

    def restored(self, known: Knowledge, node: NodeId, index: int, term: int) -> None:
        """The node's state stands at the end `index`: that of a snapshot, or of the first entry."""
        if not known.is_committed(index, term):
            raise InvariantBroken(node, "a snapshot holds only committed entries", "section 7", (index, term))
        self.positions[node] = known.position(index) + 1

    def applied(self, known: Knowledge, node: NodeId, entry: Entry) -> None:
        position = self.positions[node]
        where = (entry.index, entry.term)
        committed = known.committed
        if position >= len(committed) or committed[position] != where:
            expected = committed[position] if position < len(committed) else "nothing"
            raise InvariantBroken(node, PROPERTY, SECTION, f"it applies {where}, where {expected} is committed")
        crc = entry.mark.header_crc
        if known.chain[where] != crc:
            raise InvariantBroken(node, PROPERTY, SECTION, f"it applies {where} with another header CRC: {crc:08x}")
        self.positions[node] = position + 1
