"""The asyncio client: waits, sends and receives for `cluster.client_flow`, which decides.

    async with Client("http://127.0.0.1:7001") as client:
        appended = await client.append(b"hello")
        await client.put(b"a", b"1")
        item = await client.get(b"a")

Writes carry a session and a sequence, so that a repeated one is applied once: the session is opened with the first
write, kept alive, and replaced when it has expired. Any number of requests may be in flight at once. Every error is a
`ClientError`: `NotApplied` (nothing changed, and never will) or `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self, TypeVar, cast

from cluster import client_requests as requests
from cluster import clock, wire
from cluster.client_answers import Item, LogPage, Page, Progress, Record, TxnResult, WatchEvent
from cluster.client_batch import RECORDS_MAX, UnknownInBatch
from cluster.client_batch_async import Batcher
from cluster.client_connection import Connection, Pool
from cluster.client_consumers import Consumer
from cluster.client_core import Policy, Routes, SessionBook, learn_leader, learn_url, pause_ms, penalise
from cluster.client_cursors import SILENCE_S, BadStream, Cursor, LogCursor, WatchCursor
from cluster.client_errors import (
    ClientError,
    Compacted,
    CompareFailed,
    KeyNotFound,
    NotApplied,
    OutcomeUnknown,
    SequenceSettled,
    SessionExpired,
    Unavailable,
    window_full,
)
from cluster.client_flow import Flow, Lost, Request, Response, Send, Sleep, State, Ticket, exchange
from cluster.client_requests import Consistency, NewRecord, compare, prefix_end, step
from cluster.wire_members import ChangeAnswer, ChangeIn, TransferAnswer

__all__ = [
    "Client", "ClientError", "Compacted", "CompareFailed", "Item", "KeyNotFound", "LogPage", "NewRecord", "NotApplied",
    "OutcomeUnknown", "Page", "Policy", "Progress", "Record", "SequenceSettled", "SessionBook", "SessionExpired",
    "Ticket", "TxnResult", "Unavailable", "UnknownInBatch", "WatchEvent", "compare", "prefix_end", "step",
]  # fmt: skip

T = TypeVar("T")
_new = tuple.__new__  # a NamedTuple without the cost of its constructor


class Client:
    """A client of one cluster.

    `endpoints`: URLs of some nodes; the others are learned, unless `bound` says to use these alone. `dial` maps node
    ids to URLs to use for them whatever the cluster advertises. `sessions=False`: writes carry no session; then one
    whose answer is lost ends as OutcomeUnknown and is not sent again. Appends that pile up while one is under way go
    together, at most `batch_records_max` (1: each by itself); `linger_ms`: how long the first of them waits for others.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        deadline_s: float = 10.0,
        sessions: bool = True,
        session_ttl_ms: int = 600_000,
        bound: bool = False,
        dial: Mapping[int, str] | None = None,
        policy: Policy | None = None,
        connections_max: int = 256,
        linger_ms: int = 0,
        batch_records_max: int = RECORDS_MAX,
    ) -> None:
        urls = (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)
        routes = Routes(urls, bound=bound, dial=dict(dial or {}))
        self.state = State(routes, policy or Policy(), random.SystemRandom().randint)
        self.deadline_s = deadline_s
        self._pool = Pool(connections_max)
        self._ttl_ms = session_ttl_ms
        self._uses_sessions = sessions
        self._book: SessionBook | None = None
        self._opening = asyncio.Lock()
        self._room = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        batcher = Batcher(self._append_batch, linger_ms / 1000, batch_records_max)
        self._batcher = batcher if batch_records_max > 1 else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session, if one was opened and a node can be reached, and all connections."""
        if self._batcher is not None:
            await self._batcher.close()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        book, self._book = self._book, None
        if book is not None and book.is_idle:
            try:
                await self.call(requests.close_session(book.session), deadline_s=min(1.0, self.deadline_s))
            except ClientError:
                pass  # it expires by itself
        self._pool.close()

    @property
    def index(self) -> int:
        """The highest index seen in an answer: pass it as `min_index` to another client to read what this one wrote."""
        return self.state.index

    @property
    def session(self) -> int | None:
        """The session of the newest writes, if one is open."""
        return None if self._book is None else self._book.session

    async def discover(self) -> wire.Members:
        """Asks for the members and takes note of their URLs and the leader."""
        members = await self.call(requests.members())
        for member in members.members:
            learn_url(self.state.routes, member.node, member.url)
        learn_leader(self.state.routes, members.leader, members.term)
        return members

    # Log.

    async def append(
        self, value: bytes, *, key: bytes | None = None, headers: Sequence[tuple[str, bytes]] = (),
        time_ms: int | None = None, deadline_s: float | None = None,
    ) -> wire.Appended:  # fmt: skip
        """Appends one record, in one request with whatever else this client appends meanwhile."""
        record = _new(NewRecord, (value, key, tuple(headers), time_ms))
        if self._batcher is None:
            return await self.append_many([record], deadline_s=deadline_s)
        deadline = clock.monotonic() + (self.deadline_s if deadline_s is None else deadline_s)
        return await self._batcher.append(record, deadline)

    async def append_many(self, records: Sequence[NewRecord], *, deadline_s: float | None = None) -> wire.Appended:
        """Appends records as one request: all, one after the other, or none."""
        return await self.call(requests.append(records), deadline_s=deadline_s)

    async def _append_batch(
        self, records: Sequence[NewRecord], deadline_s: float, took: Callable[[Ticket], None]
    ) -> wire.Appended:
        return await self.call(requests.append(records), deadline_s=deadline_s, took=took)

    async def log_page(
        self, from_index: int, *, to: int | None = None, limit: int | None = None, wait_ms: int = 0,
        internal: bool = False, consistency: Consistency = "linearizable", min_index: int | None = None,
    ) -> LogPage:  # fmt: skip
        """One page of the log from an index on; `wait_ms`: how long to wait for a record to come."""
        request = requests.log_page(
            from_index, to=to, limit=limit, wait_ms=wait_ms, internal=internal, consistency=consistency,
            min_index=self._at_least(consistency, min_index),
        )  # fmt: skip
        return await self.call(request, deadline_s=self.deadline_s + wait_ms / 1000)

    async def log(
        self,
        from_index: int = 1,
        *,
        to: int | None = None,
        from_time_ms: int | None = None,
        follow: bool = False,
        internal: bool = False,
        progress: bool = False,
    ) -> AsyncGenerator[Record | Progress, None]:
        """The records from an index (or time) on, in order, each once, whatever nodes fail meanwhile.

        Ends at what was committed when it began (or at `to`), with `follow` never. With `progress` also says where the
        stream stands whenever a node does.
        """
        cursor = LogCursor(
            from_index, to=to, from_time_ms=from_time_ms, follow=follow, internal=internal, min_index=self.index
        )
        async with aclosing(self.stream(cursor)) as told:
            async for each in told:
                if progress or isinstance(each, Record):
                    yield each

    # Key-value store.

    async def get(
        self, key: bytes, *, at: int | None = None, consistency: Consistency = "linearizable",
        min_index: int | None = None,
    ) -> Item | None:  # fmt: skip
        """A key's value, now or at a revision; None if it is not there."""
        try:
            return await self.call(
                requests.get(key, at=at, consistency=consistency, min_index=self._at_least(consistency, min_index))
            )
        except KeyNotFound:
            return None

    async def put(
        self, key: bytes, value: bytes, *, if_revision: int | None = None, deadline_s: float | None = None
    ) -> wire.Written:
        """Writes a key; with `if_revision` only if its mod revision is that (0: only if it is not there)."""
        return await self.call(requests.put(key, value, if_revision=if_revision), deadline_s=deadline_s)

    async def delete(
        self, key: bytes, *, if_revision: int | None = None, deadline_s: float | None = None
    ) -> wire.Written:
        """Deletes a key; `deleted` is 0 if it was not there."""
        return await self.call(requests.delete(key, if_revision=if_revision), deadline_s=deadline_s)

    async def delete_range(self, start: bytes, end: bytes | None, *, deadline_s: float | None = None) -> wire.Written:
        """Deletes the keys [start, end); None: to the last key."""
        return await self.call(requests.delete_range(start, end), deadline_s=deadline_s)

    async def range_page(
        self, start: bytes = b"", end: bytes | None = None, *, limit: int | None = None,
        continuation: str | None = None, at: int | None = None, keys_only: bool = False,
        consistency: Consistency = "linearizable", min_index: int | None = None,
    ) -> Page:  # fmt: skip
        """One page of the keys [start, end); None: to the last key."""
        request = requests.range_page(
            start, end, limit=limit, continuation=continuation, at=at, keys_only=keys_only, consistency=consistency,
            min_index=self._at_least(consistency, min_index),
        )  # fmt: skip
        return await self.call(request)

    async def range(
        self, start: bytes = b"", end: bytes | None = None, *, at: int | None = None, keys_only: bool = False
    ) -> AsyncGenerator[Item, None]:
        """The keys [start, end), page after page, all as they were at the first."""
        continuation: str | None = None
        while True:
            page = await self.range_page(start, end, continuation=continuation, at=at, keys_only=keys_only)
            for item in page.items:
                yield item
            if (continuation := page.continuation) is None:
                return

    async def txn(self, transaction: wire.TxnIn, *, deadline_s: float | None = None) -> TxnResult:
        """Compares, then carries out `then` or `orelse`, at once (`compare` and `step` make its parts)."""
        return await self.call(requests.txn(transaction), deadline_s=deadline_s)

    async def compact(self, revision: int) -> wire.Compacted:
        """Lets go of the history of keys below a revision."""
        return await self.call(requests.compact(revision))

    async def watch(
        self, *, prefix: bytes | None = None, key: bytes | None = None, from_index: int | None = None,
        from_revision: int | None = None, progress: bool = False,
    ) -> AsyncGenerator[WatchEvent | Progress, None]:  # fmt: skip
        """Changes, one event per index, each once; from an index, a revision, or from now on. Has no end."""
        cursor = WatchCursor(prefix, key, from_index, from_revision)
        async with aclosing(self.stream(cursor)) as told:
            async for each in told:
                if progress or isinstance(each, WatchEvent):
                    yield each

    # Consumer groups, sessions, and what operators ask.

    def consumer(self, name: str) -> Consumer:
        """A handle for a consumer group: claim it, then commit positions."""
        return Consumer(self, name)

    async def open_session(self, ttl_ms: int | None = None) -> wire.SessionAnswer:
        """A session of one's own, beside that of this client's writes."""
        return await self.call(requests.open_session(ttl_ms or self._ttl_ms))

    async def receipt(self, session: int, sequence: int) -> wire.Receipt:
        """What became of a sequence."""
        return await self.call(requests.receipt(session, sequence))

    async def void(self, session: int, sequence: int) -> wire.Receipt:
        """Makes a "not seen" final, and answers what became of the sequence."""
        return await self.call(requests.void(session, sequence))

    async def digest(self, index: int | None = None, *, log_from: int | None = None) -> wire.DigestAnswer:
        """The state digest at an index (None: now), with `log_from` also that of the log from there."""
        return await self.call(requests.digest(index, log_from=log_from))

    async def status(self) -> wire.Status:
        """The view of the node that answers."""
        return await self.call(requests.status())

    async def members(self) -> wire.Members:
        """Who belongs to the cluster."""
        return await self.call(requests.members())

    async def change_members(self, change: ChangeIn) -> ChangeAnswer:
        """Begins a change of the members; the rest follows by itself. It is not sent again once it may have begun."""
        return await self.call(requests.change_members(change))

    async def transfer_leadership(self, to: int | None = None) -> TransferAnswer:
        """Hands leadership to that node (None: whoever has most), and waits until it leads."""
        return await self.call(requests.transfer_leadership(to))

    # How.

    async def call(
        self, request: Request[T], *, deadline_s: float | None = None, ticket: Ticket | None = None,
        took: Callable[[Ticket], None] | None = None,
    ) -> T:  # fmt: skip
        """Carries out any request of `cluster.client_requests`; with a `ticket` the session is the caller's own, else
        `took` is told of those taken for it."""
        now_ms = _now_ms()
        deadline_ms = now_ms + int(1000 * (self.deadline_s if deadline_s is None else deadline_s))
        if ticket is not None or not (request.writes and self._uses_sessions):
            return await self._run(exchange(self.state, request, ticket, now_ms=now_ms, deadline_ms=deadline_ms))
        ticket = await self._ticket(deadline_ms)
        book = ticket.book
        if took is not None:
            took(ticket)
        flow = exchange(self.state, request, ticket, now_ms=_now_ms(), deadline_ms=deadline_ms)
        try:
            answer = await self._run(flow)
        except NotApplied:
            book.answer(ticket.sequence)
            raise
        except OutcomeUnknown as error:
            error.session, error.sequence = book.session, ticket.sequence
            book.give_up(ticket.sequence)
            if isinstance(error, SessionExpired) and self._book is book:
                self._book = None  # later writes open a new session; this one is never sent again
            raise
        except BaseException:  # cancelled: it may be on its way
            book.give_up(ticket.sequence)
            raise
        else:
            book.answer(ticket.sequence)
            return answer
        finally:
            self._room.set()

    async def stream(self, cursor: Cursor[T]) -> AsyncGenerator[T, None]:
        """What a cursor reads, opened again at another node whenever a stream breaks off."""
        breaks = 0  # in a row, without anything read
        while not cursor.is_done():
            connection, url = await self._open(cursor.request())
            try:
                while (block := await connection.block(SILENCE_S)) is not None:
                    if isinstance(block, Lost):
                        raise BadStream(block.reason)
                    for told in cursor.feed(block):
                        breaks = 0
                        yield told
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

    async def _open(self, request: Request[None]) -> tuple[Connection, str]:
        """Opens a stream at some node."""
        opened: list[tuple[Connection, str]] = []

        async def send(command: Send) -> Response | Lost:
            happened, connection = await self._pool.open(command.url, command.data, command.timeout_ms / 1000)
            if connection is not None:
                opened.append((connection, command.url))
            return happened

        now_ms = _now_ms()
        deadline_ms = now_ms + int(1000 * self.deadline_s)
        await self._run(exchange(self.state, request, None, now_ms=now_ms, deadline_ms=deadline_ms), send)
        return opened[-1]

    async def _send(self, command: Send) -> Response | Lost:
        return await self._pool.send(command.url, command.data, command.timeout_ms / 1000)

    async def _run(self, flow: Flow[T], send: Callable[[Send], Awaitable[Response | Lost]] | None = None) -> T:
        send = send or self._send
        happened: Response | Lost | None = None
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

    async def _ticket(self, deadline_ms: int) -> Ticket:
        """The next sequence of the session, which is opened here if there is none."""
        while True:
            if self._book is not None and self._book.is_stuck:
                self._book = None  # its receipts can be asked for until it expires
            if self._book is None:
                async with self._opening:
                    if self._book is None:
                        await self._open_own_session(deadline_ms)
                continue
            if self._book.has_room:
                return Ticket(self._book, self._book.take(), is_new=True)
            self._room.clear()
            try:
                async with asyncio.timeout((deadline_ms - _now_ms()) / 1000):
                    await self._room.wait()
            except TimeoutError:
                raise window_full(self._book.session, self._book.window_max) from None

    async def _open_own_session(self, deadline_ms: int) -> None:
        request = requests.open_session(self._ttl_ms)
        answer = await self._run(exchange(self.state, request, None, now_ms=_now_ms(), deadline_ms=deadline_ms))
        self._book = SessionBook(answer.session)
        if self._keeper is not None:
            self._keeper.cancel()
        self._keeper = asyncio.create_task(self._keep_alive(self._book, answer.ttl_ms))

    async def _keep_alive(self, book: SessionBook, ttl_ms: int) -> None:
        while self._book is book:
            await asyncio.sleep(ttl_ms / 3000)
            try:
                await self.call(requests.keep_session(book.session))
            except SessionExpired:
                if self._book is book:
                    self._book = None
            except ClientError:
                pass  # the next one, or the next write, says more

    def _at_least(self, consistency: Consistency, min_index: int | None) -> int:
        """A stale read of this client sees at least what it has seen before (pitfall 39)."""
        if min_index is not None:
            return min_index
        return self.index if consistency == "stale" else 0


def _now_ms() -> int:
    return int(clock.monotonic() * 1000)
