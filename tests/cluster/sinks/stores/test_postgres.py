"""PostgreSQL as the store of a sink: a real server, killed and restarted."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.sinks.changes import UNCHANGED, RowChange, RowChanges, StorePosition
from raftlog.cluster.sinks.runner import SinkStopped
from raftlog.cluster.sinks.store import RowsRefused, StoreError, StoreUnavailable
from tests.cluster.importer.postgres.postgres_server import PostgresServer
from tests.cluster.sinks.stores.kit import SINK, StoreBench, expired, put
from tests.support import wait_until

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


def test_a_wrong_password_stops_the_sink(bench: StoreBench, postgres: PostgresServer, client: SyncClient) -> None:
    """The message names the sink, and has no password."""
    rules = postgres.data / "pg_hba.conf"
    trusting = rules.read_text()
    rules.write_text(f"host all careful 127.0.0.1/32 scram-sha-256\n{trusting}")
    postgres.sql("DROP ROLE IF EXISTS careful", "CREATE ROLE careful LOGIN PASSWORD 'right'", "SELECT pg_reload_conf()")
    url = f"{postgres.conninfo} user=careful password=hidden"
    wait_until(lambda: not connects(url), 20, what="the rule of the password")
    (bench.folder / "url").write_text(url)
    message = r'^s: PostgreSQL refuses the user of the url: .*password authentication failed for user "careful"'
    with pytest.raises(SinkStopped, match=message) as stopped:
        bench.changed(url="@url").run(client)
    assert "hidden" not in str(stopped.value)


def connects(url: str) -> bool:
    """Whether the server takes a connection."""
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_an_expired_certificate_stops_the_sink(
    bench: StoreBench, postgres: PostgresServer, client: SyncClient, tmp_path: Path
) -> None:
    """The message names sink and store, and says what to do; libpq does not say why. The run does not wait."""
    file, owner = shutil.copy(expired(tmp_path), postgres.folder / "expired.pem"), postgres.data.stat()
    os.chmod(file, 0o600)
    os.chown(file, owner.st_uid, owner.st_gid)
    files = [f"ALTER SYSTEM SET ssl_{each}_file = '{file}'" for each in ("cert", "key")]
    postgres.sql(*files, "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
    try:
        wait_until(lambda: connects(f"{postgres.conninfo} sslmode=require"), 20, what="TLS")
        url = f"{postgres.conninfo} sslmode=verify-full sslrootcert={tmp_path}/expired.pem"
        with pytest.raises(SinkStopped, match=r"^s: the certificate of PostgreSQL is not accepted .*: renew it, or"):
            bench.changed(url=url).run(client)
    finally:
        postgres.sql("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")


def test_a_row_over_the_limits_is_refused(bench: StoreBench) -> None:
    """By index and the beginning of its key, with the reason; nothing of its batch is written."""
    with closing(bench.store()) as store:
        store.open(SINK, 1)
        long = random.Random(1).randbytes(10_000).hex()
        with pytest.raises(RowsRefused, match=r"^index 2, key [0-9a-f]{100}…: index row .* maximum"):
            store.write(RowChanges((put(1, "a"), put(2, long))), None, StorePosition(3))
    bench.expect(None)


@pytest.mark.parametrize("condition", ["disk_full", "read_only_sql_transaction"])
def test_what_passes_is_tried_again(bench: StoreBench, postgres: PostgresServer, condition: str) -> None:
    """A full disk, or a server that only reads, as after a failover. Nothing of the batch is written; the same batch is
    once that has passed. A trigger reports it."""
    with closing(bench.store()) as store:
        store.open(SINK, 1)
        postgres.sql(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE 'not now' USING ERRCODE = '{condition}'; END $$",
            "CREATE TRIGGER refuses BEFORE INSERT ON items EXECUTE FUNCTION refuse()",
        )
        with pytest.raises(StoreUnavailable, match="PostgreSQL: not now"):
            store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
        postgres.sql("DROP TRIGGER refuses ON items")
        assert store.open(SINK, 1) is None
        store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
    bench.expect(StorePosition(2), ("a", 1, 1))


def test_an_unknown_schema_stops_the_sink(bench: StoreBench, client: SyncClient) -> None:
    """The message names sink and schema."""
    with pytest.raises(SinkStopped, match=r'^s: PostgreSQL: schema "nowhere" does not exist'):
        bench.changed(table="nowhere.items").run(client)
