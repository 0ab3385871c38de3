"""Manages the peer links of one node: directed connections with bounded queues that never block the node.

The host has one. A full queue drops messages. Two outgoing links go to each other member, for consensus and for bulk
frames, and each is dialled again when it closes. Connections that peers dialled come in through `Accepted`. They are
asyncio protocols, not streams: one call decodes a chunk of bytes into messages and hands them to the node at once.
docs/promises.md: one connection for each direction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple, cast

from raftlog.cluster.config.cluster_file import SettingsError, split_address
from raftlog.cluster.config.settings import LimitSettings, PeerSettings
from raftlog.cluster.peers.accepted import Accepted
from raftlog.cluster.peers.commit_notices import CommitNotices
from raftlog.cluster.peers.dialled import Link
from raftlog.cluster.peers.hello import Hello, Purpose, Word
from raftlog.cluster.peers.hello_proof import Proofs, Standing
from raftlog.cluster.peers.ports import PeerIdentity, Receiver
from raftlog.cluster.peers.refused_hellos import RefusedHello, RefusedHellos
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.door import Door, Encryption, listen
from raftlog.cluster.runtime.line_limit import LineLimit
from raftlog.cluster.runtime.logging import Logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.cluster.security.tls import Credentials
from raftlog.raft.codec.message import message_parts
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.hello import PeerProcess
from raftlog.raft.messages import AppendEntries, InstallSnapshot, Message, RequestVote
from raftlog.raft.types import NOBODY, NodeId

NO_MEMBERS: Final = Configuration()
QUESTIONS: Final = (AppendEntries, RequestVote)  # messages that every living peer answers
REFUSED_FRESH_S: Final = 5.0  # a refused peer dials again every `dialled.REFUSED_REDIAL_S` seconds
REASON_CHARACTERS_MAX: Final = 300
BACKLOG: Final = 100  # peer connections that wait to be accepted
STRANGERS_MAX: Final = 8  # newest nodes outside the configuration whose addresses are kept
REFUSED_SHOWN_MAX: Final = 8  # newest refusals that `raftlog explain` reports


class LinkSeen(NamedTuple):
    """This node's consensus link to a peer, and when something last came from there (`clock.monotonic`)."""

    is_up: bool
    is_reached: bool  # it is up, or it held and is dialled again at this moment
    trouble: str  # why its newest dial failed; empty while `is_reached`
    refusal: str
    heard: float | None
    round_trip_us: int | None = None  # of the connection; None: it is down, or not known
    hello: Hello | None = None  # the newest believed one of that disk
    left: float | None = None  # when the connection of that hello closed; None: it stands


def _is_address(hello: Hello) -> bool:
    try:
        split_address(hello.at, f"the address in the hello of node {hello.sender}")
    except SettingsError:
        return False
    return True


