"""Batches the blocking client's appends: one waiting thread sends for all of them, then the next one does.

`raftlog.cluster.client.blocking.client` passes each append here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

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
from raftlog.cluster.client.errors import ClientError
from raftlog.cluster.client.flow import Ticket
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.runtime import clock

SyncSendBatch = Callable[[Sequence[NewRecord], float, Callable[[Ticket], None]], Appended]
"""Appends the records as one request, by a deadline in seconds from now. Calls back with the sequence that it takes."""


class _Waiter:
    """The result of one call, and the thread that waits for it."""

    __slots__ = ("answer", "error", "is_called", "turn")

    def __init__(self, turn: threading.Condition) -> None:
        self.turn = turn
        self.answer: Appended | None = None
        self.error: BaseException | None = None
        self.is_called = False  # to send the next batch

    @property
    def is_done(self) -> bool:
        return self.answer is not None or self.error is not None


class SyncBatcher:
    """The waiting appends of any number of threads."""

    def __init__(self, send: SyncSendBatch, records_max: int) -> None:
        self._send = send
        self._records_max = records_max
        self._guard = threading.Lock()  # guards all fields below
        self._waiting: deque[Append] = deque()
        self._sent: list[Append] = []
        self._ticket: Ticket | None = None
        self._is_sending = False
        self._is_closed = False

    def append(self, record: NewRecord, deadline: float) -> Appended:
        """Appends the record, in one request with other waiting ones. Raises ClientError."""
        with self._guard:
            if self._is_closed:
                raise closed()
            if len(self._waiting) >= WAITING_MAX:
                raise crowded()
            waiter = _Waiter(threading.Condition(self._guard))
            call = Append(record, deadline, waiter=waiter)
            self._waiting.append(call)
            if self._is_sending:
                try:
                    self._await(call, waiter)
                except BaseException:  # interrupted: the others must not wait for this thread
                    if call in self._waiting:
                        self._waiting.remove(call)
                    if waiter.is_called:
                        self._call_next()
                    raise
            else:
                self._is_sending = waiter.is_called = True
        if waiter.is_called:
            self._lead()
        if waiter.error is not None:
            raise waiter.error
        assert waiter.answer is not None
        return waiter.answer

    def close(self) -> None:
        """Sends nothing more: waiting calls end as not applied."""
        with self._guard:
            self._is_closed = True
            for each in self._waiting:
                _settle(each, error=closed())
            self._waiting.clear()

    def _await(self, call: Append, waiter: _Waiter) -> None:
        """Waits until the call is settled, must send, or is late. The caller holds the guard."""
        patience = call.deadline - clock.monotonic()
        if waiter.turn.wait_for(lambda: waiter.is_done or waiter.is_called, patience):
            return
        if call in self._sent:
            position = self._sent.index(call)
            waiter.error = error_of(unknown(LATE, self._ticket), position, len(self._sent))
        else:
            waiter.error = late()
            if call in self._waiting:
                self._waiting.remove(call)

    def _lead(self) -> None:
        """Sends one batch, which holds this thread's own call, and calls the next thread."""
        with self._guard:
            batch = take(self._waiting, self._records_max, size_of)
        try:
            if batch:
                self._carry_out(batch)
        except BaseException:  # interrupted: the outcome is unknown
            with self._guard:
                for position, each in enumerate(batch):
                    _settle(each, error=error_of(unknown(CLOSED, self._ticket), position, len(batch)))
            raise
        finally:
            with self._guard:
                self._sent = []
                self._call_next()

    def _call_next(self) -> None:
        """Makes the first waiting thread send. The caller holds the guard."""
        self._is_sending = bool(self._waiting)
        if self._waiting:
            following: _Waiter = self._waiting[0].waiter
            following.is_called = True
            following.turn.notify()

    def _carry_out(self, batch: list[Append]) -> None:
        with self._guard:
            self._sent, self._ticket = batch, None
        deadline = max(each.deadline for each in batch)
        try:
            answer = self._send(records_of(batch), deadline - clock.monotonic(), self._took)
        except ClientError as error:
            parts = halves(batch, error)
            if parts is not None:
                for part in parts:
                    self._carry_out(part)
                return
            with self._guard:
                for position, each in enumerate(batch):
                    _settle(each, error=error_of(error, position, len(batch)))
        else:
            with self._guard:
                for each, own in zip(batch, answers_of(answer, len(batch)), strict=True):
                    _settle(each, own)

    def _took(self, ticket: Ticket) -> None:
        with self._guard:
            self._ticket = ticket


def _settle(each: Append, answer: Appended | None = None, error: BaseException | None = None) -> None:
    """Settles one call. The caller holds the guard."""
    waiter: _Waiter = each.waiter
    if not waiter.is_done:
        waiter.answer, waiter.error = answer, error
        waiter.turn.notify()
