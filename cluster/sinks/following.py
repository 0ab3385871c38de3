"""Decides what a run of a sink does with the pages of the log: where it begins, what it writes and reports; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raftlog.cluster.client.answers import LogPage
from raftlog.cluster.sinks.changes import BATCH_ROWS_MAX, MappedRecord, SinkBatch, SinkBatcher, StorePosition


def first_index(start: str | int, page: LogPage) -> int:
    """Where a new sink begins to read: `oldest`, `newest`, or an index. `page` says where the log begins and ends."""
    match start:
        case int():
            return start
        case "newest":
            return page.last_user_index + 1
        case _:
            return page.oldest


class LogFollower:
    """Makes the batches of a store from the pages of the log behind the store's position, up to the index `until`."""

    def __init__(
        self, position: StorePosition, until: int | None = None, *, batch_rows_max: int = BATCH_ROWS_MAX
    ) -> None:
        self._batcher = SinkBatcher(position, batch_rows_max)
        self.until = until
        self.behind = 0
        """Indexes of the log that the store lacks."""
        self.is_done = False
        """Whether the store has everything up to `until`."""

    @property
    def position(self) -> StorePosition:
        """Where the store is, once it has all batches so far."""
        return self._batcher.position

    @property
    def next_index(self) -> int:
        """The first index of the next page."""
        return self._batcher.next_index

    @property
    def split(self) -> int:
        """Transactions that were too large for one batch."""
        return self._batcher.split

    @property
    def may_wait(self) -> bool:
        """Whether the next page may wait for a record: no change is collected, and no end is asked for."""
        return self.until is None and self._batcher.is_empty

    def batches(self, page: LogPage, mapped: Iterable[MappedRecord], *, is_due: bool) -> Iterator[SinkBatch]:
        """What the store is to write after the next page, whose records are `mapped`.

        At the end of the log the last batch comes at once if it has changes. One that only moves the position comes
        when a report `is_due`.
        """
        batcher = self._batcher
        for record in mapped:
            if (batch := batcher.add(record)) is not None:
                yield batch
        batcher.pass_to(min(page.next, page.last_user_index + 1))  # a move of a group is no news for the store
        self.is_done = self.until is not None and batcher.next_index > self.until
        is_caught_up = self.is_done or batcher.next_index > page.last_user_index
        if is_caught_up and (is_due or self.is_done or not batcher.is_empty):
            if (batch := batcher.take()) is not None:
                yield batch
        self.behind = max(0, page.last_user_index + 1 - batcher.position.next)
