"""One outgoing peer connection, dialled again and again, with a bounded queue; few words come back."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cluster import clock
from cluster.cluster_file import split_address
from cluster.peer_proof import WELCOME_S
from cluster.peer_protocol import (
    Hello,
    Purpose,
    Word,
    decode_refusal,
    decode_word,
    encode_hello,
    encode_word,
)
from raft.codec import Corrupt, FrameDecoder, UnknownVersion
from raft.types import NodeId

if TYPE_CHECKING:
    from cluster.transport import Transport

REDIAL_MIN_MS: Final = 2  # pause after the first dial that failed; it doubles up to peer.redial_max_ms
CLOSED: Final = "closed by the peer"
REFUSED_REDIAL_S: Final = 1.0  # after a refused hello: somebody has to mend something first
HELD_S: Final = 0.02
"""A connection that was up for so long, in seconds, is dialled again at once when it closes. One that closes earlier
and without a word counts as a refused dial: a proxy takes connections whether or not the process behind it lives."""
STABLE_S: Final = 1.0  # a peer counts as reached once its connection was up for so long
JOINED_BYTES_MAX: Final = 16 << 10  # more is cheaper to write in parts than to copy
ANSWER_BYTES_MAX: Final = 4_096  # of each frame that may come back: a word or a refusal
ASK_EVERY_S: Final = 0.05  # at most: each forged hello in the name of the peer makes this node ask
UNBELIEVED_S: Final = 3.0  # a peer that has not believed this node's hello for so long cannot reach this node


class Link:
    """One outgoing connection, dialled again and again; what comes back are words and a refusal."""

    def __init__(
        self,
        owner: Transport,
        node: NodeId,
        purpose: Purpose,
        address: str,
        disk: str,
        bytes_max: int,
    ) -> None:
        self.node = node
        self.purpose = purpose
        self.address = address
        self.disk = disk  # its incarnation: another one under the same number is another process
        self.waiting_since = 0.0  # when the oldest message left that nothing was heard after; 0: none
        self._owner = owner
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._queued = 0
        self._transport: asyncio.Transport | None = None
        self._is_unreachable = False  # was logged so
        self.trouble = ""  # why it is down
        self._refusal = ""  # why the peer closed it, until it believes a hello of this node
        self.is_welcome = False  # its listener speaks PROOF_VERSION or later
        self._is_believed = False  # and believes the hello of this connection
        self.up_since = self.failed_at = 0.0  # when the newest connection was made, and when a dial failed last
        self._asked_at = 0.0
        self._wanted = asyncio.Event()  # the pause between two dials is over
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"dial {node} {purpose.name.lower()}")

    @property
    def is_up(self) -> bool:
        """Whether it is connected."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def refusal(self) -> str:
        """Why the peer does not take this node's connection, or nothing of what comes on it; empty: it does."""
        if self._refusal or not self.is_up or not self.is_welcome or self._is_believed:
            return self._refusal
        if clock.monotonic() - self.up_since < UNBELIEVED_S:
            return ""
        return (
            f"node {self.node}: it counts no vote and no acknowledgement of this node, for it has not reached it at "
            "the address and with the disk that the configuration names: see that it can connect to there"
        )

    def say(self, word: Word, number: int) -> None:
        """Says a word to a listener that knows it; else it is not said."""
        if self.is_up and self.is_welcome and self._transport is not None:
            self._transport.write(encode_word(word, number))

    def ask(self) -> None:
        """A hello came in the name of the peer: has its listener say whether it is its own. A connection to a process
        that is gone closes for it."""
        now = clock.monotonic()
        if now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            self._wanted.set()
            self.say(Word.ASK, self._owner.proofs.challenge(self))

    def send(self, *parts: bytes) -> bool:
        """Queues a frame until flush; False when down or over its limit."""
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
        """Hands what is queued to the socket."""
        parts, self._parts = self._parts, []
        transport = self._transport
        if parts and transport is not None and not transport.is_closing():  # uvloop refuses a write after the end
            if self._queued < JOINED_BYTES_MAX:
                transport.write(b"".join(parts))
            else:
                transport.writelines(parts)

    def redial(self) -> None:
        """Closes the connection; the dialling task makes another."""
        self.waiting_since = 0.0
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Ends it for good. What was queued before is still written."""
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
            try:
                refusal = await self._connected_once()
                error = CLOSED
            except OSError as failure:  # TimeoutError is one
                refusal, self._refusal = None, ""  # whether it would refuse is not known
                is_refused = isinstance(failure, ConnectionError)
                error = failure.strerror or "timed out"
            except Exception as failure:  # a defect must not end the dialling for good
                refusal, error = None, f"{type(failure).__name__}: {failure}"
                self._owner.link_failed(self.node, failure)
            is_through = self.up_since >= started
            self.trouble = error if refusal is None else refusal
            if refusal is not None or error != CLOSED:
                self.failed_at = clock.monotonic()
            if refusal is not None:
                pause_s, self._refusal = REFUSED_REDIAL_S, refusal
                self._owner.refused_by(self.node, refusal)
            elif is_through and clock.monotonic() - self.up_since >= HELD_S:
                pause_s = 0.0
            else:
                if is_refused or is_through:
                    self._refused()
                pause_s = min(max(2 * pause_s, REDIAL_MIN_MS / 1_000), self._owner.settings.redial_max_ms / 1_000)
                if not self._is_unreachable and self.purpose is Purpose.CONSENSUS:
                    self._is_unreachable = True
                    self._owner.logger.warning("peer_unreachable", peer=self.node, address=self.address, error=error)
            if self.purpose is Purpose.CONSENSUS:
                self._owner.proofs.look(self.node)
            await self._pause(pause_s * random.uniform(0.5, 1.0))

    async def _pause(self, seconds: float) -> None:
        """Before the next dial; shorter when a hello comes in the name of the peer."""
        least_s = REDIAL_MIN_MS / 1_000
        await asyncio.sleep(min(seconds, least_s))
        if seconds > least_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds - least_s):
                    await self._wanted.wait()

    async def _connected_once(self) -> str | None:
        """Dials, says hello, and returns when the connection has closed: the peer's reason, if it gave one.

        Raises OSError.
        """
        host, port = split_address(self.address, f"peer of node {self.node}")
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[str | None] = loop.create_future()
        async with asyncio.timeout(self._owner.settings.connect_timeout_ms / 1_000):
            transport, _ = await loop.create_connection(lambda: _Dialled(closed, self._told), host, port)
        tune_socket(transport, self._owner.silence_s)
        identity, proofs = self._owner.identity, self._owner.proofs
        transport.write(
            encode_hello(
                Hello(
                    log=identity.log, sender=identity.node, to=self.node, incarnation=identity.incarnation,
                    boot=identity.boot, purpose=self.purpose, version_max=identity.speaks, start=identity.start,
                    challenge=proofs.challenge(self) if proofs.is_on else 0,
                    answer=proofs.answer_for(self.node) if proofs.is_on else 0,
                )
            )
        )  # fmt: skip
        self._parts.clear()
        self._transport = transport
        self.waiting_since, self.up_since = 0.0, clock.monotonic()
        self.is_welcome = self._is_believed = False
        if self.purpose is Purpose.BULK:
            self._owner.receiver.bulk_link_opened(self.node)
        else:
            self._owner.receiver.consensus_link_opened(self.node)
        timers = [loop.call_later(STABLE_S, self._reached)]
        if self.purpose is Purpose.CONSENSUS:
            timers.append(loop.call_later(WELCOME_S, self._owner.proofs.look, self.node))
        try:
            return await closed
        finally:
            for timer in timers:
                timer.cancel()
            self._transport = None
            self._parts.clear()
            transport.abort()
            if self.purpose is Purpose.BULK and not self._owner.is_closing:
                self._owner.receiver.bulk_link_closed(self.node)

    def _refused(self) -> None:
        if self.purpose is Purpose.CONSENSUS and not self._owner.is_closing:
            self._owner.receiver.consensus_link_refused(self.node)

    def _told(self, word: Word) -> None:
        """A word of the listener."""
        if word is Word.WELCOME and not self.is_welcome:
            self.is_welcome = True
            self._owner.welcomed(self)
        elif word is Word.BELIEVED:
            self._is_believed, self._refusal = True, ""

    def _reached(self) -> None:
        if not self.is_welcome:  # an older version says no more than a refusal
            self._refusal = ""
        if self._is_unreachable:
            self._is_unreachable = False
            self._owner.logger.info("peer_reached", peer=self.node, address=self.address)


class _Dialled(asyncio.Protocol):
    """The receiving side of a connection that this node dialled: words come, a refusal or the end."""

    def __init__(self, closed: asyncio.Future[str | None], told: Callable[[Word], None]) -> None:
        self._closed, self._told = closed, told
        self._decoder = FrameDecoder(ANSWER_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """After anything but a word this connection is over."""
        reason = None
        try:
            for frame in self._decoder.feed(data):
                said = decode_word(frame)
                if said is None or said[0] not in (Word.WELCOME, Word.BELIEVED):
                    reason = decode_refusal(frame)
                    break
                self._told(said[0])
            else:
                return
        except (Corrupt, UnknownVersion):
            pass
        self._end(reason or "it answers, but not as a raftlog peer does: is it the right port?")

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._end(None)

    def _end(self, reason: str | None) -> None:
        if not self._closed.done():
            self._closed.set_result(reason)


def tune_socket(transport: asyncio.BaseTransport, timeout_s: float) -> None:
    """Small frames leave at once; unacknowledged bytes end the connection after `timeout_s`."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(timeout_s * 1_000)))
