"""Holds the bytes of one client connection: what came and is not served, budgets, pauses, idle time, and the end.

`raftlog.cluster.http.fast.connection` makes requests of these bytes.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum, auto
from typing import Any, Final, Protocol, cast

from aiohttp.web_protocol import RequestHandler

from raftlog.cluster.admission.budget import Share
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.fast.bounds import AdmissionQueue, Body, HeadWatch
from raftlog.cluster.http.fast.head import HeadParser, RequestHead
from raftlog.cluster.http.gate import Api
from raftlog.cluster.runtime import clock
from raftlog.cluster.security.names import Holder
from raftlog.cluster.security.tls import shown_holder

_WAITING_BYTES_MAX: Final = 64 << 10
"""Bytes of requests after the one being served; above this the socket is not read."""
_REFUSED_SECONDS: Final = 1.0
"""Seconds from the answer to the close of a refused connection, or of one whose head does not end. A client that is
still sending would otherwise lose the answer."""


class ConnectionState(Enum):
    """What a connection is doing."""

    IDLE = auto()  # between two requests
    IN_LINE = auto()  # the next request is here, and waits for a turn
    TO_REFUSE = auto()  # as IN_LINE, but will probably be refused
    FAST = auto()  # a request is being served here
    SLOW = auto()  # a request is being served by aiohttp
    RESTING = auto()  # the last request was refused as busy
    HANDED_OVER = auto()  # all further bytes are aiohttp's
    REFUSED = auto()  # further bytes are dropped until the client has read the answer
    CLOSED = auto()


class Slow(Protocol):
    """The methods of `raftlog.cluster.http.connections.Server` that a connection calls: it makes aiohttp's handlers."""

    admission: AdmissionQueue
    refusing_until: float  # when the refusals so far will be paid for by other work

    def entered(self, connection: ByteFlow, address: str) -> None: ...
    def left(self, connection: ByteFlow, address: str) -> None: ...
    def full_for(self, address: str) -> ApiError | None: ...
    def make_handler(self, front: Any) -> RequestHandler: ...


