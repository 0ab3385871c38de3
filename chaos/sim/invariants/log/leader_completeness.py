"""Leader completeness: an elected leader holds every entry committed before (raft paper figure 3, section 5.4)."""

from __future__ import annotations

from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.log import Log
from raftlog.raft.types import NodeId

PROPERTY = "leader completeness"
SECTION = "figure 3"


def became_leader(known: Knowledge, node: NodeId, term: int, log: Log) -> None:
    """A node leads that term from now on; with log matching the newest entry committed before it speaks for all.

    What a later term committed it need not have: a paused winner may learn late that it won. Raises InvariantBroken.
    """
    index, term = known.newest_before(term)
    if log.term_at(index) != term:
        raise InvariantBroken(node, PROPERTY, SECTION, f"entry {(index, term)} is committed, its log: {log.last}")
