"""Batches the asyncio client's appends: one batch is under way, and the next one forms meanwhile.

`raftlog.cluster.client.aio.client` passes each append here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from raftlog.cluster.api.records import Appended
from raftlog.cluster.client.batch import (
    CLOSED,
    LATE,
    WAITING_MAX,
    Append,
    answers_of,
    closed,
    crowded,
    error_of,
    halves,
    late,
    records_of,
    size_of,
    take,
    unknown,
)
from raftlog.cluster.client.errors import ClientError, Unavailable
from raftlog.cluster.client.flow import Ticket
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.runtime import clock

SendBatch = Callable[[Sequence[NewRecord], float | None, Callable[[Ticket], None]], Awaitable[Appended]]
"""Appends the records as one request, by a deadline in seconds from now; None: it waits for a connection while nodes
answer, and has the client's deadline then. Calls back with the sequence that it takes."""

_LATE_S: Final = 0.001  # a timer may fire a little early
_NEVER: Final = float("inf")


class Batcher:
    """Belongs to one event loop. `linger_s`: how long the first call of a batch waits for others. `patience_s`: longest
    wait of a call without a deadline while no batch is answered."""

    def __init__(self, send: SendBatch, linger_s: float, records_max: int, patience_s: float) -> None:
        self._send = send
        self._linger_s = linger_s
        self._patience_s = patience_s
        self._records_max = records_max
        self._waiting: deque[Append] = deque()
        self._parts: deque[list[Append]] = deque()  # parts of a refused batch: they go first
        self._sent: list[Append] = []
        self._sent_until = 0.0  # the latest deadline in the sent batch: the flow ends it then
        self._ticket: Ticket | None = None
        self._runner: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = _NEVER  # when the timer fires

    def append(self, record: NewRecord, deadline: float = _NEVER) -> asyncio.Future[Appended]:
        """The call's future. `deadline` is in seconds of `clock.monotonic`. Raises Unavailable at the limit."""
        if len(self._waiting) >= WAITING_MAX:
            raise crowded()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Appended] = loop.create_future()
        self._waiting.append(Append(record, deadline, future, clock.monotonic()))
        if deadline < self._due:
            self._arm(deadline)
        if self._runner is None:
            self._runner = loop.create_task(self._run())  # its first step comes after the callbacks that are ready now
        return future

    async def close(self) -> None:
        """Ends the waiting calls: not applied, or unknown if they were sent."""
        runner = self._runner
        if runner is not None:
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)
            self._fail_waiting(closed)  # the runner may have ended before its first step

    async def _run(self) -> None:
        try:
            while self._waiting or self._parts:
                if self._linger_s and not self._parts:
                    await asyncio.sleep(self._linger_s)
                batch = self._parts.popleft() if self._parts else take(self._waiting, self._records_max, size_of)
                self._sent = [each for each in batch if not each.waiter.done()]
                if self._sent:
                    await self._carry_out(self._sent)
                    self._sent = []
        finally:
            self._runner = None
            self._fail_sent(CLOSED)
            self._fail_waiting(closed)
            if self._timer is not None:
                self._timer.cancel()
                self._timer, self._due = None, _NEVER

    async def _carry_out(self, batch: list[Append]) -> None:
        self._ticket = None
        until = self._sent_until = max(each.deadline for each in batch)
        left_s = None if until == _NEVER else until - clock.monotonic()
        try:
            answer = await self._send(records_of(batch), left_s, self._took)
        except ClientError as error:
            parts = halves(batch, error)
            if parts is not None:
                self._sent = []
                self._parts.extendleft(reversed(parts))
                return
            for position, each in enumerate(batch):
                if not each.waiter.done():
                    each.waiter.set_exception(error_of(error, position, len(batch)))
            if isinstance(error, Unavailable):
                self._fail_impatient(error)
        except Exception as error:
            for each in batch:
                if not each.waiter.done():
                    each.waiter.set_exception(error)
        else:
            for each, own in zip(batch, answers_of(answer, len(batch)), strict=True):
                if not each.waiter.done():
                    each.waiter.set_result(own)

    def _fail_impatient(self, error: Unavailable) -> None:
        """No node took a batch: the calls without a deadline that have waited as long fail as well."""
        came_before = clock.monotonic() - self._patience_s
        for each in self._unsent():
            if each.deadline == _NEVER and each.came <= came_before:
                each.waiter.set_exception(error_of(error, 0, 1))

    def _took(self, ticket: Ticket) -> None:
        self._ticket = ticket

    # -- deadlines: one timer for all -----------------------------------------------------------------------------

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = asyncio.get_running_loop().call_at(deadline, self._expire), deadline

    def _expire(self) -> None:
        self._timer, self._due = None, _NEVER
        now = clock.monotonic() + _LATE_S
        self._fail_sent(LATE, min(now, self._sent_until - _LATE_S))
        self._fail_waiting(late, now)
        left = [each.deadline for each in self._unsent()]
        left += [each.deadline for each in self._sent if each.deadline > now and not each.waiter.done()]
        if left:
            self._arm(min(left))

    def _unsent(self) -> list[Append]:
        return [each for part in (*self._parts, self._waiting) for each in part if not each.waiter.done()]

    def _fail_sent(self, why: str, now: float = float("inf")) -> None:
        for position, each in enumerate(self._sent):
            if each.deadline <= now and not each.waiter.done():
                each.waiter.set_exception(error_of(unknown(why, self._ticket), position, len(self._sent)))

    def _fail_waiting(self, error: Callable[[], ClientError], now: float = float("inf")) -> None:
        for each in self._unsent():
            if each.deadline <= now:
                each.waiter.set_exception(error())
        self._waiting = deque(each for each in self._waiting if not each.waiter.done())
