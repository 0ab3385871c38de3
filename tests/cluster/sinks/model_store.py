"""Provides a store that keeps its rows in a dict, and fails as real stores do: before, in or after a write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field

from raftlog.cluster.sinks.changes import UNCHANGED, RowChanges, StorePosition, StoreRow
from raftlog.cluster.sinks.store import (
    PositionMoved,
    Refusal,
    RowsRefused,
    SinkIdentity,
    StoredRows,
    StoreFenced,
    StoreUnavailable,
    check_owner,
)


@dataclass
class Kept:
    """What the store has on its disk."""

    owner: SinkIdentity | None = None
    position: StorePosition | None = None
    generation: int = 0
    rows: dict[StoreRow, StoreRow] = field(default_factory=dict)


@dataclass
class ModelServer:
    """The server of a store, with its faults."""

    kept: Kept = field(default_factory=Kept)
    lose: list[str] = field(default_factory=list)  # "before" or "after", for each of the next writes
    refuses: set[StoreRow] = field(default_factory=set)
    writes: list[RowChanges] = field(default_factory=list)


class ModelStore:
    """A connection to a store in memory."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._generation = 0

    def open(self, sink: SinkIdentity, generation: int) -> StorePosition | None:
        if self._server.kept.generation > generation:
            raise StoreFenced(sink.name, self._server.kept.generation)
        self._generation = self._server.kept.generation = generation
        if self._server.kept.owner is not None:
            check_owner(self._server.kept.owner, sink)
        self._server.kept.owner = sink
        return self._server.kept.position

    def write(self, changes: RowChanges, expected: StorePosition | None, next: StorePosition) -> None:
        lost = self._server.lose.pop(0) if self._server.lose else ""
        if lost == "before":
            raise StoreUnavailable("lost before the write")
        if self._server.kept.generation > self._generation:
            raise StoreFenced("s")
        if self._server.kept.position != expected:
            raise PositionMoved(f"at {self._server.kept.position}, not {expected}")
        refused = [each for each in changes.rows if each.key in self._server.refuses]
        if refused:
            raise RowsRefused([Refusal(each, "refused by the test") for each in refused])
        made = {} if changes.truncates else dict(self._server.kept.rows)
        for each in changes.rows:
            if each.row is None:
                made.pop(each.key, None)
            else:
                before = made.get(each.key, each.row)
                pairs = zip(before, each.row, strict=True)
                made[each.key] = tuple(old if new is UNCHANGED else new for old, new in pairs)
        self._server.kept.rows, self._server.kept.position = made, next
        self._server.writes.append(changes)
        if lost == "after":
            raise StoreUnavailable("the answer was lost")

    @contextmanager
    def rows(self, sink: SinkIdentity) -> Iterator[StoredRows | None]:
        kept = deepcopy(self._server.kept)
        yield None if kept.position is None else StoredRows(kept.position, iter(kept.rows.values()))

    def drop(self, sink: SinkIdentity) -> None:
        self._server.kept = Kept()

    def close(self) -> None:
        """As `SinkStore.close`."""


class SendingModelStore(ModelStore):
    """Its server carries out a batch as late as it may: when the next one comes, or is waited for."""

    def __init__(self, server: ModelServer) -> None:
        super().__init__(server)
        self._sent: list[tuple[RowChanges, StorePosition | None, StorePosition]] = []

    def send(self, changes: RowChanges, expected: StorePosition | None, next: StorePosition) -> None:
        self.settle()
        self._sent.append((changes, expected, next))

    def settle(self) -> None:
        if self._sent:
            self.write(*self._sent.pop())

    def close(self) -> None:
        """As `SinkStore.close`: the server never gets what it has not carried out."""
        self._sent.clear()
