"""Measures sinks: rates beside the store's own bulk load in the same run, lag, and a start from the state.

    python -m bench sinks

Three nodes with the shipped defaults, the runner and the stores are processes of their own. Each store gets the same
rows twice: by its own quickest client from memory, and by `raftlog sink run --once` from the log.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles
from typing import Annotated

import duckdb
import msgspec
import psycopg
import redis
import tantivy
import typer
from rich.console import Console
from rich.table import Table

from bench.instruments.options import named
from raftlog import KeyWrite, NewRecord, SyncClient, sinks
from raftlog.cluster.client import requests
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.cluster.importer.postgres.postgres_server import PostgresServer
from tests.cluster.sinks.redis_server import RedisServer
from tests.support import free_port

STORES = ("postgresql", "sqlite", "duckdb", "redis", "tantivy")
RATE = 2_000  # changes a second while lag is measured
_BATCH = 1_000
_SHARE = 100  # of so many writes the lag of one is measured
_RUN = (sys.executable, "-m", "raftlog.cluster.cli.main", "sink", "run", "sinks.toml")

Rows = list[tuple[int, str, float]]


class StoreRate(msgspec.Struct, frozen=True):
    """Rows a second, and what part that is of the store's own bulk load in the same run."""

    store: str
    rows: int
    per_second: float
    floor_per_second: float
    ratio: float


class SinkFigures(msgspec.Struct, frozen=True):
    """One run, as it is saved. Lag: from a write's answer until the store has it."""

    when: str
    rates: list[StoreRate]
    lag_p50_ms: float
    lag_p99_ms: float
    state_keys: int
    state_s: float


def settings(store: str, place: str, source: str, start: str = "oldest") -> str:
    """A sink of that store."""
    key = "suffix:bigint" if start == "state" else "value.id:bigint"
    return f"""[sink.s]
from = {source}
to = "{store}"
{place}
columns = {{ id = "{key}", name = "value.name", price = "value.price:double" }}
primary_key = ["id"]
start = "{start}"
"""


def run_sink(folder: Path, url: str, text: str) -> dict[str, float]:
    """A runner of its own to the end of the log: what it says that it did."""
    (folder / "sinks.toml").write_text(text)
    command = [*_RUN, "--once", "-o", "json", "-e", url]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True, text=True)
    (found,) = json.loads(done.stdout)
    return dict(found)


