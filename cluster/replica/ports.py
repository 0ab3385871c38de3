"""Declares what a replica's parts may call in the code around them, as protocols: the driver and the links.

The server, the simulator and the tests implement them. A part that needs a turn, another request or background work
calls the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from raftlog.cluster.files.errors import ReadDamaged
from raftlog.cluster.peers.transport import LinkSeen
from raftlog.cluster.protocol.request import RequestResult
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.messages import Message
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import NodeId


class Driver(Protocol):
    """Methods of the code that drives a replica, for its parts. All calls are made on the event loop."""

    def wake(self) -> None:
        """Schedules a whole turn."""

    def look_soon(self) -> None:
        """Schedules a check whether the waiting requests make a batch."""

    def turn(self) -> bool:
        """Runs a whole turn now."""

    def carry_out(self) -> None:
        """Carries out the wishes of the core, after the disk or a peer gave it new input."""

    def tick_when_due(self) -> None:
        """Ticks at the core's next deadline, if that comes before the next ordinary tick."""

    def fail(self, error: BaseException) -> None:
        """Ends the replica: it cannot continue after this error."""

    def submit(
        self, block: bytes, count: int, *, deadline: float, session: int = 0, sequence: int = 0
    ) -> asyncio.Future[RequestResult]:
        """Submits a request block as a client would. Raises ApiError, as the future does."""

    def synced(self, batch: SyncBatch) -> None:
        """That batch is durable. The syncer calls it."""

    def read_damaged(self, error: ReadDamaged) -> None:
        """A reader of the log met damage on the disk."""

    def spawn(self, work: Coroutine[Any, Any, None], *, must_finish: bool = False) -> asyncio.Task[None]:
        """Runs background work. An error in it ends the replica. A stop cancels it, unless it `must_finish`."""


class Links(Protocol):
    """The links of this node to its peers, as a replica uses them."""

    @property
    def dirty(self) -> Collection[object]:
        """The links with frames for the next `flush`."""

    def set_members(
        self, configuration: Configuration, known: Sequence[Member] = (), leaving: Collection[NodeId] = ()
    ) -> None:
        """Dials the members of this configuration and of `known`, and closes other links but those to `leaving`."""

    @property
    def strangers(self) -> Mapping[NodeId, Member]:
        """Nodes that dialled this one and that the configuration does not name, or not so; with their own addresses."""

    def send(self, message: Message) -> None:
        """Queues a consensus message until `flush`. The link may drop it."""

    def send_bulk(self, to: NodeId, frame: bytes) -> bool:
        """Queues a frame on the bulk link. False: it will never be sent."""

    def flush(self) -> None:
        """Writes the queued messages and frames to the peers."""

    def has_dialled(self, peer: NodeId) -> bool:
        """Whether this node believes a bulk connection of the peer."""

    def is_bulk_up(self, to: NodeId) -> bool:
        """Whether the bulk link to that peer is connected."""

    def is_answering(self, peer: NodeId, within_s: float) -> bool:
        """Whether the link to that peer is up and something came from it in the last `within_s` seconds."""

    def links_seen(self) -> Mapping[NodeId, LinkSeen]:
        """The state of each consensus link, by peer."""

    def refused_of(self, node: NodeId) -> str:
        """The reason why this node refuses that member's connections. Empty: it does not."""

    @property
    def refused_lately(self) -> Collection[tuple[float, str, str]]:
        """The newest refused connections: time, peer and reason."""
