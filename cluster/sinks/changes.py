"""Defines what records of the log change in the rows of a store, and where the store is; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec


class _UnchangedCell:
    """The value of a column that the change does not know, and that stays as it is in the store."""

    def __repr__(self) -> str:
        return "unchanged"


UNCHANGED: Final = _UnchangedCell()

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


def fold_change(rows: dict[StoreRow, RowChange], change: RowChange) -> None:
    """Puts a later change into the last changes of some rows, behind all others."""
    before = rows.pop(change.key, None)
    row = change.row
    if row is not None and before is not None and before.row is not None and UNCHANGED in row:
        row = tuple(old if new is UNCHANGED else new for old, new in zip(before.row, row, strict=True))
    rows[change.key] = change if row is change.row else RowChange(change.index, change.key, row)
