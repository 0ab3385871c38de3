"""What every store of a sink must do, as cases that the tests of each store run, and a sink to run them with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.security import authority
from raftlog.cluster.sinks import runner
from raftlog.cluster.sinks.changes import UNCHANGED, RowChange, RowChanges, StorePosition, StoreRow
from raftlog.cluster.sinks.runner import SinkRun, SinkStep
from raftlog.cluster.sinks.settings import PostgresSettings, SinkFile, SinkSettings, WebhookSettings
from raftlog.cluster.sinks.sinks import run_of
from raftlog.cluster.sinks.store import PositionMoved, RowsRefused, SinkIdentity, SinkStore, StoreError, StoreFenced
from raftlog.cluster.sinks.verify import VerifyResult, canonical, verify
from tests.cluster.sinks.test_runner import COLUMNS, KEYS
from tests.support import Patience

AWAY_S = 120.0
"""Longest time that a store may be away, in seconds of a machine that does nothing else."""

SINK = SinkIdentity("s", "log", "shape")

KINDS = {
    "id": "key",
    "text": "value.text:string",
    "small": "value.small:int",
    "large": "value.large:bigint",
    "real": "value.real:double",
    "exact": "value.exact:decimal(30,10)",
    "flag": "value.flag:boolean",
    "day": "value.day:date",
    "at": "value.at:timestamp",
    "raw": "value.raw:binary",
    "tree": "value.tree:json",
    "any": "value.any",
}
"""A column of each type, and one without."""

_AT = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
_ONE, _SMALL, _LONG = Decimal("1.0000000000"), Decimal("-0.0000000001"), Decimal("12345678901234567890.0123456789")
_DIGITS = '{"n":0.12345678901234567890123}'  # more than a float has
_TREE, _RAW = '{"a":[1,{"b":null}],"c":"ü"}', b"\xff\0'\\"
FULL: StoreRow = ("a", "x", 1, 2, 0.5, _ONE, True, date(2020, 2, 29), _AT, _RAW, _TREE, "x")
"""A row of KINDS with a value in each column."""

_EDGES: StoreRow = ("b", "", -(1 << 31), (1 << 63) - 1, 1e300, _SMALL, False, date(1700, 1, 1), _AT, b"", _DIGITS, 1)
ZERO: StoreRow = ("c \0/é😀?", '\0\n"', 0, -(1 << 63), 5e-324, _LONG, *[None] * 4, '{"x":1.50}', Decimal("1.5"))
"""One with a byte of zero in text, which PostgreSQL does not take."""

VALUES: tuple[StoreRow, ...] = (
    FULL,
    _EDGES,
    ("d 'ü\" \\ \n", "'\"\\\n", *[None] * 9, '{"deep":[1.10]}'),
    ("[e", *[None] * 10, True),
    ("f", *[None] * 11),
    ("g" * 500, *[None] * 10, "long"),
)
"""Rows of KINDS."""


def put(index: int, key: str, n: Any = None) -> RowChange:
    """A row of COLUMNS; `n` is the index unless given."""
    return RowChange(index, (key,), (key, index if n is None else n, 1))


def gone(index: int, key: str) -> RowChange:
    """The end of a row."""
    return RowChange(index, (key,), None)


def unchanged(index: int, key: str) -> RowChange:
    """A row whose n the log does not have."""
    return put(index, key, UNCHANGED)


class StoreBench:
    """A sink `s` over a real store. Each run and each check opens the store again, as another process would."""

    def __init__(self, kind: type[SinkSettings], folder: Path, **given: Any) -> None:
        defaults = {"from": KEYS, "columns": COLUMNS, "primary_key": ["id"]}
        self.kind, self.folder, self.given = kind, folder, defaults | given
        self.sink: SinkSettings = msgspec.convert(self.given, kind)
        self.file = SinkFile(folder / "sinks.toml", {"s": self.sink})
        self.said: list[str] = []
        self._patience = Patience(AWAY_S, every_s=0.1)  # of all messages: a run that ends says few

    def changed(self, **given: Any) -> StoreBench:
        """The same target by other settings."""
        return StoreBench(self.kind, self.folder, **(self.given | given))

    def store(self) -> Any:
        """The store, not yet opened."""
        return self.file.open_store("s")

    def made(self, client: SyncClient, at: Callable[[SinkStep], None] = lambda _: None, **more: Any) -> SinkRun:
        """A run, as another process would make it."""
        return run_of(self.file, "s", client, at=at, tell=self._told, **more)

    def run(self, client: SyncClient, at: Callable[[SinkStep], None] = lambda _: None) -> SinkRun:
        """A run to the end of the log."""
        made = self.made(client, at)
        made.run(once=True)
        return made

    def _told(self, message: str) -> None:
        """Keeps a message; a store that stays away for too long fails the test."""
        self.said.append(message)
        assert not self._patience.is_over(), message

    def position(self) -> StorePosition | None:
        """Where the store is."""
        with closing(self.store()) as store, store.rows(SINK) as found:
            return None if found is None else found.position

    def rows(self, sink: SinkIdentity = SINK) -> dict[StoreRow, StoreRow]:
        """What the store has, by the first column."""
        with closing(self.store()) as store, store.rows(sink) as found:
            return {} if found is None else {(row[0],): row for row in found.rows}

    def kept(self) -> dict[Any, int]:
        """The column n of each row of COLUMNS."""
        return {row[0]: int(row[1]) for row in self.rows().values()}

    def expect(self, position: StorePosition | None, *rows: StoreRow) -> None:
        """The store is at the position with these rows, by the comparison of `sink verify`."""
        assert self.position() == position
        if self.kind is WebhookSettings:  # which cannot be read
            return
        columns = self.sink.mapping().columns

        def compared(given: Iterable[StoreRow]) -> list[list[Any]]:
            made = [[canonical(*each) for each in zip(row, columns, strict=True)] for row in given]
            return sorted(made, key=lambda cells: str(cells[0]))

        found, wanted = compared(self.rows().values()), compared(rows)
        assert found == wanted, [pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]]

    def verified(self, client: SyncClient) -> VerifyResult:
        """As `raftlog sink verify`."""
        with closing(self.store()) as store:
            return verify("s", self.sink, store, client)

    def check(self, client: SyncClient) -> None:
        """The store equals the log, by `sink verify` and by the state of the cluster."""
        found = self.verified(client)
        assert found.is_same, found
        assert found.unproven is None
        assert found.rows == len([*client.range(prefix=b"k/")])


def check_rows(bench: StoreBench) -> None:
    """Puts, changes and deletes of rows, batches without rows, and truncates before the rows of their batch."""
    store = bench.store()
    assert store.open(SINK, 1) is None
    bench.expect(None)
    store.write(RowChanges((put(1, "a"), put(2, "b"), put(3, "c"))), None, StorePosition(4))
    bench.expect(StorePosition(4), ("a", 1, 1), ("b", 2, 1), ("c", 3, 1))
    store.write(RowChanges((put(4, "a"), gone(5, "b"), gone(6, "x"))), StorePosition(4), StorePosition(7))
    store.write(RowChanges(()), StorePosition(7), StorePosition(8))
    bench.expect(StorePosition(8), ("a", 4, 1), ("c", 3, 1))
    store.close()
    assert store.open(SINK, 2) == StorePosition(8)
    store.write(RowChanges((put(8, "c"), put(9, "d")), truncates=True), StorePosition(8), StorePosition(10))
    bench.expect(StorePosition(10), ("c", 8, 1), ("d", 9, 1))
    store.write(RowChanges((), truncates=True), StorePosition(10), StorePosition(11))
    bench.expect(StorePosition(11))
    store.write(RowChanges((put(11, "a"),)), StorePosition(11), StorePosition(12))
    store.close()
    assert store.open(SINK, 2) == StorePosition(12)
    bench.expect(StorePosition(12), ("a", 11, 1))
    store.close()


def check_values(bench: StoreBench) -> None:
    """A row of every type comes back as it was written, NULL in each column too, and after a change of each."""
    made = bench.changed(columns=KINDS)
    rows = VALUES if made.kind is PostgresSettings else (*VALUES, ZERO)
    other = [(row[0], *FULL[1:]) for row in rows]
    with closing(made.store()) as store:
        store.open(SINK, 1)
        store.write(RowChanges(tuple(RowChange(5, row[:1], row) for row in rows)), None, StorePosition(6))
        made.expect(StorePosition(6), *rows)
        for index, changed in ((6, other), (7, rows)):
            changes = RowChanges(tuple(RowChange(index, row[:1], row) for row in changed))
            store.write(changes, StorePosition(index), StorePosition(index + 1))
            made.expect(StorePosition(index + 1), *changed)


def check_many(bench: StoreBench) -> None:
    """A batch of many rows at once, twice."""
    store = bench.store()
    store.open(SINK, 1)
    for first in (1, 2_001):
        rows = tuple(put(index, str(index % 2_000)) for index in range(first, first + 2_000))
        store.write(RowChanges(rows), None if first == 1 else StorePosition(first), StorePosition(first + 2_000))
    store.close()
    bench.expect(StorePosition(4_001), *[(str(index % 2_000), index, 1) for index in range(2_001, 4_001)])


def check_position(bench: StoreBench) -> None:
    """Nothing is written from another position, and the rows stay as they are."""
    store = bench.store()
    store.open(SINK, 1)
    store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
    for expected in (None, StorePosition(1), StorePosition(3), StorePosition(2, "00", 1)):
        with pytest.raises(PositionMoved):
            store.write(RowChanges((put(2, "a"), put(2, "b"))), expected, StorePosition(3))
        store.close()
        assert store.open(SINK, 1) == StorePosition(2)
        bench.expect(StorePosition(2), ("a", 1, 1))
    store.write(RowChanges((put(2, "b"),)), StorePosition(2), StorePosition(3))
    bench.expect(StorePosition(3), ("a", 1, 1), ("b", 2, 1))
    store.close()


def _check_generations(bench: StoreBench, *, together: bool) -> None:
    old, young = bench.store(), bench.store()
    old.open(SINK, 5)
    old.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
    if together:
        assert young.open(SINK, 6) == StorePosition(2)
        with pytest.raises(StoreFenced, match="another runner of s has taken over"):
            old.write(RowChanges((put(2, "old"),)), StorePosition(2), StorePosition(3))
    old.close()
    assert young.open(SINK, 6) == StorePosition(2)
    young.close()
    with pytest.raises(StoreFenced, match="another runner of s has taken over") as fenced:
        old.open(SINK, 5)
    assert fenced.value.generation == 6
    old.close()
    assert young.open(SINK, 6) == StorePosition(2)
    young.write(RowChanges((put(2, "young"),)), StorePosition(2), StorePosition(3))
    young.close()
    bench.expect(StorePosition(3), ("a", 1, 1), ("young", 2, 1))


def check_generations(bench: StoreBench) -> None:
    """An older runner writes no more once a younger one has opened the store, and cannot open it again."""
    _check_generations(bench, together=True)


def check_generations_in_turn(bench: StoreBench) -> None:
    """The same for a store that one process at a time has open."""
    _check_generations(bench, together=False)


def _refused(store: SinkStore, sink: SinkIdentity, message: str) -> None:
    with pytest.raises(StoreError, match=message) as raised:
        store.open(sink, 9)
    assert not isinstance(raised.value, StoreFenced)
    store.close()


def check_owner(bench: StoreBench) -> None:
    """A store of another log, or of rows that look different, is refused."""
    store = bench.store()
    store.open(SINK, 1)
    store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
    store.close()
    _refused(store, SINK._replace(log="other"), "rows of the log log, and this cluster's log is other")
    _refused(store, SINK._replace(mapping="other"), "raftlog sink rebuild s")
    bench.expect(StorePosition(2), ("a", 1, 1))


def check_target(bench: StoreBench) -> None:
    """A second sink with the target is refused; after a drop the store is another mapping's."""
    check_owner(bench)
    store = bench.store()
    _refused(store, SINK._replace(name="t"), "the sink s writes ")
    bench.expect(StorePosition(2), ("a", 1, 1))
    store.drop(SINK)
    store.close()
    bench.expect(None)
    assert store.open(SINK._replace(mapping="other"), 9) is None
    store.close()


