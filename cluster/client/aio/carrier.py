"""Carries out the requests of the asyncio client: waits, sends and receives as `raftlog.cluster.client.flow` decides.

`raftlog.cluster.client.aio.client` calls it. A request waits in line for a connection, and a write takes a sequence of
the client's session. The flow decides which bytes go to which node, and the next step after each answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar, cast

from raftlog.cluster.api.errors import ERRORS, Outcome
from raftlog.cluster.api.kv import BatchItem
from raftlog.cluster.client.aio.connection import Connection, Pool
from raftlog.cluster.client.aio.line import WaitQueue
from raftlog.cluster.client.aio.session import OwnSession
from raftlog.cluster.client.aio.writes import RefusedWrite
from raftlog.cluster.client.batch import closed, unknown
from raftlog.cluster.client.cursors import SILENCE_S, BadStream, Cursor
from raftlog.cluster.client.decisions import ClientCall, pause_ms, penalise
from raftlog.cluster.client.errors import Forbidden, NotApplied, Unavailable, connections_busy
from raftlog.cluster.client.flow import (
    ApiRequest,
    ClientState,
    Flow,
    LostAnswer,
    Response,
    Send,
    Sleep,
    Ticket,
    exchange,
    exchange_batch,
    resume,
    settling,
)
from raftlog.cluster.runtime import clock
from raftlog.cluster.security.tls import Credentials

T = TypeVar("T")

_CLOSE_S = 1.0
"""Longest wait of a closing client for the end of its session, in seconds."""


class Carrier:
    """Connections, line and session of one client. Belongs to one event loop.

    `deadline_s`: for requests that have no deadline of their own. `session_ttl_ms`: None for writes without a session.
    """

    def __init__(
        self,
        state: ClientState,
        deadline_s: float,
        connections_max: int,
        session_ttl_ms: int | None,
        credentials: Credentials | None = None,
    ) -> None:
        self.state = state
        self.session = None if session_ttl_ms is None else OwnSession(self._carry_ahead, session_ttl_ms)
        self._deadline_s = deadline_s
        self._connections_max = connections_max
        self._line = WaitQueue(connections_max)
        self._pool = Pool(connections_max, credentials)
        self._is_closed = False

    async def close(self) -> None:
        """Ends the session, if one was opened and a node can be reached, and all connections. Requests that are not
        sent yet, and streams, end as `closed`."""
        self._is_closed = True
        if self.session is not None:
            await self.session.close(_now_ms() + int(1000 * min(_CLOSE_S, self._deadline_s)))
        self._pool.close()

    def _check_open(self) -> None:
        """Raises the ClientError `closed` once the client is closed, and RuntimeError in a forked process."""
        self.state.check_process()
        if self._is_closed:
            raise closed()

    async def call(
        self,
        request: ApiRequest[T],
        *,
        deadline_s: float | None = None,
        ticket: Ticket | None = None,
        took: Callable[[Ticket], None] | None = None,
    ) -> T:
        """As `Client.call`. `took` is called with each ticket that is taken for the request."""
        return await self._in_line(lambda deadline_ms: self._call(request, deadline_ms, ticket, took), deadline_s)

    async def go_on(self, request: ApiRequest[T], refused: RefusedWrite) -> T:
        """Carries on with a write of a batch whose answer was a problem: alone, under the same sequence.

        Raises ClientError. The sequence is settled also if the write gets no connection: the batch may have applied it.
        """
        session, ticket, problem, has_begun = self.session, refused.ticket, refused.problem, False
        assert session is not None, "a batch of writes has a session"

        async def carry_out(_: int) -> T:
            nonlocal has_begun
            has_begun = True
            flow = resume(self.state, request, ticket, refused.call, problem, now_ms=_now_ms())
            return await self._settle(session, ticket, flow)

        try:
            return await self._in_line(carry_out)
        except BaseException as error:
            if has_begun:
                raise
            is_unknown = refused.call.maybe or ERRORS[problem.code].outcome is Outcome.UNKNOWN
            is_refused = isinstance(error, NotApplied)
            session.settle(ticket, is_unknown or not is_refused)
            if is_unknown and is_refused:
                why = f"its batch ended with {problem.code} ({problem.message}), and it was not sent again: {error}"
                raise unknown(why, ticket) from error
            raise

    async def _in_line(self, carry_out: Callable[[int], Awaitable[T]], deadline_s: float | None = None) -> T:
        """Carries out a request once a connection is free, and passes it its deadline in ms."""
        self.state.check_process()
        patience_s = self._deadline_s if deadline_s is None else deadline_s
        deadline = None if deadline_s is None else clock.monotonic() + deadline_s
        try:
            await self._line.enter(patience_s, deadline)
        except TimeoutError:
            raise connections_busy(self._connections_max, patience_s, is_deadline=deadline is not None) from None
        try:
            self._check_open()
            end = clock.monotonic() + patience_s if deadline is None else deadline
            answer = await carry_out(int(1000 * end))
        except Unavailable:
            raise
        except NotApplied:
            self._line.advance()
            raise
        else:
            self._line.advance()
            return answer
        finally:
            self._line.leave()

    async def _call(
        self, request: ApiRequest[T], deadline_ms: int, ticket: Ticket | None, took: Callable[[Ticket], None] | None
    ) -> T:
        session = self.session
        if ticket is not None or session is None or not request.writes:
            return await self._run(exchange(self.state, request, ticket, now_ms=_now_ms(), deadline_ms=deadline_ms))
        try:
            ticket = await session.ticket(deadline_ms)
        except Forbidden as error:  # it may write nothing: the node refuses the write by its missing grant
            if error.missing:
                raise
            return await self._run(exchange(self.state, request, None, now_ms=_now_ms(), deadline_ms=deadline_ms))
        if took is not None:
            took(ticket)
        flow = exchange(self.state, request, ticket, now_ms=_now_ms(), deadline_ms=deadline_ms)
        return await self._settle(session, ticket, flow)

    async def _settle(self, session: OwnSession, ticket: Ticket, flow: Flow[T]) -> T:
        """Carries out a write of the session, and settles its sequence."""
        with settling(ticket, session.settle, session.drop):
            return await self._run(flow)

    async def _carry_ahead(self, request: ApiRequest[T], deadline_ms: int | None = None) -> T:
        """Carries out a request of the session itself, ahead of those that wait for a connection."""
        now_ms = _now_ms()
        if deadline_ms is None:
            deadline_ms = now_ms + int(1000 * self._deadline_s)
        return await self._run(exchange(self.state, request, None, now_ms=now_ms, deadline_ms=deadline_ms))

    async def stream(self, cursor: Cursor[T]) -> AsyncGenerator[T, None]:
        """The items of a cursor. A stream that breaks off is opened again at another node."""
        breaks = 0  # consecutive ones without a byte read
        while not cursor.is_done():
            self._check_open()
            connection, url = await self._open(cursor.request())
            try:
                self._check_open()  # not closed meanwhile
                while (block := await connection.block(SILENCE_S)) is not None:
                    if isinstance(block, LostAnswer):
                        raise BadStream(block.reason)
                    for item in cursor.feed(block):
                        breaks = 0
                        yield item
                    if cursor.is_done():
                        return
                cursor.end()
            except BadStream:
                penalise(self.state.routes, self.state.policy, url, _now_ms())
            finally:
                self._pool.release(connection)
            if not cursor.is_done():
                breaks += 1
                await asyncio.sleep(pause_ms(self.state.policy, breaks, self.state.random) / 1000)

    async def _open(self, request: ApiRequest[None]) -> tuple[Connection, str]:
        """Opens a stream at some node."""
        opened: list[tuple[Connection, str]] = []

        async def send(command: Send) -> Response | LostAnswer:
            happened, connection = await self._pool.open(command.url, command.data, command.timeout_ms / 1000)
            if connection is not None:
                opened.append((connection, command.url))
            return happened

        now_ms = _now_ms()
        deadline_ms = now_ms + int(1000 * self._deadline_s)
        await self._run(exchange(self.state, request, None, now_ms=now_ms, deadline_ms=deadline_ms), send)
        return opened[-1]

    async def _send(self, command: Send) -> Response | LostAnswer:
        return await self._pool.send(command.url, command.data, command.timeout_ms / 1000)

    async def _run(self, flow: Flow[T], send: Callable[[Send], Awaitable[Response | LostAnswer]] | None = None) -> T:
        send = send or self._send
        happened: Response | LostAnswer | None = None
        try:
            command = next(flow)
            while True:
                if isinstance(command, Sleep):
                    await asyncio.sleep(command.ms / 1000)
                    happened = None
                else:
                    happened = await send(command)
                command = flow.send((_now_ms(), happened))
        except StopIteration as done:
            return cast(T, done.value)

    async def write_batch(self, request: ApiRequest[list[BatchItem]]) -> tuple[list[BatchItem], ClientCall]:
        """Carries a batch out. Raises ClientError."""
        return await self._in_line(
            lambda deadline_ms: self._run(
                exchange_batch(self.state, request, now_ms=_now_ms(), deadline_ms=deadline_ms)
            )
        )


def _now_ms() -> int:
    return int(clock.monotonic() * 1000)