class Transport:
    """All links of one node. Made on the event loop; `start` listens, `set_members` dials, `close` ends everything."""

    def __init__(
        self,
        identity: PeerIdentity,
        receiver: Receiver,
        *,
        peer: PeerSettings,
        limits: LimitSettings,
        dial: dict[int, str],
        silence_ms: int,
        metrics: Metrics,
        logger: Logger,
        credentials: Credentials | None = None,
    ) -> None:
        """`credentials`: None for links without TLS."""
        self.identity = identity
        self.receiver = receiver
        self.settings = peer
        self.limits = limits
        self.metrics = metrics
        self.logger = logger
        self.credentials = credentials
        self.silence_s = silence_ms / 1_000
        self.configurations: dict[int, Configuration] = {}  # configuration in force of each Raft group
        self._members: dict[int, tuple[tuple[Member, ...], Collection[NodeId]]] = {}  # to dial, and to keep
        self.met: dict[tuple[NodeId, str], PeerProcess] = {}  # newest believed process of each disk
        self.accepted: set[Accepted] = set()
        self.current: dict[tuple[NodeId, str, Purpose], Accepted] = {}  # by sender, disk and purpose
        self._dial = dial
        self._links: dict[tuple[NodeId, Purpose], Link] = {}
        self._consensus: dict[NodeId, Link] = {}
        self._bulk: dict[NodeId, Link] = {}
        self.dirty: list[Link] = []  # with frames for the next `flush`
        self.proofs = Proofs(self)
        self.commit_notices = CommitNotices(self._send_held)
        self._door: Door | None = None
        self._refused: dict[NodeId, tuple[float, str]] = {}  # time and reason, by the member that was proved to say it
        self.refused_hellos = RefusedHellos()
        self.lines = LineLimit()  # of the log, about refused connections
        self.refused_lately: deque[tuple[float, str, str]] = deque(maxlen=REFUSED_SHOWN_MAX)  # time, peer, reason
        self._met: list[Hello] = []  # see `meet`
        self._left: dict[NodeId, tuple[float, Hello]] = {}  # newest closed consensus connection: when, and its hello
        self._heard: dict[NodeId, float] = {}  # when something last came on the consensus link
        self.is_closing = False

    async def start(self, host: str, port: int) -> None:
        """Listens for peers. Raises OSError when the address is taken."""
        tls, credentials = None, self.credentials
        if credentials is not None:
            tls = Encryption(
                lambda: credentials.context("server"),
                handshake_s=self.limits.handshake_timeout_ms / 1_000,
                handshakes_max=self.limits.handshakes_max,
                address_max=self.limits.address_handshakes_max,
                refused=self.refused,
                takes_plain=credentials.takes_plain,
            )
        self._door = await listen(
            lambda: cast(Any, Accepted(self)), host, port, BACKLOG, tls=tls, files_kept=0, linger_s=0
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
        self.configurations[shard] = configuration
        self._members[shard] = ((*configuration.members, *known), leaving)
        groups = [self._members[each] for each in sorted(self._members, reverse=True)]
        named = {member.node: member for members, _ in groups for member in members}
        leaving = {node for _, nodes in groups for node in nodes}
        wanted = {
            (member.node, purpose): (self._dial.get(member.node, member.peer), member.incarnation)
            for member in named.values()
            if member.node != self.identity.node
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
                bytes_max = self.limits.link_bytes_max if purpose is Purpose.CONSENSUS else self.limits.bulk_bytes_max
                self._links[node, purpose] = Link(self, node, purpose, address, disk, bytes_max)
        self._consensus = {node: link for (node, purpose), link in self._links.items() if purpose is Purpose.CONSENSUS}
        self._bulk = {node: link for (node, purpose), link in self._links.items() if purpose is Purpose.BULK}
        self.proofs.keep(self._consensus)
        self.refused_hellos.keep(self._consensus)
        for accepted in list(self.accepted):
            accepted.check_member()
        self.meet()

    @property
    def own_address(self) -> str:
        """host:port at which the configuration says that peers reach this node; "" if it does not name it."""
        own = self.configuration.member(self.identity.node)
        return "" if own is None else own.peer

    def meet(self) -> None:
        """Finds the open connections of nodes that the configuration does not name, or not with the disk and address of
        their hello. That a node is believed, since it was dialled back, changes nothing in the configuration."""
        self._met = [
            hello
            for accepted in sorted(self.accepted, key=lambda each: each.came)
            if (hello := accepted.hello) is not None
            and accepted.standing is not Standing.WAITING
            and hello.purpose is Purpose.CONSENSUS
            and self._names(hello) != (hello.incarnation, hello.at)
            and _is_address(hello)
        ]

    @property
    def strangers(self) -> dict[NodeId, Member]:
        """The nodes of these connections, at the addresses that they name, unless the configuration names another place
        of that node and it answers there, or has not been dialled yet. Where neither answers, they are dialled in turn.

        The configuration may have been changed while this node was down. Then the replica has such a node dialled, if
        it leads, may need a vote, or may know of lost promises.
        """
        if not self._met:
            return {}
        found = {
            hello.sender: Member(hello.sender, hello.incarnation, hello.at, "")
            for hello in self._met
            if self._is_stranger(hello)
        }
        return dict(list(found.items())[-STRANGERS_MAX:])

    def _names(self, hello: Hello) -> tuple[str, str] | None:
        """The disk and address of that node in the configuration."""
        named = self.configuration.member(hello.sender)
        return None if named is None else (named.incarnation, named.peer)

    def _is_stranger(self, hello: Hello) -> bool:
        link = self._consensus.get(hello.sender)
        if link is None:
            return True
        is_there = (link.disk, link.address) == (hello.incarnation, self._dial.get(hello.sender, hello.at))
        if link.is_up:
            return is_there
        return self._names(hello) is None or is_there is not bool(link.trouble)

    def closed(self, accepted: Accepted, hello: Hello | None, error: str) -> None:
        """That connection closed. The replica hears of it unless it was never believed, or a newer one replaced it."""
        self.accepted.discard(accepted)
        self.proofs.forget(accepted)
        if hello is None:
            return
        self.meet()
        if self.current.get(key := (hello.sender, hello.incarnation, hello.purpose)) is not accepted:
            return
        del self.current[key]
        if hello.purpose is Purpose.CONSENSUS:
            self._left[hello.sender] = clock.monotonic(), hello
        if hello.purpose is Purpose.CONSENSUS and not self.is_closing:
            self.logger.info("peer_disconnected", peer=hello.sender, error=error)
            named = [each for (sender, _, use), each in self.current.items() if (sender, use) == (key[0], key[2])]
            if not named:
                self.receiver.peer_link_closed(hello.sender)
            for other in named:  # of another disk under this number, as after a replacement
                other.report()

    @property
    def configuration(self) -> Configuration:
        """The configuration of group 0, which has the cluster version and the disks of the members."""
        return self.configurations.get(0, NO_MEMBERS)

    def link_to(self, node: NodeId) -> Link | None:
        """The consensus link to that node, whose listener confirms hellos in its name; None: it is not dialled."""
        return self._consensus.get(node)

    def links_to(self, node: NodeId) -> list[Link]:
        """All links to that node."""
        return [link for link in (self._consensus.get(node), self._bulk.get(node)) if link is not None]

    def welcomed(self, link: Link) -> None:
        """The listener at the other end has answered: sends it the challenges that came in its name."""
        for accepted in self.accepted:
            if accepted.sender == link.node and accepted.challenge:
                link.say(Word.ANSWER, accepted.challenge)
        self.proofs.look(link.node)

    def send(self, message: Message) -> None:
        """Queues a consensus message until `flush`; dropped (and counted) when the link is down or full.

        A piece of a snapshot goes by the bulk link, because it must not delay a heartbeat. A mere commit index may wait
        a little.
        """
        if message.shard or not isinstance(message, AppendEntries) or not self.commit_notices.holds(message):
            self._put(message)

    def _send_held(self, message: Message) -> None:
        self._put(message)
        self.flush()

    def _put(self, message: Message) -> None:
        links = self._bulk if isinstance(message, InstallSnapshot) else self._consensus
        link = links.get(message.to)
        if link is None or not link.send(*message_parts(message)):
            self.metrics.count("raftlog_link_dropped_total", str(message.to))
        elif not link.waiting_since and isinstance(message, QUESTIONS):
            link.waiting_since = clock.monotonic()

    def send_bulk(self, to: NodeId, frame: bytes) -> bool:
        """Queues a frame on the bulk link. False: it was not sent and never will be."""
        link = self._bulk.get(to)
        return link is not None and link.send(frame)

    def has_dialled(self, peer: NodeId) -> bool:
        """Whether this node believes a bulk connection of the peer."""
        return any(node == peer and purpose is Purpose.BULK for node, _, purpose in self.current)

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
        self._tell_refused()
        now = clock.monotonic()
        limit = now - self.silence_s
        silent: list[NodeId] = []
        for node, link in self._consensus.items():
            if link.is_up and 0.0 < link.waiting_since < limit:
                self.logger.info("peer_silent", peer=node, silence_s=self.silence_s)
                silent.append(node)
                link.redial()
                self._bulk[node].redial()
        for connection in list(self.accepted):
            connection.check_unfinished(now, is_silent=connection.sender in silent)

    def queued(self, link: Link) -> None:
        """That link has frames for the next `flush`."""
        self.dirty.append(link)

    def refused(self, who: str, reason: str, sender: NodeId = NOBODY) -> None:
        """This node closed a connection that a peer dialled. `sender`: the node that is proved to dial it (NOBODY: what
        the connection said shows nothing about any node)."""
        if sender in self._consensus:
            self._refused[sender] = (clock.monotonic(), reason)
        self.metrics.count("raftlog_link_closed_total", "refused")
        self.refused_lately.append((clock.monotonic(), who, reason))
        if self.lines.allows(f"{who.rpartition(':')[0]} {reason}"):
            self.logger.warning("peer_refused", who=who, reason=reason[:REASON_CHARACTERS_MAX], **self._told_of())

    def refused_hello(self, hello: Hello, *, is_proved: bool) -> None:
        """This node refuses that hello: the core hears of it if it is proved, soon."""
        refused = RefusedHello(hello.sender, hello.incarnation, hello.start)
        self.refused_hellos.refuse(refused, is_proved=is_proved)
        self._tell_refused()

    def _tell_refused(self) -> None:
        for each in self.refused_hellos.due(clock.monotonic()):
            self.receiver.peer_refused(*each)

    def has_room(self, reason: str) -> bool:
        """Whether one more connection is within the limit. If not, the oldest one whose hello is not believed is
        closed. So connections that say nothing keep no member out: its hello is believed within milliseconds."""
        unproved = [each for each in self.accepted if each.standing is not Standing.BELIEVED]
        if len(self.accepted) >= self.limits.peer_connections_max and unproved:
            oldest = min(unproved, key=lambda each: each.opened)
            self.accepted.discard(oldest)
            oldest.end(reason)
            oldest.abort()
        return len(self.accepted) < self.limits.peer_connections_max

    def refused_of(self, node: NodeId) -> str:
        """Why this node refuses that member's connections. Empty: it believes one, or none came lately."""
        when, reason = self._refused.get(node, (0.0, ""))
        link = self._consensus.get(node)
        is_believed = link is not None and (node, link.disk, Purpose.CONSENSUS) in self.current
        return "" if is_believed or clock.monotonic() - when > REFUSED_FRESH_S else reason

    def refused_by(self, node: NodeId, reason: str) -> None:
        """A peer closed a connection that this node made."""
        if self.lines.allows(f"{node} {reason}"):
            self.logger.error(
                "peer_refuses_this_node", peer=node, reason=reason[:REASON_CHARACTERS_MAX], **self._told_of()
            )

    def link_failed(self, node: NodeId, error: Exception) -> None:
        """Dialling a peer failed with an error that no network causes. The link dials again."""
        if self.lines.allows(f"{node} {type(error).__name__}: {error}"):
            self.logger.error("peer_link_failed", peer=node, then="it is dialled again", exc_info=error)

    def end_revoked(self) -> None:
        """Ends the connections of peers whose certificate has been revoked meanwhile."""
        for connection in list(self.accepted):
            connection.check_certificate()
        for link in self._links.values():
            link.check_certificate()

    def _told_of(self) -> dict[str, int]:
        """The number of lines left out since the last line, as a field of the next one."""
        left_out = self.lines.take_left_out()
        return {"left_out": left_out} if left_out else {}

    def connections(self) -> dict[str, float]:
        """1 for each outgoing link that is up, else 0; by `peer/purpose`. For /metrics."""
        return {f"{node}/{purpose.name.lower()}": float(link.is_up) for (node, purpose), link in self._links.items()}

    def links_seen(self) -> dict[NodeId, LinkSeen]:
        """The state of the consensus links, by peer."""
        return {
            node: LinkSeen(
                is_up=link.is_up,
                is_reached=link.is_reached,
                trouble="" if link.is_reached else link.trouble,
                refusal=link.refusal,
                heard=self._heard.get(node),
                round_trip_us=link.round_trip_us,
                hello=(found := self._hello_of(node, link.disk))[1],
                left=found[0],
            )
            for node, link in self._consensus.items()
        }

    def _hello_of(self, node: NodeId, disk: str) -> tuple[float | None, Hello | None]:
        """The newest believed hello of that disk, and when its connection closed."""
        accepted = self.current.get((node, disk, Purpose.CONSENSUS))
        if accepted is not None:
            return None, accepted.hello
        left, hello = self._left.get(node, (None, None))
        return (left, hello) if hello is not None and hello.incarnation == disk else (None, None)

    async def close(self) -> None:
        """Ends every link and stops listening."""
        self.is_closing = True
        self.commit_notices.stop()
        if self._door is not None:
            await self._door.close()
        for connection in list(self.accepted):
            connection.abort()
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            link.close()
        await asyncio.gather(*(link.task for link in links), return_exceptions=True)
        await asyncio.sleep(0)  # connections aborted or accepted meanwhile are closed in the next turn
