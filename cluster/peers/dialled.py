"""Dials one peer again and again, and sends it frames through a bounded queue; only short words come back.

The transport makes two links for each other member: one for consensus messages and one for bulk frames.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from raftlog.cluster.config.cluster_file import split_address
from raftlog.cluster.peers.hello import (
    Hello,
    Purpose,
    Word,
    decode_refusal,
    decode_word,
    encode_hello,
    encode_word,
)
from raftlog.cluster.peers.hello_proof import Proofs
from raftlog.cluster.peers.ports import ConnectionEnd, LinkParts
from raftlog.cluster.peers.refusals import Refusals
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.frame import FrameDecoder
from raftlog.raft.types import NodeId

REDIAL_MIN_MS: Final = 2  # pause after the first dial that failed; it doubles up to peer.redial_max_ms
CLOSED: Final = "closed by the peer"
REFUSED_REDIAL_S: Final = 1.0  # pause after a refused hello: an operator must first fix its reason
HELD_S: Final = 0.02
"""A connection that was up for this many seconds is dialled again at once when it closes. A connection that closes
earlier and without a word counts as a failed dial: a proxy accepts connections even if the node behind it is down."""
STABLE_S: Final = 1.0  # a peer counts as reached once its connection was up for this many seconds
JOINED_BYTES_MAX: Final = 16 << 10  # larger amounts are cheaper to write in parts than to copy
ANSWER_BYTES_MAX: Final = 4_096  # largest frame that may come back: a word or a refusal
ASK_EVERY_S: Final = 0.05  # shortest pause: each forged hello in the peer's name makes this node ask
_RTT_US: Final = slice(68, 72)
"""The bytes of `tcpi_rtt` in the kernel's `struct tcp_info`: eight bytes, then numbers of four."""
UNBELIEVED_S: Final = 3.0  # after this many seconds without belief, the peer cannot reach this node


class LinkOwner(Protocol):
    """What a link asks of all links of its node (`raftlog.cluster.peers.transport.Transport`)."""

    parts: LinkParts
    refusals: Refusals

    @property
    def proofs(self) -> Proofs:
        """The challenges of this node."""

    @property
    def is_closing(self) -> bool:
        """Whether the node stops."""

    @property
    def own_address(self) -> str:
        """host:port at which the configuration says that peers reach this node; "" if it does not name it."""

    def queued(self, link: Link) -> None:
        """That link has something for the next `flush`."""

    def welcomed(self, link: Link) -> None:
        """The listener at the other end has answered."""


