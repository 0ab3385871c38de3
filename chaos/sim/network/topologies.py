"""Shapes of a bad network: which directed links each one cuts, as pure functions of the nodes.

The shapes that broke real systems: one direction, one pair, one node, halves, a ring, a bridge, a hub that all see
while they do not see each other, and the partial one of Howard and Abraham ("Raft does not guarantee liveness in the
face of network faults", 2020; Cloudflare's outage of that year).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raftlog.raft.types import NodeId

Links = tuple[tuple[NodeId, NodeId], ...]
"""Directed links, (sender, to)."""


def only(nodes: Sequence[NodeId], pairs: Iterable[tuple[NodeId, NodeId]]) -> Links:
    """Cut everything but those pairs, which stay connected both ways."""
    kept = {frozenset(pair) for pair in pairs}
    return tuple((a, b) for a in nodes for b in nodes if a != b and frozenset((a, b)) not in kept)


def both_ways(one: NodeId, other: NodeId) -> Links:
    """One pair."""
    return ((one, other), (other, one))


def inbound(nodes: Sequence[NodeId], node: NodeId) -> Links:
    """A node that hears no other node, though all hear it."""
    return tuple((peer, node) for peer in nodes if peer != node)


def outbound(nodes: Sequence[NodeId], node: NodeId) -> Links:
    """A node that no other node hears, though it hears all."""
    return tuple((node, peer) for peer in nodes if peer != node)


def alone(nodes: Sequence[NodeId], node: NodeId) -> Links:
    """A node that is cut off."""
    return outbound(nodes, node) + inbound(nodes, node)


def halves(nodes: Sequence[NodeId], side: Iterable[NodeId]) -> Links:
    """Two sides that do not see each other."""
    here = frozenset(side)
    return tuple((a, b) for a in nodes for b in nodes if (a in here) != (b in here))


def hub(nodes: Sequence[NodeId], middle: NodeId) -> Links:
    """All see the middle one, and no other node."""
    return only(nodes, ((middle, node) for node in nodes))


def bridge(nodes: Sequence[NodeId], middle: NodeId) -> Links:
    """Two sides that only the middle one sees: each side and the middle are whole (Jepsen's bridge)."""
    others = [node for node in nodes if node != middle]
    left = others[: len(others) // 2]
    return tuple((a, b) for a in others for b in others if (a in left) != (b in left))


def ring(nodes: Sequence[NodeId]) -> Links:
    """Everyone sees its two neighbours (Jepsen's majorities-ring, when the nodes are five)."""
    return only(nodes, zip(nodes, (*nodes[1:], nodes[0]), strict=True))


def howard(nodes: Sequence[NodeId]) -> Links:
    """The first nodes are whole among themselves; of the last two, one sees only the second and one only the third.

    With five: 1-2-3 connected, 4 only to 2, 5 only to 3. Needs at least five nodes.
    """
    *whole, fourth, fifth = nodes
    pairs = [(a, b) for a in whole for b in whole if a < b]
    return only(nodes, [*pairs, (fourth, whole[1]), (fifth, whole[2])])
