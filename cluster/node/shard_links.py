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
        self._transport.set_members(configuration, known, leaving, shard=self._shard)

    @property
    def strangers(self) -> Mapping[NodeId, Member]:
        return self._transport.strangers

    def send(self, message: Message) -> None:
        assert message.shard == self._shard, message
        self._transport.send(message)

    def send_bulk(self, to: NodeId, frame: bytes) -> bool:
        return self._transport.send_bulk(to, encode_for_shard(self._shard, frame))

    def flush(self) -> None:
        self._transport.flush()

    def has_dialled(self, peer: NodeId) -> bool:
        return self._transport.has_dialled(peer)

    def is_bulk_up(self, to: NodeId) -> bool:
        return self._transport.is_bulk_up(to)

    def is_answering(self, peer: NodeId, within_s: float) -> bool:
        return self._transport.is_answering(peer, within_s)

    def links_seen(self) -> Mapping[NodeId, LinkSeen]:
        return self._transport.links_seen()

    def refused_of(self, node: NodeId) -> str:
        return self._transport.refused_of(node)

    @property
    def refused_lately(self) -> Collection[tuple[float, str, str]]:
        return self._transport.refused_lately
