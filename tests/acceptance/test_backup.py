"""A site is lost, and a backup of state and log brings it back: three processes, their folders deleted."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from raftlog.cluster.client import requests
from raftlog.cluster.client.answers import Item
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.records.backup_manifest import followed
from tests.acceptance.machines import RAFTLOG, run
from tests.cluster.nodes import QUICK
from tests.support import free_ports, wait_until

SINKS = """
[sink.shop]
from = { keys = "customer/" }
to = "sqlite"
path = "shop.sqlite"
table = "customers"
columns = { id = "suffix:bigint", name = "value.name" }
primary_key = ["id"]
start = "state"
"""


def write(client: SyncClient, start: int, count: int) -> None:
    """Records, keys with history, deleted keys, and rows for the sink."""
    for number in range(start, start + count):
        client.append(b"record %d" % number + bytes(2_000), key=b"k")
        client.put(b"key/%d" % (number % 40), b"%d" % number)
        client.put(b"customer/%d" % (number % 30), b'{"name": "n%d"}' % number)
        if number % 7 == 0:
            client.delete(b"key/%d" % (number % 40))


def entries(client: SyncClient, first: int, last: int) -> list[tuple[int, int, bytes, bytes, bytes]]:
    """Index, term and bytes of all entries with their effects."""
    found: list[tuple[int, int, bytes, bytes, bytes]] = []
    end = None
    for chunk in client.log_raw(first, last + 1):
        for entry, frame in followed(chunk, end):
            end = entry.mark
            if entry.index <= last:
                found.append((entry.index, entry.term, entry.header, entry.data, frame))
    return found


def keys(client: SyncClient) -> list[Item]:
    """All keys with their revisions and versions."""
    return list(client.range(b""))


def sink_rows(folder: Path) -> int:
    """How many rows `raftlog sink verify` has compared; each is as the log says."""
    (found,) = json.loads(run("sink", "verify", "sinks.toml", "-o", "json", cwd=folder, environment=ENVIRONMENT))
    assert found["same"]
    return int(found["rows"])


ENVIRONMENT: dict[str, str] = {}


def command(*words: str, cwd: Path) -> Any:
    """What it prints as JSON."""
    return json.loads(run(*words, "-o", "json", cwd=cwd, environment=ENVIRONMENT))


def test_a_lost_site_comes_back_with_its_log(tmp_path: Path) -> None:
    """Records, keys, groups and sessions are written, some trimmed, backed up, more written, backed up again. All data
    folders go. The restored cluster has every entry with its bytes, effects and index, the same keys, group and
    session. A retry gets the first answer; a consumer, an export and a sink go on where they were. A node of the old
    cluster that comes back is refused, and changes nothing.
    """
    settings = {**QUICK, "limits.snapshot_log_bytes": 1 << 20}
    with LocalCluster(tmp_path / "nodes", 3, settings=settings, ports=free_ports(6)) as cluster:
        ENVIRONMENT["RAFTLOG_ENDPOINTS"] = ",".join(cluster.urls)
        (tmp_path / "sinks.toml").write_text(SINKS)
        cluster.start()
        cluster.wait_ready()
        with SyncClient(cluster.urls, sessions=False) as client:
            write(client, 0, 300)
            client.call(requests.trim(200))
            session = str(client.open_session(600_000).session)
            once = ("append", "once", "--session", session, "--sequence", "1")
            answer = command(*once, cwd=tmp_path)
            billing = client.consumer("billing")
            billing.claim(start=300)
            billing.commit(400)
            run("export", "--to", "table", "--engine", "arrow", cwd=tmp_path, environment=ENVIRONMENT)
            run("sink", "run", "sinks.toml", "--once", cwd=tmp_path, environment=ENVIRONMENT)
            first = command("backup", "site", cwd=tmp_path)
            assert first["first"] <= 200
            write(client, 300, 100)
            second = command("backup", "site", "--rate", "50", cwd=tmp_path)
            assert second["last"] > first["last"]
            assert 0 < second["added"] < first["added"]
            last = second["last"]
            before = entries(client, 200, last)
            kept = keys(client)
        cluster.stop()
        shutil.copytree(cluster.folder, tmp_path / "old")
        for node in cluster.nodes:
            shutil.rmtree(cluster.data(node))
        run("disk", "check", "site", cwd=tmp_path)
        rows = command("restore", "site", "--cluster", str(cluster.file), "--keep-log", "--new-ids", cwd=tmp_path)
        assert [row["after"] for row in rows] == [last] * 3
        for node in cluster.nodes:
            run("disk", "check", str(cluster.data(node)), cwd=tmp_path)
        cluster.start()
        cluster.wait_ready()
        with SyncClient(cluster.urls, sessions=False) as client:
            assert entries(client, 200, last) == before
            assert keys(client) == kept
            assert client.log_page(200).oldest == 200
            assert command(*once, cwd=tmp_path)["index"] == answer["index"]
            again = client.consumer("billing")
            again.owned = billing.owned
            assert again.status().position.next == {"0": 400}
            again.commit(500)
            write(client, 400, 50)
            run("export", "--to", "table", "--append", "--engine", "arrow", cwd=tmp_path, environment=ENVIRONMENT)
            run("verify", "table", "--engine", "arrow", cwd=tmp_path, environment=ENVIRONMENT)
            run("sink", "run", "sinks.toml", "--once", cwd=tmp_path, environment=ENVIRONMENT)
            assert sink_rows(tmp_path) == 30
            third = command("backup", "site", cwd=tmp_path)
            assert third["last"] > last
            old_node_is_refused(cluster, tmp_path / "old", client)


def old_node_is_refused(cluster: LocalCluster, old: Path, client: SyncClient) -> None:
    """The disk of the old node 3 takes the place of the new one."""
    cluster.stop_node(3)
    leader = cluster.leader()
    term = client.status().term
    log = old / "again.log"
    with log.open("wb") as written:
        words = [*RAFTLOG, "node", "--config", str(old / "node-3.toml")]
        process = subprocess.Popen(words, cwd=old, stdin=subprocess.PIPE, stdout=written, stderr=written)
    try:
        wait_until(lambda: b"was removed from this cluster" in log.read_bytes(), what="its refusal")
        client.put(b"still", b"there")
        assert (cluster.leader(), client.status().term) == (leader, term)
    finally:
        process.kill()
        process.communicate()
