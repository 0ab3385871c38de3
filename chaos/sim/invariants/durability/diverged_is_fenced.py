"""Diverged is fenced: a node whose state differs from that of a majority answers no request any more.

A naive twin of `raftlog.cluster.protocol.digest_points`: it counts the reports that each process sent and received,
over the voters of its own configuration. The world checks that no sound state is fenced, and that every wrong one is
found in the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.cluster.protocol.digest_points import POINTS_KEPT
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId

PROPERTY = "diverged is fenced"
SECTION = "promises.md: the majority's digest is right"


class DivergedIsFenced:
    """What each process knows of digest points."""

    def __init__(self) -> None:
        self._own: dict[NodeId, dict[int, bytes]] = {}
        self._reports: dict[NodeId, dict[NodeId, dict[int, bytes]]] = {}

    def began(self, node: NodeId) -> None:
        self._own.pop(node, None)
        self._reports.pop(node, None)

    def applied(self, node: NodeId, index: int, value: bytes) -> None:
        own = self._own.setdefault(node, {})
        own[index] = value
        _forget(own)

    def reported(self, node: NodeId, peer: NodeId, reports: Iterable[tuple[int, bytes]]) -> None:
        known = self._reports.setdefault(node, {}).setdefault(peer, {})
        known.update(reports)
        _forget(known)

    def answers(self, node: NodeId, configuration: Configuration) -> None:
        """A node answers a client that a write was applied, or a read was done. Raises InvariantBroken."""
        sides = [side for side in (configuration.voters, configuration.outgoing) if side]
        for index, own in self._own.get(node, {}).items():
            values = {peer: found[index] for peer, found in self._reports.get(node, {}).items() if index in found}
            for value in set(values.values()) - {own}:
                same = [sum(values.get(voter) == value for voter in side) for side in sides]
                if all(2 * count > len(side) for count, side in zip(same, sides, strict=True)):
                    evidence = f"it answers, and its state at {index} is not that of {sorted(values)}"
                    raise InvariantBroken(node, PROPERTY, SECTION, evidence)


def _forget(values: dict[int, bytes]) -> None:
    """A node remembers the newest points of each replica, and can judge by those alone."""
    for index in sorted(values)[:-POINTS_KEPT]:
        del values[index]
