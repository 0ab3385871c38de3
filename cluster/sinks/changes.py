"""Folds the changes of records into batches that a store writes at once; pure.

A batch holds whole indexes and at most one change of each key, the last one. The changes of one transaction of a
captured database stay in one batch. A truncate ends a batch, with what follows in its transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

BATCH_ROWS_MAX: Final = 10_000
"""RowChanges after which a batch ends with the index."""

BATCH_BYTES_MAX: Final = 4 << 20
"""Bytes of keys and values after which a batch ends with the index."""

TRANSACTION_BYTES_MAX: Final = 16 << 20
"""Bytes of one transaction of a captured database, after which its batch ends all the same: a sink's memory is
bounded."""


class _Unchanged:
    """The value of a column that the change does not know, and that stays as it is in the store."""

    def __repr__(self) -> str:
        return "unchanged"


UNCHANGED: Final = _Unchanged()

StoreRow = tuple[Any, ...]
"""The values of a sink's columns, in their order."""


class StorePosition(msgspec.Struct, frozen=True):
    """How far a store is: it has every change below the index `next`.

    While the state of the keys is loaded, as of `revision`, the store has those up to `loaded` (in hex), and `next` is
    where the log goes on afterwards.
    """

    next: int
    loaded: str | None = None
    revision: int = 0


class RowChange(msgspec.Struct, frozen=True):
    """What becomes of one row of the store. `key` are the values of its primary key; without a `row` it is deleted."""

    index: int
    key: StoreRow
    row: StoreRow | None


class RowChanges(NamedTuple):
    """What a store writes at once. With `truncates` it deletes all rows of the sink before it puts these."""

    rows: tuple[RowChange, ...]
    truncates: bool = False


class MappedRecord(msgspec.Struct, frozen=True):
    """What a record of the log does to the rows of a sink.

    `transaction` names the transaction of a captured database, which `is_last` ends. `size` are the record's bytes.
    """

    index: int
    rows: Sequence[RowChange] = ()
    truncates: bool = False
    transaction: str | None = None
    is_last: bool = False
    size: int = 0


class SinkBatch(NamedTuple):
    """RowChanges, and the positions of the store before and after them."""

    changes: RowChanges
    expected: StorePosition | None
    next: StorePosition


class SinkBatcher:
    """Collects mapped records behind a position of the store."""

    def __init__(self, position: StorePosition, rows_max: int = BATCH_ROWS_MAX) -> None:
        self.position = position
        """Where the store is, once it has all batches that were taken."""
        self.next_index = position.next
        """The index after the newest record that was added."""
        self.split = 0
        """Transactions that were too large for one batch."""
        self._rows_max = rows_max
        self._next = position.next
        self._rows: dict[StoreRow, RowChange] = {}
        self._truncates = False
        self._bytes = 0
        self._transaction: str | None = None
        self._held: list[MappedRecord] = []  # from the first record of a transaction that has not ended
        self._held_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether no change waits to be taken."""
        return not self._rows and not self._truncates

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


def fold_change(rows: dict[StoreRow, RowChange], change: RowChange) -> None:
    """Puts a later change into the last changes of some rows, behind all others."""
    before = rows.pop(change.key, None)
    row = change.row
    if row is not None and before is not None and before.row is not None and UNCHANGED in row:
        row = tuple(old if new is UNCHANGED else new for old, new in zip(before.row, row, strict=True))
    rows[change.key] = change if row is change.row else RowChange(change.index, change.key, row)
