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
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self, TypeVar

from raftlog.cluster.api import kv
from raftlog.cluster.api.kv import TxnIn, Written
from raftlog.cluster.api.members import ChangeAnswer, ChangeIn, Members, TransferAnswer
from raftlog.cluster.api.records import Appended
from raftlog.cluster.api.sessions import Receipt, SessionAnswer
from raftlog.cluster.api.status import DigestAnswer, Status
from raftlog.cluster.client import requests
from raftlog.cluster.client.aio.batch import Batcher
from raftlog.cluster.client.aio.carrier import Carrier
from raftlog.cluster.client.aio.writes import WriteBatcher
from raftlog.cluster.client.answers import Item, LogPage, Page, Progress, Record, TxnResult, WatchEvent
from raftlog.cluster.client.arguments import checked_methods
from raftlog.cluster.client.batch import RECORDS_MAX
from raftlog.cluster.client.consumers import Consumer
from raftlog.cluster.client.cursors import Cursor, LogCursor, WatchCursor
from raftlog.cluster.client.decisions import (
    Policy,
    Routes,
    SessionBook,
    learn_leader,
    learn_url,
)
from raftlog.cluster.client.errors import (
    ClientError,
    Compacted,
    CompareFailed,
    KeyNotFound,
    NotApplied,
    OutcomeUnknown,
    SequenceSettled,
)
from raftlog.cluster.client.flow import (
    ApiRequest,
    ClientState,
    Ticket,
)
from raftlog.cluster.client.new_records import NewRecord, check_record
from raftlog.cluster.client.requests import Consistency, compare, prefix_end, step
from raftlog.cluster.runtime import clock
from raftlog.cluster.security.bearer import bearer_for
from raftlog.cluster.security.tls import TlsFiles, credentials_for

__all__ = [
    "Client",
    "ClientError",
    "Compacted",
    "CompareFailed",
    "Item",
    "KeyNotFound",
    "LogPage",
    "NewRecord",
    "NotApplied",
    "OutcomeUnknown",
    "Page",
    "Policy",
    "Progress",
    "Record",
    "SequenceSettled",
    "SessionBook",
    "Ticket",
    "TxnResult",
    "WatchEvent",
    "compare",
    "prefix_end",
    "step",
]

