"""Defines the identity of this node in its hellos, what its peer links use, and what they call in the node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raftlog.cluster.config.settings import LimitSettings, PeerSettings
from raftlog.cluster.runtime.logging import Logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.cluster.security.tls import Credentials
from raftlog.raft.codec.frame import Frame
from raftlog.raft.hello import Start
from raftlog.raft.messages import Message
from raftlog.raft.types import NodeId
from raftlog.statemachine.versions import CLUSTER_VERSION


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The identity of this node in its hellos."""

    log: str
    node: NodeId
    incarnation: str
    boot: int
    start: Start
    knows: int = CLUSTER_VERSION  # the newest that its program knows
    program: str = ""  # the version of its raftlog
    disk_bytes: int = 0  # size of the disk that its data folder is on; 0: not known


@dataclass(frozen=True, slots=True)
class LinkParts:
    """What each link of a node uses. `credentials`: None for links without TLS."""

    identity: PeerIdentity
    receiver: Receiver
    settings: PeerSettings
    limits: LimitSettings
    silence_s: float  # after which a peer that was asked is silent
    metrics: Metrics
    logger: Logger
    credentials: Credentials | None


class Receiver(Protocol):
    """What the transport calls in the node. None of these may block."""

    def peer_messages(self, peer: NodeId, incarnation: str, messages: Sequence[Message]) -> None:
        """Consensus messages of one chunk of a connection of that disk, in order."""

    def peer_requests(self, peer: NodeId, incarnation: str, frames: Sequence[Frame]) -> None:
        """Frames of a bulk link of that disk. Raises Corrupt when one makes no sense: its connection is closed."""

    def peer_link_opened(self, peer: NodeId, incarnation: str, knows: int, start: Start) -> None:
        """The peer made a consensus connection to this node, with that disk; it knows cluster versions up to that.
        `start` is what its process found at its start."""

    def peer_refused(self, peer: NodeId, incarnation: str, start: Start) -> None:
        """This node refused the hello of a process of that peer, on that disk."""

    def has_removed(self, peer: NodeId, incarnation: str) -> bool:
        """Whether a configuration has removed that peer, or that disk if the peer is NOBODY: none of its connections is
        accepted."""

    def peer_link_closed(self, peer: NodeId) -> None:
        """The peer's consensus connection to this node closed."""

    def consensus_link_opened(self, peer: NodeId) -> None:
        """This node's consensus connection to the peer is up."""

    def consensus_link_refused(self, peer: NodeId) -> None:
        """This node dialled the peer, and no process listens there."""

    def bulk_link_closed(self, peer: NodeId) -> None:
        """This node's bulk connection to the peer closed. Frames that were sent on it may or may not have arrived."""

    def bulk_link_opened(self, peer: NodeId) -> None:
        """This node's bulk connection to the peer is up."""

    def bulk_link_believed(self, peer: NodeId) -> None:
        """The peer believes this node's bulk connection now. It may have dropped all earlier frames but requests."""


class ConnectionEnd:
    """The methods of `asyncio.Protocol` with nothing to do. A compiled class cannot have asyncio's own as its base."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""

    def eof_received(self) -> None:
        """The other side ends the connection: so does this side."""

    def pause_writing(self) -> None:
        """Much waits to be sent: `Link.send` looks at how much."""

    def resume_writing(self) -> None:
        """Little waits again."""
