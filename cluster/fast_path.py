"""A connection that answers the hot routes itself, and hands everything else to aiohttp, byte for byte.

The same gate and the same handlers serve both ways (`http_api.Api.serve`); what is saved is aiohttp's parser, its
request, its tasks and its timers, which cost more than everything else between the socket and the node. The handler's
coroutine is driven from its futures' callbacks: no task.

Who reads what: a request that is whole, simple and hot (`fast_head`) is answered here. One whose end is certain goes to
aiohttp's handler of the same connection, exactly its bytes; whatever follows waits until it is answered, and may be
served here again. At anything else the connection becomes aiohttp's for good, from that request's first byte on: the
two can never disagree about where a request begins. One request at a time, in order, as aiohttp does it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp.web_protocol import RequestHandler

from cluster import clock
from cluster.budget import Share
from cluster.fast_body import BODY_WAIT_SECONDS, Body
from cluster.fast_face import Gate, Slow
from cluster.fast_head import Head, HeadParser, Kind, Short
from cluster.fast_head_watch import HeadWatch
from cluster.http_answer import Answer
from cluster.http_call import Call
from cluster.http_routes import has_share
from cluster.wire import ApiError, Code

_WAITING_BYTES_MAX: Final = 64 << 10
"""Requests that wait behind the one being served: above this the socket is not read."""
_BODY_BYTES_MAX: Final = 1 << 20
"""A larger body goes to aiohttp as it comes."""
_UNCOUNTED_BYTES_MAX: Final = 16 << 10
"""A request that came whole, with no more body than this, is not counted in the budget for bodies: the limits on
requests being served (limits.open_requests_max) bound these."""
_REST_SECONDS: Final = (0.05, 5.0)
_REFUSING_SHARE: Final = 0.05
"""A connection that was refused as busy is not read for a moment, longer the more of them there are: refusing costs
half of what serving does, and clients that ask again at once would take much of the loop's time (this share of it, and
as much again for their sockets), and stand in the way of others who are to be refused."""
_REFUSED_SECONDS: Final = 1.0
"""A connection that is one too many, or whose head does not end, is closed so long after its answer: a client that is
still sending would lose the answer."""
_TOO_MANY_REQUESTS: Final = int(HTTPStatus.TOO_MANY_REQUESTS)
_TURN_REQUESTS_MAX: Final = 64
"""Pipelined requests answered in a row; then other connections have their turn."""


class _State(Enum):
    IDLE = auto()  # between two requests
    IN_LINE = auto()  # the next one is here, and waits for a turn
    TO_REFUSE = auto()  # the same, and will hardly be served
    FAST = auto()  # one is being served here
    SLOW = auto()  # one is being served by aiohttp
    RESTING = auto()  # the last one was refused as busy
    HANDED_OVER = auto()  # all that comes is aiohttp's
    REFUSED = auto()  # all that comes is dropped until the client has seen the answer
    CLOSED = auto()


# Looked at several times a request: a member of an enum costs a call each time.
_IDLE: Final = _State.IDLE
_FAST: Final = _State.FAST
_LONG: Final = Short.NO


class FastConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_at", "_began", "_body", "_body_timer", "_buffer", "_gate", "_handler", "_head",
        "_idle_since", "_idle_timer", "_in", "_is_handling", "_is_leaving", "_is_reading_paused",
        "_is_writing_paused", "_keepalive_s", "_left", "_loop", "_out", "_parser", "_rest_timer", "_served",
        "_server", "_serving", "_short", "_state", "_transport", "_write_timer", "ended",
    )  # fmt: skip

    def __init__(self, server: Slow, gate: Gate, parser: HeadParser, keepalive_s: float) -> None:
        self._server, self._gate, self._parser = server, gate, parser
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._handler: RequestHandler | None = None
        self._state = _State.IDLE
        self._buffer = b""
        self._at = 0  # the bytes before are done with
        self._left = 0  # bytes still to come of the request that aiohttp serves
        self._in = Share(gate.service.bodies)  # of the buffer and of what is served here
        self._served = 0  # bytes of the body that is served here, if they are counted
        self._out = Share(gate.service.answers)  # of what the client has not taken
        self._body: Body | None = None  # of the next request, which is awaited; the buffer is in it, too
        self._serving: Coroutine[Any, Any, Any] | None = None
        self._short: Head | None = None  # of the request that goes the short way
        self._is_leaving = False
        self._is_reading_paused = self._is_writing_paused = False
        self._began = self._idle_since = 0.0  # when the newest request began, and ended
        self._idle_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._head = HeadWatch(gate.service.limits, self._head_is_late)
        self._is_handling = False  # aiohttp serves a request
        self._rest_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] | None = None  # made by whoever waits for the end

    @property
    def is_busy(self) -> bool:
        """Whether a request is being served here, or will be."""
        return self._state in (_State.FAST, _State.IN_LINE, _State.TO_REFUSE)

    def close(self) -> None:
        """Takes no further request: closes when the one under way is answered."""
        self._is_leaving = True
        if self._state in (_State.IDLE, _State.RESTING):
            self._transport.close()

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
        self._server.fast.add(self)
        connections_max = self._gate.service.limits.connections_max
        if len(self._server.fast) > connections_max:
            self._refuse(
                ApiError(
                    Code.BUSY,
                    f"{connections_max} connections are open (limits.connections_max): try again, or another node",
                )
            )
            return
        self._idle_since = clock.monotonic()
        self._idle_timer = self._loop.call_later(self._keepalive_s, self._look)

    def data_received(self, data: bytes) -> None:
        if self._state is _IDLE and self._at >= len(self._buffer) and not (self._body or self._is_writing_paused):
            head = self._parser.parse(data, 0)  # one whole request, as it is from a client that waits for its answers
            is_alone = head.end + head.length == len(data) and not self._transport.is_closing()
            is_alone = is_alone and head.length <= _UNCOUNTED_BYTES_MAX
            if head.short is not _LONG and is_alone and self._server.turns.may(head.length):
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
                self._lend(self._parser.parse(self._buffer, self._at))  # which refuses it, and reads the rest
            elif is_whole:
                self._settle_body()
                self._advance()
            return
        if self._left:
            data = self._pass_on(data)
        self._buffer = self._buffer[self._at :] + data if self._at < len(self._buffer) else data
        self._at = 0
        if self._state is _State.IDLE:
            self._advance()
        else:
            self._regulate()

    def eof_received(self) -> bool:
        """As aiohttp does it: who says no more hears no more. But thousands who go at once are let go in turns."""
        if self._handler is not None:
            return False
        self._leave_line(_State.CLOSED)
        self._buffer, self._body = b"", None
        self._server.turns.wait(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_line(_State.CLOSED)
        self._buffer, self._body = b"", None
        self._in.keep(0)
        self._out.keep(0)
        self._server.fast.discard(self)
        self._head.end()
        for timer in (self._idle_timer, self._body_timer, self._rest_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)
        if self._handler is not None:
            self._handler.connection_lost(exc)

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

    def _advance(self) -> None:
        """Serves what waits, until it must wait for something."""
        turn = 0
        while self._state is _State.IDLE and self._at < len(self._buffer) and not self._is_writing_paused:
            if self._body is not None or self._transport.is_closing():
                return
            turn += 1
            if turn > _TURN_REQUESTS_MAX:
                self._loop.call_soon(self._advance)
                break
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
            if head.kind is Kind.HOT and head.length <= _BODY_BYTES_MAX:
                if not self._in.hold(min(end, len(self._buffer)) - self._at):
                    self._lend(head)  # there its body is refused
                    break
                if end > len(self._buffer):
                    self._body = Body(self._buffer, end - len(self._buffer))
                    self._body_timer = self._loop.call_later(BODY_WAIT_SECONDS, self._look_at_body)
                    break
                if not self._server.turns.may(head.length) and self._must_wait():
                    break
                self._at = end
                self._served = head.length if head.length > _UNCOUNTED_BYTES_MAX else 0
                self._serve(head, self._buffer[head.end : end])
                continue
            if not (has_share(head.target) or self._server.turns.may(head.length)) and self._must_wait():
                break
            self._lend(head)
        self._regulate()

    def _must_wait(self) -> bool:
        """Waits in line, where it counts as served; one too many is refused, at once as long as there are not many."""
        service, turns = self._gate.service, self._server.turns
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
        """Serves the request that waited in line (`fast_turns`), or closes for a client that is gone."""
        if self._state in (_State.IN_LINE, _State.TO_REFUSE):
            self._leave_line(_State.IDLE)
            self._advance()
        elif self._state is _State.CLOSED:
            self._transport.close()

    def _regulate(self) -> None:
        """Reads the socket or does not: what waits is bounded. A body that is awaited may come."""
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
        """Counts what is held here. Where there is no room, requests behind the one under way are dropped, untouched,
        and the connection ends with the answer under way."""
        if self._in.hold(self._served + waiting) or (self._state is _State.IDLE and not self._is_writing_paused):
            return
        end = 0
        if self._state in (_State.IN_LINE, _State.TO_REFUSE):
            head = self._parser.parse(self._buffer, self._at)
            end = head.end + head.length
        self._buffer, self._at = self._buffer[self._at : end], 0
        self._in.keep(self._served + len(self._buffer))
        self._is_leaving = True
        if self._state in (_State.IDLE, _State.RESTING):  # nothing is under way but the client's reading of answers
            self._transport.close()

    def _head_is_late(self, error: ApiError) -> None:
        if self._state in (_State.IDLE, _State.HANDED_OVER):
            self._refuse(error)

    def _refuse(self, error: ApiError) -> None:
        """Answers without a request that was served, and closes the connection soon."""
        self._state = _State.REFUSED
        self._buffer, self._at = b"", 0
        self._in.keep(0)
        if not self._transport.is_closing():
            answer = self._gate.problem("none", error)
            answer.write(self._transport, "Connection: close\r\n")
            self._body_timer = self._loop.call_later(_REFUSED_SECONDS, self._transport.close)

    def _look_at_body(self) -> None:
        if self._body is None:
            return  # the client is gone
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

    def _serve(self, head: Head, body: bytes) -> None:
        self._state = _FAST
        self._began = now = clock.monotonic()
        gate = self._gate
        if head.short is not _LONG and (asked := gate.begin(head, body, now)) is not None:
            self._short = head
            asked.add_done_callback(self._told)
            return
        call = Call(head.method, head.target, head.headers, gate.identify(head.headers), whole=body)
        self._serving = gate.serve(call)
        self._step()

    def _told(self, asked: asyncio.Future[Any]) -> None:
        """The node has answered."""
        assert self._short is not None
        now = clock.monotonic()
        try:
            answer = self._gate.end(self._short, asked, now - self._began)
        except BaseException:  # cancelled, as in `_step`
            self.abort()
            raise
        self._answer(answer, now)
        if self._at < len(self._buffer) or self._is_reading_paused:
            self._go_on()

    def _resumed(self, _: object = None) -> None:
        self._step()
        self._go_on()

    def _go_on(self) -> None:
        if self._state is _State.IDLE:
            if self._at < len(self._buffer):
                self._advance()
            elif self._is_reading_paused:
                self._regulate()

    def _step(self) -> None:
        """Drives the handler to its next future, as a task would."""
        serving = self._serving
        assert serving is not None
        try:
            awaited = serving.send(None)
        except StopIteration as done:
            self._serving = None
            self._answer(done.value, clock.monotonic())
        except BaseException:  # cancelled: nothing more is known, and the client must see that
            self._serving = None
            self.abort()
            raise
        else:
            if awaited is None:
                self._loop.call_soon(self._resumed)
            else:
                awaited._asyncio_future_blocking = False
                awaited.add_done_callback(self._resumed)

    def _answer(self, answer: Answer, now: float) -> None:
        if self._state is _State.CLOSED:
            return
        transport = self._transport
        if not transport.is_closing():
            if answer.keep_alive and not self._is_leaving:
                answer.write(transport)
            else:
                answer.write(transport, "Connection: close\r\n")
                transport.close()
        self._idle_since = now
        self._state = _IDLE
        if self._in.size:
            self._served = 0
            self._in.keep(len(self._buffer) - self._at)
        if answer.status == _TOO_MANY_REQUESTS and not transport.is_closing():
            self._rest()

    def _rest(self) -> None:
        """The refusal took its time, of which much more must pass before the next one."""
        now = self._idle_since
        until = max(self._server.refusing_until, now) + (now - self._began) / _REFUSING_SHARE
        self._server.refusing_until = until
        shortest, longest = _REST_SECONDS
        self._state = _State.RESTING
        self._rest_timer = self._loop.call_later(min(longest, max(shortest, until - now)), self._rested)

    def _rested(self) -> None:
        self._rest_timer = None
        if self._state is _State.RESTING:  # else its client is gone
            self._state = _State.IDLE
            self._advance()

    # -- at aiohttp -----------------------------------------------------------------------------------------------

    def _lend(self, head: Head) -> None:
        """Gives one request to aiohttp."""
        self._settle_body()
        self._state = _State.SLOW
        self._left = head.end - self._at + head.length
        data, at = self._buffer, self._at
        self._buffer, self._at = b"", 0
        self._in.keep(0)  # what is passed on counts where it is read
        self._buffer = self._pass_on(data[at:] if at else data)
        self._regulate()

    def _pass_on(self, data: bytes) -> bytes:
        """Feeds aiohttp what belongs to its request; gives back the rest."""
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
        """aiohttp answered; `is_whole`: it has the whole body of the request, too. Else what comes is no head yet."""
        self._is_handling = not is_whole
        if self._state is _State.SLOW:
            if is_whole and not self._left:
                # Its loop comes round to the next request within two turns, and sets its timer before.
                self._loop.call_soon(self._loop.call_soon, self._take_back)
            else:
                self._hand_over()  # it reads on for a while, and drops what comes

    def _take_back(self) -> None:
        if self._state is not _State.SLOW or self._transport.is_closing():
            return
        assert self._handler is not None
        if self._is_leaving:
            self._transport.close()
            return
        self._handler.keep_alive(True)  # which ends its timer: `_look` is in charge
        self._state = _State.IDLE
        self._idle_since = clock.monotonic()
        self._advance()

    def _hand_over(self) -> None:
        """From here on aiohttp reads."""
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
        """Closes a connection on which nothing was asked for too long; one timer, however much is asked."""
        self._idle_timer = None
        if self._state in (_State.HANDED_OVER, _State.CLOSED, _State.REFUSED):
            return  # aiohttp has a timer of its own
        now = clock.monotonic()
        left = self._idle_since + self._keepalive_s - now if self._state is _State.IDLE else self._keepalive_s
        if left <= 0:
            self._transport.close()
        else:
            self._idle_timer = self._loop.call_later(left, self._look)
