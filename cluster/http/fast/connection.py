"""Answers the hot routes on its connection, and hands everything else to aiohttp, byte for byte.

The listener makes one for each client connection. Both ways use the same gate and handlers
(`raftlog.cluster.http.gate.Api`). The fast path saves aiohttp's parser, request, tasks and timers, which cost more than
everything else between the socket and the node. It continues in the callback of the node's future, or drives the
handler's coroutine from there, without a task.

A request that is whole, simple and hot (`raftlog.cluster.http.fast.head`) is answered here. A request whose end is
certain goes to aiohttp's handler of the same connection, exactly its bytes. Bytes after it wait until it is answered,
and may be served here again. At any other request the connection becomes aiohttp's for good, from that request's first
byte on. So the two can never disagree about where a request begins. One request at a time, in order, as aiohttp does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

from aiohttp.web_protocol import RequestHandler

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.budget import Share
from raftlog.cluster.http.exchange.call import AskedOfNode, Call, Service
from raftlog.cluster.http.fast.admission import AdmissionQueue
from raftlog.cluster.http.fast.body import BODY_WAIT_SECONDS, Body
from raftlog.cluster.http.fast.head import HeadParser, Kind, RequestHead
from raftlog.cluster.http.fast.head_watch import HeadWatch
from raftlog.cluster.http.routes.table import has_share
from raftlog.cluster.runtime import clock
from raftlog.cluster.security.names import Holder
from raftlog.cluster.security.tls import shown_holder

_WAITING_BYTES_MAX: Final = 64 << 10
"""Bytes of requests after the one being served; above this the socket is not read."""
_UNCOUNTED_BYTES_MAX: Final = 16 << 10
"""A request that came whole, with no more body than this, is not counted in the budget for bodies: the limits on
requests being served (limits.open_requests_max) bound these."""
_REST_SECONDS: Final = (0.05, 5.0)
_REFUSING_SHARE: Final = 0.05
"""The share of the loop's time for refusals. A connection that was refused as busy is not read for a moment, which is
longer if there are more of them. Refusing costs half of what serving costs, and as much again for the sockets. Clients
that ask again at once would take much of the loop's time, and delay the refusal of others."""
_REFUSED_SECONDS: Final = 1.0
"""Seconds from the answer to the close of a refused connection, or of one whose head does not end. A client that is
still sending would otherwise lose the answer."""
_TOO_MANY_REQUESTS: Final = int(HTTPStatus.TOO_MANY_REQUESTS)
_TURN_REQUESTS_MAX: Final = 64
"""Most pipelined requests answered in a row; then other connections have their turn."""


class _State(Enum):
    IDLE = auto()  # between two requests
    IN_LINE = auto()  # the next request is here, and waits for a turn
    TO_REFUSE = auto()  # as IN_LINE, but will probably be refused
    FAST = auto()  # a request is being served here
    SLOW = auto()  # a request is being served by aiohttp
    RESTING = auto()  # the last request was refused as busy
    HANDED_OVER = auto()  # all further bytes are aiohttp's
    REFUSED = auto()  # further bytes are dropped until the client has read the answer
    CLOSED = auto()


# Read several times a request: a member of an enum costs a call each time.
_IDLE: Final = _State.IDLE
_FAST: Final = _State.FAST
_HOT: Final = Kind.HOT


class Gate(Protocol):
    """The methods of `raftlog.cluster.http.gate.Api` that a connection calls."""

    service: Service

    def begin(self, call: Call) -> Any:
        """Admits a request. Returns a question to the node (a tuple, for `end`), a coroutine, or the answer."""

    def end(self, call: Call, asked: AskedOfNode) -> Any:
        """The answer to a question that the node has settled. Raises nothing but a cancellation."""

    def problem(self, identifier: str, error: ApiError) -> HttpAnswer:
        """The error as an answer."""


