"""One accepted peer connection: a hello that is checked, then frames, decoded and handed over chunk by chunk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from cluster import clock
from cluster.peer_links import tune_socket
from cluster.peer_protocol import Hello, Purpose, decode_hello, encode_refusal, refusal
from cluster.wire import ApiError, Principal, authorise
from raft.codec import (
    FRAME_FORWARD,
    FRAME_HELLO,
    FRAME_MESSAGE,
    FRAME_READ,
    FRAME_SIZE,
    Corrupt,
    Frame,
    FrameDecoder,
    UnknownVersion,
    decode_message,
)
from raft.hello import NEVER_MET, Met, is_believed
from raft.messages import InstallSnapshot, Message

if TYPE_CHECKING:
    from cluster.transport import Transport


RATE_MIN: Final = 16 << 10
"""Bytes a second that a link should carry at least, in the middle of a frame."""


class Accepted(asyncio.Protocol):
    """A connection that a peer dialled: a hello, then frames."""

    def __init__(self, owner: Transport) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._unfinished_since = 0.0  # when the frame began that is not whole yet; 0: there is none
        self._came = 0  # bytes since then
        self._forwarded = 0  # the number of the newest request that was passed on here
        self._early = b""  # bytes of the hello that came so far
        self._hello: Hello | None = None
        self._who = "?"
        self._timer: asyncio.TimerHandle | None = None

    @property
    def version(self) -> int:
        """The newest version of the protocol that its hello names."""
        return 0 if self._hello is None else self._hello.version_max

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody dialled; a hello must come soon."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self._who = f"{host}:{port}"
        limits = self._owner.limits
        if len(self._owner.accepted) >= limits.peer_connections_max or self._owner.is_closing:
            self._end(f"more than {limits.peer_connections_max} connections (limits.peer_connections_max)")
            return
        self._owner.accepted.add(self)
        tune_socket(transport, self._owner.silence_s)
        self._timer = asyncio.get_running_loop().call_later(
            limits.hello_timeout_ms / 1_000, self._end, "no hello within limits.hello_timeout_ms"
        )

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer."""
        if self._transport is None or self._transport.is_closing():
            return
        try:
            hello = self._hello
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
                self._deliver(hello, frames)
        except (Corrupt, UnknownVersion) as error:
            self._end(str(error))

    def check_unfinished(self, now: float, *, is_silent: bool) -> None:
        """Closes the connection if a frame stays unfinished for longer than a living peer is silent.

        A bit that turns in a frame's length, which its CRC does not cover, would else have everything swallowed that
        comes for the next megabytes. `is_silent`: nothing was heard of that peer, which was asked; else such a frame
        may go on as long as the link carries RATE_MIN.
        """
        waited_s = now - self._unfinished_since
        if self._unfinished_since and waited_s > self._owner.silence_s:
            if is_silent or self._came < waited_s * RATE_MIN:
                self._unfinished_since = 0.0
                self._end(f"a frame is not whole after {self._owner.silence_s:g} s: is its length right?")

    def _take_hello(self, data: bytes) -> tuple[Hello | None, bytes]:
        """The hello, once it is whole and taken, and what follows it; limits.hello_bytes_max bounds what is kept."""
        self._early += data
        if len(self._early) < FRAME_SIZE:
            return None, b""
        size = FRAME_SIZE + int.from_bytes(self._early[:4], "little")
        if size > self._owner.limits.hello_bytes_max:
            raise Corrupt(f"no raftlog hello: a first frame of {size} bytes")
        if len(self._early) < size:
            return None, b""
        early, self._early = self._early, b""
        hello = decode_hello(FrameDecoder().feed(early[:size])[0])
        owner = self._owner
        reason = refusal(
            hello,
            log=owner.identity.log,
            node=owner.identity.node,
            met=owner.met.get((hello.sender, hello.incarnation), NEVER_MET),
            version=owner.configuration.version,
            where=self._who,
        )
        try:
            authorise(Principal(), "peer", 0, None)
        except ApiError as error:
            reason = error.message
        where, self._who = self._who, f"node {hello.sender} at {self._who}"
        if reason is not None:
            assert self._transport is not None
            self._transport.write(encode_refusal(f"node {owner.identity.node}: {reason}"))
            self._end(reason)
            return None, b""
        if self._timer is not None:
            self._timer.cancel()
        self._hello = hello
        owner.met[hello.sender, hello.incarnation] = Met(hello.boot, hello.start.run if hello.start else 0, where)
        key = (hello.sender, hello.incarnation, hello.purpose)
        older = owner.current.get(key)
        owner.current[key] = self
        if older is not None:
            older.abort()
        elif hello.purpose is Purpose.CONSENSUS:
            member = owner.configuration.member(hello.sender)
            if member is not None and member.incarnation != hello.incarnation:
                owner.logger.warning(
                    "peer_disk_unknown", peer=hello.sender, disk=hello.incarnation, named=member.incarnation,
                    meaning="its votes and acknowledgements do not count: a wiped or foreign data folder, or a new one "
                    "that this node has not heard of yet",
                )  # fmt: skip
            owner.logger.info("peer_connected", peer=hello.sender, boot=hello.boot, knows=hello.knows)
        if hello.purpose is Purpose.CONSENSUS:
            owner.receiver.peer_link_opened(hello.sender, hello.incarnation, hello.knows, hello.start)
        return hello, early[size:]

    def _deliver(self, hello: Hello, frames: list[Frame]) -> None:
        owner = self._owner
        is_bulk = hello.purpose is Purpose.BULK
        messages: list[Message] = []
        requests: list[Frame] = []
        for frame in frames:
            if is_bulk and frame.kind not in (FRAME_HELLO, FRAME_MESSAGE):
                if frame.kind == FRAME_FORWARD:
                    self._check_order(frame)
                if frame.kind in (FRAME_FORWARD, FRAME_READ):
                    owner.news.asked(hello.sender)
                requests.append(frame)
                continue
            if frame.kind != FRAME_MESSAGE:
                raise Corrupt(f"a frame of kind {frame.kind} on the {hello.purpose.name.lower()} link")
            message = decode_message(frame)
            if message.sender != hello.sender:
                raise Corrupt(f"a message of node {message.sender} on the link of node {hello.sender}")
            if is_bulk and not isinstance(message, InstallSnapshot):
                raise Corrupt("a consensus message on the bulk link")
            if is_believed(message, hello.incarnation, owner.configuration):
                messages.append(message)
        if not is_bulk:
            owner.heard(hello.sender)
        if messages:
            owner.receiver.peer_messages(hello.sender, messages)
        if requests:
            owner.receiver.peer_requests(hello.sender, requests)

    def _check_order(self, frame: Frame) -> None:
        """Raises Corrupt when requests come a second time or not in the order of their numbers.

        No TCP does that, but what stands between two nodes may; and a request outside a session, taken twice, would be
        carried out twice.
        """
        match frame.header:
            case (_, int(first), tuple(deadlines)):
                if first <= self._forwarded:
                    raise Corrupt(f"request {first} was passed on behind {self._forwarded}: a frame came twice or late")
                self._forwarded = first + len(deadlines) - 1

    def _end(self, reason: str) -> None:
        """Closes this connection with one line that names the peer and why."""
        self._owner.refused(self._who, reason)
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes it at once, without a line."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end; news only if no newer connection of that peer took its place."""
        if self._timer is not None:
            self._timer.cancel()
        owner, hello = self._owner, self._hello
        owner.accepted.discard(self)
        if hello is not None and (owner.current.get(key := (hello.sender, hello.incarnation, hello.purpose)) is self):
            del owner.current[key]
            if hello.purpose is Purpose.CONSENSUS and not owner.is_closing:
                owner.logger.info("peer_disconnected", peer=hello.sender, error=str(exc or "closed"))
                owner.receiver.peer_link_closed(hello.sender)
