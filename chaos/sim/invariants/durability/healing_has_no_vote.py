"""A node whose log lost entries to damage has no vote before it has them again (Protocol-Aware Recovery, FAST'18)."""

from __future__ import annotations

from raftlog.chaos.sim.disk.view import View
from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId

PROPERTY = "a log that lost entries has no vote"
SECTION = "pitfall 66: a damaged node that wins an election"


def votes(
    known: Knowledge, node: NodeId, term: int, candidate: NodeId, view: View, log: tuple[int, int] | None
) -> None:
    """A vote leaves, be it for itself. `log` is how the candidate says that its log ends (term, index).

    A disk that lost promises without damage may vote for a log that has all of them that were committed: its peers
    report them to it. Raises InvariantBroken.
    """
    if view.forgotten:
        committed = [(term, index) for index, term in view.forgotten if known.is_committed(index, term)]
        if node in known.rolled_back and log is not None and log >= max(committed, default=(0, 0)):
            return
        evidence = f"a vote for node {candidate} in {term}; it held up to {max(view.forgotten)}: {view.durable_last}"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)
