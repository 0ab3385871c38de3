"""Takes the news of a node's own links to its peers: to the core, and to whatever waits for answers that came by them.

Part of `Node`, which is the transport's receiver. What peers dial is told in cluster/node.py.
"""

from __future__ import annotations

import asyncio

from cluster import clock
from cluster.peer_log import PeerLog
from cluster.pending import Pending
from cluster.settings import NodeExit
from cluster.waiting import Reads
from raft.core import RaftCore
from raft.types import NodeId


class LinkNews:
    """What the transport tells of the connections that this node dials."""

    core: RaftCore
    ended: asyncio.Future[NodeExit]
    pending: Pending
    reads: Reads
    peer_log: PeerLog

    def consensus_link_opened(self, peer: NodeId) -> None:
        """What the core sends to that peer gets there from now on: a leader's heartbeat, at once."""
        if not self.ended.done():
            self.core.link_dialled(peer, clock.read())
            self.wake()

    def consensus_link_refused(self, peer: NodeId) -> None:
        """No process listens there. If it led, an election is due soon, before the next tick perhaps."""
        if not self.ended.done():
            now = clock.read()
            self.core.link_refused(peer, now)
            due_ms = self.core.next_deadline_ms() - now.monotonic_ms
            if due_ms <= self.core.state.options.link_refused_delay_max_ms:
                asyncio.get_running_loop().call_later(max(0, due_ms) / 1_000, self.look_at_clock)

    def bulk_link_closed(self, peer: NodeId) -> None:
        """What was sent there and not answered may or may not have arrived."""
        self.pending.link_lost(peer, f"the link to node {peer} closed")
        self.reads.lost(peer)
        self.peer_log.lost(peer)
        self.wake()

    def bulk_link_opened(self, peer: NodeId) -> None:
        """Requests may wait for it, and the rest of a snapshot."""
        if not self.ended.done():
            self.core.link_dialled(peer, clock.read(), is_bulk=True)
            self.wake()

    def wake(self) -> None:
        """A turn will come after what is ready on the loop now."""
        raise NotImplementedError

    def look_at_clock(self) -> None:
        """Do what is due."""
        raise NotImplementedError