class Slow(Protocol):
    """The methods of `raftlog.cluster.http.connections.Server` that a connection calls: it makes aiohttp's handlers."""

    admission: AdmissionQueue
    refusing_until: float  # when the refusals so far will be paid for by other work

    def entered(self, connection: FastConnection, address: str) -> None:
        """A client connected."""

    def left(self, connection: FastConnection, address: str) -> None:
        """A client's connection has ended."""

    def full_for(self, address: str) -> ApiError | None:
        """The error for a client for whose address too many connections are open. None: it may stay."""

    def make_handler(self, front: FastConnection | None) -> RequestHandler:
        """A handler that reports each answer to `front.answered`."""


class FastConnection:
    """One connection of a client. It has the methods of asyncio.Protocol, and not that base: a class compiled by mypyc
    with an interpreted base is slow."""

    __slots__ = (
        "_address", "_asked", "_at", "_began", "_body", "_body_timer", "_buffer", "_call", "_gate", "_handler", "_head",
        "_idle_since", "_idle_timer", "_in", "_is_handling", "_is_leaving", "_is_reading_paused",
        "_is_writing_paused", "_keepalive_s", "_left", "_loop", "_out", "_parser", "_rest_timer", "_served",
        "_server", "_serving", "_state", "_transport", "_write_timer", "ended", "holder",
    )  # fmt: skip

    def __init__(self, server: Slow, gate: Gate, parser: HeadParser, keepalive_s: float) -> None:
        self._server, self._gate, self._parser = server, gate, parser
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._address = ""  # the client's, without the port
        self.holder: Holder | None = None  # of the client's certificate
        self._handler: RequestHandler | None = None
        self._state = _State.IDLE
        self._buffer = b""
        self._at = 0  # the bytes before are handled
        self._left = 0  # bytes to come of the request that aiohttp serves
        self._in = Share(gate.service.bodies)  # bytes of the buffer and of the request served here
        self._served = 0  # counted bytes of the body served here
        self._out = Share(gate.service.answers)  # bytes that the client has not read yet
        self._body: Body | None = None  # unfinished body of the next request; holds the buffer too
        self._call: Call | None = None  # the request whose question the node has,
        self._asked: AskedOfNode | None = None  # and that question
        self._serving: Coroutine[Any, Any, Any] | None = None  # or the handler of a request that is a coroutine
        self._is_leaving = False
        self._is_reading_paused = self._is_writing_paused = False
        self._began = self._idle_since = 0.0  # begin and end of the newest request
        self._idle_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._head = HeadWatch(gate.service.limits, self._head_is_late)
        self._is_handling = False  # aiohttp serves a request
        self._rest_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] | None = None  # made by the caller that waits for the end

    @property
    def is_busy(self) -> bool:
        """Whether a request is being served here, or will be."""
        return self._state in (_State.FAST, _State.IN_LINE, _State.TO_REFUSE)

    def close(self) -> None:
        """Accepts no further request: closes once the current one is answered."""
        self._is_leaving = True
        if self._state in (_State.IDLE, _State.RESTING):
            self._transport.close()

    def check_certificate(self) -> None:
        """Ends the connection if the client's certificate has been revoked meanwhile."""
        credentials = self._gate.service.credentials
        if credentials is not None and credentials.revocation(self._transport) is not None:
            self.abort()

    def abort(self) -> None:
        """Closes at once."""
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

    def data_received(self, data: bytes) -> None:
        head: RequestHead | None = None
        if self._state is _IDLE and self._at >= len(self._buffer) and not (self._body or self._is_writing_paused):
            head = self._parser.parse(data, 0)
            is_whole = head.end + head.length == len(data)  # usual: the client waits for its answers
            if (
                head.kind is _HOT
                and is_whole
                and head.length <= _UNCOUNTED_BYTES_MAX
                and not self._transport.is_closing()
                and self._server.admission.may(head.length)
            ):
                self._buffer, self._at = b"", 0
                self._serve(head, data[head.end :])
                return
        if self._state is _State.HANDED_OVER:
            assert self._handler is not None
            if not self._is_handling and (error := self._head.came(len(data))) is not None:
                self._refuse(error)
                return
            self._handler.data_received(data)
            return
        if self._state is _State.REFUSED:
            return
        if self._body is not None:
            is_whole = self._body.is_whole_with(data)
            if not self._in.hold(self._in.size + len(data)):
                self._settle_body()
                self._lend(self._parser.parse(self._buffer, self._at))  # aiohttp refuses it, and reads the rest
            elif is_whole:
                self._settle_body()
                self._advance()
            return
        if self._left:
            data = self._pass_on(data)
        self._buffer = self._buffer[self._at :] + data if self._at < len(self._buffer) else data
        self._at = 0
        if self._state is _State.IDLE:
            self._advance(head)
        else:
            self._regulate()

    def eof_received(self) -> bool:
        """Closes as aiohttp does when the client has closed its side, but in turns if thousands do so at once."""
        if self._handler is not None or self._transport.get_extra_info("ssl_object") is not None:
            return False  # TLS closes both directions at once
        self._leave_line(_State.CLOSED)
        self._buffer, self._body = b"", None
        self._server.admission.wait(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_line(_State.CLOSED)
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
        if self._handler is not None and self._state is not _State.FAST:
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
        if self._state is _State.IDLE:
            self._advance()

    # -- from request to request ----------------------------------------------------------------------------------

    def _advance(self, head: RequestHead | None = None) -> None:
        """Serves the requests in the buffer until one must wait. `head`: the first request's, parsed already."""
        turn = 0
        while self._state is _State.IDLE and self._at < len(self._buffer) and not self._is_writing_paused:
            if self._body is not None or self._transport.is_closing():
                return
            turn += 1
            if turn > _TURN_REQUESTS_MAX:
                self._loop.call_soon(self._advance)
                break
            if head is None:
                head = self._parser.parse(self._buffer, self._at)
            if head.kind is Kind.PARTIAL:
                self._head.begin()
                break
            if self._head.has_begun:
                self._head.end()
            if head.kind is Kind.ODD:
                self._hand_over()
                return
            end = head.end + head.length
            if head.kind is _HOT:
                if not self._in.hold(min(end, len(self._buffer)) - self._at):
                    self._lend(head)  # aiohttp refuses its body
                    break
                if end > len(self._buffer):
                    self._body = Body(self._buffer, end - len(self._buffer))
                    self._body_timer = self._loop.call_later(BODY_WAIT_SECONDS, self._look_at_body)
                    break
                if not self._server.admission.may(head.length) and self._must_wait():
                    break
                self._at = end
                self._served = head.length if head.length > _UNCOUNTED_BYTES_MAX else 0
                self._serve(head, self._buffer[head.end : end])
                head = None
                continue
            if not (has_share(head.target) or self._server.admission.may(head.length)) and self._must_wait():
                break
            self._lend(head)
            break
        self._regulate()

    def _must_wait(self) -> bool:
        """Puts the request in line, or refuses it if the line is full: at once unless there are many refusals."""
        service, turns = self._gate.service, self._server.admission
        if service.open_requests < service.limits.open_requests_max:
            service.open_requests += 1
            self._state = _State.IN_LINE
            turns.wait(self)
        elif turns.may_refuse():
            return False
        else:
            self._state = _State.TO_REFUSE
            turns.wait_refused(self)
        self._settle_body()
        return True

    def _leave_line(self, state: _State) -> None:
        if self._state is _State.IN_LINE:
            self._gate.service.open_requests -= 1
        self._state = state

    def called(self) -> None:
        """Serves the request that waited in line, or closes if the client is gone."""
        if self._state in (_State.IN_LINE, _State.TO_REFUSE):
            self._leave_line(_State.IDLE)
            self._advance()
        elif self._state is _State.CLOSED:
            self._transport.close()

    def _regulate(self) -> None:
        """Reads the socket or pauses reading, to bound the waiting bytes. An awaited body may always come."""
        if self._body is not None:
            return
        waiting = len(self._buffer) - self._at
        if self._served or waiting or self._in.size:
            self._count(waiting)
        is_full = waiting > _WAITING_BYTES_MAX and (self._state is not _State.IDLE or self._is_writing_paused)
        if is_full is not self._is_reading_paused and not self._transport.is_closing():
            self._is_reading_paused = is_full
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _count(self, waiting: int) -> None:
        """Counts the held bytes. Without room, requests after the current one are dropped unread, and the connection
        ends
        with the current answer."""
        if self._in.hold(self._served + waiting) or (self._state is _State.IDLE and not self._is_writing_paused):
            return
        end = 0
        if self._state in (_State.IN_LINE, _State.TO_REFUSE):
            head = self._parser.parse(self._buffer, self._at)
            end = head.end + head.length
        self._buffer, self._at = self._buffer[self._at : end], 0
        self._in.keep(self._served + len(self._buffer))
        self._is_leaving = True
        if self._state in (_State.IDLE, _State.RESTING):  # only answers are left for the client to read
            self._transport.close()

    def _head_is_late(self, error: ApiError) -> None:
        if self._state in (_State.IDLE, _State.HANDED_OVER):
            self._refuse(error)

    def _refuse(self, error: ApiError) -> None:
        """Answers bytes that were not served as a request, and closes the connection soon."""
        self._state = _State.REFUSED
        self._buffer, self._at = b"", 0
        self._in.keep(0)
        if not self._transport.is_closing():
            answer = self._gate.problem("none", error)
            answer.write(self._transport, "Connection: close\r\n")
            self._body_timer = self._loop.call_later(_REFUSED_SECONDS, self._transport.close)

    def _look_at_body(self) -> None:
        if self._body is None:
            return  # the client has gone
        if self._body.is_slow():
            self._settle_body()
            self._lend(self._parser.parse(self._buffer, self._at))
        else:
            self._body_timer = self._loop.call_later(BODY_WAIT_SECONDS, self._look_at_body)

    def _settle_body(self) -> None:
        if self._body is not None:
            self._buffer, self._body = self._body.joined(), None
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    # -- here -----------------------------------------------------------------------------------------------------

    def _serve(self, head: RequestHead, body: bytes) -> None:
        self._state = _FAST
        _, method, target, path, query, headers, _, _, has_options, key = head
        call = Call(method, target, path, query, headers, None, body, has_options, key)
        if self.holder is not None:
            call.holder = self.holder
        begun = self._gate.begin(call)
        self._began = call.started
        if type(begun) is tuple:
            self._call, self._asked = call, begun
            begun[0].add_done_callback(self._settled)
        elif isinstance(begun, HttpAnswer):
            self._answer(begun)
        else:
            self._serving = begun
            self._step()

    def _settled(self, _: object) -> None:
        """The node has settled its question."""
        call, asked = self._call, self._asked
        assert call is not None
        assert asked is not None
        try:
            answer = self._gate.end(call, asked)
        except BaseException:  # cancelled, as in `_step`
            self.abort()
            raise
        self._call = self._asked = None
        self._answer(answer)
        if self._at < len(self._buffer) or self._is_reading_paused:
            self._go_on()

    def _step(self, woken: object = None) -> None:
        """Drives a handler to its next future, as a task would. `woken`: the future before."""
        serving = self._serving
        assert serving is not None
        try:
            awaited = serving.send(None)
        except StopIteration as done:
            self._serving = None
            self._answer(done.value)
            if woken is not None:
                self._go_on()
        except BaseException:  # cancelled: the outcome is unknown, and a closed connection shows that
            self._serving = None
            self.abort()
            raise
        else:
            if awaited is None:
                self._loop.call_soon(self._step, serving)
            else:
                awaited._asyncio_future_blocking = False
                awaited.add_done_callback(self._step)

    def _go_on(self) -> None:
        """Serves the requests that came while the last one was served."""
        if self._state is _IDLE:
            if self._at < len(self._buffer):
                self._advance()
            elif self._is_reading_paused:
                self._regulate()

    def _answer(self, answer: HttpAnswer) -> None:
        if self._state is _State.CLOSED:
            return
        transport = self._transport
        if not transport.is_closing():
            if answer.keep_alive and not self._is_leaving:
                answer.write(transport)
            else:
                answer.write(transport, "Connection: close\r\n")
                transport.close()
        self._idle_since = clock.monotonic()
        self._state = _IDLE
        if self._in.size:
            self._served = 0
            self._in.keep(len(self._buffer) - self._at)
        if answer.status == _TOO_MANY_REQUESTS and not transport.is_closing():
            self._rest()

    def _rest(self) -> None:
        """Pauses after a refusal, so that refusals take only their share of the loop's time."""
        now = self._idle_since
        until = max(self._server.refusing_until, now) + (now - self._began) / _REFUSING_SHARE
        self._server.refusing_until = until
        shortest, longest = _REST_SECONDS
        self._state = _State.RESTING
        self._rest_timer = self._loop.call_later(min(longest, max(shortest, until - now)), self._rested)

    def _rested(self) -> None:
        self._rest_timer = None
        if self._state is _State.RESTING:  # else the client has gone
            self._state = _State.IDLE
            self._advance()

    # -- at aiohttp -----------------------------------------------------------------------------------------------

    def _lend(self, head: RequestHead) -> None:
        """Hands one request to aiohttp."""
        self._settle_body()
        self._state = _State.SLOW
        self._left = head.end - self._at + head.length
        data, at = self._buffer, self._at
        self._buffer, self._at = b"", 0
        self._in.keep(0)  # aiohttp's reader counts the bytes that it gets
        self._buffer = self._pass_on(data[at:] if at else data)
        self._regulate()

    def _pass_on(self, data: bytes) -> bytes:
        """Feeds aiohttp the bytes of its request; returns the others."""
        mine, rest = (data, b"") if len(data) <= self._left else (data[: self._left], data[self._left :])
        self._left -= len(mine)
        self._with_handler().data_received(mine)
        return rest

    def _with_handler(self) -> RequestHandler:
        if self._handler is None:
            self._handler = self._server.make_handler(self)
            self._handler.connection_made(self._transport)
        return self._handler

    def began(self) -> None:
        """aiohttp has the whole head of a request, and serves it."""
        self._is_handling = True
        self._head.end()

    def answered(self, *, is_whole: bool) -> None:
        """aiohttp answered. `is_whole`: it has also read the whole body. Otherwise the next bytes are no head."""
        self._is_handling = not is_whole
        if self._state is _State.SLOW:
            if is_whole and not self._left:
                # aiohttp's loop waits for the next request within two turns, after setting its timer.
                self._loop.call_soon(self._loop.call_soon, self._take_back)
            else:
                self._hand_over()  # aiohttp reads on for a while, and drops the bytes

    def _take_back(self) -> None:
        if self._state is not _State.SLOW or self._transport.is_closing():
            return
        assert self._handler is not None
        if self._is_leaving:
            self._transport.close()
            return
        self._handler.keep_alive(True)  # ends aiohttp's timer: `_look` replaces it
        self._state = _State.IDLE
        self._idle_since = clock.monotonic()
        self._advance()

    def _hand_over(self) -> None:
        """Gives the connection to aiohttp for good."""
        self._settle_body()
        self._state = _State.HANDED_OVER
        self._left = 0
        data, at = self._buffer, self._at
        self._buffer, self._at = b"", 0
        self._in.keep(0)
        handler = self._with_handler()
        if at < len(data):
            if not self._is_handling:
                self._head.came(len(data) - at)
            handler.data_received(data[at:])
        if self._is_reading_paused and not self._transport.is_closing():
            self._is_reading_paused = False
            self._transport.resume_reading()

    # -- time -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Closes a connection without a request for too long. One timer serves all requests."""
        self._idle_timer = None
        if self._state in (_State.HANDED_OVER, _State.CLOSED, _State.REFUSED):
            return  # aiohttp has a timer of its own
        now = clock.monotonic()
        left = self._idle_since + self._keepalive_s - now if self._state is _State.IDLE else self._keepalive_s
        if left <= 0:
            self._transport.close()
        else:
            self._idle_timer = self._loop.call_later(left, self._look)