class ByteFlow:
    """The bytes of one connection. A subclass serves the requests in them.

    It has the methods of asyncio.Protocol, and not that base: a class compiled by mypyc with an interpreted base is
    slow.
    """

    __slots__ = (
        "_address",
        "_at",
        "_body",
        "_body_timer",
        "_buffer",
        "_gate",
        "_handler",
        "_head",
        "_idle_since",
        "_idle_timer",
        "_in",
        "_is_leaving",
        "_is_reading_paused",
        "_is_writing_paused",
        "_keepalive_s",
        "_loop",
        "_out",
        "_parser",
        "_rest_timer",
        "_served",
        "_server",
        "_state",
        "_transport",
        "_write_timer",
        "ended",
        "holder",
    )

    def __init__(self, server: Slow, gate: Api, parser: HeadParser, keepalive_s: float) -> None:
        self._server, self._gate, self._parser = server, gate, parser
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._address = ""  # the client's, without the port
        self.holder: Holder | None = None  # of the client's certificate
        self._handler: RequestHandler | None = None  # aiohttp's side, once a request needed it
        self._state = ConnectionState.IDLE
        self._buffer = b""
        self._at = 0  # the bytes before are handled
        self._in = Share(gate.service.load.bodies)  # bytes of the buffer and of the request served here
        self._served = 0  # counted bytes of the body served here
        self._out = Share(gate.service.load.answers)  # bytes that the client has not read yet
        self._body: Body | None = None  # unfinished body of the next request; holds the buffer too
        self._head = HeadWatch(gate.service.limits, self._head_is_late)
        self._is_leaving = False
        self._is_reading_paused = self._is_writing_paused = False
        self._idle_since = 0.0  # end of the newest request
        self._idle_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] | None = None  # made by the caller that waits for the end

    def _advance(self, head: RequestHead | None = None) -> None:
        """Serves the requests in the buffer until one must wait. `head`: the first request's, parsed already."""
        raise NotImplementedError

    @property
    def is_busy(self) -> bool:
        """Whether a request is being served here, or will be."""
        return self._state in (ConnectionState.FAST, ConnectionState.IN_LINE, ConnectionState.TO_REFUSE)

    def close(self) -> None:
        """Accepts no further request: closes once the current one is answered."""
        self._is_leaving = True
        if self._state in (ConnectionState.IDLE, ConnectionState.RESTING):
            self._transport.close()

    def check_certificate(self) -> None:
        credentials = self._gate.service.credentials
        if credentials is not None and credentials.revocation(self._transport) is not None:
            self.abort()

    def abort(self) -> None:
        if not self._transport.is_closing():
            self._transport.abort()

    # -- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._address = str((transport.get_extra_info("peername") or ("?",))[0])
        self._server.entered(self, self._address)
        service = self._gate.service
        if service.credentials is not None:
            if (reason := service.credentials.client_refusal(transport, service.node.log_id)) is not None:
                self._refuse(ApiError(Code.FORBIDDEN, reason))
                return
            self.holder = shown_holder(transport)
        if (error := self._server.full_for(self._address)) is not None:
            self._refuse(error)
            return
        self._idle_since = clock.monotonic()
        self._idle_timer = self._loop.call_later(self._keepalive_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_line(ConnectionState.CLOSED)
        self._buffer, self._body = b"", None
        self._in.keep(0)
        self._out.keep(0)
        self._server.left(self, self._address)
        self._head.end()
        for timer in (self._idle_timer, self._body_timer, self._rest_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)
        if self._handler is not None:
            self._handler.connection_lost(exc)
        # A circle of objects would stay until the garbage collector meets it: 100,000 connections later.
        self._handler = None
        self._head.forget()

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._out.keep(self._transport.get_write_buffer_size())
        if self._handler is not None and self._state is not ConnectionState.FAST:
            self._handler.pause_writing()
        else:
            self._write_timer = self._loop.call_later(self._gate.service.identity.drain_seconds, self.abort)

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._out.keep(0)
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        elif self._handler is not None:
            self._handler.resume_writing()
        if self._state is ConnectionState.IDLE:
            self._advance()

    # -- bytes that wait, and bytes that are refused ---------------------------------------------------------------

    def _regulate(self) -> None:
        """Reads the socket or pauses reading, to bound the waiting bytes. An awaited body may always come."""
        if self._body is not None:
            return
        waiting = len(self._buffer) - self._at
        if self._served or waiting or self._in.size:
            self._count(waiting)
        is_full = waiting > _WAITING_BYTES_MAX and (self._state is not ConnectionState.IDLE or self._is_writing_paused)
        if is_full is not self._is_reading_paused and not self._transport.is_closing():
            self._is_reading_paused = is_full
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _count(self, waiting: int) -> None:
        """Counts the held bytes. Without room, requests after the current one are dropped unread, and the connection
        ends with the current answer."""
        if self._in.hold(self._served + waiting) or (
            self._state is ConnectionState.IDLE and not self._is_writing_paused
        ):
            return
        end = 0
        if self._state in (ConnectionState.IN_LINE, ConnectionState.TO_REFUSE):
            head = self._parser.parse(self._buffer, self._at)
            end = head.end + head.length
        self._buffer, self._at = self._buffer[self._at : end], 0
        self._in.keep(self._served + len(self._buffer))
        self.close()  # at once, if only answers are left for the client to read

    def _leave_line(self, state: ConnectionState) -> None:
        if self._state is ConnectionState.IN_LINE:
            self._gate.service.load.open_requests -= 1
        self._state = state

    def _head_is_late(self, error: ApiError) -> None:
        if self._state in (ConnectionState.IDLE, ConnectionState.HANDED_OVER):
            self._refuse(error)

    def _refuse(self, error: ApiError) -> None:
        """Answers bytes that were not served as a request, and closes the connection soon."""
        self._state = ConnectionState.REFUSED
        self._buffer, self._at = b"", 0
        self._in.keep(0)
        if not self._transport.is_closing():
            answer = self._gate.problem("none", error)
            answer.write(self._transport, "Connection: close\r\n")
            self._body_timer = self._loop.call_later(_REFUSED_SECONDS, self._transport.close)

    # -- time -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Closes a connection without a request for too long. One timer serves all requests."""
        self._idle_timer = None
        if self._state in (ConnectionState.HANDED_OVER, ConnectionState.CLOSED, ConnectionState.REFUSED):
            return  # aiohttp has a timer of its own
        now = clock.monotonic()
        left = self._idle_since + self._keepalive_s - now if self._state is ConnectionState.IDLE else self._keepalive_s
        if left <= 0:
            self._transport.close()
        else:
            self._idle_timer = self._loop.call_later(left, self._look)
