"""Sends a stream of chunks with a bounded buffer, and an end that a slow reader still gets.

The routes of log streams, watches and backups use it. Unsent bytes are at most aiohttp's write limit plus one slice. A
reader that takes nothing for `limits.stream_stall_ms` is closed; its last message says where to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from raftlog.cluster.admission.budget import SMALL_BYTES, Share
from raftlog.cluster.admission.quota import Meter
from raftlog.cluster.api.errors import ApiError, Code, Problem
from raftlog.cluster.api.headers import H_INDEX, H_REQUEST_ID, H_TERM
from raftlog.cluster.http.exchange.answer import DRAIN_BYTES, StreamedAnswer
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.follow import Piece
from raftlog.cluster.http.exchange.service import Service

_END: Final = b"0\r\n\r\n"
_ROOM_POLL_S: Final = 0.05


class SlowReader(Exception):
    """The reader took nothing for too long."""


class Stream(StreamedAnswer):
    """One streamed answer; aiohttp is handed it when it has ended. Used as a context: it counts while it is open."""

    __slots__ = ("_call", "_has_ended", "_is_chunked", "_made", "_meter", "_service")

    def __init__(self, service: Service, call: Call) -> None:
        super().__init__()
        self._service = service
        self._call = call
        self._is_chunked = call.request.version.minor >= 1
        self._has_ended = False
        self._meter: Meter | None = None  # of the reader, with access control
        self._made = Share(service.load.answers)  # bytes of a piece that is being made

    def __enter__(self) -> Stream:
        caller = self._call.caller
        meter = None if caller is None else caller.meter
        self._service.load.open_stream(meter)
        self._meter = meter
        return self

    def __exit__(self, *_: object) -> None:
        self._service.load.close_stream(self._meter)
        self._made.keep(0)

    def start(self, content_type: str, extra: Sequence[tuple[str, str]] = ()) -> None:
        """Sends the head. Errors before it are answers, errors after it are last messages."""
        self._call.stream = self
        node = self._service.node
        names = [
            *self._service.identity.headers(content_type),
            (H_INDEX, str(node.applied)),
            (H_TERM, str(node.term)),
            (H_REQUEST_ID, self._call.request_id),
            *extra,
            ("Transfer-Encoding", "chunked") if self._is_chunked else ("Connection", "close"),
        ]
        self._transport().write(
            ("HTTP/1.1 200 OK\r\n" + "".join(f"{name}: {value}\r\n" for name, value in names) + "\r\n").encode()
        )

    async def write(self, *parts: bytes | memoryview) -> None:
        """Sends one message. Raises SlowReader, or ConnectionResetError if the reader is gone."""
        self._send(parts)
        self._made.keep(0)  # the connection counts what the reader has not taken
        if self._transport().get_write_buffer_size() <= DRAIN_BYTES:
            return  # a timer would cost more than the message
        drain = self._call.request.writer.drain()
        try:
            async with asyncio.timeout(self._service.limits.stream_stall_ms / 1000):
                await drain
        except TimeoutError:
            raise SlowReader from None

    def has_room(self, size: int) -> bool:
        """Whether this many bytes may wait for this reader, beside the bytes that wait for others."""
        return self._service.load.answers.has_room(size, size)

    async def made(self, make: Callable[[], Awaitable[Piece]], size: int) -> Piece:
        """The piece that `make` makes, to be written at once. `size`: the bytes that it will have, about.

        It is made once there is room for it beside what waits for other readers: a thousand streams that make their
        pieces first would hold gigabytes. A reader that takes nothing loses its connection after
        limits.stream_stall_ms. Raises ApiError busy if there is no room until then."""
        while True:
            await self._reserve(size)
            piece = await make()
            found = sum([len(part) for part in piece[0]])
            if found <= max(size, SMALL_BYTES) or self._made.hold(found):
                return piece
            del piece
            self._made.keep(0)
            size = found

    async def _reserve(self, size: int) -> None:
        service = self._service
        until = service.clock() + service.limits.stream_stall_ms / 1000
        while size > SMALL_BYTES and not self._made.hold(size):
            if service.clock() >= until:
                raise service.load.answers.full()
            await asyncio.sleep(_ROOM_POLL_S)

    def end(self, *parts: bytes) -> None:
        """Sends the last message and ends the stream."""
        if any(parts):
            self._send(parts)
        if self._is_chunked:
            self._transport().write(_END)
            self.keep_alive = self._call.request.keep_alive
        self._has_ended = True

    def close_slow(self, *parts: bytes) -> None:
        """As `end`, for a reader that takes nothing: the buffered bytes stay for a while, then the connection is
        cut."""
        self.end(*parts)
        self.keep_alive = False
        transport = self._transport()
        transport.close()  # sends the buffered bytes first
        asyncio.get_running_loop().call_later(self._service.limits.stream_stall_ms / 1000, transport.abort)

    def problem(self, error: ApiError, **more: int) -> Problem:
        """The error that ends the stream, as its last message carries it."""
        ended = ApiError(error.code, error.message, **{**error.more, **more})
        return self._service.problem(ended, self._call.request_id)

    def _send(self, parts: Sequence[bytes | memoryview]) -> None:
        transport = self._transport()
        size = sum([len(part) for part in parts])
        if self._meter is not None:
            self._meter.charge(size)
        if not self._is_chunked:
            transport.writelines(parts)
            return
        framed = [b"%x\r\n" % size, *parts, b"\r\n"]
        if size <= DRAIN_BYTES:
            transport.write(b"".join(framed))
        else:
            transport.writelines(framed)

    def _transport(self) -> asyncio.Transport:
        transport = self._call.request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the reader is gone")
        return transport

    async def prepare(self, request: object) -> None:
        """aiohttp calls this once the stream is over: everything has been sent."""

    async def write_eof(self) -> None:
        """As `prepare`. A stream that broke off must not look complete: its connection is closed."""
        if not self._has_ended:
            self.keep_alive = False
            transport = self._call.request.transport
            if transport is not None:
                transport.abort()


def slow_reader(stall_ms: int) -> ApiError:
    """The error in a slow reader's last message."""
    return ApiError(
        Code.BUSY, f"this reader took nothing for {stall_ms} ms (limits.stream_stall_ms): read faster, go on from next"
    )
