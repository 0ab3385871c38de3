"""The rows and changes of a real PostgreSQL are copied exactly once: through kills at every step, and refusals."""

import errno
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog import sources
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.importer.postgres import source
from raftlog.cluster.importer.postgres.snapshot import TableSnapshotWriter
from raftlog.cluster.importer.postgres.source import Postgres
from raftlog.cluster.importer.postgres.values import lsn_of
from raftlog.cluster.importer.sources import CopyStep, SourceError, copy
from tests.cluster.importer.jobs import Killed, killer
from tests.cluster.importer.postgres.folding import folded
from tests.cluster.importer.postgres.postgres_server import PostgresServer
from tests.support import wait_until

pytestmark = [pytest.mark.serial, pytest.mark.usefixtures("durable_renames")]

_NUMBERS = itertools.count()


@pytest.fixture
def name(postgres: PostgresServer) -> Iterator[str]:
    """A table, and the name of a publication and slot of this test."""
    name = f"t{next(_NUMBERS)}"
    postgres.sql(
        f"CREATE TABLE {name} (id int PRIMARY KEY, v text)",
        f"ALTER TABLE {name} REPLICA IDENTITY FULL",
        f"INSERT INTO {name} SELECT g, E'a\\tb\\\\' || g FROM generate_series(1, 20) g",
    )
    yield name
    drop_slots(postgres, name)


def drop_slots(postgres: PostgresServer, *names: str) -> None:
    """Deletes the slots that are there, once the server has noticed that their readers are gone."""
    listed = ", ".join(f"'{name}'" for name in names)
    there = f"FROM pg_replication_slots WHERE slot_name IN ({listed})"
    wait_until(
        lambda: postgres.sql(f"SELECT count(*) {there} AND active").strip() == "0", what="slots without a reader"
    )
    postgres.sql(f"SELECT pg_drop_replication_slot(slot_name) {there}")


def made(postgres: PostgresServer, name: str, folder: Path, **more: Any) -> Postgres:
    """A source of the table, up to the newest commit."""
    given = {"slot": name, "snapshot": folder / "snapshot", "follow": False, **more}
    return Postgres(postgres.conninfo, [name], **given)


def truth(postgres: PostgresServer, name: str) -> dict[Any, Any]:
    """The rows of the table by their keys in the log."""
    rows = json.loads(postgres.sql(f"SELECT coalesce(json_agg(t), '[]') FROM {name} t"))
    return {(f"public.{name}", row["id"]): row for row in rows}


@pytest.mark.parametrize(("step", "time"), [(CopyStep.NOTED, 1), (CopyStep.ANSWERED, 3), (CopyStep.NOTED, 6)])
def test_killed_at_any_step_of_snapshot_and_stream_it_goes_on_exactly_once(
    postgres: PostgresServer,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: CopyStep,
    time: int,
    client: SyncClient,
) -> None:
    """Also in the middle of a transaction. Parts are small, so that the steps are many."""
    monkeypatch.setattr(source, "PART_RECORDS", 4)

    def run(at: Callable[[CopyStep], None] = lambda _: None) -> None:
        try:
            list(copy(made(postgres, name, tmp_path), client, tmp_path / "s", batch_records=4, at=at))
        except Killed:
            pass

    run(killer(step, time))
    postgres.sql(f"INSERT INTO {name} SELECT g FROM generate_series(21, 40) g; UPDATE {name} SET id = -id, v = 'c'")
    postgres.sql(f"ALTER TABLE {name} ADD COLUMN more numeric", f"UPDATE {name} SET more = 1.50")
    run(killer(step, time))
    run(killer(step, 2))
    run()
    found = [record for record in client.log() if record.operation == "append"]
    assert len(found) == 20 + 20 + 2 * 40 + 40
    assert folded(found) == truth(postgres, name)
    run()
    assert len([record for record in client.log() if record.operation == "append"]) == len(found)
    assert not (tmp_path / "snapshot").exists()


