"""Receives from the connections that peers dial: checks each hello, then decodes frames and hands them over by chunks.

`raftlog.cluster.peers.transport` has one `IncomingConnections`, and makes an `AcceptedConnection` for each connection
that a peer dials.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from raftlog.cluster.api.status import fingerprint
from raftlog.cluster.config.cluster_file import SettingsError, split_address
from raftlog.cluster.peers.dialled import tune_socket
from raftlog.cluster.peers.hello import (
    PEER_VERSION_MAX,
    Hello,
    Purpose,
    Word,
    decode_hello,
    decode_word,
    encode_refusal,
    encode_word,
    refusal,
)
from raftlog.cluster.peers.hello_proof import HelloStanding, MemberLink, ProofLinks, Proofs
from raftlog.cluster.peers.ports import ConnectionEnd, LinkParts
from raftlog.cluster.peers.refusals import Refusals
from raftlog.cluster.peers.refused_hellos import RefusedHello, RefusedHellos
from raftlog.cluster.peers.sorting import Sorter
from raftlog.cluster.runtime import clock
from raftlog.cluster.security.tls import shown_certificate
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.frame import FRAME_HELLO, FRAME_SIZE, Frame, FrameDecoder
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.hello import NEVER_MET, PeerProcess, removed
from raftlog.raft.types import NOBODY, NodeId

RATE_MIN: Final = 16 << 10
"""Least bytes per second that a link should carry in the middle of a frame."""
STRANGERS_MAX: Final = 8
"""Newest nodes outside the configuration whose addresses are kept."""
HELD_BYTES_MAX: Final = 1 << 20
"""Most bytes kept of a connection until its hello is believed, which takes some milliseconds. A connection with more is
closed. The peer's next connection carries its proof in the hello."""


class OutgoingLinks(ProofLinks, Protocol):
    """What the connections need of the links that this node dials (`raftlog.cluster.peers.transport.Transport`)."""

    @property
    def configuration(self) -> Configuration:
        """That of Raft group 0."""

    def place_of(self, node: NodeId, address: str) -> str:
        """Where this node dials that one, if the configuration or its hello names the address."""

    def heard(self, peer: NodeId) -> None:
        """Something came from that peer."""

    def asked(self, peer: NodeId) -> None:
        """That peer serves clients."""


def _is_address(hello: Hello) -> bool:
    try:
        split_address(hello.at, f"the address in the hello of node {hello.sender}")
    except SettingsError:
        return False
    return True


