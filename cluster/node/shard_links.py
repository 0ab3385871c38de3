"""Gives the replica of a further Raft group the links of its node, and puts the group's number into its frames.

The host makes one for each group except group 0, whose replica uses the transport as it is. Consensus messages name
their group themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from raftlog.cluster.peers.transport import LinkSeen, Transport
from raftlog.raft.codec.frame import encode_for_shard
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.messages import Message
from raftlog.raft.types import NodeId


class ShardLinks:
    """The `raftlog.cluster.replica.ports.Links` of one replica."""

    __slots__ = ("_shard", "_transport", "dirty")

    def __init__(self, transport: Transport, shard: int) -> None:
        self._transport, self._shard = transport, shard
        self.dirty: Collection[object] = transport.dirty

    def set_members(
        self, configuration: Configuration, known: Sequence[Member] = (), leaving: Collection[NodeId] = ()
    ) -> None:
        """See `Transport.set_members`."""
        self._transport.set_members(configuration, known, leaving, shard=self._shard)

    @property
    def strangers(self) -> Mapping[NodeId, Member]:
        """See `Transport.strangers`."""
        return self._transport.strangers

    def send(self, message: Message) -> None:
        """See `Transport.send`."""
        assert message.shard == self._shard, message
        self._transport.send(message)

    def send_bulk(self, to: NodeId, frame: bytes) -> bool:
        """See `Transport.send_bulk`."""
        return self._transport.send_bulk(to, encode_for_shard(self._shard, frame))

    def flush(self) -> None:
        """See `Transport.flush`."""
        self._transport.flush()

    def version_of(self, peer: NodeId) -> int:
        """See `Transport.version_of`."""
        return self._transport.version_of(peer)

    def is_bulk_up(self, to: NodeId) -> bool:
        """See `Transport.is_bulk_up`."""
        return self._transport.is_bulk_up(to)

    def is_answering(self, peer: NodeId, within_s: float) -> bool:
        """See `Transport.is_answering`."""
        return self._transport.is_answering(peer, within_s)

    def links_seen(self) -> Mapping[NodeId, LinkSeen]:
        """See `Transport.links_seen`."""
        return self._transport.links_seen()

    def refused_of(self, node: NodeId) -> str:
        """See `Transport.refused_of`."""
        return self._transport.refused_of(node)

    @property
    def refused_lately(self) -> Collection[tuple[float, str, str]]:
        """See `Transport.refused_lately`."""
        return self._transport.refused_lately
