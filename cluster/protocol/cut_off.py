"""Decides whether a node is cut off, which means that the other members refuse its connections.

`raftlog.cluster.replica.readiness` calls it with the refusals that the links report. A node that is cut off may still
follow, because the leader's own connection to it works. But it gets no read index from the leader, and no other member
counts its acknowledgements. The decision is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from raftlog.raft.configuration import Configuration
from raftlog.raft.quorum import majority
from raftlog.raft.types import NodeId


def is_cut_off(configuration: Configuration, node: NodeId, leader: NodeId, refusals: Mapping[NodeId, str]) -> bool:
    """Whether the leader refuses this node, or so many members do that the others are no majority."""
    if leader in refusals:
        return True
    majorities = (configuration.voters, configuration.outgoing)
    return bool(refusals) and any(not _is_majority(voters, refusals, node) for voters in majorities if voters)


def words(refusals: Mapping[NodeId, str]) -> str:
    """Which nodes refuse this one, and why, in one line."""
    return "; ".join(f"node {peer} refuses this node: {why}" for peer, why in sorted(refusals.items()))


def _is_majority(voters: Collection[NodeId], refusals: Mapping[NodeId, str], node: NodeId) -> bool:
    left = [voter for voter in voters if voter == node or voter not in refusals]
    return len(left) >= majority(len(voters))
