"""Leader append-only: a leader never overwrites or deletes an entry of its log (raft paper figure 3, section 5.3)."""

from __future__ import annotations

from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.log import Log
from raftlog.raft.types import Mark, NodeId

PROPERTY = "leader append-only"
SECTION = "figure 3"


class LeaderAppendOnly:
    """Where each leader's log ended when it was last looked at."""

    def __init__(self) -> None:
        self._ends: dict[NodeId, tuple[int, Mark]] = {}  # leader -> (its term, the end of its log)

    def started(self, node: NodeId) -> None:
        """A new process. It can lead the same term again only where nothing of that term was durable: a sole voter
        that died before its vote for itself was."""
        self._ends.pop(node, None)

    def leads(self, node: NodeId, term: int, log: Log) -> None:
        """That node leads the term, now with this log. Raises InvariantBroken."""
        seen = self._ends.get(node)
        self._ends[node] = (term, log.last)
        if seen is None or seen[0] != term:
            return
        before = seen[1]
        now = log.mark_at(before.index)  # None once it left memory: then it was applied, and is looked at there
        if log.last.index < before.index or (now is not None and now.header_crc != before.header_crc):
            raise InvariantBroken(node, PROPERTY, SECTION, f"its log ended at {before} in term {term}, now {now}")
