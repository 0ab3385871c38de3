"""A search index of Tantivy equals the log, exactly once, through kills, and takes no other sink's rows."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import tantivy

from raftlog.cluster.sinks.changes import RowChange, RowChanges, StorePosition
from raftlog.cluster.sinks.store import PositionMoved, RowsRefused, StoreError, StoreFenced, StoreUnavailable
from raftlog.cluster.sinks.stores.tantivy import TantivyStore
from tests.cluster.sinks.stores.kit import KINDS, SINK, StoreBench, check_values, put, unchanged

STORE = "tantivy"


@pytest.fixture
def store(bench: StoreBench) -> Iterator[TantivyStore]:
    """An open store of that sink, with the rows a, b and c at position 4."""
    with closing(bench.store()) as store:
        assert isinstance(store, TantivyStore)
        assert store.open(SINK, 1) is None
        store.write(RowChanges((put(1, "a"), put(2, "b"), put(3, "c"))), None, StorePosition(4))
        yield store


def test_columns_are_fields_that_a_search_finds(bench: StoreBench) -> None:
    """By their types; a column of the primary key as a whole."""
    made = bench.changed(columns=KINDS)
    check_values(bench)
    index = tantivy.Index.open(str(made.folder / "a/index"))

    def found(query: str) -> list[str]:
        searcher = index.searcher()
        hits = searcher.search(index.parse_query(query, ["text"]), 9).hits
        return sorted(str(searcher.doc(address)["id"][0])[:9] for _, address in hits)

    assert found("X") == ["a"]
    assert found("small:1 AND flag:true AND tree.a:1") == ["a"]
    assert found("exact:[0.5 TO 1.5]") == ["a"]
    assert found("at:[2023-11-14T00:00:00Z TO 2023-11-15T00:00:00Z]") == ["a", "b"]
    assert found('id:"c \0/é😀?"') == ["c \0/é😀?"]
    assert found("any:1.5") == ["c \0/é😀?"]
    assert found("any:true") == ["[e"]


def test_a_value_that_the_log_lacks_is_taken_from_the_row_before(bench: StoreBench, store: TantivyStore) -> None:
    """And a row that is not there is refused with what to do, as after a truncate."""
    store.write(RowChanges((unchanged(5, "a"), put(6, "b"))), StorePosition(4), StorePosition(7))
    assert bench.kept() == {"a": 1, "b": 6, "c": 3}
    for changes in (RowChanges((unchanged(7, "d"), put(8, "e"))), RowChanges((unchanged(7, "a"),), truncates=True)):
        with pytest.raises(RowsRefused, match=r"index 7, key .: the record lacks n, .* REPLICA IDENTITY FULL"):
            store.write(changes, StorePosition(7), StorePosition(9))
        assert bench.kept() == {"a": 1, "b": 6, "c": 3}
    store.write(RowChanges((put(9, "e"),)), StorePosition(7), StorePosition(10))
    assert bench.kept() == {"a": 1, "b": 6, "c": 3, "e": 9}


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("any", b"\xff", "any is no UTF-8 text: give it the type binary"),
        ("any", 1 << 70, None),
        ("any", Decimal("1e999"), None),
        ("real", float("nan"), "real is nan, which JSON does not have"),
        ("tree", "[1]", "tree is no JSON object, which the index needs: give it the type string"),
        ("day", date(1, 1, 1), "day is 0001-01-01, which is no time between 1678 and 2261"),
        ("id", "x" * 60_000, "its key has more than 60000 bytes"),
    ],
)
def test_a_value_over_the_index_limits_is_refused_or_kept(
    bench: StoreBench, column: str, value: object, reason: str | None
) -> None:
    """Nothing is cut, rounded or left out without a word; the other rows of the batch are not written then."""
    made = bench.changed(columns=KINDS)
    row = tuple(value if name == column else ("x" if name == "id" else None) for name in KINDS)
    with closing(made.store()) as store:
        store.open(SINK, 1)
        changes = RowChanges((RowChange(5, ("y",), ("y", *[None] * 11)), RowChange(6, row[:1], row)))
        if reason is None:
            store.write(changes, None, StorePosition(7))
            assert made.rows()["x",] == row
            return
        with pytest.raises(RowsRefused) as raised:
            store.write(changes, None, StorePosition(7))
        assert [(each.change.index, each.reason) for each in raised.value.refusals] == [(6, reason)]
    assert made.rows() == {}


def test_every_row_that_the_index_refuses_is_named(bench: StoreBench, store: TantivyStore) -> None:
    """Each place of a batch, alone and with the others: else each of them takes an attempt of its own."""
    for places in itertools.product((False, True), repeat=3):
        keys = ["x" * 60_000 if is_refused else f"k{place}" for place, is_refused in enumerate(places)]
        changes = RowChanges(tuple(put(5 + place, key) for place, key in enumerate(keys)))
        if any(places):
            with pytest.raises(RowsRefused) as raised:
                store.write(changes, StorePosition(4), StorePosition(8))
            named = [each.change.index - 5 for each in raised.value.refusals]
            assert named == [place for place, is_refused in enumerate(places) if is_refused]
    assert bench.kept() == {"a": 1, "b": 2, "c": 3}


def test_a_commit_that_fails_leaves_nothing_for_the_next_one(
    bench: StoreBench, store: TantivyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: the batch is rolled back, and the store goes on."""

    class FullDisk:
        def __init__(self, writer: Any) -> None:
            self._writer = writer

        def commit(self) -> None:
            raise ValueError("An IO error occurred: 'No space left on device (os error 28)'")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._writer, name)

    with monkeypatch.context() as patched:
        patched.setattr(store, "_writer", FullDisk(store._writer))
        with pytest.raises(StoreUnavailable, match="index: An IO error occurred: 'No space left"):
            store.write(RowChanges((put(5, "lost"),), truncates=True), StorePosition(4), StorePosition(6))
    assert bench.kept() == {"a": 1, "b": 2, "c": 3}
    store.write(RowChanges((put(5, "d"),)), StorePosition(4), StorePosition(6))
    assert bench.kept() == {"a": 1, "b": 2, "c": 3, "d": 5}


