"""Compares a store with the log: the rows as of one moment against a fold of the log to the store's position.

For the key-value store the fold is its state as of that index, while the history is kept; else the log is read from
the sink's beginning. A store that has the bytes and numbers of all keys unchanged is compared with the digest that the
cluster keeps of its state, and only if both differ with the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any, Final, Literal

import msgspec

from raftlog.cluster.api.status import SetDigestHex
from raftlog.cluster.client import requests
from raftlog.cluster.client.answers import Item, Record
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import Compacted, NotApplied
from raftlog.cluster.sinks.changes import UNCHANGED, RowChange, StoreRow
from raftlog.cluster.sinks.columns import cast_of, number_text
from raftlog.cluster.sinks.mapping import Misfit, RowMapping, SinkColumn
from raftlog.cluster.sinks.runner import VERIFIER, VERIFIER_DONE, SinkStep, learn_schemas, records_between
from raftlog.cluster.sinks.settings import SinkSettings
from raftlog.cluster.sinks.store import PositionMoved, SinkStore, StoreError, shown_key
from raftlog.statemachine.digest import set_digest, state_row_hash

SHOWN_MAX: Final = 20
"""Keys that differ of which the names are kept."""

_PAGE_RECORDS: Final = 1_000
_UNCHANGED_KINDS: Final = (None, "binary", "bigint")
_encode: Final = msgspec.json.Encoder(decimal_format="number", order="sorted").encode
_decode: Final = msgspec.json.Decoder(float_hook=Decimal).decode


class VerifyResult(msgspec.Struct, frozen=True):
    """The result. `differ` names keys whose rows are missing in the store, are not of the log, or are others.

    `unproven` says what could not be compared, and why. `by` is "digest" if the cluster's digest of its state was
    enough, else "rows".
    """

    rows: int
    next: int
    missing: int
    extra: int
    changed: int
    rejected: int
    differ: tuple[str, ...]
    unproven: str | None
    by: Literal["rows", "digest"] = "rows"

    @property
    def is_same(self) -> bool:
        """Whether the store equals the log, as far as the log goes back."""
        return not (self.missing or self.extra or self.changed)


def verify(
    name: str,
    sink: SinkSettings,
    store: SinkStore,
    client: SyncClient,
    show: Callable[[int], None] = lambda _: None,
    at: Callable[[SinkStep], None] = lambda _: None,
) -> VerifyResult:
    """Compares the store with the log; `show` gets the number of rows so far. Raises StoreError, ClientError.

    Where the rows change while they are read, the runner of the sink waits until they are compared.
    """
    with suppress(PositionMoved):
        return _by_digest(name, sink, store, client) or _compared(name, sink, store, client, show, at)
    with _runner_waits(name, sink, store, client):
        return _compared(name, sink, store, client, show, at)


@contextmanager
def _runner_waits(name: str, sink: SinkSettings, store: SinkStore, client: SyncClient) -> Iterator[None]:
    """Claims the group and the store, and gives the group back at the end."""
    group = client.consumer(f"sink/{name}")
    generation = group.claim(owner=VERIFIER).generation
    try:
        store.open(sink.identity(name, client.status().log), generation)
        store.close()
        yield
    finally:
        group.claim(owner=VERIFIER_DONE)


def _by_digest(name: str, sink: SinkSettings, store: SinkStore, client: SyncClient) -> VerifyResult | None:
    """The result by the digest of the cluster's state; None if the cluster has none of that index, or another."""
    mapping = sink.mapping()
    at = _whole_state(sink, mapping)
    if at is None:
        return None
    with store.rows(sink.identity(name, client.status().log)) as stored:
        if stored is None or stored.position.loaded is not None or stored.unproven is not None:
            return None
        try:
            state = client.call(requests.digest(stored.position.next - 1)).state
        except NotApplied:  # the cluster remembers the digests of the newest entries alone
            return None
        found = set_digest(
            state_row_hash(_bytes(row[at[0]]), _bytes(row[at[1]]), *[int(row[each]) for each in at[2:]])
            for row in stored.rows
        )
    if state != SetDigestHex(*found.as_hex()):
        return None
    return VerifyResult(found.count, stored.position.next, 0, 0, 0, 0, (), None, "digest")


def _whole_state(sink: SinkSettings, mapping: RowMapping) -> list[int] | None:
    """Where the rows have key, value, create, revision and version as the cluster has them; None if they do not."""
    if sink.source.keys != "" or sink.source.operations:
        return None
    found = {column.place: at for at, column in enumerate(mapping.columns) if column.kind in _UNCHANGED_KINDS}
    at = [found.get(place) for place in ("key", "value", "create", "revision", "version")]
    return [each for each in at if each is not None] if None not in at else None


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _compared(
    name: str,
    sink: SinkSettings,
    store: SinkStore,
    client: SyncClient,
    show: Callable[[int], None],
    at: Callable[[SinkStep], None],
) -> VerifyResult:
    with store.rows(sink.identity(name, client.status().log)) as stored:
        if stored is None:
            raise StoreError(f"the store has nothing of the sink {name} yet: raftlog sink run")
        position = stored.position
        if position.loaded is not None:
            raise StoreError(f"the state of the keys is half loaded into {name}: start raftlog sink run, then verify")
        at(SinkStep.READ)
        fold = _Fold(sink.mapping())
        unproven = fold.read(sink, client, position.next)
        seen = extra = changed = 0
        differ: list[str] = []
        for row in stored.rows:
            seen += 1
            if not seen % _PAGE_RECORDS:
                show(seen)
            key = fold.key_of(row)
            expected = fold.rows.pop(key, None)
            if expected is None and unproven is not None:
                continue
            if expected is None:
                extra += 1
                differ.append(f"{shown_key(key)}: not in the log")
            elif expected != fold.digest(row):
                changed += 1
                differ.append(f"{shown_key(key)}: another row")
            del differ[SHOWN_MAX:]
        at(SinkStep.COMPARED)
    if stored.unproven is not None:
        fold.rows.clear()
        unproven = stored.unproven if unproven is None else f"{unproven}; {stored.unproven}"
    missing = len(fold.rows)
    differ += [f"{shown_key(key)}: missing in the store" for key, _ in zip(fold.rows, range(SHOWN_MAX), strict=False)]
    return VerifyResult(
        seen, position.next, missing, extra, changed, fold.rejected, tuple(differ[:SHOWN_MAX]), unproven
    )


