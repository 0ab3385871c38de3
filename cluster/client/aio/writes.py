"""Batches the asyncio client's puts and deletes: one batch is under way, and the next one forms meanwhile.

`raftlog.cluster.client.aio.client` passes each write here. Writes that come while a batch is under way go to the node
in one request (`POST /v1/kv/batch`). Each has its own sequence of the session, and each gets its own answer. If the
answer of a write is a problem, that write goes on alone under the same sequence, as if it had never been in a batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from raftlog.cluster.api.errors import Problem
from raftlog.cluster.api.kv import BatchItem, Written
from raftlog.cluster.client import requests
from raftlog.cluster.client.aio.session import OwnSession
from raftlog.cluster.client.batch import CLOSED, WAITING_MAX, closed, crowded, error_of, take, unknown
from raftlog.cluster.client.decisions import ClientCall
from raftlog.cluster.client.errors import ClientError, OutcomeUnknown, Unavailable
from raftlog.cluster.client.flow import ApiRequest, Ticket
from raftlog.cluster.client.requests import KeyWrite
from raftlog.cluster.runtime import clock

WRITES_MAX: Final = 500
"""Most writes of one batch: half of the open sequences of a session, and about 10 ms of a node's time."""


class RefusedWrite(NamedTuple):
    """A write of a batch whose answer was a problem: `raftlog.cluster.client.flow.resume` continues it."""

    ticket: Ticket
    call: ClientCall
    problem: Problem


class _WaitingWrite(msgspec.Struct, eq=False):
    """One put or delete that waits."""

    key: bytes
    value: bytes | None  # None: a delete
    if_revision: int | None
    came: float  # seconds of clock.monotonic
    waiter: asyncio.Future[Written | RefusedWrite | None]


CarryBatch = Callable[[ApiRequest[list[BatchItem]]], Awaitable[tuple[list[BatchItem], ClientCall]]]
"""Carries out a batch, with the client's `deadline_s`."""


class WriteBatcher:
    """The waiting writes.

    Belongs to one event loop. `patience_s`: longest wait of a write while no batch is answered.
    """

    def __init__(self, session: OwnSession, carry: CarryBatch, patience_s: float) -> None:
        self._session = session
        self._carry = carry
        self._patience_s = patience_s
        self._waiting: deque[_WaitingWrite] = deque()
        self._runner: asyncio.Task[None] | None = None

    async def write(self, key: bytes, value: bytes | None, if_revision: int | None) -> Written | RefusedWrite | None:
        """The result of a write. None: the caller sends it alone, because no other write waits. Raises ClientError."""
        if len(self._waiting) >= WAITING_MAX:
            raise crowded()
        loop = asyncio.get_running_loop()
        write = _WaitingWrite(key, value, if_revision, clock.monotonic(), loop.create_future())
        self._waiting.append(write)
        if self._runner is None:
            self._runner = loop.create_task(self._run())  # its first step comes after the callbacks that are ready now
        try:
            return await write.waiter
        except asyncio.CancelledError:
            if write.waiter.done() and not write.waiter.cancelled() and write.waiter.exception() is None:
                answer = write.waiter.result()
                if isinstance(answer, RefusedWrite):  # the answer came together with the cancellation
                    self._session.settle(answer.ticket, is_unknown=True)
            raise

    async def close(self) -> None:
        """Ends the waiting writes: not applied, or unknown if they were sent."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        self._fail_waiting(closed)

    async def _run(self) -> None:
        try:
            while self._waiting:
                taken = take(self._waiting, WRITES_MAX, _size_of)
                batch = [write for write in taken if not write.waiter.done()]  # without cancelled ones
                if len(batch) == 1:
                    for write in batch:
                        _tell(write, None)
                elif batch:
                    await self._send(batch)
        finally:
            self._runner = None

    async def _send(self, batch: list[_WaitingWrite]) -> None:
        """Carries out a batch and answers its writes. Writes without a free sequence wait for the next batch."""
        deadline_ms = int(1000 * (clock.monotonic() + self._patience_s))
        try:
            tickets = await self._session.tickets(len(batch), deadline_ms)
        except ClientError as error:
            self._fail(batch, error)
            return
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(batch))  # no write of it was sent
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
            self._fail([write for write, _ in sent], error)
        except BaseException as error:  # the client was closed, or this program has a defect
            for write, ticket in sent:
                self._session.settle(ticket, is_unknown=True)
                _fail(write, unknown(CLOSED, ticket) if isinstance(error, asyncio.CancelledError) else error)
            raise
        else:
            for (write, ticket), item in zip(sent, results, strict=True):
                self._answer(write, ticket, call, item)

    def _answer(self, write: _WaitingWrite, ticket: Ticket, call: ClientCall, item: BatchItem) -> None:
        if item.problem is None:
            self._session.settle(ticket)
            _tell(write, item.written)
        elif write.waiter.done():  # cancelled, and its outcome is unknown
            self._session.settle(ticket, is_unknown=True)
        else:
            _tell(write, RefusedWrite(ticket, call, item.problem))

    def _fail(self, batch: list[_WaitingWrite], error: ClientError) -> None:
        """Fails a batch that was not applied. If no node accepted it, writes that waited too long fail as well."""
        for write in batch:
            _fail(write, error_of(error, 0, 1))
        if isinstance(error, Unavailable):
            came_before = clock.monotonic() - self._patience_s
            self._fail_waiting(lambda: error_of(error, 0, 1), came_before)

    def _fail_waiting(self, error: Callable[[], ClientError], came_before: float = float("inf")) -> None:
        while self._waiting and self._waiting[0].came <= came_before:
            _fail(self._waiting.popleft(), error())


def _size_of(write: _WaitingWrite) -> int:
    return 16 + len(write.key) + len(write.value or b"")


def _tell(write: _WaitingWrite, answer: Written | RefusedWrite | None) -> None:
    if not write.waiter.done():
        write.waiter.set_result(answer)


def _fail(write: _WaitingWrite, error: BaseException) -> None:
    if not write.waiter.done():
        write.waiter.set_exception(error)


def _unknown(error: OutcomeUnknown, ticket: Ticket) -> ClientError:
    own = type(error)(error.code, error.message, problem=error.problem, tried=error.tried)
    own.session, own.sequence = ticket.book.session, ticket.sequence
    return own
