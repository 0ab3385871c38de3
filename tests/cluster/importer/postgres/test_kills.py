"""`raftlog import-postgres` through kills of the importer, leader and PostgreSQL: no change is lost or doubled."""

import json
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.demo.story import COMMAND
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.cluster.importer.postgres.folding import folded
from tests.cluster.importer.postgres.postgres_server import PostgresServer
from tests.cluster.nodes import QUICK
from tests.support import HANG_S

pytestmark = pytest.mark.serial

ROWS = 3_000
NODES = 3


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes."""
    cluster = LocalCluster(tmp_path / "cluster", NODES, settings=QUICK)
    cluster.restore()
    yield cluster
    cluster.kill(*cluster.running)


class Committer(threading.Thread):
    """Commits transactions until it is stopped, over a new connection whenever one is lost."""

    def __init__(self, conninfo: str, chance: random.Random, pause_s: float) -> None:
        super().__init__(name="committer")
        self._conninfo, self._chance, self._pause_s = conninfo, chance, pause_s
        self.stopped = threading.Event()
        self.committed = 0

    def run(self) -> None:
        """One connection after the other."""
        while not self.stopped.is_set():
            with suppress(psycopg.OperationalError), psycopg.connect(self._conninfo) as connection:
                while not self.stopped.is_set():
                    self._transaction(connection)
                    connection.commit()
                    self.committed += 1
                    self.stopped.wait(self._pause_s)
            self.stopped.wait(0.05)

    def has_committed(self, count: int) -> bool:
        """Whether it has committed so many transactions."""
        return self.committed >= count

    def _transaction(self, connection: "psycopg.Connection[tuple[object, ...]]") -> None:
        """The statements of the next one."""
        raise NotImplementedError


class Writer(Committer):
    """Random transactions of some tables."""

    def _transaction(self, connection: "psycopg.Connection[tuple[object, ...]]") -> None:
        draw = self._chance.random
        run = connection.execute
        run("UPDATE steps SET n = n + 1")  # a lost transaction would show here
        first = int(draw() * 2 * ROWS)
        if draw() < 0.01:
            run("TRUNCATE passing")
        if draw() < 0.03:  # larger than a batch
            run(
                "INSERT INTO passing SELECT g, g FROM generate_series(%s::int, %s::int) g ON CONFLICT DO NOTHING",
                (first, first + 999),
            )
        run(
            "INSERT INTO items VALUES (%s, 1.50, now(), repeat(%s, 3000)) ON CONFLICT (id) "
            "DO UPDATE SET price = items.price + 0.01, at = now()",
            (first, "xy" if draw() < 0.1 else ""),
        )
        if draw() < 0.3:
            run("DELETE FROM items WHERE id = %s", (int(draw() * 2 * ROWS),))
        if draw() < 0.3:
            run(
                "UPDATE items SET id = -id WHERE id = %s AND NOT EXISTS (SELECT FROM items WHERE id = -%s::int)",
                (first, first),
            )
        if draw() < 0.1:
            connection.rollback()


def rows_of(postgres: PostgresServer, *tables: tuple[str, str]) -> dict[tuple[object, ...], object]:
    """The rows of the tables by their keys in the log."""
    found: dict[tuple[object, ...], object] = {}
    for table, key in tables:
        rows = json.loads(postgres.sql(f"SET timezone = 'UTC'; SELECT coalesce(json_agg(t), '[]') FROM {table} t"))
        found |= {(f"public.{table}", row[key]): row for row in rows}
    return found


def test_kills_of_every_side_neither_lose_nor_double_a_change(
    postgres: PostgresServer, local: LocalCluster, tmp_path: Path
) -> None:
    """Rows are compared with the tables; each change with the row before it. The first kills hit the snapshot."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    chance = random.Random(seed)
    postgres.sql(
        "CREATE TABLE steps (id int PRIMARY KEY, n int)",
        "CREATE TABLE passing (id int PRIMARY KEY, v int)",
        "CREATE TABLE items (id int PRIMARY KEY, price numeric(10, 2), at timestamptz, large text)",
        "ALTER TABLE items ALTER large SET STORAGE EXTERNAL",
        "ALTER TABLE items REPLICA IDENTITY FULL",
        "ALTER TABLE steps REPLICA IDENTITY FULL",
        "ALTER TABLE passing REPLICA IDENTITY FULL",
        "INSERT INTO steps VALUES (1, 0)",
        f"INSERT INTO items SELECT g, g, now(), '' FROM generate_series(1, {ROWS}) g",
    )
    urls = ",".join(local.url(node) for node in range(1, NODES + 1))
    command = [
        *COMMAND,
        "import-postgres",
        postgres.conninfo,
        "--tables",
        "steps,passing,items",
        "--slot",
        "kills",
        "--state",
        str(tmp_path / "state"),
        "--batch",
        "200",
        "-o",
        "jsonl",
        "-e",
        urls,
    ]
    writer = Writer(postgres.conninfo, chance, pause_s=0.002)
    writer.start()
    importer: subprocess.Popen[bytes] | None = None
    try:
        for hit in ("importer", "postgres", "leader", "importer", "postgres"):
            if importer is None:
                importer = subprocess.Popen([*command, "--follow"], stdout=subprocess.PIPE)
            assert importer.stdout is not None
            for _ in range(chance.randint(1, 8)):
                assert importer.stdout.readline(), "the import ended by itself"
            if hit == "importer":
                importer.kill()
                importer.communicate()
                importer = None
            elif hit == "postgres":
                postgres.kill()
                postgres.start()
            else:
                leader = local.leader()
                local.kill(leader)
                local.start_node(leader)
        if importer is not None:
            importer.terminate()
            importer.communicate()
    finally:
        if importer is not None:
            importer.kill()
        writer.stopped.set()
        writer.join()
    last = subprocess.run(command, capture_output=True, timeout=HANG_S)
    assert last.returncode == 0, last.stderr.decode()
    with SyncClient(urls.split(",")) as client:
        found = [record for record in client.log(1) if record.operation == "append"]
    expected = rows_of(postgres, ("steps", "id"), ("passing", "id"), ("items", "id"))
    got = folded(found)
    for row in expected.values():
        if isinstance(row, dict) and "at" in row:
            row["at"] = row["at"].replace("+00:00", "Z")
    assert got == expected
    assert writer.committed > 100
    print(f"{writer.committed} transactions, {len(found)} records")
