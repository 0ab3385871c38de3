"""Offers the blocking client: the same requests, decisions and answers as `cluster.client.aio.client`, over sockets.

    with SyncClient("http://127.0.0.1:7001") as client:
        client.append(b"hello")
        print(client.get(b"a"))

May be used from several threads; each request in flight has a connection of its own.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar, cast

from raftlog.cluster.api.members import Members
from raftlog.cluster.api.records import Appended
from raftlog.cluster.api.sessions import SessionAnswer
from raftlog.cluster.client import requests
from raftlog.cluster.client.answers import Item, Record, WatchEvent
from raftlog.cluster.client.arguments import as_method, checked_methods
from raftlog.cluster.client.batch import RECORDS_MAX, closed
from raftlog.cluster.client.blocking.batch import SyncBatcher
from raftlog.cluster.client.blocking.sockets import SyncConnection, SyncPool
from raftlog.cluster.client.consumers import SyncConsumer
from raftlog.cluster.client.cursors import SILENCE_S, BadStream, Cursor, LogCursor, RawChunk, RawCursor, WatchCursor
from raftlog.cluster.client.decisions import Policy, Routes, SessionBook, learn_members, pause_ms, penalise
from raftlog.cluster.client.errors import ClientError, Forbidden, SessionExpired, window_full
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
    settling,
)
from raftlog.cluster.client.http1 import BadResponse
from raftlog.cluster.client.new_records import NewRecord, check_record
from raftlog.cluster.runtime import clock
from raftlog.cluster.security.bearer import bearer_for
from raftlog.cluster.security.tls import TlsFiles, credentials_for

P = ParamSpec("P")
T = TypeVar("T")


def _calls(request: Callable[P, ApiRequest[T]]) -> Callable[Concatenate[SyncClient, P], T]:
    """A method with the parameters of a request, which carries the request out."""

    def method(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        made = request(*args, **kwargs)
        return self.call(made)

    return as_method(method, request)


@checked_methods
class SyncClient:
    """A blocking client of one cluster, for any number of threads.

    Its arguments are those of `Client`, without `connections_max` and `linger_ms`. Raises as that.
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
        tls: TlsFiles | None = None,
        token_file: str | None = None,
        batch_records_max: int = RECORDS_MAX,
    ) -> None:
        urls = (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)
        routes = Routes(urls, bound=bound, dial=dict(dial or {}))
        self.state = ClientState(routes, policy or Policy(), random.SystemRandom().randint)
        self.state.bearer = bearer_for(routes.configured, token_file)
        self.deadline_s = deadline_s
        self._pool = SyncPool(credentials_for(routes.configured, tls))
        self._ttl_ms = session_ttl_ms
        self._uses_sessions = sessions
        self._book: SessionBook | None = None
        self._guard = threading.Condition()  # guards _book and its content
        self._turn = threading.Lock()  # guards `state`: one thread decides at a time, none while it waits or sends
        self._closed = threading.Event()
        self._batcher = SyncBatcher(self._append_batch, batch_records_max) if batch_records_max > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _check_open(self) -> None:
        """Raises the ClientError `closed` once the client is closed, and RuntimeError in a forked process."""
        self.state.check_process()
        if self._closed.is_set():
            raise closed()

    def close(self) -> None:
        """Ends the session, if one was opened and a node can be reached, and all connections. Streams end as `closed`,
        and so do later requests. With a write of unknown outcome the session stays until it expires: for its receipt.
        """
        if self.state.is_forked:
            return  # session, connections and threads are the other process's
        if self._batcher is not None:
            self._batcher.close()
        self._closed.set()
        book, self._book = self._book, None
        if book is not None and book.is_settled:
            try:
                now_ms = _now_ms()
                until_ms = now_ms + int(1000 * min(1.0, self.deadline_s))
                request = requests.close_session(book.session)
                self._run(exchange(self.state, request, None, now_ms=now_ms, deadline_ms=until_ms))
            except ClientError:
                pass  # the session expires by itself
        self._pool.close()

    @property
    def index(self) -> int:
        """The highest index seen in an answer: pass it as `min_index` to another client to read what this one wrote."""
        return self.state.index

    @property
    def session(self) -> int | None:
        """The session of the newest writes, if one is open."""
        book = self._book  # the keepalive thread may find it expired
        return None if book is None else book.session

    def discover(self) -> Members:
        """Asks for the members, and remembers their URLs and the leader."""
        members = self.call(requests.members())
        with self._turn:
            learn_members(self.state.routes, members)
        return members

    # Log.

    def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        time_ms: int | None = None,
        deadline_s: float | None = None,
    ) -> Appended:
        """Appends one record, in one request with other threads' appends."""
        self.state.check_process()
        record = NewRecord(value, key, tuple(headers), time_ms)
        if headers or time_ms is not None:
            check_record(record)
        if self._batcher is None:
            return self.append_many([record], deadline_s=deadline_s)
        deadline = clock.monotonic() + (self.deadline_s if deadline_s is None else deadline_s)
        return self._batcher.append(record, deadline)

    append_many = _calls(requests.append)

    def _append_batch(
        self, records: Sequence[NewRecord], deadline_s: float, took: Callable[[Ticket], None]
    ) -> Appended:
        return self.call(requests.append(records), deadline_s=deadline_s, took=took)

    log_page = _calls(requests.log_page)

    def log(
        self,
        from_index: int = 1,
        *,
        to: int | None = None,
        from_time_ms: int | None = None,
        follow: bool = False,
        internal: bool = False,
    ) -> Iterator[Record]:
        """The records from an index (or time) on, in order and each once, even if nodes fail meanwhile."""
        cursor = LogCursor(
            from_index, to=to, from_time_ms=from_time_ms, follow=follow, internal=internal, min_index=self.index
        )
        return (each for each in self.stream(cursor) if isinstance(each, Record))

    def log_raw(self, from_index: int, to: int, *, min_index: int | None = None) -> Generator[RawChunk, None, None]:
        """Whole entries that hold the records [from_index, to), and their effects, as they are on disk; unchecked."""
        return self.stream(RawCursor(from_index, to, self.index if min_index is None else min_index))

    # Key-value store.

    get = _calls(requests.get)
    put = _calls(requests.put)
    delete = _calls(requests.delete)
    delete_range = _calls(requests.delete_range)
    range_page = _calls(requests.range_page)

    def range(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        at: int | None = None,
        keys_only: bool = False,
    ) -> Iterator[Item]:
        """The keys [start, end) or those that begin with `prefix`, page after page, all as they were at the first."""
        continuation: str | None = None
        while True:
            page = self.range_page(start, end, prefix=prefix, continuation=continuation, at=at, keys_only=keys_only)
            yield from page.items
            if (continuation := page.continuation) is None:
                return

    txn = _calls(requests.txn)

    def watch(
        self,
        *,
        prefix: bytes | None = None,
        key: bytes | None = None,
        from_index: int | None = None,
        from_revision: int | None = None,
    ) -> Iterator[WatchEvent]:
        """Changes, one event per index, each once; from an index, a revision, or from now on. Has no end."""
        cursor = WatchCursor(prefix, key, from_index, from_revision)
        return (each for each in self.stream(cursor) if isinstance(each, WatchEvent))

    # Consumer groups, sessions, and operations.

    def consumer(self, name: str) -> SyncConsumer:
        """A handle for a consumer group: claim it, then commit positions."""
        return SyncConsumer(self, name)

    def open_session(self, ttl_ms: int | None = None) -> SessionAnswer:
        """Opens a session for the caller, beside that of this client's writes."""
        return self.call(requests.open_session(ttl_ms or self._ttl_ms))

    receipt = _calls(requests.receipt)
    void = _calls(requests.void)
    digest = _calls(requests.digest)
    status = _calls(requests.status)
    cluster = _calls(requests.cluster)
    members = _calls(requests.members)
    change_members = _calls(requests.change_members)
    transfer_leadership = _calls(requests.transfer_leadership)
    save_snapshot = _calls(requests.save_snapshot)

    # Any request.

    def call(
        self,
        request: ApiRequest[T],
        *,
        deadline_s: float | None = None,
        ticket: Ticket | None = None,
        took: Callable[[Ticket], None] | None = None,
    ) -> T:
        """Carries out any request of `raftlog.cluster.client.requests`. With a `ticket` the session is the caller's.
        Otherwise `took` is called with each ticket that is taken for it."""
        self._check_open()
        now_ms = _now_ms()
        deadline_s = request.deadline_s if deadline_s is None else deadline_s
        patience_ms = int(1000 * (self.deadline_s if deadline_s is None else deadline_s))
        deadline_ms = now_ms + patience_ms + (request.hold_ms if deadline_s is None else 0)
        if ticket is not None or not (request.writes and self._uses_sessions):
            return self._run(exchange(self.state, request, ticket, now_ms=now_ms, deadline_ms=deadline_ms))
        try:
            ticket = self._ticket(deadline_ms)
        except Forbidden as error:  # as in raftlog.cluster.client.aio.carrier
            if error.missing:
                raise
            return self._run(exchange(self.state, request, None, now_ms=_now_ms(), deadline_ms=deadline_ms))
        if took is not None:
            took(ticket)
        with settling(ticket, self._settle, self._drop):
            return self._run(exchange(self.state, request, ticket, now_ms=_now_ms(), deadline_ms=deadline_ms))

    def _settle(self, ticket: Ticket, is_unknown: bool) -> None:
        with self._guard:
            settle = ticket.book.give_up if is_unknown else ticket.book.answer
            settle(ticket.sequence)
            self._guard.notify_all()

    def _drop(self, book: SessionBook) -> None:
        """The next write opens another session, unless one has been opened since."""
        with self._guard:
            if self._book is book:
                self._book = None

    def stream(self, cursor: Cursor[T]) -> Generator[T, None, None]:
        """The items of a cursor. A stream that breaks off is opened again at another node."""
        breaks = 0  # consecutive ones without a byte read
        while not cursor.is_done():
            self._check_open()
            connection, block = self._open(cursor.request())
            try:
                while True:
                    for item in cursor.feed(block):
                        breaks = 0
                        yield item
                    if cursor.is_done():
                        return
                    if connection.parser.is_done:
                        cursor.end()
                        break
                    block = connection.read(SILENCE_S)
                    self._check_open()
            except (BadStream, BadResponse, OSError):
                with self._turn:
                    penalise(self.state.routes, self.state.policy, connection.url, _now_ms())
            finally:
                connection.close()
            if not cursor.is_done():
                breaks += 1
                self._pause(pause_ms(self.state.policy, breaks, self.state.random))

    def _open(self, request: ApiRequest[None]) -> tuple[SyncConnection, bytes]:
        """Opens a stream at some node."""
        opened: list[tuple[SyncConnection, bytes]] = []

        def send(command: Send) -> Response | LostAnswer:
            happened, connection, body = self._pool.open(command.url, command.data, command.timeout_ms / 1000)
            if connection is not None:
                opened.append((connection, body))
            return happened

        now_ms = _now_ms()
        deadline_ms = now_ms + int(1000 * self.deadline_s)
        self._run(exchange(self.state, request, None, now_ms=now_ms, deadline_ms=deadline_ms), send)
        return opened[-1]

    def _send(self, command: Send) -> Response | LostAnswer:
        return self._pool.send(command.url, command.data, command.timeout_ms / 1000)

    def _run(self, flow: Flow[T], send: Callable[[Send], Response | LostAnswer] | None = None) -> T:
        send = send or self._send
        happened: Response | LostAnswer | None = None
        try:
            with self._turn:
                command = next(flow)
            while True:
                if isinstance(command, Sleep):
                    self._pause(command.ms)
                    happened = None
                else:
                    happened = send(command)
                with self._turn:
                    command = flow.send((_now_ms(), happened))
        except StopIteration as done:
            return cast(T, done.value)

    def _pause(self, ms: int) -> None:
        threading.Event().wait(ms / 1000)

    def _ticket(self, deadline_ms: int) -> Ticket:
        """The next sequence of the session. Opens a session if there is none."""
        with self._guard:
            while True:
                if self._book is not None and self._book.is_stuck:
                    self._book = None  # receipts stay available until it expires
                if self._book is None:
                    request = requests.open_session(self._ttl_ms)
                    flow = exchange(self.state, request, None, now_ms=_now_ms(), deadline_ms=deadline_ms)
                    answer = self._run(flow)  # others that want a session wait for it, too
                    self._book = SessionBook(answer.session)
                    keeper = threading.Thread(target=self._keep_alive, args=(self._book, answer.ttl_ms), daemon=True)
                    keeper.start()
                if self._book.has_room:
                    return Ticket(self._book, self._book.take(), is_new=True)
                if not self._guard.wait((deadline_ms - _now_ms()) / 1000):
                    raise window_full(self._book.session, self._book.window_max)

    def _keep_alive(self, book: SessionBook, ttl_ms: int) -> None:
        while not self._closed.wait(ttl_ms / 3000) and self._book is book:
            try:
                self.call(requests.keep_session(book.session))
            except SessionExpired:
                self._drop(book)
            except ClientError:
                pass  # the next keepalive, or the next write, shows the error


def _now_ms() -> int:
    return int(clock.monotonic() * 1000)
