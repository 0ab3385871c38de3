"""One oldest index: what may be read is one fact of the cluster, and no record that may be read is deleted.

A node whose log begins later got a snapshot instead: then its log begins right behind that.
"""

from __future__ import annotations

from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId

PROPERTY = "one oldest index"
SECTION = "promises.md: one oldest index"


class OneOldest:
    """The oldest index after each entry, as the first node that applied it has it."""

    def __init__(self) -> None:
        self._made: dict[int, int] = {}  # end of an entry -> the oldest index after it

    def stands(self, node: NodeId, index: int, oldest: int) -> None:
        """A node's state after the entry that ends at `index` has this oldest index. Raises InvariantBroken."""
        known = self._made.setdefault(index, oldest)
        if known != oldest or not 1 <= oldest <= index:
            evidence = f"after index {index} the oldest is {oldest} here, and {known} elsewhere"
            raise InvariantBroken(node, PROPERTY, SECTION, evidence)


def kept(node: NodeId, first: int, oldest: int, installed: int) -> None:
    """A node's log begins at `first`; `installed` is the index of the snapshot that took its place, or 0. Raises
    InvariantBroken."""
    due = max(oldest, installed + 1)
    if first > due:
        evidence = f"the log begins at {first}: records from {due} on may be read, and are deleted"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)
