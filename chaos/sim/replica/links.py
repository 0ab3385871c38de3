"""Gives a simulated process its links: consensus messages and bulk frames go over the world's network.

As in production, a process sends only to nodes that it dials: those that its replica names. The network itself connects
all nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from raftlog.chaos.sim.replica.connections import Connections
from raftlog.cluster.peers.transport import LinkSeen
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.messages import Message
from raftlog.raft.types import NodeId


class NodeLinks:
    """The `raftlog.cluster.replica.ports.Links` of one process."""

    def __init__(self, node: Connections) -> None:
        self._node, self._life = node, node.life
        self.dirty: Collection[object] = ()  # all has left already

    @property
    def refused_lately(self) -> Collection[tuple[float, str, str]]:
        return ()

    def set_members(
        self, configuration: Configuration, known: Sequence[Member] = (), leaving: Collection[NodeId] = ()
    ) -> None:
        """The process dials these from now on. Links to members of before stay if they are `leaving`."""
        node = self._node
        if node.life == self._life:
            wanted = {member.node: member.incarnation for member in (*configuration.members, *known)}
            kept = {peer: disk for peer, disk in node.hellos.dialled.items() if peer in leaving}
            node.dial({peer: disk for peer, disk in (kept | wanted).items() if peer != node.node})

    @property
    def strangers(self) -> Mapping[NodeId, Member]:
        """Nodes that dialled this one, and that it does not dial because of its configuration."""
        return self._node.hellos.strangers

    def send(self, message: Message) -> None:
        """A consensus message leaves; the process may die behind it."""
        node = self._node
        if node.life == self._life and message.to in node.hellos.dialled:
            node.sends(message)

    def send_bulk(self, to: NodeId, frame: bytes) -> bool:
        node = self._node
        return node.life == self._life and to in node.hellos.dialled and node.world.links.send(node.node, to, frame)

    def flush(self) -> None:
        """All has left already."""

    def has_dialled(self, peer: NodeId) -> bool:
        """Whether the peer's bulk link is connected."""
        return self._node.world.links.is_up(peer, self._node.node)

    def is_bulk_up(self, to: NodeId) -> bool:
        """Whether the bulk link to that peer is connected."""
        return to in self._node.hellos.dialled and self._node.world.links.is_up(self._node.node, to)

    def is_answering(self, peer: NodeId, within_s: float) -> bool:
        node, within_us = self._node, int(within_s * 1e6)
        return node.world.now_us - node.hellos.heard_us.get(peer, -within_us) < within_us

    def links_seen(self) -> Mapping[NodeId, LinkSeen]:
        node = self._node
        is_up = {peer: not node.world.dials.is_down(node.node, peer) for peer in node.hellos.dialled}
        return {peer: LinkSeen(is_up[peer], is_up[peer], "", "", None) for peer in node.hellos.dialled}

    def refused_of(self, node: NodeId) -> str:
        return ""
