"""Rejected records are sent again: they never undo what later records did to the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from raftlog import sinks
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.sinks.changes import MappedRecord, RowChange, StoreRow
from raftlog.cluster.sinks.retry import RetryCounts, _RetriedChanges, retry
from tests.cluster.fake_node import FakeNode
from tests.cluster.sinks.test_runner import Bench


def again(bench: Bench) -> RetryCounts:
    """What `raftlog sink retry` does."""
    run = bench.made()
    return retry("s", bench.sink, run._store, bench.client, run._rejects)


def rejected(bench: Bench) -> list[int]:
    """The indexes in NAME.rejected."""
    return [each.index for each in sinks.Rejects(bench.folder / "s.rejected").read()]


def put(client: SyncClient, key: str, value: object) -> int:
    """The index of the record."""
    return client.put(f"k/{key}".encode(), json.dumps({"n": value}).encode()).index


def test_rows_that_the_store_refused_are_written_as_they_are_by_now(client: SyncClient, tmp_path: Path) -> None:
    """A later record of the same key wins, whether the store has taken it or not; a deleted key stays deleted."""
    bench = Bench(client, tmp_path, refused="reject")
    bench.store.refuses = {(name,) for name in "abcd"}
    for name in "abcd":
        put(client, name, 1)
    put(client, "e", 1)
    bench.run()
    assert len(rejected(bench)) == 4
    bench.store.refuses = {("d",)}
    put(client, "b", 2)
    client.delete(b"k/c")
    bench.run()
    assert again(bench) == RetryCounts(3, 1)
    assert {key: row[1] for key, row in bench.rows.items()} == {("a",): 1, ("b",): 2, ("e",): 1}
    assert len(rejected(bench)) == 1
    bench.store.refuses = set()
    assert again(bench) == RetryCounts(1, 0)
    assert (bench.rows[("d",)][1], rejected(bench)) == (1, [])
    assert again(bench) == RetryCounts(0, 0)
    bench.check()


def test_records_that_did_not_fit_are_tried_with_todays_settings(client: SyncClient, tmp_path: Path) -> None:
    """Those that still do not fit stay, with their reason. Repeated after a kill it changes nothing."""
    bench = Bench(client, tmp_path, refused="reject")
    put(client, "a", 1)
    first, second = put(client, "a", "x"), put(client, "b", "y")
    bench.run()
    assert rejected(bench) == [first, second]
    assert again(bench) == RetryCounts(0, 2)
    put(client, "a", 3)
    bench.run()
    assert bench.rows[("a",)][1] == 3
    before = (tmp_path / "s.rejected").read_bytes()
    loose = Bench(client, tmp_path, refused="reject", columns={"id": "suffix", "n": "value.n", "version": "version"})
    loose.store = bench.store
    assert loose.store.kept.owner is not None
    loose.store.kept.owner = loose.store.kept.owner._replace(mapping=loose.sink.identity("s", "").mapping)
    for _ in range(2):
        (tmp_path / "s.rejected").write_bytes(before)
        assert again(loose) == RetryCounts(2, 0)
        assert {key: row[1] for key, row in loose.rows.items()} == {("a",): 3, ("b",): "y"}


def test_a_rejected_record_that_was_trimmed_stays(client: SyncClient, node: FakeNode, tmp_path: Path) -> None:
    """Only the log had its value."""
    bench = Bench(client, tmp_path, refused="reject")
    index = put(client, "a", "x")
    last = put(client, "b", 1)
    bench.run()
    node.oldest = last
    assert again(bench) == RetryCounts(0, 1)
    (left,) = sinks.Rejects(tmp_path / "s.rejected").read()
    assert (left.index, left.reason) == (index, f"the log begins at index {last} by now: raftlog sink rebuild")


@pytest.mark.parametrize("position", ["none", "loaded"])
def test_a_store_that_is_not_filled_is_refused(client: SyncClient, tmp_path: Path, position: str) -> None:
    """Its rows are not those of any index."""
    bench = Bench(client, tmp_path, start="state")
    sinks.Rejects(tmp_path / "s.rejected").add(1, "k/a", "x")
    if position == "loaded":
        bench.store.kept.position = sinks.StorePosition(5, "00", 3)
    with pytest.raises(sinks.StoreError, match="is not filled yet: raftlog sink run"):
        again(bench)
    rows: dict[StoreRow, StoreRow] = bench.rows
    assert rows == {}


@given(
    st.lists(st.tuples(st.sampled_from(["put", "put", "delete", "truncate"]), st.integers(0, 3), st.booleans())),
)
def test_after_a_retry_the_rows_are_those_of_the_whole_log(drawn: list[tuple[str, int, bool]]) -> None:
    """Whatever was rejected, and whatever later records did: puts and deletes of the same rows, and truncates."""
    log, rejected = [], set()
    for index, (what, key, is_rejected) in enumerate(drawn, 1):
        rows = [RowChange(index, (key,), (key, index) if what == "put" else None)] if what != "truncate" else []
        log.append(MappedRecord(index, rows, what == "truncate"))
        if is_rejected and rows:
            rejected.add(index)
    store = _folded([record for record in log if record.index not in rejected])
    mapping: Any = SimpleNamespace(of_record=lambda record: record)
    changes = _RetriedChanges(mapping, rejected)
    for record in log:
        changes._take(record)  # type: ignore[arg-type]  # what its mapping makes of it
    for change in changes.rows.values():
        _fold(store, change)
    assert store == _folded(log)


def _folded(records: list[MappedRecord]) -> dict[StoreRow, StoreRow]:
    rows: dict[StoreRow, StoreRow] = {}
    for record in records:
        if record.truncates:
            rows.clear()
        for change in record.rows:
            _fold(rows, change)
    return rows


def _fold(rows: dict[StoreRow, StoreRow], change: RowChange) -> None:
    rows.pop(change.key, None)
    if change.row is not None:
        rows[change.key] = change.row
