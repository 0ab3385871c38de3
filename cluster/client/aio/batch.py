"""Batches the asyncio client's appends: one batch is under way, and the next one forms meanwhile.

`raftlog.cluster.client.aio.client` passes each append here. The puts and deletes of
`raftlog.cluster.client.aio.writes` wait in the same way.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from raftlog.cluster.api.records import Appended
from raftlog.cluster.client import trace_context
from raftlog.cluster.client.batch import (
    CLOSED,
    WAITING_MAX,
    Append,
    WaitingCall,
    answers_of,
    closed,
    crowded,
    error_of,
    halves,
    records_of,
    size_of,
    take,
    unknown,
)
from raftlog.cluster.client.errors import ClientError, Unavailable
from raftlog.cluster.client.flow import Ticket
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.runtime import clock

W = TypeVar("W", bound=WaitingCall)

SendBatch = Callable[[Sequence[NewRecord], Callable[[Ticket], None]], Awaitable[Appended]]
"""Appends the records as one request, with the client's deadline. Calls back with the sequence that it takes."""


class CallBatches(ABC, Generic[W]):
    """Calls that wait for their batch. Belongs to one event loop.

    `patience_s`: longest wait of a call while no batch is answered.
    """

    def __init__(self, patience_s: float) -> None:
        self.waiting: deque[W] = deque()
        self._patience_s = patience_s
        self._runner: asyncio.Task[None] | None = None

    @abstractmethod
    async def send_next(self) -> None:
        """Takes the next batch of the waiting calls, carries it out, and ends its calls."""

    def add(self, call: W) -> asyncio.Future[Any]:
        """The call's future. Raises Unavailable at the limit."""
        if len(self.waiting) >= WAITING_MAX:
            raise crowded()
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Any] = loop.create_future()
        call.came, call.waiter, call.trace = clock.monotonic(), waiter, trace_context.active()
        self.waiting.append(call)
        if self._runner is None:
            self._runner = loop.create_task(self._run())  # its first step comes after the callbacks that are ready now
        return waiter

    async def close(self) -> None:
        """Ends the waiting calls: not applied, or unknown if they were sent."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        self._fail_waiting(closed)

    async def _run(self) -> None:
        try:
            while self.waiting:
                await self.send_next()
        finally:
            self._runner = None

    def fail_impatient(self, error: ClientError) -> None:
        """If no node took a batch, the calls that have waited too long fail as well."""
        if isinstance(error, Unavailable):
            self._fail_waiting(lambda: error_of(error, 0, 1), clock.monotonic() - self._patience_s)

    def _fail_waiting(self, error: Callable[[], ClientError], came_before: float = float("inf")) -> None:
        while self.waiting and self.waiting[0].came <= came_before:
            fail(self.waiting.popleft(), error())


def answer(call: WaitingCall, result: object) -> None:
    """Ends a call that is not cancelled."""
    if not call.waiter.done():
        call.waiter.set_result(result)


def fail(call: WaitingCall, error: BaseException) -> None:
    """Ends a call that is not cancelled with an error."""
    if not call.waiter.done():
        call.waiter.set_exception(error)


class Batcher(CallBatches[Append]):
    """The waiting appends. `linger_s`: how long the first call of a batch waits for others."""

    def __init__(self, send: SendBatch, linger_s: float, records_max: int, patience_s: float) -> None:
        super().__init__(patience_s)
        self._send = send
        self._linger_s = linger_s
        self._records_max = records_max

    async def send_next(self) -> None:
        if self._linger_s:
            await asyncio.sleep(self._linger_s)
        parts = deque([take(self.waiting, self._records_max, size_of)])  # more than one once it was refused
        try:
            while parts:
                batch = [each for each in parts.popleft() if not each.waiter.done()]
                parts.extendleft(reversed(await self._sent(batch) if batch else ()))
        finally:
            for each in (each for part in parts for each in part):
                fail(each, closed())

    async def _sent(self, batch: list[Append]) -> Sequence[list[Append]]:
        """Sends a batch and ends its calls. Returns the halves to send in its place if it was refused."""
        tickets: list[Ticket] = []
        trace_context.carry(each.trace for each in batch)
        try:
            appended = await self._send(records_of(batch), tickets.append)
        except ClientError as error:
            if (parts := halves(batch, error)) is not None:
                return parts
            for position, each in enumerate(batch):
                fail(each, error_of(error, position, len(batch)))
            self.fail_impatient(error)
        except asyncio.CancelledError:  # the client is closed
            ticket = tickets[-1] if tickets else None
            for position, each in enumerate(batch):
                fail(each, error_of(unknown(CLOSED, ticket), position, len(batch)))
            raise
        except Exception as error:
            for each in batch:
                fail(each, error)
        else:
            for each, own in zip(batch, answers_of(appended, len(batch)), strict=True):
                answer(each, own)
        return ()
