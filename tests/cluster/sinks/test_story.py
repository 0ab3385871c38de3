"""Two tables of PostgreSQL are captured into the log; other stores and Parquet follow, while every part is killed.

Money moves between accounts within transactions, so a reader that sees half of one sees another sum.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
import tantivy

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.demo.story import COMMAND
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.cluster.importer.postgres.conftest import postgres
from tests.cluster.importer.postgres.folding import folded
from tests.cluster.importer.postgres.postgres_server import PostgresServer
from tests.cluster.nodes import QUICK as QUICK_NODES
from tests.cluster.sinks.opensearch_server import OpenSearchNotFoundError, OpenSearchServer
from tests.cluster.sinks.redis_server import RedisServer, redis_served
from tests.support import HANG_S, free_ports, restarted, wait_until

__all__ = ["postgres"]

pytestmark = pytest.mark.serial

NODES = 3
LONG = 200
QUICK = 4
"""So many kills follow each other at once: a part may be killed while it starts. Then the stores follow again."""

ACCOUNTS = 20
TOTAL = 100 * ACCOUNTS
COLUMNS = {
    "accounts": '{ id = "value.id:bigint", owner = "value.owner", balance = "value.balance:bigint" }',
    "orders": '{ id = "value.id:bigint", what = "value.what", price = "value.price:decimal(10,2)" }',
}

Orders = list[tuple[Any, ...]]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes."""
    cluster = LocalCluster(tmp_path / "cluster", NODES, settings=QUICK_NODES, ports=free_ports(2 * NODES))
    cluster.start()
    cluster.wait_ready()
    yield cluster
    cluster.kill(*cluster.running)


@pytest.fixture
def cache() -> Iterator[RedisServer]:
    """A Redis server; skips without one."""
    with redis_served() as server:
        yield server


@pytest.fixture
def search(kills: int) -> Iterator[OpenSearchServer | None]:
    """OpenSearch in the long form, where it can be had: it takes some twenty seconds to start."""
    server = None
    with suppress(OpenSearchNotFoundError):
        server = OpenSearchServer() if kills >= LONG else None
    if server is None:
        print("without OpenSearch")
        yield None
        return
    try:
        server.start()
        yield server
    finally:
        server.stop()


def sink(name: str, source: str, **target: str) -> str:
    """The settings of a sink of a captured table."""
    given = "".join(f'{setting} = "{value}"\n' for setting, value in target.items())
    table = f'[sink.{name}]\nfrom = {{ table = "public.{source}" }}\ncolumns = {COLUMNS[source]}\n'
    return f'{table}primary_key = ["id"]\n{given}'


def lite_position(folder: Path) -> int:
    """Where the SQLite sink is."""
    with closing(sqlite3.connect(folder / "lite")) as database:
        (next_index,) = database.execute("SELECT next FROM raftlog_sinks").fetchone()
        return int(next_index)


def is_past(folder: Path, index: int) -> bool:
    """Whether the SQLite sink has moved."""
    return lite_position(folder) > index


def orders_of_parquet(folder: Path) -> Orders:
    """The orders by the Parquet files of an export: a fold of the captured changes."""
    rows: dict[int, tuple[Any, ...]] = {}
    with duckdb.connect() as duck:
        found = duck.execute(
            f"SELECT value FROM read_parquet('{folder}/log/**/*.parquet') WHERE operation = 'append' ORDER BY index"
        ).fetchall()
    for (value,) in found:
        change = json.loads(value, parse_float=Decimal)
        if change["table"] != "public.orders":
            continue
        if change["op"] == "truncate":
            rows.clear()
        if (old := change.get("before")) is not None:
            rows.pop(old["id"], None)
        if (new := change.get("after")) is not None:
            rows[new["id"]] = (new["id"], new["what"], Decimal(new["price"]))
    return sorted(rows.values())


def orders_of_tantivy(folder: Path) -> Orders:
    """The orders by the stored documents of the index."""
    index = tantivy.Index.open(str(folder))
    searcher = index.searcher()
    hits = searcher.search(tantivy.Query.all_query(), limit=10_000).hits
    documents = [searcher.doc(address) for _, address in hits]
    rows = [json.loads(each["_row"][0], parse_float=Decimal) for each in documents if each["id"]]
    assert len(searcher.search(index.parse_query("lighthouse", ["what"])).hits) == 1
    return sorted((each["id"], each["what"], Decimal(each["price"])) for each in rows)


