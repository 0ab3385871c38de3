"""SQLite and DuckDB as stores of a sink."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.sinks.changes import RowChange, RowChanges, StorePosition
from raftlog.cluster.sinks.settings import SqliteSettings
from raftlog.cluster.sinks.store import RowsRefused, StoreError, StoreUnavailable
from raftlog.cluster.sinks.stores.duckdb import DuckDatabase
from raftlog.cluster.sinks.stores.sqlite import SqliteDatabase
from tests.cluster.sinks.stores.kit import SINK, StoreBench, put
from tests.support import small_disk

KINDS = ("sqlite", "duckdb")


BOTH = pytest.mark.parametrize("bench", ["sqlite", "duckdb"], indirect=True)


def database(bench: StoreBench) -> SqliteDatabase | DuckDatabase:
    """A connection of the test's own."""
    found = (SqliteDatabase if bench.kind is SqliteSettings else DuckDatabase)(bench.folder / "file")
    found.connect()
    return found


@BOTH
def test_refused_rows_are_named_and_nothing_is_written(bench: StoreBench) -> None:
    """Each row that a constraint refuses, by index and key."""
    with closing(database(bench)) as own:
        own.execute("CREATE TABLE items (id VARCHAR PRIMARY KEY, n BIGINT CHECK (n <> 13), version BIGINT)")
    store = bench.store()
    store.open(SINK, 1)
    rows = (put(1, "a"), put(2, "b", 13), put(3, "c"), put(4, "d", 13))
    with pytest.raises(RowsRefused, match=r"index 2, key b: .*and 1 more") as refused:
        store.write(RowChanges(rows), None, StorePosition(5))
    assert [each.change.index for each in refused.value.refusals] == [2, 4]
    bench.expect(None)
    store.write(RowChanges((put(1, "a"), put(3, "c"))), None, StorePosition(5))
    store.close()
    bench.expect(StorePosition(5), ("a", 1, 1), ("c", 3, 1))


@BOTH
def test_a_table_without_the_columns_is_refused(bench: StoreBench) -> None:
    """The message names the missing columns and those of the table."""
    with closing(database(bench)) as own:
        own.execute("CREATE TABLE items (id VARCHAR PRIMARY KEY, title VARCHAR)")
    with closing(bench.store()) as store:
        with pytest.raises(StoreError, match=r"the table items has no column n, version, it has id, title"):
            store.open(SINK, 1)


@pytest.mark.parametrize("bench", ["sqlite"], indirect=True)
def test_a_locked_file_is_tried_again(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program that writes into the SQLite file delays the sink."""
    monkeypatch.setattr("raftlog.cluster.sinks.stores.sqlite._BUSY_S", 0.05)
    store = bench.store()
    store.open(SINK, 1)
    other = sqlite3.connect(bench.folder / "file", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
    other.execute("ROLLBACK")
    other.close()
    assert store.open(SINK, 1) is None
    store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
    store.close()


@BOTH
def test_a_full_disk_is_tried_again(bench: StoreBench) -> None:
    """Nothing of the batch is there. Once the disk has space, the sink goes on where it was."""
    rows = tuple(put(index, f"{index} {'x' * 500}") for index in range(1, 3_001))
    store = bench.store()
    with small_disk(bench.folder, "8m"):
        store.open(SINK, 1)
        store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
        ballast = bench.folder / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(4_096)):
                pass
        with pytest.raises(StoreUnavailable, match=r"(?i)full|no space"):
            store.write(RowChanges(rows), StorePosition(2), StorePosition(3_001))
        store.close()
        ballast.unlink()
        assert store.open(SINK, 1) == StorePosition(2)
        store.write(RowChanges(rows), StorePosition(2), StorePosition(3_001))
        store.close()
        assert len(bench.rows(SINK)) == 3_001


@BOTH
@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
def test_a_file_that_was_deleted_or_replaced_is_written_no_more(bench: StoreBench, is_replaced: bool) -> None:
    """Rows would go into a file without a name until the next start. Then the file that is there is filled."""
    path, other = bench.folder / "file", bench.folder / "other"
    if is_replaced:
        with closing(bench.changed(path="other").store()) as store:
            store.open(SINK, 1)
            store.write(RowChanges((put(1, "older"),)), None, StorePosition(2))
    store = bench.store()
    store.open(SINK, 1)
    store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
    path.unlink()
    if is_replaced:
        other.rename(path)
    with pytest.raises(StoreError, match=r"file is not the file .*: it was deleted or replaced since") as stopped:
        store.write(RowChanges((put(2, "b"),)), StorePosition(2), StorePosition(3))
    assert not isinstance(stopped.value, StoreUnavailable)
    store.close()
    for each in bench.folder.glob("file*[-.]*"):
        each.unlink()
    assert store.open(SINK, 1) == (StorePosition(2) if is_replaced else None)
    store.close()


@BOTH
def test_a_table_that_was_dropped_is_filled_again(bench: StoreBench, client: SyncClient) -> None:
    """Its position stands in another table. The rows before it would be missing for ever."""
    for number in range(5):
        client.put(b"k/%d" % number, b'{"n": %d}' % number)
    bench.run(client)
    with closing(database(bench)) as own:
        own.execute("DROP TABLE items")
    client.put(b"k/9", b'{"n": 9}')
    bench.run(client)
    bench.check(client)


@pytest.mark.parametrize("bench", ["sqlite"], indirect=True)
def test_the_error_that_ended_a_transaction_is_the_one_that_is_told(bench: StoreBench) -> None:
    """SQLite has no transaction to roll back where it refuses to begin one."""
    with closing(database(bench)) as own:
        own.execute("CREATE TABLE items (id VARCHAR PRIMARY KEY, n BIGINT, version BIGINT)")
    store = bench.store()
    with closing(store):
        store.open(SINK, 1)
        store._database.execute("PRAGMA query_only = ON")
        with pytest.raises(StoreError, match="attempt to write a readonly database"):
            store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))


@BOTH
def test_verify_names_rows_that_somebody_changed(bench: StoreBench, client: SyncClient) -> None:
    """Changed, added and deleted rows, by their keys."""
    columns = {"id": "suffix", "n": "value.n:bigint", "free": "value.free"}
    bench = bench.changed(columns=columns, **{"from": {"keys": "k/", "values": "json"}})
    for number in range(5):
        client.put(b"k/%d" % number, b'{"n": %d, "free": {"x": 1.50, "a": [2.0]}}' % number)
    bench.run(client)
    bench.check(client)
    with closing(database(bench)) as own:
        own.execute("UPDATE items SET n = 9 WHERE id = '1'")
        own.execute("INSERT INTO items VALUES ('x', 1, NULL)")
        own.execute("DELETE FROM items WHERE id = '2'")
    found = bench.verified(client)
    assert (found.rows, found.missing, found.extra, found.changed) == (5, 1, 1, 1)
    assert found.differ == ("1: another row", "x: not in the log", "2: missing in the store")


@BOTH
def test_names_of_columns_are_quoted(bench: StoreBench) -> None:
    """A name may be a word of SQL, have other letters, or a quote."""
    given = {"columns": {'or"der': "index", "Größe": "value.a"}, "primary_key": ['or"der']}
    made = bench.changed(**{"from": {"records": ""}}, **given)
    with closing(made.store()) as store:
        store.open(SINK, 1)
        store.write(RowChanges((RowChange(1, (1,), (1, "x")),)), None, StorePosition(2))
    made.expect(StorePosition(2), (1, "x"))