class _Fold:
    """The digests of the rows that the log says the store has, by key in a form that does not depend on the store."""

    def __init__(self, mapping: RowMapping) -> None:
        self._mapping = mapping
        self.rows: dict[StoreRow, bytes] = {}
        self.rejected = 0

    def read(self, sink: SinkSettings, client: SyncClient, end: int) -> str | None:
        """Folds the records before the index `end`. Returns a sentence on those that are gone."""
        if sink.source.has_keys and not sink.source.operations:
            return self._read_state(sink, client, end)
        learn_schemas(self._mapping, client)
        first = sink.start if isinstance(sink.start, int) else 1
        return self._read_log(client, first, end)

    def _read_state(self, sink: SinkSettings, client: SyncClient, end: int) -> str | None:
        revision = _revision_before(client, end)
        try:
            for item in client.range(prefix=(sink.source.keys or "").encode(), at=revision):
                self._take(partial(self._of_item, item, end - 1))
        except Compacted:
            return f"the state at index {end - 1} is compacted, so nothing was compared: verify while the sink runs"
        return None

    def _read_log(self, client: SyncClient, first: int, end: int) -> str | None:
        unproven = None
        oldest = client.log_page(end, to=end + 1, limit=1).oldest
        if oldest > first:
            unproven = f"the log begins at index {oldest}, so rows that no later record changes were not compared"
            first = oldest
        for record in records_between(client, first, end):
            self._take(partial(self._of_record, record))
        return unproven

    def _of_item(self, item: Item, index: int) -> Iterable[RowChange]:
        return [self._mapping.of_item(item, index)]

    def _of_record(self, record: Record) -> Iterable[RowChange]:
        mapped = self._mapping.of_record(record)
        if mapped.truncates:
            self.rows.clear()
        return mapped.rows

    def _take(self, changes: Callable[[], Iterable[RowChange]]) -> None:
        try:
            found = [*changes()]
        except Misfit:
            self.rejected += 1
            return
        for change in found:
            key = self._canonical_key(change.key)
            if change.row is None:
                self.rows.pop(key, None)
            elif UNCHANGED in change.row:
                raise StoreError(
                    f"index {change.index}: the record lacks large columns that did not change, so the row cannot be "
                    f"made from the log: set REPLICA IDENTITY FULL"
                )
            else:
                self.rows[key] = self.digest(change.row)

    def key_of(self, row: StoreRow) -> StoreRow:
        """The key of a row of the store."""
        return self._canonical_key([row[at] for at in self._mapping.key_at])

    def _canonical_key(self, key: Iterable[Any]) -> StoreRow:
        return tuple(canonical(each, column) for each, column in zip(key, self._mapping.key_columns, strict=True))

    def digest(self, row: StoreRow) -> bytes:
        """A digest of the row; the same for a row of the log and the same row as the store gives it back."""
        cells = [canonical(each, column) for each, column in zip(row, self._mapping.columns, strict=True)]
        return hashlib.blake2b(_encode(cells), digest_size=16).digest()


def canonical(value: Any, column: SinkColumn) -> Any:
    """A cell as text, in one form for all stores."""
    if value is None:
        return None
    with suppress(ValueError, TypeError, ArithmeticError, msgspec.MsgspecError):  # else it is the store's, and differs
        if column.kind == "json":
            value = _decode(value) if isinstance(value, str | bytes) else value
        elif column.kind is not None:
            value = cast_of(column.kind)(value)
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            return number_text(value)
        case date():  # also a datetime
            return value.isoformat()
        case bytes():
            return value.hex()
        case str() if value[:1] in ("{", "["):  # a store of text keeps a structure so
            with suppress(msgspec.MsgspecError):
                value = _decode(value)
    return _encode(value).decode() if isinstance(value, dict | list) else str(value)


def _revision_before(client: SyncClient, end: int) -> int:
    """The revision of the store after every record below the index."""
    step = 1
    first = end
    while first > 1:
        first = max(1, first - step)
        page = client.log_page(first, to=end, limit=_PAGE_RECORDS, internal=True)
        known = [record.revision for record in page.records if record.revision is not None]
        if known and page.next >= end:
            return known[-1]
        step = min(step * 2, _PAGE_RECORDS // 2)
    return 1
