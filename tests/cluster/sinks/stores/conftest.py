"""Servers of stores, and a sink over each store."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from raftlog.cluster.sinks import settings
from tests.cluster.importer.postgres.conftest import postgres
from tests.cluster.importer.postgres.postgres_server import PostgresServer
from tests.cluster.sinks.opensearch_server import OpenSearchNotFoundError, OpenSearchServer
from tests.cluster.sinks.redis_server import RedisServer, redis_served
from tests.cluster.sinks.stores.kit import StoreBench, small
from tests.cluster.sinks.webhook_service import SECRET, Service, webhook_served
from tests.support import served, wait_until

__all__ = ["postgres"]

PAGE = Path(__file__).parents[4] / "docs" / "sinks.md"


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, and no pauses."""
    small(monkeypatch)


@pytest.fixture(scope="package")
def running_redis() -> Iterator[RedisServer]:
    """A server that writes each batch to its disk; skips without Redis."""
    with redis_served() as server:
        yield server


@pytest.fixture
def redis_server(running_redis: RedisServer) -> RedisServer:
    """The server, empty."""
    with running_redis.client() as connected:
        connected.flushall()
        connected.config_set("maxmemory", 0)
    return running_redis


@pytest.fixture(scope="package")
def opensearch_server() -> Iterator[OpenSearchServer]:
    """A running node; skips without OpenSearch."""
    with served(OpenSearchServer, OpenSearchNotFoundError) as server:
        yield server


@pytest.fixture(scope="package")
def maria() -> Iterator[str]:
    """The socket of a server with an empty database `shop`; skips where none is installed."""
    if shutil.which("mariadbd") is None:
        pytest.skip("MariaDB is not installed; Debian: apt-get install mariadb-server")
    folder = Path(tempfile.mkdtemp(prefix="raftlog-maria-"))
    user = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    shutil.chown(folder, user)
    common = [f"--datadir={folder}/data", f"--user={user}"]
    subprocess.run(["mariadb-install-db", *common, "--skip-test-db"], check=True, capture_output=True)
    socket = str(folder / "socket")
    options = [f"--socket={socket}", "--skip-networking", f"--pid-file={folder}/pid", "--skip-grant-tables"]
    server = subprocess.Popen(["mariadbd", *common, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ping = ["mariadb-admin", f"--socket={socket}", "ping"]  # pymysql leaves a socket open where it cannot connect
    try:
        wait_until(lambda: subprocess.run(ping, capture_output=True).returncode == 0, 60, what="MariaDB")
        maria_sql(socket, "CREATE DATABASE shop")
        yield socket
    finally:
        server.terminate()
        server.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def maria_sql(socket: str, *statements: str) -> None:
    """Carries out statements."""
    with pymysql.connect(unix_socket=socket) as connection, connection.cursor() as cursor:
        for each in statements:
            cursor.execute(each)


def page_blocks() -> list[str]:
    """The blocks of Python in docs/sinks.md."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


class MariaSettings(settings.SinkSettings, frozen=True, kw_only=True, tag="maria"):
    """The store of one's own of docs/sinks.md."""

    socket: str

    def store(self, folder: Path, mapping: Any) -> Any:
        (code,) = (block for block in page_blocks() if "class MariaStore" in block)
        names: dict[str, Any] = {}
        exec(code, names)  # noqa: S102  # the page itself
        return names["MariaStore"]("items", mapping, unix_socket=self.socket, database="shop")


@pytest.fixture
def service() -> Iterator[Service]:
    """A running service."""
    with webhook_served() as service:
        yield service


MARKS = {
    "postgresql": [pytest.mark.serial],
    "redis": [pytest.mark.serial],
    "redis-json": [pytest.mark.serial],
    "opensearch": [pytest.mark.serial, pytest.mark.extra],
    "mariadb": [pytest.mark.serial],
}
"""What is a server is a process."""


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> StoreBench:
    """A sink into the store that the test or its module names, which is empty."""
    store: str = getattr(request, "param", None) or request.module.STORE
    folder = tmp_path
    match store:
        case "sqlite":
            return StoreBench(settings.SqliteSettings, folder, path="file", table="items")
        case "duckdb":
            return StoreBench(settings.DuckSettings, folder, path="file", table="items")
        case "tantivy":
            return StoreBench(settings.TantivySettings, folder, path="a/index")
        case "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            with psycopg.connect(server.conninfo, autocommit=True) as connection:
                connection.execute("DROP TABLE IF EXISTS items, items__rebuild, raftlog_sinks")
            return StoreBench(settings.PostgresSettings, folder, url=server.conninfo, table="items")
        case "redis" | "redis-json":
            url = request.getfixturevalue("redis_server").url
            keep = "hash" if store == "redis" else "json"
            return StoreBench(settings.RedisSettings, folder, url=url, key="k:{id}", keep=keep)
        case "opensearch":
            node: OpenSearchServer = request.getfixturevalue("opensearch_server")
            return StoreBench(settings.OpenSearchSettings, folder, url=node.url, index=node.fresh())
        case "mariadb":
            socket: str = request.getfixturevalue("maria")
            made = "CREATE TABLE shop.items (id VARCHAR(600) PRIMARY KEY, n BIGINT, version BIGINT)"
            maria_sql(socket, "SET lock_wait_timeout = 5", "DROP TABLE IF EXISTS shop.items, shop.raftlog_sinks", made)
            return StoreBench(MariaSettings, folder, socket=socket)
        case "webhook":
            (folder / "secret").write_text(SECRET)
            url = request.getfixturevalue("service").url
            return StoreBench(settings.WebhookSettings, folder, url=url, secret="@secret")
    raise AssertionError(store)
