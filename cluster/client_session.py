"""The session of the asyncio client's writes: opened with the first one, kept alive, and replaced when it is gone.

Every write takes a sequence of the session before it is sent, and settles it when it has ended. At most
`SessionBook.window_max` sequences are open at once; the writes beyond that wait in line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from cluster import client_requests as requests
from cluster.client_core import SessionBook
from cluster.client_errors import ClientError, SessionExpired, window_full
from cluster.client_flow import Request, Ticket
from cluster.client_line import Line

T = TypeVar("T")


class Carry(Protocol):
    """Carries a request out, ahead of those that wait for a connection. `deadline_ms`: None for the client's own."""

    def __call__(self, request: Request[T], deadline_ms: int | None = None) -> Awaitable[T]:
        """Its answer. Raises ClientError."""


class OwnSession:
    """Belongs to one event loop. `ttl_ms`: how long the cluster keeps the session without a sign of life."""

    def __init__(self, carry: Carry, ttl_ms: int) -> None:
        self.book: SessionBook | None = None
        self._carry = carry
        self._ttl_ms = ttl_ms
        self._window = Line()  # of the sequences of `book`
        self._opening = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None

    async def ticket(self, deadline_ms: int) -> Ticket:
        """The next sequence; opens a session if there is none. Raises ClientError."""
        while True:
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
        """The next sequence, and as many more of the same session as are free, up to `count`. Raises ClientError."""
        first = await self.ticket(deadline_ms)
        found = [first]
        while len(found) < count and self._window.try_enter():
            found.append(Ticket(first.book, first.book.take(), is_new=True))
        return found

    def settle(self, ticket: Ticket, *, is_unknown: bool = False) -> None:
        """The write of that sequence has ended: lets in as many writes of the line as the window has room for.

        `is_unknown`: nobody knows whether it was applied, so the sequence stays open and its receipt can be asked for.
        """
        book = ticket.book
        before = book.settled
        if is_unknown:
            book.give_up(ticket.sequence)
        else:
            book.answer(ticket.sequence)
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
        """Stops to keep the session alive, and ends it where every write has ended and a node answers in time."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        book, self.book = self.book, None
        if book is not None and book.is_idle:
            try:
                await self._carry(requests.close_session(book.session), deadline_ms)
            except ClientError:
                pass  # it expires by itself

    async def _open(self, deadline_ms: int) -> None:
        answer = await self._carry(requests.open_session(self._ttl_ms), deadline_ms)
        self.book = SessionBook(answer.session)
        self._window = Line(self.book.window_max)
        if self._keeper is not None:
            self._keeper.cancel()
        self._keeper = asyncio.create_task(self._keep_alive(self.book, answer.ttl_ms))

    async def _keep_alive(self, book: SessionBook, ttl_ms: int) -> None:
        while self.book is book:
            await asyncio.sleep(ttl_ms / 3000)
            try:
                await self._carry(requests.keep_session(book.session))
            except SessionExpired:
                self.drop(book)
            except ClientError:
                pass  # the next one, or the next write, says more