def test_a_second_process_waits_for_the_first(bench: StoreBench, store: TantivyStore) -> None:
    """One process writes into a folder at a time; another one may read."""
    with closing(bench.store()) as second:
        with pytest.raises(StoreUnavailable, match=r"another process writes into .*index: stop it, or wait"):
            second.open(SINK, 2)
        assert bench.kept() == {"a": 1, "b": 2, "c": 3}
        store.close()
        assert second.open(SINK, 2) == StorePosition(4)


def test_a_lock_that_cannot_be_made_is_not_called_another_process(bench: StoreBench, store: TantivyStore) -> None:
    """As on a file system that is read-only."""
    store.close()
    lock = bench.folder / "a/index/.tantivy-writer.lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(StoreUnavailable, match=r"index: Failed to acquire Lockfile: IoError.*Is a directory"):
        store.open(SINK, 2)
    lock.rmdir()
    assert store.open(SINK, 2) == StorePosition(4)


def test_an_exchange_that_fails_lets_the_folder_go(
    bench: StoreBench, store: TantivyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while its error is kept: the next try of the same process would wait for itself."""
    store.close()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with closing(store.beside()) as beside:
        assert beside.open(SINK, 3) is None
        beside.write(RowChanges((put(4, "d"),)), None, StorePosition(5))
    with pytest.raises(StoreFenced) as fenced:
        store.exchange(SINK, 2)
    with monkeypatch.context() as patched:
        patched.setattr("raftlog.cluster.sinks.stores.tantivy.replace_file", full)
        with pytest.raises(StoreUnavailable, match="No space left") as full_disk:
            store.exchange(SINK, 3)
    store.exchange(SINK, 3)
    assert bench.kept() == {"d": 4}
    assert {fenced.type, full_disk.type} == {StoreFenced, StoreUnavailable}  # both are kept until here


def test_a_folder_that_was_restored_shows_it(bench: StoreBench, store: TantivyStore, tmp_path: Path) -> None:
    """The next write sees the older position, and writes nothing."""
    meta = tmp_path / "a/index/meta.json"
    older = meta.read_bytes()
    store.write(RowChanges((put(4, "d"),)), StorePosition(4), StorePosition(5))
    meta.write_bytes(older)
    with pytest.raises(PositionMoved, match="the store is at 4, not at 5"):
        store.write(RowChanges((put(5, "e"),)), StorePosition(5), StorePosition(6))


def test_a_folder_of_someone_else_is_refused(bench: StoreBench, tmp_path: Path) -> None:
    """One with other files, or with an index that no sink made; and a column with a name that no field may have."""
    folder = tmp_path / "a/index"
    folder.mkdir(parents=True)
    (folder / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match="index has files and no index: name a folder of its own"):
        bench.store().open(SINK, 1)
    (folder / "letter.txt").unlink()
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("title", stored=True)
    index = tantivy.Index(builder.build(), path=str(folder))
    writer = index.writer(20_000_000, 1)
    writer.add_document(tantivy.Document(title="x"))
    writer.commit()
    writer.wait_merging_threads()
    store = bench.store()
    with pytest.raises(StoreError, match="index has an index that no sink made: name another folder"):
        store.open(SINK, 1)
    with pytest.raises(StoreError, match="index has an index that no sink made: name another folder"):
        store.drop(SINK)
    store.close()
    strange = bench.changed(columns={"id": "key", "_row": "value.n"}, path="b").store()
    with pytest.raises(StoreError, match="columns: _row cannot be the name of a field of Tantivy"):
        strange.open(SINK, 1)


def test_many_short_runs_leave_few_segments(bench: StoreBench) -> None:
    """Merges are waited for at the end of each run."""
    for number in range(20):
        with closing(bench.store()) as store:
            found = store.open(SINK, number + 1)
            store.write(RowChanges((put(number + 1, f"k{number}"),)), found, StorePosition(number + 2))
    assert tantivy.Index.open(str(bench.folder / "a/index")).searcher().num_segments < 10
    assert len(bench.kept()) == 20


_KILLED = """
import os, sys, tantivy
from pathlib import Path
from typing import Any
from raftlog.cluster.sinks.changes import RowChanges, StorePosition
from raftlog.cluster.sinks.settings import TantivySettings
from tests.cluster.sinks.stores.kit import SINK, StoreBench, put
store = StoreBench(TantivySettings, Path(sys.argv[1]), path="a/index").store()
position = store.open(SINK, 2)
class Writer:
    def __init__(self, writer): self.writer = writer
    def __getattr__(self, name): return getattr(self.writer, name)
    def commit(self):
        if sys.argv[2] == "after": self.writer.commit()
        os._exit(7)
store._writer = Writer(store._writer)
store.write(RowChanges((put(4, "a"), put(5, "d"))), position, StorePosition(6))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_killed_around_its_commit_leaves_all_or_nothing(
    bench: StoreBench, store: TantivyStore, tmp_path: Path, when: str
) -> None:
    """And the lock goes with the process."""
    store.close()
    command = [sys.executable, "-c", _KILLED, str(tmp_path), when]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, timeout=60)
    assert done.returncode == 7
    assert bench.kept() == ({"a": 1, "b": 2, "c": 3} if when == "before" else {"a": 4, "b": 2, "c": 3, "d": 5})
    assert store.open(SINK, 3) == StorePosition(4 if when == "before" else 6)
