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

from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, Final

from aiohttp.web_protocol import RequestHandler

from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import AskedOfNode, Call
from raftlog.cluster.http.fast.bounds import BODY_WAIT_SECONDS, Body
from raftlog.cluster.http.fast.byte_flow import ByteFlow, ConnectionState, Slow
from raftlog.cluster.http.fast.head import HeadParser, Kind, RequestHead
from raftlog.cluster.http.gate import Api
from raftlog.cluster.http.routes.table import has_share
from raftlog.cluster.runtime import clock

_UNCOUNTED_BYTES_MAX: Final = 16 << 10
"""A request that came whole, with no more body than this, is not counted in the budget for bodies: the limits on
requests being served (limits.open_requests_max) bound these."""
_REST_SECONDS: Final[tuple[float, ...]] = (0.05, 5.0)
_REFUSING_SHARE: Final = 0.05
"""The share of the loop's time for refusals. A connection that was refused as busy is not read for a moment, which is
longer if there are more of them. Refusing costs half of what serving costs, and as much again for the sockets. Clients
that ask again at once would take much of the loop's time, and delay the refusal of others."""
_TOO_MANY_REQUESTS: Final = int(HTTPStatus.TOO_MANY_REQUESTS)
_TURN_REQUESTS_MAX: Final = 64
"""Most pipelined requests answered in a row; then other connections have their turn."""


# Read several times a request: a member of an enum costs a call each time.
_IDLE: Final = ConnectionState.IDLE
_FAST: Final = ConnectionState.FAST
_CLOSED: Final = ConnectionState.CLOSED
_HOT: Final = Kind.HOT


class FastConnection(ByteFlow):
    """One connection of a client."""

    __slots__ = ("_asked", "_began", "_call", "_is_handling", "_left", "_serving")

    def __init__(self, server: Slow, gate: Api, parser: HeadParser, keepalive_s: float) -> None:
        super().__init__(server, gate, parser, keepalive_s)
        self._left = 0  # bytes to come of the request that aiohttp serves
        self._is_handling = False  # aiohttp serves a request
        self._call: Call | None = None  # the request whose question the node has,
        self._asked: AskedOfNode | None = None  # and that question
        self._serving: Coroutine[Any, Any, Any] | None = None  # or the handler of a request that is a coroutine
        self._began = 0.0  # begin of the newest request

    # -- asyncio.Protocol -----------------------------------------------------------------------------------------

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
        if self._state is ConnectionState.HANDED_OVER:
            assert self._handler is not None
            if not self._is_handling and (error := self._head.came(len(data))) is not None:
                self._refuse(error)
                return
            self._handler.data_received(data)
            return
        if self._state is ConnectionState.REFUSED:
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
        if self._state is ConnectionState.IDLE:
            self._advance(head)
        else:
            self._regulate()

    def eof_received(self) -> bool:
        """Closes as aiohttp does when the client has closed its side, but in turns if thousands do so at once."""
        if self._handler is not None or self._transport.get_extra_info("ssl_object") is not None:
            return False  # TLS closes both directions at once
        self._leave_line(ConnectionState.CLOSED)
        self._buffer, self._body = b"", None
        self._server.admission.wait(self)
        return True

    # -- from request to request ----------------------------------------------------------------------------------

    def _advance(self, head: RequestHead | None = None) -> None:
        """Serves the requests in the buffer until one must wait. `head`: the first request's, parsed already."""
        turn = 0
        while self._state is ConnectionState.IDLE and self._at < len(self._buffer) and not self._is_writing_paused:
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
        if service.load.open_requests < service.limits.open_requests_max:
            service.load.open_requests += 1
            self._state = ConnectionState.IN_LINE
            turns.wait(self)
        elif turns.may_refuse():
            return False
        else:
            self._state = ConnectionState.TO_REFUSE
            turns.wait_refused(self)
        self._settle_body()
        return True

    def called(self) -> None:
        """Serves the request that waited in line, or closes if the client is gone."""
        if self._state in (ConnectionState.IN_LINE, ConnectionState.TO_REFUSE):
            self._leave_line(ConnectionState.IDLE)
            self._advance()
        elif self._state is ConnectionState.CLOSED:
            self._transport.close()

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
        begun: Any = self._gate.begin(call)
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
        call, asked = self._call, self._asked
        assert call is not None
        assert asked is not None
        try:
            answer: Any = self._gate.end(call, asked)
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
        if self._state is _CLOSED:
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
        self._state = ConnectionState.RESTING
        self._rest_timer = self._loop.call_later(min(longest, max(shortest, until - now)), self._rested)

    def _rested(self) -> None:
        self._rest_timer = None
        if self._state is ConnectionState.RESTING:  # else the client has gone
            self._state = ConnectionState.IDLE
            self._advance()

    # -- at aiohttp -----------------------------------------------------------------------------------------------

    def _lend(self, head: RequestHead) -> None:
        self._settle_body()
        self._state = ConnectionState.SLOW
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
        if self._state is ConnectionState.SLOW:
            if is_whole and not self._left:
                # aiohttp's loop waits for the next request within two turns, after setting its timer.
                self._loop.call_soon(self._loop.call_soon, self._take_back)
            else:
                self._hand_over()  # aiohttp reads on for a while, and drops the bytes

    def _take_back(self) -> None:
        if self._state is not ConnectionState.SLOW or self._transport.is_closing():
            return
        assert self._handler is not None
        if self._is_leaving:
            self._transport.close()
            return
        self._handler.keep_alive(True)  # ends aiohttp's timer: `_look` replaces it
        self._state = ConnectionState.IDLE
        self._idle_since = clock.monotonic()
        self._advance()

    def _hand_over(self) -> None:
        self._settle_body()
        self._state = ConnectionState.HANDED_OVER
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
