"""Takes from the transport what peers send and how their links are, and steps the node's core with it.

What the core raises ends the node. Requests of peers that make no sense close their connection instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ParamSpec

from cluster import clock, node_requests
from raft.codec import Frame
from raft.hello import Start
from raft.messages import Message
from raft.types import NodeId

if TYPE_CHECKING:
    from cluster.node import Node

P = ParamSpec("P")


class NodeLinks:
    """The `cluster.transport.Receiver` of one node. Belongs to its event loop."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def peer_messages(self, peer: NodeId, messages: Sequence[Message]) -> None:
        """Consensus messages: taken at once, in one turn."""
        node = self._node
        if node.ended.done():
            return
        try:
            now = clock.read()
            for message in messages:
                node.core.step(message, now)
        except Exception as error:
            node.fail(error)
        node.turn()

    def peer_requests(self, peer: NodeId, frames: Sequence[Frame]) -> None:
        """Forwards, read indexes and answers. Raises Corrupt for what makes no sense."""
        if not self._node.ended.done():
            for frame in frames:
                node_requests.take_frame(self._node, peer, frame)
            self._node.turn()

    def peer_link_opened(self, peer: NodeId, incarnation: str, knows: int, start: Start | None) -> None:
        """Who is connected counts for the cluster version, and what a process found at its start for its promises."""
        self._tell(self._node.core.link_opened, peer, incarnation, knows, clock.read(), start)

    def peer_link_closed(self, peer: NodeId) -> None:
        """A closed link is news (DESIGN section 3)."""
        self._tell(self._node.core.link_closed, peer, clock.read())

    def _tell(self, step: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> None:
        node = self._node
        if not node.ended.done():
            try:
                step(*arguments, **named)
            except Exception as error:
                node.fail(error)
            node.wake()

    def bulk_link_closed(self, peer: NodeId) -> None:
        """What was sent there and not answered may or may not have arrived."""
        node = self._node
        node.pending.link_lost(peer, f"the link to node {peer} closed")
        node.reads.lost(peer)
        node.peer_log.lost(peer)
        node.disks.lost(peer)
        node.wake()

    def bulk_link_opened(self, peer: NodeId) -> None:
        """Requests may wait for it, and the rest of a snapshot."""
        self._tell(self._node.core.link_dialled, peer, clock.read(), is_bulk=True)

    def consensus_link_opened(self, peer: NodeId) -> None:
        """What the core sends to that peer gets there from now on: a leader's heartbeat, at once."""
        self._tell(self._node.core.link_dialled, peer, clock.read())

    def consensus_link_refused(self, peer: NodeId) -> None:
        """No process listens there. If it led, an election may be due before the next tick."""
        self._tell(self._node.core.link_refused, peer, clock.read())
        self._node.tick_when_due()