def sqlite_floor(path: Path, rows: Rows) -> float:
    """Seconds of one transaction with all rows."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE items (id integer PRIMARY KEY, name text, price real)")
    began = time.monotonic()
    with database:
        database.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
    took = time.monotonic() - began
    database.close()
    return took


def postgres_floor(conninfo: str, rows: Rows) -> float:
    """Seconds of a COPY of all rows."""
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TABLE floor (id bigint PRIMARY KEY, name text, price double precision)")
        began = time.monotonic()
        with connection.cursor().copy("COPY floor FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        connection.commit()
        return time.monotonic() - began


def duckdb_floor(path: Path, rows: Rows) -> float:
    """Seconds of one insert of all rows, column by column."""
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE items (id bigint PRIMARY KEY, name varchar, price double)")
        began = time.monotonic()
        columns = [list(column) for column in zip(*rows, strict=True)]
        database.execute("INSERT INTO items SELECT unnest(?), unnest(?), unnest(?)", columns)
        return time.monotonic() - began


def redis_floor(url: str, rows: Rows) -> float:
    """Seconds of pipelines of hashes."""
    with redis.Redis.from_url(url) as client:
        began = time.monotonic()
        for first in range(0, len(rows), _BATCH):
            pipeline = client.pipeline(transaction=False)
            for number, name, price in rows[first : first + _BATCH]:
                pipeline.hset(f"floor:{number}", mapping={"id": number, "name": name, "price": price})
            pipeline.execute()
        return time.monotonic() - began


def tantivy_floor(path: Path, rows: Rows) -> float:
    """Seconds of one commit of all rows."""
    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("id", stored=True, indexed=True)
    builder.add_text_field("name", stored=True)
    builder.add_float_field("price", stored=True, indexed=True)
    path.mkdir()
    index = tantivy.Index(builder.build(), str(path))
    began = time.monotonic()
    writer = index.writer(num_threads=1)
    for number, name, price in rows:
        writer.add_document(tantivy.Document(id=number, name=name, price=price))
    writer.commit()
    writer.wait_merging_threads()
    return time.monotonic() - began


def fill(client: SyncClient, rows: Rows) -> None:
    """Appends the rows, many in a request."""
    for first in range(0, len(rows), _BATCH):
        batch = rows[first : first + _BATCH]
        client.append_many(
            [NewRecord(json.dumps({"id": at, "name": name, "price": price}).encode()) for at, name, price in batch]
        )


def lag(folder: Path, url: str, client: SyncClient, text: str, seconds: float) -> list[float]:
    """Milliseconds from an answer of a write until the store has it, of some writes at the set rate."""
    path = folder / "sinks.toml"
    path.write_text(text)
    file = sinks.read_sinks(path)
    command = [*_RUN, "-e", url]
    runner = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    found: list[float] = []
    waiting: list[threading.Thread] = []

    def wait_for(index: int, answered: float) -> None:
        sinks.wait(file, "s", client, index)
        found.append(1000 * (time.monotonic() - answered))

    try:
        sinks.wait(file, "s", client, client.append(b'{"id": -1}').index, timeout_s=60)
        began, sent = time.monotonic(), 0
        while (now := time.monotonic() - began) < seconds:
            count = int(now * RATE) - sent
            if not count:
                time.sleep(0.001)
                continue
            index = client.append_many(
                [NewRecord(b'{"id": %d, "name": "x", "price": 1.5}' % (sent + at)) for at in range(count)]
            ).last
            if sent // _SHARE != (sent + count) // _SHARE:
                waiting.append(threading.Thread(target=wait_for, args=(index, time.monotonic())))
                waiting[-1].start()
            sent += count
        for each in waiting:
            each.join()
    finally:
        runner.terminate()
        runner.wait()
    return found


def put_keys(client: SyncClient, count: int) -> None:
    """Puts keys, many in a request."""
    session = client.open_session().session
    for first in range(1, count + 1, _BATCH):
        numbers = range(first, min(first + _BATCH, count + 1))
        writes = [KeyWrite(at, b"item/%d" % at, b'{"name": "n%d", "price": 0.5}' % at, None) for at in numbers]
        client.call(requests.write_batch(session, first, writes))


def main(
    rows: Annotated[int, typer.Option(help="rows of each rate", min=10_000)] = 200_000,
    keys: Annotated[int, typer.Option(help="keys of the state", min=1_000)] = 1_000_000,
    seconds: Annotated[float, typer.Option(help="how long lag is measured", min=1)] = 10.0,
    only: Annotated[str, typer.Option(help="stores, by commas; all unless said")] = "",
    save: Annotated[Path, typer.Option(help="where the figures go")] = Path("bench/results/sinks.json"),
) -> None:
    """Rates of sinks beside the stores' own bulk loads, lag, and the time of a start from the state."""
    chosen = named("--only", only, STORES)
    console = Console()
    table = Table("store", "rows/s by the sink", "rows/s by itself", "ratio")
    given = [(at, f"the name of number {at}", at / 7) for at in range(rows)]
    with tempfile.TemporaryDirectory() as name, LocalCluster(Path(name, "nodes"), 3) as cluster:
        folder = Path(name)
        cluster.restore()
        with SyncClient(cluster.urls, deadline_s=60) as client:
            server, cache = PostgresServer(free_port()), RedisServer(free_port(), "--appendfsync", "everysec")
            server.start()
            cache.start()
            try:
                (folder / "url").write_text(server.conninfo)
                places = {
                    "postgresql": 'url = "@url"\ntable = "items"',
                    "sqlite": 'path = "sink.sqlite"\ntable = "items"',
                    "duckdb": 'path = "sink.duckdb"\ntable = "items"',
                    "redis": f'url = "{cache.url}"\nkey = "item:{{id}}"',
                    "tantivy": 'path = "sink.tantivy"',
                }
                floors: dict[str, Callable[[], float]] = {
                    "postgresql": lambda: postgres_floor(server.conninfo, given),
                    "sqlite": lambda: sqlite_floor(folder / "floor.sqlite", given),
                    "duckdb": lambda: duckdb_floor(folder / "floor.duckdb", given),
                    "redis": lambda: redis_floor(cache.url, given),
                    "tantivy": lambda: tantivy_floor(folder / "floor.tantivy", given),
                }
                fill(client, given)
                rates: list[StoreRate] = []
                for store in chosen:
                    text = settings(store, places[store], '{ records = "" }')
                    sink = rows / run_sink(folder, cluster.urls[0], text)["seconds"]
                    floor = rows / floors[store]()
                    rates.append(StoreRate(store, rows, round(sink), round(floor), round(sink / floor, 3)))
                    table.add_row(store, f"{sink:,.0f}", f"{floor:,.0f}", f"{sink / floor:.2f}")
                console.print(table)
                text = settings(chosen[0], places[chosen[0]], '{ records = "" }')
                cuts = quantiles(lag(folder, cluster.urls[0], client, text, seconds), n=100)
                console.print(f"lag at {RATE:,} changes/s: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")
                put_keys(client, keys)
                with cache.client() as emptied:
                    emptied.flushall()
                text = settings("redis", places["redis"], '{ keys = "item/" }', "state")
                state_s = run_sink(folder, cluster.urls[0], text)["seconds"]
                console.print(f"{keys:,} keys from the state into Redis: {state_s:.1f} s")
            finally:
                server.stop()
                cache.stop()
        cluster.kill(*cluster.running)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    figures = SinkFigures(when, rates, round(cuts[49], 1), round(cuts[98], 1), keys, round(state_s, 1))
    save.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1))
    console.print(f"saved to {save}")
