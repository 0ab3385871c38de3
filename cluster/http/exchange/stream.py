"""Sends a stream of chunks with a bounded buffer, and an end that a slow reader still gets.

The routes of log streams, watches and backups use it. Unsent bytes are at most aiohttp's write limit plus one slice. A
reader that takes nothing for `limits.stream_stall_ms` is closed; its last message says where to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Final

from raftlog.cluster.admission.budget import SMALL_BYTES, Share
from raftlog.cluster.api.errors import ApiError, Code, Problem
from raftlog.cluster.api.headers import H_INDEX, H_REQUEST_ID, H_TERM
from raftlog.cluster.http.exchange.answer import DRAIN_BYTES, StreamedAnswer
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.follow import Piece
from raftlog.cluster.http.exchange.service import Service

_END: Final = b"0\r\n\r\n"
_ROOM_POLL_S: Final = 0.05


class SlowReader(ApiError):
    """The reader took nothing for too long."""

    def __init__(self, stall_ms: int) -> None:
        super().__init__(
            Code.BUSY,
            f"this reader took nothing for {stall_ms} ms (limits.stream_stall_ms): read faster, go on from next",
        )


class Stream(StreamedAnswer):
    """One streamed answer; aiohttp is handed it when it has ended. Used as a context: it counts while it is open."""

    __slots__ = ("_call", "_has_ended", "_is_chunked", "_made", "_open", "_service")

    def __init__(self, service: Service, call: Call) -> None:
        super().__init__()
        self._service = service
        self._call = call
        self._is_chunked = call.request.version.minor >= 1
        self._has_ended = False
        self._open = ExitStack()  # its places among the streams of the node and of its user
        self._made = Share(service.load.answers)  # bytes of a piece that is being made

    def __enter__(self) -> Stream:
        caller = self._call.caller
        with ExitStack() as open_ones:
            open_ones.enter_context(self._service.load.streams)
            if caller is not None:
                open_ones.enter_context(caller.meter.streams)
            self._open = open_ones.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
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
        stall_ms = self._service.limits.stream_stall_ms
        try:
            async with asyncio.timeout(stall_ms / 1000):
                await drain
        except TimeoutError:
            raise SlowReader(stall_ms) from None

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

    def fail(self, error: ApiError, position: int, mark: Callable[[int, Problem], bytes]) -> None:
        """Ends with the `mark` of that position and this error. For a slow reader the buffered bytes stay for a while,
        then the connection is cut."""
        ended = ApiError(error.code, error.message, **{**error.more, "next": position})
        self.end(mark(position, self._service.problem(ended, self._call.request_id)))
        if isinstance(error, SlowReader):
            self.keep_alive = False
            transport = self._transport()
            transport.close()  # sends the buffered bytes first
            asyncio.get_running_loop().call_later(self._service.limits.stream_stall_ms / 1000, transport.abort)

    def _send(self, parts: Sequence[bytes | memoryview]) -> None:
        transport = self._transport()
        size = sum([len(part) for part in parts])
        if self._call.caller is not None:
            self._call.caller.meter.charge(size)
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
