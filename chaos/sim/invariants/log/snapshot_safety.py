"""Snapshot safety: a snapshot covers only applied, committed entries, and taking one loses nothing (section 7)."""

from __future__ import annotations

from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.log import Log
from raftlog.raft.types import Mark, NodeId

PROPERTY = "snapshot safety"
SECTION = "section 7"


def compacted(known: Knowledge, node: NodeId, mark: Mark, log: Log) -> None:
    """A node made a snapshot of its own state. Raises InvariantBroken."""
    if mark.index > log.applied or not known.is_committed(mark.index, mark.term):
        evidence = f"a snapshot up to {(mark.index, mark.term)}, applied {log.applied}"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)


def installed(known: Knowledge, node: NodeId, mark: Mark, before: tuple[int, int], had: bool, log: Log) -> None:
    """A node took another's snapshot. `before` was its (commit, last) then, `had` whether the entry at the mark was in
    its log: then all that followed it must still be there. Raises InvariantBroken."""
    committed, last = before
    where = (mark.index, mark.term)
    if not known.is_committed(mark.index, mark.term):
        raise InvariantBroken(node, PROPERTY, SECTION, f"a snapshot of {where}, which is not committed")
    if log.committed < committed or log.committed < mark.index:
        raise InvariantBroken(node, PROPERTY, SECTION, f"commit fell from {committed} by a snapshot of {where}")
    if had and log.last.index < last:
        evidence = f"the log had {where}, and lost what followed it: it ended at {last}, now at {log.last.index}"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)
