"""Offers the asyncio client: it waits, sends and receives, as `raftlog.cluster.client.flow` decides.

    async with Client("http://127.0.0.1:7001") as client:
        appended = await client.append(b"hello")
        await client.put(b"a", b"1")
        item = await client.get(b"a")

Writes carry a session and a sequence, so that a repeated write is applied once. The session is opened with the first
write, kept alive, and replaced after it expired. Any number of requests may be in flight at once. Every error is a
`ClientError`: `NotApplied` (nothing changed, and never will) or `OutcomeUnknown`.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from raftlog.cluster.api.kv import Written
from raftlog.cluster.api.members import Members
from raftlog.cluster.api.records import Appended
from raftlog.cluster.api.sessions import SessionAnswer
from raftlog.cluster.client import requests
from raftlog.cluster.client.aio.batch import Batcher
from raftlog.cluster.client.aio.carrier import Carrier
from raftlog.cluster.client.aio.writes import WriteBatcher
from raftlog.cluster.client.answers import Item, Progress, Record, WatchEvent
from raftlog.cluster.client.arguments import as_method, checked_methods
from raftlog.cluster.client.batch import RECORDS_MAX, Append
from raftlog.cluster.client.consumers import Consumer
from raftlog.cluster.client.cursors import Cursor, LogCursor, WatchCursor
from raftlog.cluster.client.decisions import (
    Policy,
    Routes,
    learn_members,
)
from raftlog.cluster.client.flow import (
    ApiRequest,
    ClientState,
    Ticket,
)
from raftlog.cluster.client.new_records import NewRecord, check_record
from raftlog.cluster.security.bearer import bearer_for
from raftlog.cluster.security.tls import TlsFiles, credentials_for

P = ParamSpec("P")
T = TypeVar("T")
_new = tuple.__new__  # a NamedTuple without the cost of its constructor


def _calls(request: Callable[P, ApiRequest[T]]) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, T]]:
    """A method with the parameters of a request, which carries the request out."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        made = request(*args, **kwargs)
        return self.call(made)

    return as_method(method, request)


