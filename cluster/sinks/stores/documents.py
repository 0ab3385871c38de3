"""Turns rows into JSON documents and back, and keeps a sink's position as one, for the stores of documents."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from typing import Final

import msgspec

from raftlog.cluster.sinks.changes import UNCHANGED, StorePosition, StoreRow
from raftlog.cluster.sinks.mapping import SinkColumn
from raftlog.cluster.sinks.store import PositionMoved, SinkIdentity, StoreError, StoreFenced, check_owner
from raftlog.cluster.sinks.stores.cells import cells_of_json, encode_json, member_of


class SinkStanding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a store is, and of which sink. A store that writes no batch at once may have changes below `ahead`."""

    sink: str
    log: str
    mapping: str
    generation: int
    position: StorePosition | None
    target: str = ""
    ahead: int = 0

    def check(self, sink: SinkIdentity, generation: int) -> None:
        """Raises StoreError if the store is another sink's, StoreFenced if a younger runner has opened it."""
        if self.sink != sink.name:
            raise StoreError(f"the sink {self.sink} writes there already: name another target for {sink.name}")
        check_owner(SinkIdentity(self.sink, self.log, self.mapping), sink)
        if self.generation > generation:
            raise StoreFenced(sink.name, self.generation)


standing_of: Final = msgspec.json.Decoder(SinkStanding).decode


def check_position(found: StorePosition | None, expected: StorePosition | None) -> None:
    """Raises PositionMoved if the store is not where the batch expects it."""
    if found != expected:
        there = "has no position" if found is None else f"is at {found.next}"
        raise PositionMoved(f"the store {there}, not at {'its beginning' if expected is None else expected.next}")


def document_of(columns: Sequence[SinkColumn], row: StoreRow) -> bytes:
    """The row as a JSON object, exactly; a column without a value is left out. Raises ValueError with the reason."""
    members = {}
    for column, cell in zip(columns, row, strict=True):
        if cell is UNCHANGED:
            raise ValueError(f"the record lacks {column.name}, which did not change: set REPLICA IDENTITY FULL")
        if isinstance(cell, float) and not isfinite(cell):
            raise ValueError(f"{column.name} is {cell}, which JSON does not have")
        if cell is not None:
            members[column.name] = member_of(cell, column)
    with suppress(OverflowError):
        return encode_json(members)
    raise ValueError("it has an integer of more than 64 bits: give its column the type string or decimal(p,s)")


def row_of(columns: Sequence[SinkColumn], document: bytes | msgspec.Raw) -> StoreRow:
    """The row that a document was made of."""
    found = cells_of_json(bytes(document), columns)
    return tuple([found.get(column.name) for column in columns])
