"""A node whose log lost entries to damage has no vote before it has them again (Protocol-Aware Recovery, FAST'18)."""

from __future__ import annotations

from chaos.sim.invariants.known import Durable
from raft.invariants import InvariantBroken
from raft.types import NodeId

PROPERTY = "a log that lost entries has no vote"
SECTION = "pitfall 66"


def votes(node: NodeId, term: int, candidate: NodeId, disk: Durable) -> None:
    """A vote leaves, be it for itself. Raises InvariantBroken."""
    if disk.forgotten:
        evidence = f"a vote for node {candidate} in {term}; it held up to {max(disk.forgotten)}: {disk.durable_last}"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)
