"""Makes the connections of clients: aiohttp's, with bounds on what it holds, and the fast path in front of it.

`raftlog.cluster.http.server` makes the `Server`. aiohttp takes whatever comes: it reads on while a request is served,
and parses all chunks of one read at once. `SlowConnection` stands before its parser. It passes on one request at a time
and a bounded number of chunks in one turn of the event loop, and counts the bytes that wait in the budget for bodies.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from raftlog.cluster.admission.budget import Share
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.exchange.answer import forget_frames
from raftlog.cluster.http.exchange.framing import ChunkOverhead
from raftlog.cluster.http.fast.bounds import REQUEST_BYTES, AdmissionQueue
from raftlog.cluster.http.fast.byte_flow import ByteFlow
from raftlog.cluster.http.fast.connection import FastConnection
from raftlog.cluster.http.fast.head import HeadParser
from raftlog.cluster.http.gate import Api
from raftlog.cluster.security.names import Holder
from raftlog.cluster.security.tls import shown_holder

KEEPALIVE_SECONDS: Final = 75.0
"""How long a connection without a request is kept, in seconds."""
_NOT_HTTP: Final = b"\0\r\n\r\n\0"
"""Bytes that no parser accepts at any place of a request."""
_CHUNKS_COST: Final = 16 * REQUEST_BYTES
"""What the chunks that are passed on at once count in a turn of the event loop: they take as long as 16 requests."""


class SlowConnection(RequestHandler):
    """aiohttp's side of a connection. Bytes that are not HTTP get a problem too. Reports each answer to `front`."""

    __slots__ = (
        "_admission",
        "_api",
        "_bytes",
        "_front",
        "_is_held",
        "_is_in_line",
        "_is_open",
        "_late",
        "_overhead",
        "read_task",
        "reading",
        "refusal",
    )

    def __init__(self, manager: Server, front: FastConnection | None, **options: Any) -> None:
        super().__init__(manager, **options)
        self._api = manager.api
        self._admission = manager.admission
        self._front = front
        self._overhead = ChunkOverhead(manager.api.service.limits.head_bytes_max)
        self._late = b""  # bytes that the parser does not have yet
        self._bytes = Share(manager.api.service.load.bodies)  # those, and an unfinished head
        self._is_open = False  # a request is not answered yet
        self._is_in_line = False  # waits for a turn
        self._is_held = False  # the socket is not read, because bytes wait
        self.refusal: ApiError | None = None  # why no further bytes are read
        self.reading: StreamReader | None = None  # the body that a request waits for
        self.read_task: asyncio.Task[Any] | None = None  # serves the present request, which changes nothing

    def data_received(self, data: bytes) -> None:
        """Takes the client's bytes. aiohttp calls this without bytes to continue with those that its parser kept while
        the body had no room (`BaseProtocol.resume_reading`)."""
        if self.refusal is not None:
            return
        if not data:
            super().data_received(data)
        self._late = self._late + data if self._late else data
        self._pass_on()

    def called(self) -> None:
        self._is_in_line = False
        if self.transport is not None:
            self._pass_on()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._late = b""
        self._bytes.keep(0)
        super().connection_lost(exc)
        if self.read_task is not None:
            self.read_task.cancel()  # its long poll or stream gives its place to other clients
        self._front = None  # see `ByteFlow.connection_lost`

    def _pass_on(self) -> None:
        """Passes bytes on to the parser: the current request's, a bounded number of chunks in one turn."""
        overhead = self._overhead
        while self._late and not self._is_in_line:
            if self._is_open and overhead.is_in_head:
                break  # the next request waits for the answer to this one
            if overhead.is_in_chunks and not self._admission.may(_CHUNKS_COST):
                self._is_in_line = True
                self._admission.wait(self)
                break
            try:
                end = overhead.check(self._late)
            except ApiError as refusal:
                self._refuse(refusal)
                return
            data, self._late = self._late[:end], self._late[end:]
            if overhead.has_request and not self._is_open:
                self._is_open = True
                if self._front is not None:
                    self._front.began()  # before its next bytes come: they are no part of a head
            super().data_received(data)
        if not self._bytes.hold(len(self._late) + overhead.head_bytes):
            self._refuse(self._api.service.load.bodies.full())
            return
        self._regulate()

    def _regulate(self) -> None:
        """Reads the socket, unless bytes wait here."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._late:
            self._is_held = True
            transport.pause_reading()
        elif self._is_held:
            self._is_held = False
            if not (self._reading_paused or self._buffer_paused):  # aiohttp does not want more either
                transport.resume_reading()

    def _refuse(self, refusal: ApiError) -> None:
        """Reads no more: after a malformed chunk, too many bytes beside the body, or without room for more bytes. A
        request that waits for its body gets the error, and one that is being served its answer. If none is, the
        parser gets bytes that end it."""
        forget_frames(refusal)
        self.refusal, self._late = refusal, b""
        self._bytes.keep(0)
        if self.reading is not None:
            self.reading.set_exception(web.RequestPayloadError(refusal.message))
            self.close()
        elif self._is_open and self._overhead.is_in_head:
            self.close()
        else:
            super().data_received(_NOT_HTTP)

    @property
    def holder(self) -> Holder | None:
        if self._front is not None:
            return self._front.holder
        return None if self.transport is None else shown_holder(self.transport)

    def log_exception(self, *args: Any, **more: Any) -> None:
        """aiohttp calls this for errors of its own. A malformed body is the client's error, and has an answer."""
        if not isinstance(more.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **more)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """aiohttp calls this to send an answer."""
        sent = await super().finish_response(request, resp, start_time)
        self._is_open, self.read_task = False, None
        if self._front is not None:
            self._front.answered(is_whole=request.content.is_eof())
        if self._late:
            self._pass_on()
        return sent

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp calls this for bytes that its parser refuses; the connection ends."""
        code = Code.TOO_LARGE if isinstance(exc, LineTooLong) else Code.BAD_REQUEST
        text = " ".join((message or "malformed HTTP").split())[:300]
        forget_frames(exc)
        error = self.refusal or ApiError(code, f"this is not a request that HTTP/1.1 knows: {text}")
        answer = self._api.problem("malformed", error)
        answer.keep_alive = False
        return answer  # type: ignore[return-value]  # has the methods of a response that aiohttp calls


class Server(web.Server):
    """Makes the connections; with a `parser`, each has the fast path in front."""

    def __init__(self, api: Api, parser: HeadParser | None, **options: Any) -> None:
        super().__init__(api.handle, **options)  # type: ignore[arg-type]  # answers have the methods that aiohttp calls
        self.api = api
        self.fast: set[ByteFlow] = set()
        self._addresses: Counter[str] = Counter()  # of `fast`
        self.admission = AdmissionQueue()
        self.refusing_until = 0.0
        self._parser = parser
        self._options = options

    def __call__(self) -> RequestHandler:
        if self._parser is None:
            return self.make_handler(None)
        fast = FastConnection(self, self.api, self._parser, KEEPALIVE_SECONDS)
        return fast  # type: ignore[return-value]  # asyncio needs only a protocol

    def entered(self, connection: ByteFlow, address: str) -> None:
        self.fast.add(connection)
        self._addresses[address] += 1

    def left(self, connection: ByteFlow, address: str) -> None:
        self.fast.discard(connection)
        self._addresses[address] -= 1
        if self._addresses[address] <= 0:
            del self._addresses[address]

    def full_for(self, address: str) -> ApiError | None:
        """The error for a client for whose address too many connections are open. None: it may stay."""
        limits = self.api.service.limits
        for name, count, limit in (
            ("connections_max", len(self.fast), limits.connections_max),
            ("address_connections_max", self._addresses[address], limits.address_connections_max),
        ):
            if count > limit:
                return ApiError(Code.BUSY, f"{limit} connections are open (limits.{name}): try again, or another node")
        return None

    def end_revoked(self) -> None:
        """Ends the connections of clients whose certificate has been revoked meanwhile."""
        for connection in list(self.fast):
            connection.check_certificate()

    def make_handler(self, front: FastConnection | None) -> RequestHandler:
        return SlowConnection(self, front, loop=self._loop, **self._options)

    def pre_shutdown(self) -> None:
        """Accepts no further request on any connection."""
        super().pre_shutdown()
        for connection in list(self.fast):
            connection.close()

    async def shutdown(self, timeout: float | None = None) -> None:
        """Closes every connection; requests under way get `timeout` seconds."""
        busy = [connection for connection in self.fast if connection.is_busy]
        for connection in busy:
            connection.ended = self._loop.create_future()
        waits = [connection.ended for connection in busy if connection.ended is not None]
        if waits:
            await asyncio.gather(super().shutdown(timeout), asyncio.wait(waits, timeout=timeout))
        else:
            await super().shutdown(timeout)
        for connection in list(self.fast):
            connection.abort()
