"""The asyncio client's puts and deletes: one batch under way, the next forms meanwhile.

`cluster.client` passes each write here. Writes that come while a batch is under way go to the node in one request, each
under its own sequence of the session, and each gets an answer of its own (`POST /v1/kv/batch`). A write that the node
answers with a problem goes on alone, under the same sequence, as if it had been sent alone from the beginning.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from cluster import client_requests as requests
from cluster import clock, wire
from cluster.client_batch import CLOSED, WAITING_MAX, closed, crowded, error_of, unknown
from cluster.client_core import Call
from cluster.client_errors import ClientError, OutcomeUnknown, Unavailable
from cluster.client_flow import Request, Ticket
from cluster.client_requests import KeyWrite
from cluster.client_session import OwnSession
from cluster.wire import BatchItem, Code, Problem

WRITES_MAX: Final = 500
"""Writes of one batch: half of the sequences that a session may have open, and about 10 ms of a node's time."""
BYTES_MAX: Final = 512 << 10
"""Bytes of keys and values of one batch, but for a single larger write."""
_NOT_KNOWN: Final = frozenset({Code.METHOD_NOT_ALLOWED, Code.NOT_FOUND})
"""What a node of an earlier version answers to a batch."""


class Refused(NamedTuple):
    """A write of a batch that was answered with a problem: `cluster.client_flow.resume` goes on with it."""

    ticket: Ticket
    call: Call
    problem: Problem


class _Write(msgspec.Struct, eq=False):
    """One put or delete that waits."""

    key: bytes
    value: bytes | None  # None: a delete
    if_revision: int | None
    came: float  # seconds of clock.monotonic
    waiter: asyncio.Future[wire.Written | Refused | None]


Carry = Callable[[Request[list[BatchItem]]], Awaitable[tuple[list[BatchItem], Call]]]
"""Carries a batch out, with the client's `deadline_s`."""


class Writes:
    """Belongs to one event loop. `patience_s`: how long a write waits while no batch is answered."""

    def __init__(self, session: OwnSession, carry: Carry, patience_s: float) -> None:
        self._session = session
        self._carry = carry
        self._patience_s = patience_s
        self._waiting: deque[_Write] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._is_known = True  # to the nodes: those of an earlier version take no batches

    async def write(self, key: bytes, value: bytes | None, if_revision: int | None) -> wire.Written | Refused | None:
        """What became of it; None: the caller sends it alone, for it is the only one. Raises ClientError."""
        if not self._is_known:
            return None
        if len(self._waiting) >= WAITING_MAX:
            raise crowded()
        loop = asyncio.get_running_loop()
        write = _Write(key, value, if_revision, clock.monotonic(), loop.create_future())
        self._waiting.append(write)
        if self._runner is None:
            self._runner = loop.create_task(self._run())  # its first step comes after what is ready now
        try:
            return await write.waiter
        except asyncio.CancelledError:
            if write.waiter.done() and not write.waiter.cancelled() and write.waiter.exception() is None:
                answer = write.waiter.result()
                if isinstance(answer, Refused):  # it came together with the cancellation
                    self._session.settle(answer.ticket, is_unknown=True)
            raise

    async def close(self) -> None:
        """Ends what waits: not applied, or unknown where it was sent."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        self._fail_waiting(closed)

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                if len(batch) == 1 or not self._is_known:
                    for write in batch:
                        _tell(write, None)
                elif batch:
                    await self._send(batch)
        finally:
            self._runner = None

    def _take(self) -> list[_Write]:
        """The next batch, in order, without the writes whose callers were cancelled."""
        batch: list[_Write] = []
        size = 0
        while self._waiting and len(batch) < WRITES_MAX:
            write = self._waiting[0]
            if not write.waiter.done():
                size += 16 + len(write.key) + len(write.value or b"")
                if batch and size > BYTES_MAX:
                    break
                batch.append(write)
            self._waiting.popleft()
        return batch

    async def _send(self, batch: list[_Write]) -> None:
        """Carries a batch out and answers its writes; those for which the session has no sequence wait for the next."""
        deadline_ms = int(1000 * (clock.monotonic() + self._patience_s))
        try:
            tickets = await self._session.tickets(len(batch), deadline_ms)
        except ClientError as error:
            self._fail(batch, error)
            return
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(batch))  # nothing of it was sent
            raise
        self._waiting.extendleft(reversed(batch[len(tickets) :]))
        sent = list(zip(batch, tickets, strict=False))
        writes = [KeyWrite(each.sequence, write.key, write.value, write.if_revision) for write, each in sent]
        book = tickets[0].book
        try:
            results, call = await self._carry(requests.write_batch(book.session, book.settled, writes))
        except OutcomeUnknown as error:
            for write, ticket in sent:
                self._session.settle(ticket, is_unknown=True)
                _fail(write, _unknown(error, ticket))
        except ClientError as error:
            for ticket in tickets:
                self._session.settle(ticket)
            if error.code in _NOT_KNOWN:
                self._is_known = False
                for write, _ in sent:
                    _tell(write, None)
            else:
                self._fail([write for write, _ in sent], error)
        except BaseException as error:  # closed, or a mistake of this program
            for write, ticket in sent:
                self._session.settle(ticket, is_unknown=True)
                _fail(write, unknown(CLOSED, ticket) if isinstance(error, asyncio.CancelledError) else error)
            raise
        else:
            for (write, ticket), item in zip(sent, results, strict=True):
                self._answer(write, ticket, call, item)

    def _answer(self, write: _Write, ticket: Ticket, call: Call, item: BatchItem) -> None:
        if item.problem is None:
            self._session.settle(ticket)
            _tell(write, item.written)
        elif write.waiter.done():  # cancelled, and its fate is open
            self._session.settle(ticket, is_unknown=True)
        else:
            _tell(write, Refused(ticket, call, item.problem))

    def _fail(self, batch: list[_Write], error: ClientError) -> None:
        """The batch was not applied. Where no node could take it, those that waited too long behind it end as well."""
        for write in batch:
            _fail(write, error_of(error, 0, 1))
        if isinstance(error, Unavailable):
            came_before = clock.monotonic() - self._patience_s
            self._fail_waiting(lambda: error_of(error, 0, 1), came_before)

    def _fail_waiting(self, error: Callable[[], ClientError], came_before: float = float("inf")) -> None:
        while self._waiting and self._waiting[0].came <= came_before:
            _fail(self._waiting.popleft(), error())


def _tell(write: _Write, answer: wire.Written | Refused | None) -> None:
    if not write.waiter.done():
        write.waiter.set_result(answer)


def _fail(write: _Write, error: BaseException) -> None:
    if not write.waiter.done():
        write.waiter.set_exception(error)


def _unknown(error: OutcomeUnknown, ticket: Ticket) -> ClientError:
    own = type(error)(error.code, error.message, problem=error.problem, tried=error.tried)
    own.session, own.sequence = ticket.book.session, ticket.sequence
    return own
