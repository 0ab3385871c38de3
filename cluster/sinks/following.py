"""Decides what a run of a sink does with the pages of the state and of the log: what it asks for, and writes; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from raftlog.cluster.client.answers import LogPage, Page
from raftlog.cluster.sinks.changes import (
    MappedRecord,
    RowChange,
    RowChanges,
    SinkBatch,
    StorePosition,
    StoreRow,
    fold_change,
)

BATCH_ROWS_MAX: Final = 10_000
"""RowChanges after which a batch ends with the index."""

BATCH_BYTES_MAX: Final = 4 << 20
"""Bytes of keys and values after which a batch ends with the index."""

TRANSACTION_BYTES_MAX: Final = 16 << 20
"""Bytes of one transaction of a captured database, after which its batch ends all the same: a sink's memory is
bounded."""


def first_index(start: str | int, page: LogPage) -> int:
    """Where a new sink begins to read: `oldest`, `newest`, or an index. `page` says where the log begins and ends."""
    match start:
        case int():
            return start
        case "newest":
            return page.last_user_index + 1
        case _:
            return page.oldest


class StateLoad:
    """Makes the batches of a store from pages of the keys with a prefix, as of one revision, behind its position."""

    def __init__(self, position: StorePosition | None, prefix: bytes) -> None:
        self.position = position
        """Where the store is, once it has all batches so far."""
        self._prefix = prefix

    @property
    def is_done(self) -> bool:
        """Whether the store has all keys. The log goes on at its position then."""
        return self.position is not None and self.position.loaded is None

    @property
    def start(self) -> bytes:
        """The first key of the next page."""
        done = None if self.position is None else self.position.loaded
        return self._prefix if done is None else max(self._prefix, bytes.fromhex(done) + b"\0")

    @property
    def revision(self) -> int | None:
        """As of which revision the next page is; None for the newest."""
        return None if self.position is None else self.position.revision

    def index(self, page: Page) -> int:
        """The index as of which the keys of the next page are."""
        return page.index if self.position is None else self.position.next - 1

    def batch(self, page: Page, rows: Iterable[RowChange]) -> SinkBatch:
        """What the store is to write after the next page, of which `rows` were made."""
        next = self.index(page) + 1
        is_last = page.continuation is None
        after = StorePosition(next) if is_last else StorePosition(next, page.items[-1].key.hex(), page.revision)
        return self._moved(RowChanges(tuple(rows)), after)

    def begun_again(self, page: Page) -> SinkBatch:
        """What the store is to write where its revision is compacted: nothing of it stays. `page` is of the newest."""
        return self._moved(RowChanges((), truncates=True), StorePosition(page.index + 1, "", page.revision))

    def _moved(self, changes: RowChanges, after: StorePosition) -> SinkBatch:
        batch, self.position = SinkBatch(changes, self.position, after), after
        return batch


class LogFollower:
    """Makes the batches of a store from the pages of the log behind the store's position, up to the index `until`.

    A batch holds whole indexes and at most one change of each key, the last one. The changes of one transaction of a
    captured database stay in one batch. A truncate ends a batch, with what follows in its transaction.
    """

    def __init__(
        self, position: StorePosition, until: int | None = None, *, batch_rows_max: int = BATCH_ROWS_MAX
    ) -> None:
        self.until = until
        self.behind = 0
        """Indexes of the log that the store lacks."""
        self.is_done = False
        """Whether the store has everything up to `until`."""
        self.position = position
        """Where the store is, once it has all batches that were taken."""
        self.next_index = position.next
        """The first index of the next page."""
        self.split = 0
        """Transactions that were too large for one batch."""
        self._rows_max = batch_rows_max
        self._next = position.next
        self._rows: dict[StoreRow, RowChange] = {}
        self._truncates = False
        self._bytes = 0
        self._transaction: str | None = None
        self._held: list[MappedRecord] = []  # from the first record of a transaction that has not ended
        self._held_bytes = 0

    @property
    def may_wait(self) -> bool:
        """Whether the next page may wait for a record: no change is collected, and no end is asked for."""
        return self.until is None and not self._has_changes

    @property
    def _has_changes(self) -> bool:
        return bool(self._rows) or self._truncates

    def batches(self, page: LogPage, mapped: Iterable[MappedRecord], *, is_due: bool) -> Iterator[SinkBatch]:
        """What the store is to write after the next page, whose records are `mapped`.

        At the end of the log the last batch comes at once if it has changes. One that only moves the position comes
        when a report `is_due`.
        """
        for record in mapped:
            if (batch := self.add(record)) is not None:
                yield batch
        self.pass_to(min(page.next, page.last_user_index + 1))  # a move of a group is no news for the store
        self.is_done = self.until is not None and self.next_index > self.until
        is_caught_up = self.is_done or self.next_index > page.last_user_index
        if is_caught_up and (is_due or self.is_done or self._has_changes):
            if (batch := self.take()) is not None:
                yield batch
        self.behind = max(0, page.last_user_index + 1 - self.position.next)

    def add(self, record: MappedRecord) -> SinkBatch | None:
        """Takes the next record. Returns a full batch, to which this record does not belong."""
        self.next_index = record.index + 1
        ready: list[MappedRecord] = []
        if self._held and record.transaction not in (None, self._transaction):
            ready = self._release()  # its last record was not marked
        if record.transaction is None and not self._held:
            ready.append(record)
        else:
            self._held.append(record)
            self._held_bytes += record.size
            self._transaction = record.transaction or self._transaction
            is_large = self._held_bytes >= TRANSACTION_BYTES_MAX
            self.split += is_large and not record.is_last
            if record.is_last or is_large:
                ready += self._release()
        if not ready:
            return None
        batch = self.take() if self._is_full() else None
        for each in ready:
            self._fold(each)
        self._next = ready[-1].index + 1
        return batch

    def pass_to(self, index: int) -> None:
        """No record below the index is left to add."""
        self.next_index = max(self.next_index, index)
        if not self._held:
            self._next = max(self._next, index)

    def take(self) -> SinkBatch | None:
        """What was collected, without a transaction that has not ended; None if the position would not move."""
        if self._next == self.position.next:
            return None
        batch = SinkBatch(
            RowChanges(tuple(self._rows.values()), self._truncates), self.position, StorePosition(self._next)
        )
        self.position = StorePosition(self._next)
        self._rows, self._truncates, self._bytes = {}, False, 0
        return batch

    def _release(self) -> list[MappedRecord]:
        held, self._held, self._held_bytes = self._held, [], 0
        return held

    def _is_full(self) -> bool:
        return self._truncates or len(self._rows) >= self._rows_max or self._bytes >= BATCH_BYTES_MAX

    def _fold(self, record: MappedRecord) -> None:
        if record.truncates:
            self._rows, self._truncates = {}, True
        for change in record.rows:
            fold_change(self._rows, change)
        self._bytes += record.size