class IncomingConnections:
    """The connections that peers dialled, and the newest processes behind them."""

    def __init__(self, parts: LinkParts, links: OutgoingLinks, refusals: Refusals) -> None:
        self.parts = parts
        self.links = links
        self.refusals = refusals
        self.refused_hellos = RefusedHellos()
        self.open: set[AcceptedConnection] = set()
        self.proofs = Proofs(links, self.open)
        self.current: dict[tuple[NodeId, str, Purpose], AcceptedConnection] = {}  # by sender, disk and purpose
        self.met: dict[tuple[NodeId, str], PeerProcess] = {}  # newest believed process of each disk
        self.is_closing = False
        self._unnamed: list[Hello] = []  # see `look`
        self._left: dict[NodeId, tuple[float, Hello]] = {}  # newest closed consensus connection: when, and its hello

    def has_room(self, reason: str) -> bool:
        """Whether one more connection is within the limit. If not, the oldest one whose hello is not believed is
        closed. So connections that say nothing keep no member out: its hello is believed within milliseconds."""
        most = self.parts.limits.peer_connections_max
        unproved = [each for each in self.open if each.standing is not HelloStanding.BELIEVED]
        if len(self.open) >= most and unproved:
            oldest = min(unproved, key=lambda each: each.opened)
            self.open.discard(oldest)
            oldest.end(reason)
            oldest.abort()
        return len(self.open) < most

    def refused_hello(self, hello: Hello, *, is_proved: bool) -> None:
        """This node refuses that hello: the core hears of it if it is proved, soon."""
        refused = RefusedHello(hello.sender, hello.incarnation, hello.start)
        self.refused_hellos.refuse(refused, is_proved=is_proved)
        self.report_refused()

    def report_refused(self) -> None:
        """The core hears of the refused hellos that are due."""
        for each in self.refused_hellos.due(clock.monotonic()):
            self.parts.receiver.peer_refused(*each)

    def closed(self, connection: AcceptedConnection, hello: Hello | None, error: str) -> None:
        """That connection closed. The replica hears of it unless it was never believed, or a newer one replaced it."""
        self.open.discard(connection)
        self.proofs.forget(connection)
        if hello is None:
            return
        self.look()
        if self.current.get(key := (hello.sender, hello.incarnation, hello.purpose)) is not connection:
            return
        del self.current[key]
        if hello.purpose is Purpose.CONSENSUS:
            self._left[hello.sender] = clock.monotonic(), hello
        if hello.purpose is Purpose.CONSENSUS and not self.is_closing:
            self.parts.logger.info("peer_disconnected", peer=hello.sender, error=error)
            named = [each for (sender, _, use), each in self.current.items() if (sender, use) == (key[0], key[2])]
            if not named:
                self.parts.receiver.peer_link_closed(hello.sender)
            for other in named:  # of another disk under this number, as after a replacement
                other.report()

    def hello_of(self, node: NodeId, disk: str) -> tuple[float | None, Hello | None]:
        """When its connection closed (None: it is open), and the newest believed hello of that disk."""
        connection = self.current.get((node, disk, Purpose.CONSENSUS))
        if connection is not None:
            return None, connection.hello
        left, hello = self._left.get(node, (None, None))
        return (left, hello) if hello is not None and hello.incarnation == disk else (None, None)

    def look(self) -> None:
        """Finds the open connections of nodes that the configuration does not name, or not with the disk and address of
        their hello. That a node is believed, since it was dialled back, changes nothing in the configuration."""
        self._unnamed = [
            hello
            for connection in sorted(self.open, key=lambda each: each.came)
            if (hello := connection.hello) is not None
            and connection.standing is not HelloStanding.WAITING
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
        if not self._unnamed:
            return {}
        found = {
            hello.sender: Member(hello.sender, hello.incarnation, hello.at, "")
            for hello in self._unnamed
            if self._is_stranger(hello, self.links.link_to(hello.sender))
        }
        return dict(list(found.items())[-STRANGERS_MAX:])

    def _names(self, hello: Hello) -> tuple[str, str] | None:
        """The disk and address of that node in the configuration."""
        named = self.links.configuration.member(hello.sender)
        return None if named is None else (named.incarnation, named.peer)

    def _is_stranger(self, hello: Hello, link: MemberLink | None) -> bool:
        if link is None:
            return True
        place = self.links.place_of(hello.sender, hello.at)
        is_there = (link.disk, link.address) == (hello.incarnation, place)
        if link.is_up:
            return is_there
        return self._names(hello) is None or is_there is not bool(link.trouble)


class AcceptedConnection(ConnectionEnd):
    """A connection that a peer dialled: a hello, then frames."""

    def __init__(self, owner: IncomingConnections) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._unfinished_since = 0.0  # when the unfinished frame began; 0: there is none
        self._came = 0  # bytes received since then
        self._sorter = Sorter()
        self._early = b""  # received bytes of an unfinished hello
        self.hello: Hello | None = None
        self.standing = HelloStanding.WAITING
        self.opened = clock.monotonic()
        self.came = 0.0  # when the hello came
        self.challenge = self._answer = 0  # the dialling node's challenge, and its answer; 0: none
        self._held: list[Frame] = []  # frames that came before its hello was proved
        self._held_bytes = 0  # of those, and of a frame that is not whole
        self._is_over = False
        self._proved = NOBODY  # the node in its hello, once certificate, log id and answer are right
        self._who = self._where = "?"
        self._timer: asyncio.TimerHandle | None = None

    @property
    def sender(self) -> NodeId:
        """The node that its hello names; NOBODY before it came."""
        return NOBODY if self.hello is None else self.hello.sender

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer dialled; its hello must come soon."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class has the same methods
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self._who = self._where = f"{host}:{port}"
        limits, owner = self._owner.parts.limits, self._owner
        reason = f"more than {limits.peer_connections_max} connections (limits.peer_connections_max)"
        if owner.is_closing or not owner.has_room(reason):
            self.end(reason)
            return
        owner.open.add(self)
        tune_socket(transport, self._owner.parts.silence_s)
        self._timer = asyncio.get_running_loop().call_later(limits.hello_timeout_ms / 1_000, self._time_is_up)

    def _time_is_up(self) -> None:
        if self.hello is None:
            self.end("no hello within limits.hello_timeout_ms")
        else:
            self._expire()

    def data_received(self, data: bytes) -> None:
        """Bytes came from the peer."""
        if self._transport is None or self._transport.is_closing():
            return
        try:
            hello = self.hello
            if hello is None:
                hello, data = self._take_hello(data)
                if hello is None:
                    return
            frames = self._decoder.feed(data)
            if self._decoder.is_unfinished:
                if frames or not self._unfinished_since:
                    self._unfinished_since, self._came = clock.monotonic(), 0
                self._came += len(data)
            else:
                self._unfinished_since = 0.0
            if frames:
                self._take(hello, frames)
            if self.standing is HelloStanding.WAITING and not self._is_over:
                self._held_bytes += len(data)
                if self._held_bytes > HELD_BYTES_MAX:
                    raise Corrupt(f"more than {HELD_BYTES_MAX} bytes came before a proof of its hello")
        except (Corrupt, UnknownVersion) as error:
            self.end(str(error))

    def check_certificate(self) -> None:
        """Ends the connection if the certificate of the other side has been revoked meanwhile."""
        credentials = self._owner.parts.credentials
        if credentials is not None and self._transport is not None:
            if (reason := credentials.revocation(self._transport)) is not None:
                self._refuse(reason)

    def check_member(self) -> None:
        """Ends the connection if its node has been removed meanwhile."""
        if self.hello is not None and self._is_removed(self.hello):
            self._refuse(removed(self.hello.sender))

    def check_unfinished(self, now: float, *, is_silent: bool) -> None:
        """Closes the connection if a frame stays unfinished for longer than a living peer is silent.

        A flipped bit in a frame's length, which its CRC does not cover, would otherwise swallow the next megabytes.
        `is_silent`: the peer was asked and nothing came from it. Otherwise the frame may go on while the link carries
        RATE_MIN.
        """
        waited_s = now - self._unfinished_since
        if self._unfinished_since and waited_s > self._owner.parts.silence_s:
            if is_silent or self._came < waited_s * RATE_MIN:
                self._unfinished_since = 0.0
                self.end(f"a frame is not whole after {self._owner.parts.silence_s:g} s: is its length right?")

    def _take_hello(self, data: bytes) -> tuple[Hello | None, bytes]:
        """The accepted hello, once it is complete, and the bytes after it; limits.hello_bytes_max bounds an incomplete
        one."""
        self._early += data
        if len(self._early) < FRAME_SIZE:
            return None, b""
        size = FRAME_SIZE + int.from_bytes(self._early[:4], "little")
        if size > self._owner.parts.limits.hello_bytes_max:
            raise Corrupt(f"no raftlog hello: a first frame of {size} bytes")
        if len(self._early) < size:
            return None, b""
        early, self._early = self._early, b""
        hello = decode_hello(FrameDecoder().feed(early[:size])[0])
        owner = self._owner
        self._answer, self.came = hello.answer, clock.monotonic()
        reason = self._refusal(hello)
        if reason is not None:
            self._refuse(reason, hello)
            return None, b""
        self.hello, self.challenge = hello, hello.challenge
        self._say(Word.WELCOME, PEER_VERSION_MAX)
        if self.challenge:
            owner.proofs.challenged(self)
        self.judge()
        if self.standing is not HelloStanding.BELIEVED and not self._is_over:
            owner.proofs.wait(self, hello)
            if self.standing is HelloStanding.HEARD and hello.purpose is Purpose.CONSENSUS:
                self._warn_of_disk(hello)
        return (None if self._is_over else hello), early[size:]

    def _refusal(self, hello: Hello) -> str | None:
        """The reason to refuse that hello: by its own words, or by the known facts about its disk. Notes whether the
        hello is proved: a refusal of an unproved one says nothing about the node that it names."""
        owner, self._proved = self._owner, NOBODY
        self._who = f"unproved node {hello.sender} at {self._where}"
        if owner.parts.credentials is not None and self._transport is not None:
            reason = owner.parts.credentials.peer_refusal(self._transport, owner.parts.identity.log, hello.sender)
            if reason is not None:
                return reason
        standing = owner.proofs.standing(hello, self._answer, self.came)
        if standing is HelloStanding.BELIEVED and hello.log == owner.parts.identity.log:
            self._proved, self._who = hello.sender, f"node {hello.sender} at {self._where}"
        met = owner.met.get((hello.sender, hello.incarnation), NEVER_MET)
        return refusal(
            hello,
            log=owner.parts.identity.log,
            node=owner.parts.identity.node,
            met=met,
            version=owner.links.configuration.version,
            where=self._where,
            is_removed=self._is_removed(hello),
        )

    def _is_removed(self, hello: Hello) -> bool:
        """Whether a configuration has removed its disk, or its number if a certificate shows that number: the holder of
        a removed node's key can make up a disk. Without TLS a number shows nothing, and a new disk may have it now."""
        has_certificate = self._transport is not None and shown_certificate(self._transport) is not None
        return self._owner.parts.receiver.has_removed(hello.sender if has_certificate else NOBODY, hello.incarnation)

    # -- which frames are accepted

    def judge(self) -> None:
        """Decides which frames of this connection count, after a hello, an answer, or a change of the link to its
        sender."""
        hello = self.hello
        if hello is None or self._is_over or self.standing is HelloStanding.BELIEVED:
            return
        standing = self._owner.proofs.standing(hello, self._answer, self.came)
        if standing is HelloStanding.BELIEVED:
            self._believe(hello)
        elif standing is HelloStanding.HEARD:
            self._hear()

    def is_another(self, hello: Hello) -> bool:
        """Whether this connection names the same disk, but another process of it."""
        own = self.hello
        return (
            own is not None
            and (own.sender, own.incarnation) == (hello.sender, hello.incarnation)
            and (own.boot, own.start) != (hello.boot, hello.start)
        )

    def _expire(self) -> None:
        """The listener at the member's address has not confirmed this hello in time."""
        if self.hello is None or self.standing is not HelloStanding.WAITING:
            return
        if (reason := self._owner.proofs.expire(self.hello)) is None:
            self._hear()
        else:
            self._refuse(reason)

    def _hear(self) -> None:
        """From now on the requests of this connection are accepted, but not its messages."""
        if self._timer is not None:
            self._timer.cancel()
        self.standing = HelloStanding.HEARD
        self._owner.look()
        self._deliver_held()

    def _believe(self, hello: Hello) -> None:
        """From now on all frames are accepted, and this connection replaces an older one of the same disk."""
        owner = self._owner
        owner.proofs.forget(self)
        if (reason := self._refusal(hello)) is not None:  # meanwhile another process of the disk was believed
            self._refuse(reason, hello)
            return
        if self._timer is not None:
            self._timer.cancel()
        self.standing = HelloStanding.BELIEVED
        owner.refused_hellos.believed(hello.sender)
        owner.look()
        owner.met[hello.sender, hello.incarnation] = PeerProcess(hello.boot, hello.start.run, self._where)
        self._say(Word.BELIEVED, 0)
        owner.proofs.believed(self, hello)
        key = (hello.sender, hello.incarnation, hello.purpose)
        older = owner.current.get(key)
        owner.current[key] = self
        if older is not None:
            older.abort()
        elif hello.purpose is Purpose.CONSENSUS:
            self._warn_of_disk(hello)
            owner.parts.logger.info("peer_connected", peer=hello.sender, boot=hello.boot, knows=hello.knows)
        if hello.purpose is Purpose.CONSENSUS:
            self.report()
        self._deliver_held()

    def _warn_of_disk(self, hello: Hello) -> None:
        member = self._owner.links.configuration.member(hello.sender)
        is_other = member is not None and member.incarnation != hello.incarnation
        if (
            member is not None
            and is_other
            and self._owner.refusals.lines.allows(f"another disk of node {hello.sender}")
        ):
            self._owner.parts.logger.warning(
                "peer_disk_unknown",
                peer=hello.sender,
                disk=fingerprint(hello.incarnation),
                named=fingerprint(member.incarnation),
                meaning="its votes and acknowledgements do not count: a wiped or foreign data folder, or a new one "
                "that this node has not heard of yet",
            )

    def _say(self, word: Word, number: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_word(word, number))

    # -- its frames

    def _take(self, hello: Hello, frames: list[Frame]) -> None:
        """Takes the frames after the hello. Raises Corrupt."""
        frames = [frame for frame in frames if frame.kind != FRAME_HELLO or not self._take_word(frame)]
        if self._is_over or not frames:
            return
        if self.standing is not HelloStanding.WAITING:
            self._deliver(hello, frames)
            return
        self._held += frames

    def _take_word(self, frame: Frame) -> bool:
        """Takes a frame with a word of the dialling node. Returns whether it is one."""
        match decode_word(frame):
            case (Word.ASK, challenge):
                self.challenge = challenge
                self._owner.proofs.challenged(self)
            case (Word.ANSWER, answer):
                before, self._answer = self._answer, answer
                self.judge()
                if self.standing is not HelloStanding.BELIEVED:  # a forger's challenge can make the sender say it
                    self._answer = before
            case _:
                return False
        return True

    def _deliver_held(self) -> None:
        """Delivers the frames that came while the hello was not proved."""
        held, self._held = self._held, []
        hello = self.hello
        assert hello is not None
        try:
            if held:
                self._deliver(hello, held)
        except (Corrupt, UnknownVersion) as error:
            self.end(str(error))

    def _deliver(self, hello: Hello, frames: list[Frame]) -> None:
        owner, is_heard = self._owner, self.standing is HelloStanding.HEARD
        found = self._sorter.sort(hello, frames, is_heard=is_heard)
        if found.has_questions:
            owner.links.asked(hello.sender)
        if hello.purpose is Purpose.CONSENSUS and not is_heard:
            owner.links.heard(hello.sender)
        if found.messages:
            owner.parts.receiver.peer_messages(hello.sender, hello.incarnation, found.messages)
        if found.requests:
            owner.parts.receiver.peer_requests(hello.sender, hello.incarnation, found.requests)

    def _refuse(self, reason: str, hello: Hello | None = None) -> None:
        """Sends the reason to the peer, and closes the connection. With `hello`: it refuses the hello."""
        if hello is not None:
            # The proof of the hello comes from there, and the report of what an older copy lost goes there.
            self._owner.proofs.ask(hello)
            self._owner.refused_hello(hello, is_proved=self._proved != NOBODY)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_refusal(f"node {self._owner.parts.identity.node}: {reason}"))
        self.end(reason)

    def end(self, reason: str) -> None:
        """Closes this connection with one line that names the peer and why."""
        self._is_over = True
        self._owner.proofs.forget(self)
        self._owner.refusals.refused(self._who, reason, self._proved)
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once, without a line."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection closed."""
        if self._timer is not None:
            self._timer.cancel()
        owner, hello = self._owner, self.hello
        self._is_over = True
        owner.closed(self, hello, str(exc or "closed"))

    def report(self) -> None:
        """Reports the process of this connection to the replica, as that of its node."""
        hello = self.hello
        assert hello is not None
        self._owner.parts.receiver.peer_link_opened(hello.sender, hello.incarnation, hello.knows, hello.start)
