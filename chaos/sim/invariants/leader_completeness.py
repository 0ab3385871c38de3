"""Leader completeness: whoever is elected holds every entry committed before (raft paper figure 3, section 5.4)."""

from __future__ import annotations

from chaos.sim.invariants.known import Known
from raft.invariants import InvariantBroken
from raft.log import Log
from raft.types import NodeId

PROPERTY = "leader completeness"
SECTION = "figure 3"


def became_leader(known: Known, node: NodeId, log: Log) -> None:
    """A node leads from now on. With log matching the newest committed entry speaks for all. Raises InvariantBroken."""
    index, term = known.newest
    if log.term_at(index) != term:
        raise InvariantBroken(node, PROPERTY, SECTION, f"entry {(index, term)} is committed, its log: {log.last}")
