"""Equal effects: the same log gives the same effects and state on every node, byte for byte (thesis 3.2)."""

from __future__ import annotations

from typing import Any

from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId

PROPERTY = "equal effects and digests"
SECTION = "promises.md: deterministic"


class EqualEffects:
    """What the first node to apply each entry made of it."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}  # end of an entry -> (its effects, the state's digest after it)
        self._snapshots: dict[int, bytes] = {}  # index -> digest of the snapshot's bytes

    def applied(self, node: NodeId, index: int, effects: object, digest: object) -> bool:
        """A node applied the entry that ends at `index`; whether it was the first. Raises InvariantBroken."""
        made = self._made.setdefault(index, (effects, digest))
        if made[0] is effects:
            return True
        if made[0] != effects:
            raise InvariantBroken(node, PROPERTY, SECTION, f"entry {index} did {effects} here, {made[0]} elsewhere")
        self._same(node, index, made[1], digest)
        return False

    def restored(self, node: NodeId, index: int, digest: object) -> None:
        """A node's state comes from a snapshot of that index. Raises InvariantBroken."""
        made = self._made.get(index)
        if made is not None:
            self._same(node, index, made[1], digest)

    def saved(self, node: NodeId, index: int, digest: bytes) -> None:
        """A node made a snapshot: its bytes depend on the log alone. Raises InvariantBroken."""
        seen = self._snapshots.setdefault(index, digest)
        if seen != digest:
            raise InvariantBroken(node, PROPERTY, SECTION, f"the snapshots of {index} differ between nodes")

    def _same(self, node: NodeId, index: int, known: object, digest: object) -> None:
        if known != digest:
            raise InvariantBroken(node, PROPERTY, SECTION, f"the state after {index} is {digest}, elsewhere {known}")