def orders_of_opensearch(server: OpenSearchServer) -> Orders:
    """The orders by the documents of the index."""
    server.ask("POST", "/orders/_refresh")
    hits = server.ask("GET", "/orders/_search?size=10000")["hits"]["hits"]
    rows = [each["_source"] for each in hits]
    return sorted((each["id"], each["what"], Decimal(str(each["price"]))) for each in rows)


class Shop(threading.Thread):
    """Moves money, and makes, changes and deletes orders, until it is stopped; over a new connection if one is lost."""

    def __init__(self, conninfo: str, chance: random.Random, pause_s: float) -> None:
        super().__init__(name="shop")
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

    def _transaction(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        run, draw = connection.execute, self._chance.randrange
        for _ in range(draw(1, 4)):
            amount = draw(1, 50)
            run("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, draw(ACCOUNTS)))
            run("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, draw(ACCOUNTS)))
        key = draw(300)
        if not draw(20):  # larger than a batch
            run(
                "INSERT INTO orders SELECT g, 'order ' || g, 1.50 FROM generate_series(1000, 1999) g "
                "ON CONFLICT DO NOTHING"
            )
        if draw(4):
            run(
                "INSERT INTO orders VALUES (%s, %s, 1.50) ON CONFLICT (id) DO UPDATE SET price = orders.price + 0.01",
                (key, f"order {key}"),
            )
        elif draw(20):
            run("DELETE FROM orders WHERE id = %s", (key,))
        else:
            run("TRUNCATE orders")
        if not draw(10):
            run(
                "UPDATE orders SET id = -id WHERE id = %s AND NOT EXISTS (SELECT FROM orders WHERE id = -%s)",
                (key, key),
            )
        if not draw(20):
            connection.rollback()


class Sums(threading.Thread):
    """Reads the derived tables again and again: every sum that is not the total is kept."""

    def __init__(self, folder: Path, conninfo: str) -> None:
        super().__init__(name="sums")
        self._folder, self._conninfo = folder, conninfo
        self.stopped = threading.Event()
        self.seen = 0
        self.wrong: list[object] = []

    def run(self) -> None:
        """Whatever is away is asked again."""
        while not self.stopped.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._conninfo) as connection:
                self._look(connection.execute("SELECT count(*), sum(balance) FROM derived.accounts").fetchone())
            with suppress(sqlite3.Error):
                database = sqlite3.connect(self._folder / "lite")
                self._look(database.execute("SELECT count(*), sum(balance) FROM accounts").fetchone())
                database.close()
            self.stopped.wait(0.01)

    def _look(self, found: tuple[object, ...] | None) -> None:
        if found is not None and found[0] == ACCOUNTS:
            self.seen += 1
            if found[1] != TOTAL:
                self.wrong.append(found)


class Worker:
    """A process of the pipeline that is killed and started again."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command, self._folder = command, folder
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        out = (self._folder / "workers.log").open("ab")
        with out:
            return subprocess.Popen(self._command, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=out)

    def again(self) -> None:
        """SIGKILL, then a new start."""
        self.process.kill()
        self.process.wait()
        self.process = self._started()

    def end(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize("kills", [12, pytest.param(LONG, marks=[pytest.mark.long, pytest.mark.timeout(3_600)])])
def test_every_derived_store_equals_the_tables_after_kills_of_everything(
    postgres: PostgresServer,
    cache: RedisServer,
    search: OpenSearchServer | None,
    local: LocalCluster,
    tmp_path: Path,
    kills: int,
) -> None:
    """The capture, the runner, the export, the leader and the servers are killed; no reader sees half a
    transaction."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    chance = random.Random(seed)
    postgres.sql(
        "CREATE SCHEMA derived",
        "CREATE TABLE accounts (id int PRIMARY KEY, owner text, balance int)",
        "CREATE TABLE orders (id int PRIMARY KEY, what text, price numeric(10, 2))",
        "ALTER TABLE accounts REPLICA IDENTITY FULL",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        f"INSERT INTO accounts SELECT g, 'owner ' || g, 100 FROM generate_series(0, {ACCOUNTS - 1}) g",
    )
    sinks = [
        sink("copy", "accounts", to="postgresql", url=postgres.conninfo, table="derived.accounts"),
        sink("lite", "accounts", to="sqlite", path="lite", table="accounts"),
        sink("cache", "accounts", to="redis", url=cache.url, key="account:{id}"),
        sink("duck", "orders", to="duckdb", path="duck", table="orders"),
        sink("search", "orders", to="tantivy", path="search"),
    ]
    if search is not None:
        sinks.append(sink("cluster", "orders", to="opensearch", url=search.url, index="orders"))
    (tmp_path / "sinks.toml").write_text("".join(sinks))
    urls = ",".join(local.url(node) for node in range(1, NODES + 1))
    capture = [*COMMAND, "import-postgres", postgres.conninfo, "--tables", "accounts,orders", "--slot", "story"]
    capture += ["--batch", "200", "--state", "state", "-o", "jsonl", "-e", urls]
    run = [*COMMAND, "sink", "run", "sinks.toml", "-e", urls]
    export = [*COMMAND, "export", "--to", "parquet", "--engine", "arrow", "-e", urls]
    shop, sums = Shop(postgres.conninfo, chance, pause_s=0.005), Sums(tmp_path, postgres.conninfo)
    workers = {"capture": Worker([*capture, "--follow"], tmp_path), "runner": Worker(run, tmp_path)}
    workers["export"] = Worker([*export, "--follow", "--every", "0.5"], tmp_path)
    hits: dict[str, Callable[[], None]] = {name: worker.again for name, worker in workers.items()}

    def leader() -> None:
        node = local.leader()
        local.kill(node)
        local.start_node(node)

    hits |= {"leader": leader, "postgres": partial(restarted, postgres), "cache": partial(restarted, cache)}
    names = [*hits] * 5
    if search is not None:  # it takes long to start again
        names.append("search")
        hits["search"] = partial(restarted, search)
    shop.start()
    sums.start()
    try:
        wait_until(lambda: sums.seen > 0, 60, what="the first sums of the derived stores")
        for number in range(1, kills + 1):
            goal, name = shop.committed + chance.randrange(1, 30), chance.choice(names)
            hits[name]()
            print(f"{number}: {name}, {shop.committed} transactions", flush=True)
            wait_until(partial(shop.has_committed, goal), 60, what="transactions")
            if number % QUICK == 0:
                wait_until(partial(is_past, tmp_path, lite_position(tmp_path)), 60, what="the stores to follow")
    finally:
        shop.stopped.set()
        shop.join()
        for worker in workers.values():
            worker.end()
        sums.stopped.set()
        sums.join()
    postgres.sql("INSERT INTO orders VALUES (10000, 'a lighthouse', 9.99)")  # the newest one may be a truncate
    for command in (capture, [*run, "--once"], [*export, "--append"], [*COMMAND, "verify", "parquet", "-e", urls]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 0, done.stderr
        assert command is not capture or json.loads(done.stdout.splitlines()[-1])["records"] > 0
    verify = [*COMMAND, "sink", "verify", "sinks.toml", "-o", "json", "-e", urls]
    done = subprocess.run(verify, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert [(each["same"], each.get("unproven")) for each in json.loads(done.stdout)] == [(True, None)] * len(sinks)
    assert sums.wrong == []
    with psycopg.connect(postgres.conninfo) as connection:
        accounts = connection.execute("SELECT id, owner, balance FROM accounts ORDER BY id").fetchall()
        orders = connection.execute("SELECT id, what, price FROM orders ORDER BY id").fetchall()
        assert connection.execute("SELECT * FROM derived.accounts ORDER BY id").fetchall() == accounts
    with cache.client() as connected:
        for key, owner, balance in accounts:
            assert connected.hgetall(f"account:{key}") == {"id": str(key), "owner": owner, "balance": str(balance)}
    lite = sqlite3.connect(tmp_path / "lite")
    assert lite.execute("SELECT * FROM accounts ORDER BY id").fetchall() == accounts
    lite.close()
    with duckdb.connect(tmp_path / "duck", read_only=True) as duck:
        assert duck.execute("SELECT * FROM orders ORDER BY id").fetchall() == orders
    assert orders_of_tantivy(tmp_path / "search") == orders
    assert orders_of_parquet(tmp_path / "parquet") == orders
    with SyncClient(urls.split(",")) as client:  # each change has the row that was there before it
        changes = [record for record in client.log(1) if record.operation == "append"]
    assert len(folded(changes)) == len(accounts) + len(orders)
    assert search is None or orders_of_opensearch(search) == orders
    print(f"{shop.committed} transactions, {sums.seen} sums, {kills} kills")
