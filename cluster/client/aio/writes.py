"""Batches the asyncio client's puts and deletes: one batch is under way, and the next one forms meanwhile.

`raftlog.cluster.client.aio.client` passes each write here. Writes that come while a batch is under way go to the node
in one request (`POST /v1/kv/batch`). Each has its own sequence of the session, and each gets its own answer. If the
answer of a write is a problem, that write goes on alone under the same sequence, as if it had never been in a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from raftlog.cluster.api.errors import Problem
from raftlog.cluster.api.kv import BatchItem, Written
from raftlog.cluster.client import requests, trace_context
from raftlog.cluster.client.aio.batch import CallBatches, answer, fail
from raftlog.cluster.client.aio.session import OwnSession
from raftlog.cluster.client.batch import CLOSED, WaitingCall, error_of, take, unknown
from raftlog.cluster.client.decisions import ClientCall
from raftlog.cluster.client.errors import ClientError, OutcomeUnknown
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


class _WaitingWrite(WaitingCall, eq=False):
    """One put or delete that waits."""

    key: bytes
    value: bytes | None  # None: a delete
    if_revision: int | None


CarryBatch = Callable[[ApiRequest[list[BatchItem]]], Awaitable[tuple[list[BatchItem], ClientCall]]]
"""Carries out a batch, with the client's `deadline_s`."""


class WriteBatcher(CallBatches[_WaitingWrite]):
    """The waiting writes."""

    def __init__(self, session: OwnSession, carry: CarryBatch, patience_s: float) -> None:
        super().__init__(patience_s)
        self._session = session
        self._carry = carry

    async def write(self, key: bytes, value: bytes | None, if_revision: int | None) -> Written | RefusedWrite | None:
        """The result of a write. None: the caller sends it alone, because no other write waits. Raises ClientError."""
        waiter: asyncio.Future[Written | RefusedWrite | None] = self.add(_WaitingWrite(key, value, if_revision))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                found = waiter.result()
                if isinstance(found, RefusedWrite):  # the answer came together with the cancellation
                    self._session.settle(found.ticket, is_unknown=True)
            raise

    async def send_next(self) -> None:
        taken = take(self.waiting, WRITES_MAX, _size_of)
        batch = [write for write in taken if not write.waiter.done()]  # without cancelled ones
        if len(batch) == 1:
            answer(batch[0], None)
        elif batch:
            await self._send(batch)

    async def _send(self, batch: list[_WaitingWrite]) -> None:
        """Carries out a batch and answers its writes. Writes without a free sequence wait for the next batch."""
        deadline_ms = int(1000 * (clock.monotonic() + self._patience_s))
        trace_context.carry(write.trace for write in batch)
        try:
            tickets = await self._session.tickets(len(batch), deadline_ms)
        except ClientError as error:
            self._fail(batch, error)
            return
        except asyncio.CancelledError:
            self.waiting.extendleft(reversed(batch))  # no write of it was sent
            raise
        self.waiting.extendleft(reversed(batch[len(tickets) :]))
        sent = list(zip(batch, tickets, strict=False))
        writes = [KeyWrite(each.sequence, write.key, write.value, write.if_revision) for write, each in sent]
        book = tickets[0].book
        try:
            results, call = await self._carry(requests.write_batch(book.session, book.settled, writes))
        except OutcomeUnknown as error:
            for write, ticket in sent:
                self._session.settle(ticket, is_unknown=True)
                fail(write, _unknown(error, ticket))
        except ClientError as error:
            for ticket in tickets:
                self._session.settle(ticket)
            self._fail([write for write, _ in sent], error)
        except BaseException as error:  # the client was closed, or this program has a defect
            for write, ticket in sent:
                self._session.settle(ticket, is_unknown=True)
                fail(write, unknown(CLOSED, ticket) if isinstance(error, asyncio.CancelledError) else error)
            raise
        else:
            for (write, ticket), item in zip(sent, results, strict=True):
                self._answer(write, ticket, call, item)

    def _answer(self, write: _WaitingWrite, ticket: Ticket, call: ClientCall, item: BatchItem) -> None:
        if item.problem is None:
            self._session.settle(ticket)
            answer(write, item.written)
        elif write.waiter.done():  # cancelled, and its outcome is unknown
            self._session.settle(ticket, is_unknown=True)
        else:
            answer(write, RefusedWrite(ticket, call, item.problem))

    def _fail(self, batch: list[_WaitingWrite], error: ClientError) -> None:
        """Fails a batch that was not applied."""
        for write in batch:
            fail(write, error_of(error, 0, 1))
        self.fail_impatient(error)


def _size_of(write: _WaitingWrite) -> int:
    return 16 + len(write.key) + len(write.value or b"")


def _unknown(error: OutcomeUnknown, ticket: Ticket) -> ClientError:
    own = type(error)(error.code, error.message, problem=error.problem, tried=error.tried)
    own.session, own.sequence = ticket.book.session, ticket.sequence
    return own
