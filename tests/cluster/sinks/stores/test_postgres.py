"""PostgreSQL as the store of a sink: a real server, killed and restarted."""

from __future__ import annotations

import json

import psycopg
import pytest

from raftlog.cluster.sinks.changes import UNCHANGED, RowChange, RowChanges, StorePosition
from raftlog.cluster.sinks.store import RowsRefused, StoreError, StoreUnavailable
from tests.cluster.importer.postgres.postgres_server import PostgresServer
from tests.cluster.sinks.stores.kit import SINK, StoreBench, put

STORE = "postgresql"

pytestmark = pytest.mark.serial


def test_rows_go_into_a_table_of_ones_own(bench: StoreBench, postgres: PostgresServer) -> None:
    """Its types decide, also arrays, enums and domains; columns that the sink does not name stay."""
    columns = {"id": "value.id", "n": "value.n", "tags": "value.tags"}
    made = bench.changed(**{"from": {"records": ""}, "columns": columns})
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute("DROP TYPE IF EXISTS mood")
        connection.execute("CREATE TYPE mood AS ENUM ('ok', 'bad')")
        connection.execute(
            "CREATE TABLE items (id uuid PRIMARY KEY, n numeric(10, 2), tags int[], own text DEFAULT 'mine', m mood)"
        )
        store = made.store()
        store.open(SINK, 1)
        key = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
        store.write(RowChanges((RowChange(1, (key,), (key, 9.5, "{1,2}")),)), None, StorePosition(2))
        store.write(RowChanges((RowChange(2, (key,), (key, UNCHANGED, None)),)), StorePosition(2), StorePosition(3))
        found = connection.execute("SELECT id::text, n::text, tags, own FROM items").fetchall()
        assert found == [(key, "9.50", None, "mine")]
        refused = RowChanges((RowChange(3, ("no",), ("no", 1, None)), RowChange(4, (key,), (key, 1e12, None))))
        with pytest.raises(RowsRefused, match=r"index 3, key no: invalid input syntax for type uuid.*and 1 more"):
            store.write(refused, StorePosition(3), StorePosition(5))
        store.close()
        connection.execute("DROP TABLE items")
        connection.execute("CREATE TABLE items (id uuid, n text, tags text)")
        store = made.store()
        assert store.open(SINK, 2) == StorePosition(3)
        with pytest.raises(StoreError, match="no unique or exclusion constraint"):
            store.write(RowChanges((RowChange(4, (key,), (key, 1, None)),)), StorePosition(3), StorePosition(5))
        store.close()


def test_a_table_that_is_captured_is_no_target(bench: StoreBench, postgres: PostgresServer) -> None:
    """The sink's own changes would come back as records of the log, for ever."""
    made = bench.changed(**{"from": {"table": "public.items"}, "columns": {"id": "value.id:bigint"}, "table": "items"})
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id bigint PRIMARY KEY)")
        store = made.store()
        store.open(SINK, 1)
        store.close()
        connection.execute("CREATE PUBLICATION raftlog FOR TABLE items")
        connection.execute("SELECT pg_create_logical_replication_slot('raftlog', 'pgoutput')")
        try:
            with pytest.raises(StoreError, match=r"the table items is captured into the log as public\.items"):
                store.open(SINK, 2)
            store.close()
            other = made.changed(table="others").store()
            other.open(SINK, 2)
            other.close()
        finally:
            connection.execute("SELECT pg_drop_replication_slot('raftlog')")
            connection.execute("DROP PUBLICATION raftlog")


def test_a_server_that_dies_is_unavailable_and_the_position_decides(
    bench: StoreBench, postgres: PostgresServer
) -> None:
    """Killed between two batches: the next write fails, and after a new start nothing is lost or doubled."""
    store = bench.store()
    store.open(SINK, 1)
    store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
    postgres.kill()
    with pytest.raises(StoreUnavailable):
        store.write(RowChanges((put(2, "b"),)), StorePosition(2), StorePosition(3))
    with pytest.raises(StoreUnavailable):
        store.open(SINK, 1)
    postgres.start()
    assert store.open(SINK, 1) == StorePosition(2)
    store.write(RowChanges((put(2, "b"),)), StorePosition(2), StorePosition(3))
    store.close()
    bench.expect(StorePosition(3), ("a", 1, 1), ("b", 2, 1))


@pytest.mark.parametrize(
    ("more", "message"),
    [("dbname=no", 'database "no" does not exist'), ("user=no", 'role "no" does not exist')],
)
def test_a_wrong_connection_stops_the_sink(
    bench: StoreBench, postgres: PostgresServer, more: str, message: str
) -> None:
    """No waiting helps there, and the message has no password."""
    (bench.folder / "url").write_text(f"{postgres.conninfo} password=hidden {more}")
    store = bench.changed(url="@url").store()
    with pytest.raises(StoreError, match=message) as refused:
        store.open(SINK, 1)
    assert not isinstance(refused.value, StoreUnavailable)
    assert "hidden" not in str(refused.value)


def test_numbers_keep_every_digit(bench: StoreBench) -> None:
    """Also inside JSON, which psycopg would read as floats."""
    store = bench.changed(**{"from": {"records": ""}, "columns": {"id": "index", "j": "value:json"}}).store()
    store.open(SINK, 1)
    text = '{"n":0.12345678901234567890123}'
    store.write(RowChanges((RowChange(1, (1,), (1, text)),)), None, StorePosition(2))
    with store.rows(SINK) as found:
        assert found is not None
        ((_, value),) = found.rows
    assert str(value["n"]) == "0.12345678901234567890123"
    assert json.loads(text)["n"] != value["n"]
    store.close()