def test_a_kill_while_the_snapshot_is_read_leaves_nothing_behind(
    postgres: PostgresServer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: SyncClient
) -> None:
    """The slot is dropped, and the rows are read again as they are then. Also if the file was complete."""
    finish = TableSnapshotWriter.finish

    def full(_: TableSnapshotWriter) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for is_complete in (False, True):

        def kill(writer: TableSnapshotWriter, is_complete: bool = is_complete) -> None:
            if is_complete:
                finish(writer)
                assert (tmp_path / "snapshot").stat().st_mode & 0o077 == 0
            raise Killed

        monkeypatch.setattr(TableSnapshotWriter, "finish", kill)
        with pytest.raises(Killed):
            list(copy(made(postgres, name, tmp_path), client, tmp_path / "s"))
        postgres.sql(f"UPDATE {name} SET id = id + 100")
    monkeypatch.setattr(TableSnapshotWriter, "finish", full)
    with pytest.raises(OSError, match="No space left") as raised:
        list(copy(made(postgres, name, tmp_path), client, tmp_path / "s"))
    assert raised.value.filename == str(tmp_path / "snapshot.new")
    assert (tmp_path / "snapshot.new").read_bytes().count(b"\n") == 1  # the rows are gone
    monkeypatch.setattr(TableSnapshotWriter, "finish", finish)
    list(copy(made(postgres, name, tmp_path), client, tmp_path / "s"))
    found = [record for record in client.log() if record.operation == "append"]
    assert len(found) == 20
    assert folded(found) == truth(postgres, name)


