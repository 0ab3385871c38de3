"""The store of one's own in docs/sinks.md runs as it stands, against a real MariaDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raftlog import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.cluster.nodes import QUICK
from tests.cluster.sinks.stores.conftest import maria_sql, page_blocks

pytestmark = pytest.mark.serial

LINES_MAX = 60
SOCKET = "/run/mysqld/mysqld.sock"


def test_the_store_of_the_page_is_exactly_once(maria: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice, with a change between: rows are those of the log."""
    blocks = page_blocks()
    (store,) = (block for block in blocks if "class MariaStore" in block)
    assert sum(bool(line) for line in store.splitlines()) <= LINES_MAX
    (use,) = (block for block in blocks if "MariaStore(" in block and "class" not in block)
    maria_sql(maria, "CREATE TABLE shop.customers (id BIGINT PRIMARY KEY, name TEXT)")
    monkeypatch.chdir(tmp_path)
    with LocalCluster(tmp_path / "cluster", 1, settings=QUICK) as local:
        local.restore()
        script = use.replace("http://127.0.0.1:7001", local.url(1)).replace(SOCKET, maria)
        names: dict[str, Any] = {"Path": Path, "SyncClient": SyncClient}
        exec(store, names)  # noqa: S102  # the page itself
        with SyncClient(local.url(1)) as client:
            for number in range(30):
                client.put(b"customer/%d" % number, b'{"name": "n%d"}' % number)
            exec(script, names)  # noqa: S102  # the page itself
            client.put(b"customer/3", b'{"name": "other"}')
            client.delete(b"customer/4")
            exec(script, names)  # noqa: S102  # the page itself
            verified = names["sinks"].verify("maria", names["sink"], names["store"], client)
        local.kill(1)
    assert (verified.is_same, verified.rows) == (True, 29)
    names["store"].close()