def check_half_loaded(bench: StoreBench) -> None:
    """A state that is half loaded stays so, also one that has begun again and has no key yet."""
    store = bench.store()
    store.open(SINK, 1)
    before = None
    for after in (StorePosition(9, "", 4), StorePosition(9, "ff", 4), StorePosition(9)):
        store.write(RowChanges(()), before, after)
        store.close()
        assert store.open(SINK, 1) == after
        before = after
    store.close()


def check_unchanged(bench: StoreBench) -> None:
    """Columns that a change does not know stay; rows with other unknown columns go into the same batch."""
    store = bench.store()
    store.open(SINK, 1)
    store.write(RowChanges((put(1, "a"), put(1, "b"), put(1, "c"))), None, StorePosition(2))
    parts = RowChange(2, ("a",), ("a", UNCHANGED, 7)), RowChange(2, ("b",), ("b", None, UNCHANGED)), put(2, "d")
    store.write(RowChanges(parts), StorePosition(2), StorePosition(3))
    store.close()
    bench.expect(StorePosition(3), ("a", 1, 7), ("b", None, 1), ("c", 1, 1), ("d", 2, 1))


def check_unchanged_is_refused(bench: StoreBench) -> None:
    """A store that cannot keep what it has refuses a row with unknown columns, and writes nothing of the batch."""
    store = bench.store()
    store.open(SINK, 1)
    store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
    with pytest.raises(RowsRefused, match=r"index 3, key a: .*set REPLICA IDENTITY FULL"):
        store.write(RowChanges((put(2, "b"), unchanged(3, "a"))), StorePosition(2), StorePosition(4))
    store.close()
    bench.expect(StorePosition(2), ("a", 1, 1))


CASES = (check_rows, check_many, check_position, check_half_loaded)
"""What every store must do; the others are for most."""


def small(monkeypatch: pytest.MonkeyPatch, records: int = 7, retry_s: float = 0.01) -> None:
    """Small pages, so that few records make many batches; short pauses; and every batch is reported."""
    monkeypatch.setattr(runner, "PAGE_RECORDS", records)
    monkeypatch.setattr(runner, "REPORT_S", 0.0)
    monkeypatch.setattr(runner, "RETRY_MAX_S", retry_s)


def expired(folder: Path) -> Path:
    """A certificate of 127.0.0.1 that has expired, with its authority and its key, in one file."""
    with patch.object(authority, "_now", lambda: datetime.now(UTC) - timedelta(days=9)):
        made = authority.make_authority(folder, "search"), authority.make_node(folder, "a" * 32, 1, ["127.0.0.1"], 1)
    file = folder / "expired.pem"
    file.write_bytes(b"".join(each.read_bytes() for each in (made[1].certificate, made[0].certificate, made[1].key)))
    return file
