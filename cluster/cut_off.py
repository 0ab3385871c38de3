"""Decides whether a node is cut off: the others refuse its connections, so that what it says does not count.

Such a node may still follow, for the leader's own connection to it works. It gets no read index from the leader, and
nothing that it acknowledges counts. Pure: `cluster.node_status` calls it with what the links know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from raft.configuration import Configuration
from raft.types import NodeId


def is_cut_off(configuration: Configuration, node: NodeId, leader: NodeId, refusals: Mapping[NodeId, str]) -> bool:
    """Whether those members that refuse this node are the leader, or so many that the others are no majority."""
    if leader in refusals:
        return True
    majorities = (configuration.voters, configuration.outgoing)
    return bool(refusals) and any(not _is_majority(voters, refusals, node) for voters in majorities if voters)


def words(refusals: Mapping[NodeId, str]) -> str:
    """Which nodes refuse this one, and why, in one line."""
    return "; ".join(f"node {peer} refuses this node: {why}" for peer, why in sorted(refusals.items()))


def _is_majority(voters: Collection[NodeId], refusals: Mapping[NodeId, str], node: NodeId) -> bool:
    left = [voter for voter in voters if voter == node or voter not in refusals]
    return len(left) > len(voters) // 2
