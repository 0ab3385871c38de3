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

import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self, TypeVar

from cluster import client_requests as requests
from cluster import clock, wire
from cluster.client_answers import Item, LogPage, Page, Progress, Record, TxnResult, WatchEvent
from cluster.client_arguments import checked_methods
from cluster.client_batch import RECORDS_MAX, UnknownInBatch
from cluster.client_batch_async import Batcher
from cluster.client_carrier import Carrier
from cluster.client_consumers import Consumer
from cluster.client_core import (
    Policy,
    Routes,
    SessionBook,
    learn_leader,
    learn_url,
)
from cluster.client_cursors import Cursor, LogCursor, WatchCursor
from cluster.client_errors import (
    ClientError,
    Compacted,
    CompareFailed,
    ConnectionsBusy,
    KeyNotFound,
    NotApplied,
    OutcomeUnknown,
    SequenceSettled,
    SessionExpired,
    Unavailable,
)
from cluster.client_flow import (
    Request,
    State,
    Ticket,
)
from cluster.client_requests import Consistency, NewRecord, compare, prefix_end, step
from cluster.client_writes import Writes
from cluster.wire_members import ChangeAnswer, ChangeIn, TransferAnswer

__all__ = [
    "Client", "ClientError", "Compacted", "CompareFailed", "ConnectionsBusy", "Item", "KeyNotFound", "LogPage",
    "NewRecord", "NotApplied", "OutcomeUnknown", "Page", "Policy", "Progress", "Record", "SequenceSettled",
    "SessionBook", "SessionExpired", "Ticket", "TxnResult", "Unavailable", "UnknownInBatch", "WatchEvent", "compare",
    "prefix_end", "step",
]  # fmt: skip

T = TypeVar("T")
_new = tuple.__new__  # a NamedTuple without the cost of its constructor


@checked_methods
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
        self._ttl_ms = session_ttl_ms
        self._carrier = carrier = Carrier(self.state, deadline_s, connections_max, session_ttl_ms if sessions else None)
        self._batcher: Batcher | None = None
        self._writes: Writes | None = None
        if batch_records_max > 1:
            self._batcher = Batcher(self._append_batch, linger_ms / 1000, batch_records_max)
            if carrier.session is not None:
                self._writes = Writes(carrier.session, carrier.write_batch, deadline_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session, if one was opened and a node can be reached, and all connections."""
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
        if headers:
            requests.check_record(record)
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
        return await self._carrier.call(requests.append(records), deadline_s=deadline_s, took=took)

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
        """Writes a key; with `if_revision` only if its mod revision is that (0: only if it is not there).

        In one request with what else this client puts and deletes meanwhile, unless it has a `deadline_s` of its own.
        """
        return await self._write(key, value, if_revision, deadline_s)

    async def delete(
        self, key: bytes, *, if_revision: int | None = None, deadline_s: float | None = None
    ) -> wire.Written:
        """Deletes a key; `deleted` is 0 if it was not there. Travels with others as `put` does."""
        return await self._write(key, None, if_revision, deadline_s)

    async def _write(
        self, key: bytes, value: bytes | None, if_revision: int | None, deadline_s: float | None
    ) -> wire.Written:
        if value is None:
            request = requests.delete(key, if_revision=if_revision)
        else:
            request = requests.put(key, value, if_revision=if_revision)
        if self._writes is None or deadline_s is not None:
            return await self.call(request, deadline_s=deadline_s)
        answer = await self._writes.write(key, value, if_revision)
        if isinstance(answer, wire.Written):
            return answer
        return await self._carrier.call(request, refused=answer)

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
    ) -> T:  # fmt: skip
        """Carries out any request of `cluster.client_requests`; with a `ticket` the session is the caller's own.

        `deadline_s` includes the wait for a connection. Without it the request has the client's `deadline_s` once it
        has a connection, and waits for that as long as nodes answer the requests before it. Raises ConnectionsBusy.
        """
        return await self._carrier.call(request, deadline_s=deadline_s, ticket=ticket)

    async def stream(self, cursor: Cursor[T]) -> AsyncGenerator[T, None]:
        """What a cursor reads, opened again at another node whenever a stream breaks off."""
        async with aclosing(self._carrier.stream(cursor)) as told:
            async for each in told:
                yield each

    def _at_least(self, consistency: Consistency, min_index: int | None) -> int:
        """A stale read of this client sees at least what it has seen before (pitfall 39)."""
        if min_index is not None:
            return min_index
        return self.index if consistency == "stale" else 0
