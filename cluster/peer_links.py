"""One outgoing peer connection: dialled again and again, with a bounded queue; only this side writes."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import TYPE_CHECKING, Final

from cluster import clock
from cluster.cluster_file import split_address
from cluster.peer_protocol import Hello, Purpose, decode_refusal, encode_hello
from raft.codec import Corrupt, FrameDecoder, UnknownVersion
from raft.types import NodeId

if TYPE_CHECKING:
    from cluster.transport import Transport

REDIAL_MIN_MS: Final = 2  # pause after the first dial that failed; it doubles up to peer.redial_max_ms
REFUSED_REDIAL_S: Final = 1.0  # after a refused hello: somebody has to mend something first
HELD_S: Final = 0.02
"""A connection that was up for so long, in seconds, is dialled again at once when it closes. One that closes earlier
and without a word counts as a refused dial: a proxy takes connections whether or not the process behind it lives."""
STABLE_S: Final = 1.0  # a peer counts as reached once its connection was up for so long
JOINED_BYTES_MAX: Final = 16 << 10  # more is cheaper to write in parts than to copy
ANSWER_BYTES_MAX: Final = 4_096  # of the only thing that may come back: a refusal


class Link:
    """One outgoing connection, dialled again and again; only this side writes."""

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
        self.refusal = ""  # why the peer closed it, until it has been up for a while
        self._up_since = 0.0  # when the newest dial got through; 0: it did not
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"dial {node} {purpose.name.lower()}")

    @property
    def is_up(self) -> bool:
        """Whether it is connected."""
        return self._transport is not None and not self._transport.is_closing()

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
            self._up_since = 0.0
            try:
                refusal = await self._connected_once()
                error, is_refused = "closed by the peer", False
            except OSError as failure:  # TimeoutError is one
                refusal, is_refused = None, isinstance(failure, ConnectionError)
                error = failure.strerror or "timed out"
            up_s = clock.monotonic() - self._up_since if self._up_since else 0.0
            self.trouble = error if refusal is None else refusal
            if refusal is not None:
                pause_s, self.refusal = REFUSED_REDIAL_S, refusal
                self._owner.refused_by(self.node, refusal)
            elif up_s >= HELD_S:
                pause_s = 0.0
            else:
                if is_refused or self._up_since:
                    self._refused()
                pause_s = min(max(2 * pause_s, REDIAL_MIN_MS / 1_000), self._owner.settings.redial_max_ms / 1_000)
                if not self._is_unreachable and self.purpose is Purpose.CONSENSUS:
                    self._is_unreachable = True
                    self._owner.logger.warning("peer_unreachable", peer=self.node, address=self.address, error=error)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def _connected_once(self) -> str | None:
        """Dials, says hello, and returns when the connection has closed: the peer's reason, if it gave one.

        Raises OSError.
        """
        host, port = split_address(self.address, f"peer of node {self.node}")
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[str | None] = loop.create_future()
        async with asyncio.timeout(self._owner.settings.connect_timeout_ms / 1_000):
            transport, _ = await loop.create_connection(lambda: _Dialled(closed), host, port)
        tune_socket(transport, self._owner.silence_s)
        identity = self._owner.identity
        transport.write(
            encode_hello(
                Hello(
                    log=identity.log, sender=identity.node, to=self.node, incarnation=identity.incarnation,
                    boot=identity.boot, purpose=self.purpose, version_max=identity.speaks,
                )
            )
        )  # fmt: skip
        self._parts.clear()
        self._transport = transport
        self._up_since = clock.monotonic()
        self.waiting_since = 0.0
        if self.purpose is Purpose.BULK:
            self._owner.receiver.bulk_link_opened(self.node)
        else:
            self._owner.receiver.consensus_link_opened(self.node)
        stable = loop.call_later(STABLE_S, self._reached)
        try:
            return await closed
        finally:
            stable.cancel()
            self._transport = None
            self._parts.clear()
            transport.abort()
            if self.purpose is Purpose.BULK and not self._owner.is_closing:
                self._owner.receiver.bulk_link_closed(self.node)

    def _refused(self) -> None:
        if self.purpose is Purpose.CONSENSUS and not self._owner.is_closing:
            self._owner.receiver.consensus_link_refused(self.node)

    def _reached(self) -> None:
        self.refusal = ""
        if self._is_unreachable:
            self._is_unreachable = False
            self._owner.logger.info("peer_reached", peer=self.node, address=self.address)


class _Dialled(asyncio.Protocol):
    """The receiving side of a connection that we dialled: nothing comes, but for a refusal or the end."""

    def __init__(self, closed: asyncio.Future[str | None]) -> None:
        self._closed = closed
        self._decoder = FrameDecoder(ANSWER_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Only a refusal may come; whatever it is, this connection is over."""
        try:
            frames = self._decoder.feed(data)
            if not frames:
                return
            reason = decode_refusal(frames[0])
        except (Corrupt, UnknownVersion):
            reason = None
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
