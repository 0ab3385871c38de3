"""Manages the peer links of one node: directed connections with bounded queues that never block the node.

The host has one. A full queue drops messages. Two outgoing links go to each other member, for consensus and for bulk
frames, and each is dialled again when it closes. Connections that peers dialled come in through `AcceptedConnection`.
They are asyncio protocols, not streams: one call decodes a chunk of bytes into messages and hands them to the node at
once.
docs/promises.md: one connection for each direction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple, cast

from raftlog.cluster.peers.accepted import AcceptedConnection, IncomingConnections
from raftlog.cluster.peers.commit_notices import CommitNotices
from raftlog.cluster.peers.dialled import Link
from raftlog.cluster.peers.hello import Hello, Purpose, Word
from raftlog.cluster.peers.hello_proof import Proofs
from raftlog.cluster.peers.ports import LinkParts
from raftlog.cluster.peers.refusals import Refusals
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.door import Door, Encryption, listen
from raftlog.raft.codec.message import message_parts
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.messages import AppendEntries, InstallSnapshot, Message, RequestVote
from raftlog.raft.types import NodeId

NO_MEMBERS: Final = Configuration()
QUESTIONS: Final = (AppendEntries, RequestVote)  # messages that every living peer answers
BACKLOG: Final = 100  # peer connections that wait to be accepted


class LinkSeen(NamedTuple):
    """This node's consensus link to a peer, and when something last came from there (`clock.monotonic`)."""

    is_up: bool
    is_reached: bool  # it is up, or it held and is dialled again at this moment
    trouble: str  # why its newest dial failed; empty while `is_reached`
    refusal: str
    heard: float | None
    round_trip_us: int | None = None  # of the connection; None: it is down, or not known
    left: float | None = None  # when the connection of that hello closed; None: it is open
    hello: Hello | None = None  # the newest believed one of that disk