T = TypeVar("T")
_new = tuple.__new__  # a NamedTuple without the cost of its constructor


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
        for member in members.members:
            learn_url(self.state.routes, member.node, member.url)
        learn_leader(self.state.routes, members.leader, members.term)
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
        """Appends one record, in one request with other appends that wait in this client."""
        self.state.check_process()
        record = _new(NewRecord, (value, key, tuple(headers), time_ms))
        if headers or time_ms is not None:
            check_record(record)
        if self._batcher is None:
            return await self.append_many([record], deadline_s=deadline_s)
        if deadline_s is None:
            return await self._batcher.append(record)
        return await self._batcher.append(record, clock.monotonic() + deadline_s)

    async def append_many(self, records: Sequence[NewRecord], *, deadline_s: float | None = None) -> Appended:
        """Appends records as one request: all of them consecutively, or none."""
        return await self.call(requests.append(records), deadline_s=deadline_s)

    async def _append_batch(
        self, records: Sequence[NewRecord], deadline_s: float | None, took: Callable[[Ticket], None]
    ) -> Appended:
        return await self._carrier.call(requests.append(records), deadline_s=deadline_s, took=took)

    async def log_page(
        self,
        from_index: int,
        *,
        to: int | None = None,
        limit: int | None = None,
        wait_ms: int = 0,
        internal: bool = False,
        consistency: Consistency = "linearizable",
        min_index: int | None = None,
    ) -> LogPage:
        """One page of the log from an index on. `wait_ms`: longest wait for a record."""
        request = requests.log_page(
            from_index,
            to=to,
            limit=limit,
            wait_ms=wait_ms,
            internal=internal,
            consistency=consistency,
            min_index=self._at_least(consistency, min_index),
        )
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
        """The records from an index (or time) on, in order and each once, even if nodes fail meanwhile.

        Ends at the commit index of its beginning, or at `to`; with `follow` never. With `progress` it also yields the
        position of the stream when a node reports it.
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
        self,
        key: bytes,
        *,
        at: int | None = None,
        consistency: Consistency = "linearizable",
        min_index: int | None = None,
    ) -> Item | None:
        """A key's value, now or at a revision; None if it is not there."""
        try:
            return await self.call(
                requests.get(key, at=at, consistency=consistency, min_index=self._at_least(consistency, min_index))
            )
        except KeyNotFound:
            return None

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
            request = requests.delete(key, if_revision=if_revision)
        else:
            request = requests.put(key, value, if_revision=if_revision)
        if self._writes is None or deadline_s is not None:
            return await self.call(request, deadline_s=deadline_s)
        answer = await self._writes.write(key, value, if_revision)
        if isinstance(answer, Written):
            return answer
        if answer is None:
            return await self.call(request)
        return await self._carrier.go_on(request, answer)

    async def delete_range(self, start: bytes, end: bytes | None, *, deadline_s: float | None = None) -> Written:
        """Deletes the keys [start, end); None: to the last key. Raises ValueError for an empty end."""
        return await self.call(requests.delete_range(start, end), deadline_s=deadline_s)

    async def range_page(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        continuation: str | None = None,
        at: int | None = None,
        keys_only: bool = False,
        consistency: Consistency = "linearizable",
        min_index: int | None = None,
        prefix: bytes | None = None,
    ) -> Page:
        """One page of the keys [start, end), None: to the last key; or of the keys that begin with `prefix`."""
        request = requests.range_page(
            start,
            end,
            limit=limit,
            continuation=continuation,
            at=at,
            keys_only=keys_only,
            consistency=consistency,
            min_index=self._at_least(consistency, min_index),
            prefix=prefix,
        )
        return await self.call(request)

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

    async def txn(self, transaction: TxnIn, *, deadline_s: float | None = None) -> TxnResult:
        """Compares, then carries out `then` or `orelse`, atomically (`compare` and `step` make its parts)."""
        return await self.call(requests.txn(transaction), deadline_s=deadline_s)

    async def compact(self, revision: int) -> kv.CompactionAnswer:
        """Allows the history of keys below a revision to be deleted."""
        return await self.call(requests.compact(revision))

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
        async with aclosing(self.stream(cursor)) as told:
            async for each in told:
                if progress or isinstance(each, WatchEvent):
                    yield each

    # Consumer groups, sessions, and operations.

    def consumer(self, name: str) -> Consumer:
        """A handle for a consumer group: claim it, then commit positions."""
        return Consumer(self, name)

    async def open_session(self, ttl_ms: int | None = None) -> SessionAnswer:
        """Opens a session for the caller, beside that of this client's writes."""
        return await self.call(requests.open_session(ttl_ms or self._ttl_ms))

    async def receipt(self, session: int, sequence: int) -> Receipt:
        """The result of a sequence."""
        return await self.call(requests.receipt(session, sequence))

    async def void(self, session: int, sequence: int) -> Receipt:
        """Makes a "not seen" final. Returns the result of the sequence."""
        return await self.call(requests.void(session, sequence))

    async def digest(self, index: int | None = None, *, log_from: int | None = None) -> DigestAnswer:
        """The state digest at an index (None: now); with `log_from` also the digest of the log from there."""
        return await self.call(requests.digest(index, log_from=log_from))

    async def status(self) -> Status:
        """The status of the node that answers."""
        return await self.call(requests.status())

    async def members(self) -> Members:
        """The members of the cluster."""
        return await self.call(requests.members())

    async def change_members(self, change: ChangeIn) -> ChangeAnswer:
        """Begins a change of the members; the rest follows by itself. Not sent again once it may have begun."""
        return await self.call(requests.change_members(change))

    async def transfer_leadership(self, to: int | None = None) -> TransferAnswer:
        """Hands leadership to that node (None: the voter with the longest log), and waits until it leads."""
        return await self.call(requests.transfer_leadership(to))

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
        return await self._carrier.call(request, deadline_s=deadline_s, ticket=ticket)

    async def stream(self, cursor: Cursor[T]) -> AsyncGenerator[T, None]:
        """The items of a cursor. A stream that breaks off is opened again at another node."""
        async with aclosing(self._carrier.stream(cursor)) as told:
            async for each in told:
                yield each

    def _at_least(self, consistency: Consistency, min_index: int | None) -> int:
        """A stale read of this client sees at least what it has seen before (pitfall 39: a client that sees time go
        backward)."""
        if min_index is not None:
            return min_index
        return self.index if consistency == "stale" else 0