class Link:
    """One outgoing connection, dialled again and again. Only words and a refusal come back on it."""

    def __init__(
        self,
        owner: LinkOwner,
        node: NodeId,
        purpose: Purpose,
        address: str,
        disk: str,
        bytes_max: int,
    ) -> None:
        self.node = node
        self.purpose = purpose
        self.address = address  # where it is connected or was dialled last
        self._places: tuple[str, ...] = (address,)  # the configuration's, and after a change the former one
        self.disk = disk  # its incarnation; a node with another one is another process
        self.waiting_since = 0.0  # when the oldest unanswered message was sent; 0: none
        self._owner = owner
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._queued = 0
        self._transport: asyncio.Transport | None = None
        self._is_unreachable = False  # it was logged as unreachable
        self.trouble = ""  # why the link is down
        self.is_reached = False  # its newest dial did not fail: it is connected, or dialled again after one that held
        self._refusal = ""  # why the peer closed it; empty once the peer believes this node's hello
        self.is_welcome = False  # its listener has answered
        self._is_believed = False  # its listener believes the hello of this connection
        self.up_since = self.failed_at = 0.0  # times of the newest connection and of the last failed dial
        self._asked_at = 0.0
        self._dials_plain = False  # the next dial is without TLS: the last one with it failed, and plain ones count too
        self._wanted = asyncio.Event()  # the pause between two dials is over
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"dial {node} {purpose.name.lower()}")

    @property
    def place(self) -> str:
        """The address that the configuration names."""
        return self._places[0]

    @property
    def is_moving(self) -> bool:
        """Whether the member has not answered yet at the address that the configuration names."""
        return len(self._places) > 1

    def move(self, place: str) -> None:
        """The configuration names another address of that member. A member may move later, and the change needs its
        acknowledgement before: so the connection stays, and both addresses are dialled in turn after it, until the
        member answers at the new one.
        """
        self._places = (place,) if place == self.address else (place, self.address)

    @property
    def is_up(self) -> bool:
        """Whether the link is connected."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def round_trip_us(self) -> int | None:
        """The round trip of this connection as the kernel measures it, smoothed; None: it is down, or no Linux."""
        sock = self._transport.get_extra_info("socket") if self.is_up and self._transport is not None else None
        if sock is None or not sys.platform.startswith("linux"):
            return None
        with suppress(OSError):
            return int.from_bytes(
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_US.stop)[_RTT_US], sys.byteorder
            )
        return None

    @property
    def refusal(self) -> str:
        """Why the peer does not accept this node's connection, or ignores its messages; empty: it accepts both."""
        if self._refusal or not self.is_up or not self.is_welcome or self._is_believed:
            return self._refusal
        if clock.monotonic() - self.up_since < UNBELIEVED_S:
            return ""
        return (
            f"node {self.node}: it counts no vote and no acknowledgement of this node, for it has not reached it at "
            "the address and with the disk that the configuration names: see that it can connect to there"
        )

    def say(self, word: Word, number: int) -> None:
        """Sends a word to a listener that has answered; else sends nothing."""
        if self.is_up and self.is_welcome and self._transport is not None:
            self._transport.write(encode_word(word, number))

    def ask(self) -> None:
        """A hello in the name of this peer came: asks the peer's listener whether it sent it.

        The question also closes a connection to a process that is gone.
        """
        now = clock.monotonic()
        if now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            self._wanted.set()
            self.say(Word.ASK, self._owner.proofs.challenge(self))

    def send(self, *parts: bytes) -> bool:
        """Queues a frame until flush. False if the link is down or over its limit."""
        if self._transport is None or self._transport.is_closing():
            return False
        if not self._parts:
            self._queued = self._transport.get_write_buffer_size()
            self._owner.queued(self)
        size = sum(map(len, parts))
        self._queued += size
        if self._queued > self._bytes_max and self._queued > size:
            self._queued -= size
            return False
        self._parts += parts
        return True

    def flush(self) -> None:
        """Writes the queued frames to the socket."""
        parts, self._parts = self._parts, []
        transport = self._transport
        if parts and transport is not None and not transport.is_closing():  # uvloop refuses a write after the end
            if self._queued < JOINED_BYTES_MAX:
                transport.write(b"".join(parts))
            else:
                transport.writelines(parts)

    def check_certificate(self) -> None:
        """Closes the connection if the certificate of the other side has been revoked meanwhile."""
        credentials = self._owner.parts.credentials
        if credentials is not None and self._transport is not None:
            if credentials.revocation(self._transport) is not None:
                self.redial()

    def redial(self) -> None:
        """Closes the connection; the dialling task makes a new one."""
        self.waiting_since = 0.0
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Ends the link for good. Queued frames are still written."""
        self.flush()
        if self._transport is not None:
            self._transport.close()
        self.task.cancel()

    async def _run(self) -> None:
        pause_s = 0.0
        while True:
            started = clock.monotonic()
            self._wanted.clear()
            is_refused = False
            self.address = self._places[-1] if self.address == self._places[0] else self._places[0]
            try:
                refusal = await self._connected_once()
                error = CLOSED
            except OSError as failure:  # TimeoutError is one
                refusal, self._refusal = None, ""  # an unreached peer has neither refused nor accepted
                is_refused = isinstance(failure, ConnectionError)
                error = failure.strerror or "timed out"
            except Exception as failure:  # a defect must not end the dialling for good
                refusal, error = None, f"{type(failure).__name__}: {failure}"
                self._owner.refusals.link_failed(self.node, failure)
            is_through = self.up_since >= started
            self.trouble = error if refusal is None else refusal
            if refusal is not None or error != CLOSED:
                self.failed_at = clock.monotonic()
            if refusal is not None:
                pause_s, self._refusal, self.is_reached = REFUSED_REDIAL_S, refusal, False
                self._owner.refusals.refused_by(self.node, refusal)
            elif is_through and clock.monotonic() - self.up_since >= HELD_S:
                pause_s = 0.0
            else:
                self.is_reached = False
                if is_refused or is_through:
                    self._refused()
                pause_s = min(max(2 * pause_s, REDIAL_MIN_MS / 1_000), self._owner.parts.settings.redial_max_ms / 1_000)
                if not self._is_unreachable and self.purpose is Purpose.CONSENSUS:
                    self._is_unreachable = True
                    self._owner.parts.logger.warning(
                        "peer_unreachable", peer=self.node, address=self.address, error=error
                    )
            if self.purpose is Purpose.CONSENSUS:
                self._owner.proofs.look(self.node)
            await self._pause(pause_s * random.uniform(0.5, 1.0))

    async def _pause(self, seconds: float) -> None:
        """Waits before the next dial; a hello in the name of the peer ends the wait early."""
        least_s = REDIAL_MIN_MS / 1_000
        await asyncio.sleep(min(seconds, least_s))
        if seconds > least_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds - least_s):
                    await self._wanted.wait()

    async def _connected_once(self) -> str | None:
        """Dials, sends the hello, and returns when the connection has closed: the peer's reason, if it gave one.

        Raises OSError.
        """
        host, port = split_address(self.address, f"peer of node {self.node}")
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[str | None] = loop.create_future()
        credentials = self._owner.parts.credentials
        context = None if credentials is None or self._dials_plain else credentials.context("peer")
        self._dials_plain = context is not None and credentials is not None and credentials.takes_plain
        async with asyncio.timeout(self._owner.parts.settings.connect_timeout_ms / 1_000):
            transport, _ = await loop.create_connection(
                lambda: cast(Any, _DialledConnection(closed, self._on_word)), host, port, ssl=context
            )
        self._dials_plain = False
        if credentials is not None:
            reason = credentials.peer_refusal(transport, self._owner.parts.identity.log, self.node)
            if reason is not None:
                transport.abort()
                return f"what listens at {self.address} is not node {self.node}: {reason}"
        tune_socket(transport, self._owner.parts.silence_s)
        identity, proofs = self._owner.parts.identity, self._owner.proofs
        transport.write(
            encode_hello(
                Hello(
                    log=identity.log,
                    sender=identity.node,
                    to=self.node,
                    incarnation=identity.incarnation,
                    boot=identity.boot,
                    purpose=self.purpose,
                    knows=identity.knows,
                    start=identity.start,
                    challenge=proofs.challenge(self),
                    answer=proofs.answer_for(self.node),
                    at=self._owner.own_address,
                    program=identity.program,
                    disk_bytes=identity.disk_bytes,
                )
            )
        )
        self._parts.clear()
        self._transport = transport
        self.waiting_since, self.up_since, self.is_reached = 0.0, clock.monotonic(), True
        self.is_welcome = self._is_believed = False
        if self.purpose is Purpose.BULK:
            self._owner.parts.receiver.bulk_link_opened(self.node)
        else:
            self._owner.parts.receiver.consensus_link_opened(self.node)
        timer = loop.call_later(STABLE_S, self._reached)
        try:
            return await closed
        finally:
            timer.cancel()
            self._transport = None
            self._parts.clear()
            transport.abort()
            if self.purpose is Purpose.BULK and not self._owner.is_closing:
                self._owner.parts.receiver.bulk_link_closed(self.node)

    def _refused(self) -> None:
        if self.purpose is Purpose.CONSENSUS and not self._owner.is_closing:
            self._owner.parts.receiver.consensus_link_refused(self.node)

    def _on_word(self, word: Word) -> None:
        """Takes a word of the listener."""
        if word is Word.WELCOME and not self.is_welcome:
            self.is_welcome = True
            self._owner.welcomed(self)
        elif word is Word.BELIEVED:
            self._is_believed, self._refusal = True, ""
            if self.address == self.place:
                self._places = (self.place,)
            if self.purpose is Purpose.BULK:
                self._owner.parts.receiver.bulk_link_believed(self.node)

    def _reached(self) -> None:
        if self._is_unreachable:
            self._is_unreachable = False
            self._owner.parts.logger.info("peer_reached", peer=self.node, address=self.address)


class _DialledConnection(ConnectionEnd):
    """The receiving side of a connection that this node dialled: words, a refusal, or the end."""

    def __init__(self, closed: asyncio.Future[str | None], on_word: Callable[[Word], None]) -> None:
        self._closed, self._on_word = closed, on_word
        self._decoder = FrameDecoder(ANSWER_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Takes words. Any other frame ends the connection."""
        reason = None
        try:
            for frame in self._decoder.feed(data):
                said = decode_word(frame)
                if said is None or said[0] not in (Word.WELCOME, Word.BELIEVED):
                    reason = decode_refusal(frame)
                    break
                self._on_word(said[0])
            else:
                return
        except (Corrupt, UnknownVersion):
            pass
        self._end(reason or "it answers, but not as a raftlog peer does: is it the right port?")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection closed. With TLS 1.3 the listener refuses this node's certificate only now."""
        self._end(f"TLS: {exc.reason or exc}".lower().replace("_", " ") if isinstance(exc, ssl.SSLError) else None)

    def _end(self, reason: str | None) -> None:
        if not self._closed.done():
            self._closed.set_result(reason)


def tune_socket(transport: asyncio.BaseTransport, timeout_s: float) -> None:
    """Sends small frames at once; ends the connection if bytes stay unacknowledged for `timeout_s` seconds."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(timeout_s * 1_000)))