@checked_methods
class Client:
    """A client of one cluster.

    `endpoints`: URLs of some nodes. The client learns the others, unless `bound` restricts it to these. `dial` maps
    node ids to URLs that replace the advertised ones. `sessions=False`: writes carry no session; one whose answer is
    lost ends as OutcomeUnknown and is not sent again. Appends that wait while one is under way go in one request of at
    most `batch_records_max` records (1: each alone). `linger_ms`: how long the first of them waits for others.
    `tls`: the files for https URLs; None for those that RAFTLOG_CA, RAFTLOG_CERTIFICATE and RAFTLOG_KEY name.
    `token_file`: a file with a token; None for that of RAFTLOG_TOKEN_FILE. Raises ValueError for a wrong URL, and for
    files that cannot serve. After a fork each process makes its own client: in the new one calls raise RuntimeError.
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
        connections_max: int = 256,
        linger_ms: int = 0,
        batch_records_max: int = RECORDS_MAX,
    ) -> None:
        urls = (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)
        routes = Routes(urls, bound=bound, dial=dict(dial or {}))
        self.state = ClientState(routes, policy or Policy(), random.SystemRandom().randint)
        self.state.bearer = bearer_for(routes.configured, token_file)
        self.deadline_s = deadline_s
        self._ttl_ms = session_ttl_ms
        self._carrier = carrier = Carrier(
            self.state,
            deadline_s,
            connections_max,
            session_ttl_ms if sessions else None,
            credentials_for(routes.configured, tls),
        )
        self._batcher: Batcher | None = None
        self._writes: WriteBatcher | None = None
        if batch_records_max > 1:
            self._batcher = Batcher(self._append_batch, linger_ms / 1000, batch_records_max, deadline_s)
            if carrier.session is not None:
                self._writes = WriteBatcher(carrier.session, carrier.write_batch, deadline_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session, if one was opened and a node can be reached, and all connections. With a write of unknown
        outcome the session stays until it expires: for its receipt."""
        if self.state.is_forked:
            return  # session, connections and tasks are the other process's
        for batches in (self._batcher, self._writes):
            if batches is not None:
                await batches.close()
        await self._carrier.close()

    @property
    def index(self) -> int:
        """The highest index seen in an answer: pass it as `min_index` to another client to read what this one wrote."""
        return self.state.index

    @property
    def session(self) -> int | None:
        """The session of the newest writes, if one is open."""
        session = self._carrier.session
        return None if session is None or session.book is None else session.book.session

    async def discover(self) -> Members:
        """Asks for the members, and remembers their URLs and the leader."""
        members = await self.call(requests.members())
        learn_members(self.state.routes, members)
        return members

    # Log.

    async def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        time_ms: int | None = None,
        deadline_s: float | None = None,
    ) -> Appended:
        """Appends one record.

        It goes in one request with other appends of this client, unless it has a `deadline_s` of its own.
        """
        self.state.check_process()
        record = _new(NewRecord, (value, key, tuple(headers), time_ms))
        if headers or time_ms is not None:
            check_record(record)
        if self._batcher is None or deadline_s is not None:
            return await self.append_many([record], deadline_s=deadline_s)
        appended: Appended = await self._batcher.add(Append(record))
        return appended

    append_many = _calls(requests.append)

    async def _append_batch(self, records: Sequence[NewRecord], took: Callable[[Ticket], None]) -> Appended:
        return await self._carrier.call(requests.append(records), took=took)

    log_page = _calls(requests.log_page)

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
        """The records from an index (or time) on, in order and each once, even if nodes fail meanwhile.

        Ends at the commit index of its beginning, or at `to`; with `follow` never. With `progress` it also yields the
        position of the stream when a node reports it.
        """
        cursor = LogCursor(
            from_index, to=to, from_time_ms=from_time_ms, follow=follow, internal=internal, min_index=self.index
        )
        async with aclosing(self.stream(cursor)) as items:
            async for each in items:
                if progress or isinstance(each, Record):
                    yield each

    # Key-value store.

    get = _calls(requests.get)

    async def put(
        self, key: bytes, value: bytes, *, if_revision: int | None = None, deadline_s: float | None = None
    ) -> Written:
        """Writes a key; with `if_revision` only if its mod revision is that (0: only if it is not there).

        It goes in one request with other puts and deletes of this client, unless it has a `deadline_s` of its own.
        """
        return await self._write(key, value, if_revision, deadline_s)

    async def delete(self, key: bytes, *, if_revision: int | None = None, deadline_s: float | None = None) -> Written:
        """Deletes a key; `deleted` is 0 if it was not there. Goes with other writes as `put` does."""
        return await self._write(key, None, if_revision, deadline_s)

    async def _write(
        self, key: bytes, value: bytes | None, if_revision: int | None, deadline_s: float | None
    ) -> Written:
        self.state.check_process()
        if value is None:
            request = requests.delete(key, if_revision=if_revision, deadline_s=deadline_s)
        else:
            request = requests.put(key, value, if_revision=if_revision, deadline_s=deadline_s)
        if self._writes is None or deadline_s is not None:
            return await self.call(request)
        answer = await self._writes.write(key, value, if_revision)
        if isinstance(answer, Written):
            return answer
        if answer is None:
            return await self.call(request)
        return await self._carrier.go_on(request, answer)

    delete_range = _calls(requests.delete_range)
    range_page = _calls(requests.range_page)

    async def range(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        at: int | None = None,
        keys_only: bool = False,
    ) -> AsyncGenerator[Item, None]:
        """The keys [start, end) or those that begin with `prefix`, page after page, all as they were at the first."""
        continuation: str | None = None
        while True:
            page = await self.range_page(
                start, end, prefix=prefix, continuation=continuation, at=at, keys_only=keys_only
            )
            for item in page.items:
                yield item
            if (continuation := page.continuation) is None:
                return

    txn = _calls(requests.txn)
    compact = _calls(requests.compact)

    async def watch(
        self,
        *,
        prefix: bytes | None = None,
        key: bytes | None = None,
        from_index: int | None = None,
        from_revision: int | None = None,
        progress: bool = False,
    ) -> AsyncGenerator[WatchEvent | Progress, None]:
        """Changes, one event per index, each once; from an index, a revision, or from now on. Has no end."""
        cursor = WatchCursor(prefix, key, from_index, from_revision)
        async with aclosing(self.stream(cursor)) as items:
            async for each in items:
                if progress or isinstance(each, WatchEvent):
                    yield each

    # Consumer groups, sessions, and operations.

    def consumer(self, name: str) -> Consumer:
        """A handle for a consumer group: claim it, then commit positions."""
        return Consumer(self, name)

    async def open_session(self, ttl_ms: int | None = None) -> SessionAnswer:
        """Opens a session for the caller, beside that of this client's writes."""
        return await self.call(requests.open_session(ttl_ms or self._ttl_ms))

    receipt = _calls(requests.receipt)
    void = _calls(requests.void)
    digest = _calls(requests.digest)
    status = _calls(requests.status)
    cluster = _calls(requests.cluster)
    members = _calls(requests.members)
    change_members = _calls(requests.change_members)
    transfer_leadership = _calls(requests.transfer_leadership)

    # Any request.

    async def call(
        self,
        request: ApiRequest[T],
        *,
        deadline_s: float | None = None,
        ticket: Ticket | None = None,
    ) -> T:
        """Carries out any request of `raftlog.cluster.client.requests`. With a `ticket` the session is the caller's.

        `deadline_s` includes the wait for a connection. Without it the request has the client's `deadline_s` once it
        has a connection, and waits for that as long as nodes answer the requests before it. Raises ConnectionsBusy.
        """
        deadline_s = request.deadline_s if deadline_s is None else deadline_s
        if deadline_s is None and request.hold_ms:
            deadline_s = self.deadline_s + request.hold_ms / 1000
        return await self._carrier.call(request, deadline_s=deadline_s, ticket=ticket)

    def stream(self, cursor: Cursor[T]) -> AsyncGenerator[T, None]:
        """The items of a cursor. A stream that breaks off is opened again at another node."""
        return self._carrier.stream(cursor)
