"""Commit, apply and persisted marks go no further than the node's own synced disk (raft paper 5.3; thesis 10.2.1)."""

from __future__ import annotations

from raftlog.chaos.sim.disk.view import View
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.log import Log
from raftlog.raft.types import NodeId

PROPERTY = "what counts as durable is synced"
SECTION = "thesis 10.2.1"


def persisted_moved(node: NodeId, log: Log, view: View) -> None:
    """A core believes that its log is durable up to `persisted`; what it applies is bound by that.

    Raises InvariantBroken.
    """
    index = log.persisted
    if view.durable_last < index or (index and not view.has(index, log.term_at(index) or 0)):
        evidence = (
            f"it takes {index} (term {log.term_at(index)}) for durable; its disk is synced to {view.durable_last}"
        )
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)