class Transport:
    """All links of one node. Made on the event loop; `start` listens, `set_members` dials, `close` ends everything."""

    def __init__(self, parts: LinkParts, dial: dict[NodeId, str]) -> None:
        """`dial`: where some members are dialled in place of their address in the configuration."""
        self.parts = parts
        self.refusals = Refusals(parts.metrics, parts.logger)
        self.incoming = IncomingConnections(self.parts, self, self.refusals)
        self.dirty: list[Link] = []  # with frames for the next `flush`
        self._configurations: dict[int, Configuration] = {}  # configuration in force of each Raft group
        self._members: dict[int, tuple[tuple[Member, ...], Collection[NodeId]]] = {}  # to dial, and to keep
        self._dial = dial
        self._links: dict[tuple[NodeId, Purpose], Link] = {}
        self._consensus: dict[NodeId, Link] = {}
        self._bulk: dict[NodeId, Link] = {}
        self._commit_notices = CommitNotices(self._send_held)
        self._door: Door | None = None
        self._heard: dict[NodeId, float] = {}  # when something last came on the consensus link

    @property
    def is_closing(self) -> bool:
        """Whether the node stops."""
        return self.incoming.is_closing

    @property
    def proofs(self) -> Proofs:
        """The challenges of this node, and the connections that wait for a proof."""
        return self.incoming.proofs

    async def start(self, host: str, port: int) -> None:
        """Listens for peers. Raises OSError when the address is taken."""
        tls, credentials, limits = None, self.parts.credentials, self.parts.limits
        if credentials is not None:
            tls = Encryption(
                lambda: credentials.context("server"),
                handshake_s=limits.handshake_timeout_ms / 1_000,
                handshakes_max=limits.handshakes_max,
                address_max=limits.address_handshakes_max,
                refused=self.refusals.refused,
                takes_plain=credentials.takes_plain,
            )
        self._door = await listen(
            lambda: cast(Any, AcceptedConnection(self.incoming)), host, port, BACKLOG, tls=tls, files_kept=0, linger_s=0
        )

    def set_members(
        self,
        configuration: Configuration,
        known: Sequence[Member] = (),
        leaving: Collection[NodeId] = (),
        *,
        shard: int = 0,
    ) -> None:
        """Dials every other member of any Raft group, and dials again if a member's address or disk changed. An open
        link to a member that has another address now stays until it closes.

        Links to nodes that are no members any more are closed, except those to `leaving`. `known` are dialled as well,
        at the addresses that they name, before a configuration names this node. If groups name different addresses of
        a node, the lowest group counts.
        """
        self._configurations[shard] = configuration
        self._members[shard] = ((*configuration.members, *known), leaving)
        groups = [self._members[each] for each in sorted(self._members, reverse=True)]
        named = {member.node: member for members, _ in groups for member in members}
        leaving = {node for _, nodes in groups for node in nodes}
        wanted = {
            (member.node, purpose): (self._dial.get(member.node, member.peer), member.incarnation)
            for member in named.values()
            if member.node != self.parts.identity.node
            for purpose in Purpose
        }
        for key, link in list(self._links.items()):
            place, disk = wanted.get(key, ("", ""))
            if (place, disk) == (link.place, link.disk) or (not place and key[0] in leaving):
                continue
            if disk == link.disk and link.is_up:
                link.move(place)
            else:
                del self._links[key]
                link.close()
        for (node, purpose), (address, disk) in wanted.items():
            if (node, purpose) not in self._links:
                limits = self.parts.limits
                bytes_max = limits.link_bytes_max if purpose is Purpose.CONSENSUS else limits.bulk_bytes_max
                self._links[node, purpose] = Link(self, node, purpose, address, disk, bytes_max)
        self._consensus = {node: link for (node, purpose), link in self._links.items() if purpose is Purpose.CONSENSUS}
        self._bulk = {node: link for (node, purpose), link in self._links.items() if purpose is Purpose.BULK}
        self.proofs.keep(self._consensus)
        self.refusals.keep(self._consensus)
        self.incoming.refused_hellos.keep(self._consensus)
        for connection in list(self.incoming.open):
            connection.check_member()
        self.incoming.look()

    @property
    def own_address(self) -> str:
        """host:port at which the configuration says that peers reach this node; "" if it does not name it."""
        own = self.configuration.member(self.parts.identity.node)
        return "" if own is None else own.peer

    @property
    def strangers(self) -> dict[NodeId, Member]:
        """See `IncomingConnections.strangers`."""
        return self.incoming.strangers

    def place_of(self, node: NodeId, address: str) -> str:
        """As `OutgoingLinks.place_of`."""
        return self._dial.get(node, address)

    @property
    def configuration(self) -> Configuration:
        """The configuration of group 0, which has the cluster version and the disks of the members."""
        return self._configurations.get(0, NO_MEMBERS)

    def link_to(self, node: NodeId) -> Link | None:
        """The consensus link to that node, whose listener confirms hellos in its name; None: it is not dialled."""
        return self._consensus.get(node)

    def links_to(self, node: NodeId) -> list[Link]:
        """All links to that node."""
        return [link for link in (self._consensus.get(node), self._bulk.get(node)) if link is not None]

    def welcomed(self, link: Link) -> None:
        """The listener at the other end has answered: sends it the challenges that came in its name."""
        for connection in self.incoming.open:
            if connection.sender == link.node and connection.challenge:
                link.say(Word.ANSWER, connection.challenge)
        self.proofs.look(link.node)

    def send(self, message: Message) -> None:
        """Queues a consensus message until `flush`; dropped (and counted) when the link is down or full.

        A piece of a snapshot goes by the bulk link, because it must not delay a heartbeat. A mere commit index may wait
        a little.
        """
        if message.shard or not isinstance(message, AppendEntries) or not self._commit_notices.holds(message):
            self._put(message)

    def _send_held(self, message: Message) -> None:
        self._put(message)
        self.flush()

    def _put(self, message: Message) -> None:
        links = self._bulk if isinstance(message, InstallSnapshot) else self._consensus
        link = links.get(message.to)
        if link is None or not link.send(*message_parts(message)):
            self.parts.metrics.count("raftlog_link_dropped_total", str(message.to))
        elif not link.waiting_since and isinstance(message, QUESTIONS):
            link.waiting_since = clock.monotonic()

    def send_bulk(self, to: NodeId, frame: bytes) -> bool:
        """Queues a frame on the bulk link. False: it was not sent and never will be."""
        link = self._bulk.get(to)
        return link is not None and link.send(frame)

    def has_dialled(self, peer: NodeId) -> bool:
        """Whether this node believes a bulk connection of the peer."""
        return any(node == peer and purpose is Purpose.BULK for node, _, purpose in self.incoming.current)

    def is_bulk_up(self, to: NodeId) -> bool:
        """Whether the bulk link to that node is connected."""
        link = self._bulk.get(to)
        return link is not None and link.is_up

    def flush(self) -> None:
        """Writes the frames that were queued in this turn: one write per link."""
        for link in self.dirty:
            link.flush()
        self.dirty.clear()

    def heard(self, peer: NodeId) -> None:
        """Something came from that peer, so it is not silent."""
        self._heard[peer] = clock.monotonic()
        link = self._consensus.get(peer)
        if link is not None:
            link.waiting_since = 0.0

    def asked(self, peer: NodeId) -> None:
        """That peer serves clients: messages to it are not held back for a while."""
        self._commit_notices.asked(peer)

    def is_answering(self, peer: NodeId, within_s: float) -> bool:
        """Whether the link to that peer is up and something came from it in the last `within_s` seconds.

        The age of an unanswered question would not show a silent leader: its followers ask it nothing before an
        election.
        """
        link = self._consensus.get(peer)
        if link is None or not link.is_up:
            return False
        return clock.monotonic() - self._heard.get(peer, -within_s) < within_s

    def check_silence(self) -> None:
        """Closes and dials again each link on which a message stayed unanswered for two election timeouts.

        The connection may be dead. An accepted connection checks itself for a frame that does not end.
        """
        self.incoming.report_refused()
        now = clock.monotonic()
        limit = now - self.parts.silence_s
        silent: list[NodeId] = []
        for node, link in self._consensus.items():
            if link.is_up and 0.0 < link.waiting_since < limit:
                self.parts.logger.info("peer_silent", peer=node, silence_s=self.parts.silence_s)
                silent.append(node)
                link.redial()
                self._bulk[node].redial()
        for connection in list(self.incoming.open):
            connection.check_unfinished(now, is_silent=connection.sender in silent)

    def queued(self, link: Link) -> None:
        """That link has frames for the next `flush`."""
        self.dirty.append(link)

    @property
    def refused_lately(self) -> Collection[tuple[float, str, str]]:
        """The newest refused connections: time, peer and reason."""
        return self.refusals.lately

    def refused_of(self, node: NodeId) -> str:
        """Why this node refuses that member's connections. Empty: it believes one, or none came lately."""
        link = self._consensus.get(node)
        is_believed = link is not None and (node, link.disk, Purpose.CONSENSUS) in self.incoming.current
        return "" if is_believed else self.refusals.of(node)

    def end_revoked(self) -> None:
        """Ends the connections of peers whose certificate has been revoked meanwhile."""
        for connection in list(self.incoming.open):
            connection.check_certificate()
        for link in self._links.values():
            link.check_certificate()

    def connections(self) -> dict[str, float]:
        """1 for each outgoing link that is up, else 0; by `peer/purpose`. For /metrics."""
        return {f"{node}/{purpose.name.lower()}": float(link.is_up) for (node, purpose), link in self._links.items()}

    def links_seen(self) -> dict[NodeId, LinkSeen]:
        """The state of the consensus links, by peer."""
        return {
            node: LinkSeen(
                link.is_up,
                link.is_reached,
                "" if link.is_reached else link.trouble,
                link.refusal,
                self._heard.get(node),
                link.round_trip_us,
                *self.incoming.hello_of(node, link.disk),
            )
            for node, link in self._consensus.items()
        }

    async def close(self) -> None:
        """Ends every link and stops listening."""
        self.incoming.is_closing = True
        self._commit_notices.stop()
        if self._door is not None:
            await self._door.close()
        for connection in list(self.incoming.open):
            connection.abort()
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            link.close()
        await asyncio.gather(*(link.task for link in links), return_exceptions=True)
        await asyncio.sleep(0)  # connections aborted or accepted meanwhile are closed in the next turn