def test_snapshot_and_stream_agree_on_keys_columns_and_rows_and_positions_are_confirmed(
    postgres: PostgresServer, name: str, tmp_path: Path
) -> None:
    """For every replica identity, partitions, column lists and row filters. Also that PostgreSQL may forget."""
    postgres.sql(
        f"CREATE TABLE {name}_index (a int NOT NULL, b text NOT NULL, c int, UNIQUE (b) INCLUDE (a))",
        f"ALTER TABLE {name}_index REPLICA IDENTITY USING INDEX {name}_index_b_a_key",
        f"CREATE TABLE {name}_bare (a int, b text, c int)",
        f"ALTER TABLE {name}_bare REPLICA IDENTITY FULL",
        f"CREATE TABLE {name}_parts (b text, a int, c int, PRIMARY KEY (a, b)) PARTITION BY RANGE (a)",
        f"CREATE TABLE {name}_parts_1 PARTITION OF {name}_parts FOR VALUES FROM (0) TO (10)",
        f'CREATE TABLE "{name} Odd" (a int, "B ""\'" text, b text, c int, d int DEFAULT 4, PRIMARY KEY (a))',
        f'CREATE PUBLICATION {name} FOR TABLE {name}_index, {name}_bare, {name}_parts, "{name} Odd" (a, b, '
        '"B ""\'", c) WHERE (a < 5) WITH (publish_via_partition_root = true)',
    )
    tables = [f"{name}_index", f"{name}_bare", f"{name}_parts", f'"{name} Odd"']
    postgres.sql(*(f"INSERT INTO {each} (a, b, c) VALUES (1, 'x', 1), (7, 'y', 1)" for each in tables))
    source = Postgres(postgres.conninfo, tables, slot=name, snapshot=tmp_path / "snapshot", follow=False)
    parts = list(source.read(None))
    first = [json.loads(record.value or b"") | {"key": record.key} for part in parts for record in part.records]
    postgres.sql(*(f"UPDATE {each} SET c = 2" for each in tables))
    position = parts[-1].position
    again = Postgres(postgres.conninfo, slot=name, snapshot=tmp_path / "snapshot", follow=False)
    parts = list(again.read(position))
    second = [json.loads(record.value or b"") | {"key": record.key} for part in parts for record in part.records]
    order = [f"public.{name} Odd", f"public.{name}_bare", f"public.{name}_index", f"public.{name}_parts"]
    keys: dict[str, list[list[object]]] = {
        order[0]: [[1]],
        order[1]: [[], []],
        order[2]: [["x"], ["y"]],
        order[3]: [["x", 1], ["y", 7]],
    }
    for found, op, c in ((first, "snapshot", 1), (second, "update", 2)):
        assert {each["op"] for each in found} == {op}
        for table in order:
            rows = [each for each in found if each["table"] == table]
            assert [json.loads(each["key"]) for each in rows] == [[table, *key] for key in keys[table]]
            assert [(each["after"]["a"], each["after"]["b"], each["after"]["c"]) for each in rows] == [
                (1, "x", c),
                (7, "y", c),
            ][: len(rows)]
            assert "d" not in rows[0]["after"]
    assert ("B \"'" in first[0]["after"], first[0]["table"]) == (True, order[0])
    confirmed = postgres.sql(f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{name}'")
    assert lsn_of(confirmed.strip()) == position["lsn"]
    with pytest.raises(SourceError, match="no position"):
        list(again.read({"offset": 1}))


def test_a_renamed_primary_key_stays_the_key_of_a_table_with_a_full_identity(
    postgres: PostgresServer, name: str, tmp_path: Path
) -> None:
    """The rename comes between rows that are not read yet. A table that is published later has its key, too."""
    parts = list(made(postgres, name, tmp_path).read(None))
    postgres.sql(
        f"INSERT INTO {name} VALUES (107)",
        f"ALTER TABLE {name} RENAME COLUMN id TO order_id",
        f"INSERT INTO {name} VALUES (109)",
        f"CREATE TABLE {name}_late (gone int, a int, b int PRIMARY KEY)",
        f"ALTER TABLE {name}_late DROP COLUMN gone",
        f"ALTER TABLE {name}_late REPLICA IDENTITY FULL",
        f"ALTER PUBLICATION {name} ADD TABLE {name}_late",
        f"INSERT INTO {name}_late VALUES (1, 2)",
    )
    source = Postgres(postgres.conninfo, slot=name, snapshot=tmp_path / "snapshot", follow=False)
    keys = [json.loads(record.key or b"") for part in source.read(parts[-1].position) for record in part.records]
    assert keys == [[f"public.{name}", 107], [f"public.{name}", 109], [f"public.{name}_late", 2]]
    postgres.sql(f"INSERT INTO {name}_late VALUES (3, 4)", f"ALTER TABLE {name}_late RENAME COLUMN b TO c")
    with pytest.raises(
        SourceError, match=f"public.{name}_late came with the columns a, b, and its primary key is now c"
    ):
        list(source.read(parts[-1].position))


def test_what_cannot_be_copied_exactly_once_is_refused_with_a_way_out(
    postgres: PostgresServer, name: str, tmp_path: Path
) -> None:
    """A slot of others, changes that are gone, another server, a table without a key, no table."""

    def refused(told: str, position: Any = None, **more: Any) -> None:
        with pytest.raises(SourceError, match=told) as raised:
            list(made(postgres, name, tmp_path, **more).read(position))
        assert "secret" not in str(raised.value)

    postgres.sql(f"CREATE TABLE {name}_bare (v text)", f"CREATE SCHEMA {name}", f"CREATE TABLE {name}.x (i int unique)")
    for table, told in ((f"{name}_none", "there is no table"), (f"{name}_bare", "REPLICA IDENTITY FULL")):
        with pytest.raises(SourceError, match=told):
            list(Postgres(postgres.conninfo, [table], slot=name, snapshot=tmp_path / "snapshot").read(None))
    postgres.sql(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    refused(rf"the slot {name} is there, and no state file goes on with it: .*pg_drop_replication_slot\('{name}'\)")
    parts = list(made(postgres, name, tmp_path, again=True).read(None))
    at = parts[-1].position
    assert sum(len(part.records) for part in parts) == 20
    refused("this is another PostgreSQL", {**at, "system": "7"})
    for tables, told in (
        ([f"{name}_none"], f"there is no table {name}_none; .* leave the tables out, or copy other ones with another"),
        ([name, f"{name}_bare"], f"has the tables public.{name}, not public.{name}, public.{name}_bare. .*leave"),
    ):
        with pytest.raises(SourceError, match=told):
            list(Postgres(postgres.conninfo, tables, slot=name, snapshot=tmp_path / "snapshot").read(at))
    postgres.sql(f"SELECT pg_create_logical_replication_slot('{name}_o', 'pgoutput')")
    postgres.sql(f"INSERT INTO {name} VALUES (1000)")
    postgres.sql(f"SELECT pg_replication_slot_advance('{name}', pg_current_wal_flush_lsn())")
    refused("another client has read from the slot", at)
    drop_slots(postgres, name, f"{name}_o")
    refused(rf"the slot {name} is gone", at)
    (tmp_path / "snapshot").unlink()
    refused("snapshot is missing", {**at, "snapshot": "a"})
    other = Postgres(postgres.conninfo, [f"{name}.x"], slot=name, snapshot=tmp_path / "snapshot")
    with pytest.raises(SourceError, match=f"the publication {name} has the tables public.{name}, not {name}.x"):
        list(other.read(None))


def test_passwords_are_in_no_error(tmp_path: Path) -> None:
    """Neither of a string that cannot be read, nor of a server that cannot be reached."""
    for conninfo, told in (
        ("secret", "not a connection string"),
        ("host=127.0.0.1 port=1 password=secret connect_timeout=2", "cannot be reached"),
    ):
        with pytest.raises(SourceError, match=told) as raised:
            list(sources.Postgres(conninfo, ["t"], snapshot=tmp_path / "snapshot").read(None))
        assert "secret" not in str(raised.value)
        assert raised.value.__cause__ is None
