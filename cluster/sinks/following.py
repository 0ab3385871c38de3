"""Decides what a run of a sink does with the pages of the state and of the log: what it asks for, and writes; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raftlog.cluster.client.answers import LogPage, Page
from raftlog.cluster.sinks.changes import (
    BATCH_ROWS_MAX,
    MappedRecord,
    RowChange,
    RowChanges,
    SinkBatch,
    SinkBatcher,
    StorePosition,
)


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
