"""Decides whether a replica is ready: it knows a leader, has caught up, and the other members accept its links."""

from __future__ import annotations

from raftlog.cluster.protocol import cut_off
from raftlog.cluster.replica.state import ReplicaState
from raftlog.raft.types import NOBODY, NodeId


def refusals(replica: ReplicaState) -> dict[NodeId, str]:
    """The members that refuse this node's connections, with their reasons."""
    links, members = replica.links.links_seen(), replica.core.state.configuration.peers(replica.identity.node)
    return {peer: links[peer].refusal for peer in members if peer in links and links[peer].refusal}


def is_cut_off(replica: ReplicaState) -> bool:
    """Whether the leader or a majority refuses this node, so that no other member counts its acknowledgements."""
    state = replica.core.state
    return cut_off.is_cut_off(state.configuration, replica.identity.node, state.leader, refusals(replica))


def is_ready(replica: ReplicaState) -> bool:
    """Whether the node knows a leader, has caught up, and is not cut off."""
    state, applier = replica.core.state, replica.applier
    return (
        state.leader != NOBODY
        and replica.members.is_member
        and not replica.life.is_stopping
        and not replica.life.is_fenced
        and applier.applied >= min(replica.life.start_index, state.log.last.index)
        and not applier.waiting
        and not is_cut_off(replica)
        and not replica.life.only_here
    )
