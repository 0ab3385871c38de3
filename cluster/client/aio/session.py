"""Manages the session of the asyncio client's writes: opened with the first one, kept alive, replaced when it is gone.

The carrier and the batches of writes use it. Every write takes a sequence of the session before it is sent, and settles
it at its end. At most `SessionBook.window_max` sequences are open at once; further writes wait in line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from raftlog.cluster.api.sessions import SessionAnswer
from raftlog.cluster.client import requests
from raftlog.cluster.client.aio.line import WaitQueue
from raftlog.cluster.client.batch import closed
from raftlog.cluster.client.decisions import SessionBook
from raftlog.cluster.client.errors import ClientError, SessionExpired, window_full
from raftlog.cluster.client.flow import ApiRequest, Ticket
from raftlog.cluster.runtime import clock


class OwnSession:
    """The session of one client. Belongs to one event loop. `ttl_ms`: its time to live at the cluster.

    `carry` carries out a request by a deadline in ms (None: the client's own), ahead of those that wait for a
    connection. It raises ClientError.
    """

    def __init__(self, carry: Callable[[ApiRequest[Any], int | None], Awaitable[Any]], ttl_ms: int) -> None:
        self.book: SessionBook | None = None
        self._carry = carry
        self._ttl_ms = ttl_ms
        self._window = WaitQueue()  # free sequences of `book`
        self._opening = asyncio.Lock()
        self._is_closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._seen_at = 0.0  # when the session was opened, kept alive or used last, in seconds of clock.monotonic

    async def ticket(self, deadline_ms: int) -> Ticket:
        """The next sequence; opens a session if there is none. Raises ClientError."""
        while True:
            if self.book is not None and self.book.is_idle and clock.monotonic() - self._seen_at > self._ttl_ms / 2_000:
                self.drop(self.book)  # this process did not run: the session may have expired
            if self.book is None:
                async with self._opening:
                    if self.book is None:
                        await self._open(deadline_ms)
                continue
            book = self.book
            try:
                await self._window.enter(0, deadline_ms / 1000)
            except TimeoutError:
                raise window_full(book.session, book.window_max) from None
            if book is self.book:
                return Ticket(book, book.take(), is_new=True)

    async def tickets(self, count: int, deadline_ms: int) -> list[Ticket]:
        """The next sequence, and up to `count` in all from the same session. Raises ClientError."""
        first = await self.ticket(deadline_ms)
        found = [first]
        while len(found) < count and self._window.try_enter():
            found.append(Ticket(first.book, first.book.take(), is_new=True))
        return found

    def settle(self, ticket: Ticket, is_unknown: bool = False) -> None:
        """The write of that sequence has ended: admits as many writes of the line as the window allows.

        `is_unknown`: its outcome is unknown, so the sequence stays open, and the caller can ask for its receipt.
        """
        book = ticket.book
        before = book.settled
        if is_unknown:
            book.give_up(ticket.sequence)
        else:
            book.answer(ticket.sequence)
            self._seen_at = clock.monotonic()
        if book is self.book:
            self._window.leave(book.settled - before)
            if book.is_stuck:
                self.drop(book)

    def drop(self, book: SessionBook) -> None:
        """The next write opens another session, unless one has been opened since."""
        if self.book is book:
            self.book = None
            self._window.dissolve()

    async def close(self, deadline_ms: int) -> None:
        """Opens no session any more, and keeps none alive. Ends the session if each write's outcome is known and a node
        answers in time. Otherwise the session stays until it expires, with the receipts of the others."""
        self._is_closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        book, self.book = self.book, None
        if book is not None and book.is_settled:
            try:
                await self._carry(requests.close_session(book.session), deadline_ms)
            except ClientError:
                pass  # the session expires by itself

    async def _open(self, deadline_ms: int) -> None:
        answer: SessionAnswer = await self._carry(requests.open_session(self._ttl_ms), deadline_ms)
        if self._is_closed:  # the keepalives would never end
            raise closed()
        self.book = SessionBook(answer.session)
        self._seen_at = clock.monotonic()
        self._window = WaitQueue(self.book.window_max)
        if self._keeper is not None:
            self._keeper.cancel()
        self._keeper = asyncio.create_task(self._keep_alive(self.book, answer.ttl_ms))

    async def _keep_alive(self, book: SessionBook, ttl_ms: int) -> None:
        while self.book is book:
            await asyncio.sleep(ttl_ms / 3000)
            try:
                await self._carry(requests.keep_session(book.session), None)
                self._seen_at = clock.monotonic()
            except SessionExpired:
                self.drop(book)
            except ClientError:
                pass  # the next keepalive, or the next write, shows the error
