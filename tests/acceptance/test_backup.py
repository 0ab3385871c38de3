"""A site is lost, and a backup of state and log brings it back: three processes, their folders deleted."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from raftlog.cluster.client import requests
from raftlog.cluster.client.answers import Item
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.records.backup_manifest import followed
from tests.acceptance.machines import run
from tests.support import RAFTLOG, wait_until

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
        for entry, frame in followed(chunk.segment, chunk.ledger, end):
            end = entry.mark
            if entry.index <= last:
                found.append((entry.index, entry.term, entry.header, entry.data, frame))
    return found


def keys(client: SyncClient) -> list[Item]:
    """All keys with their revisions and versions."""
    return list(client.range(b""))


class Site(NamedTuple):
    """Where the commands of an operator run."""

    folder: Path
    environment: dict[str, str]

    def run(self, *words: str) -> str:
        """What a command prints."""
        return run(*words, cwd=self.folder, environment=self.environment)

    def json(self, *words: str) -> Any:
        """What it prints as JSON."""
        return json.loads(self.run(*words, "-o", "json"))


def test_a_lost_site_comes_back_with_its_log(tmp_path: Path) -> None:
    """Records, keys, groups and sessions are written, some trimmed, backed up, more written, backed up again. All data
    folders go. The restored cluster has every entry with its bytes, effects and index, the same keys, group and
    session. A retry gets the first answer; a consumer, an export and a sink go on where they were. A node of the old
    cluster that comes back is refused, and changes nothing.
    """
    settings = {"disk.segment_bytes": 1 << 20, "limits.snapshot_log_bytes": 1 << 20}
    (tmp_path / "sinks.toml").write_text(SINKS)
    with LocalCluster(tmp_path / "nodes", 3, settings=settings) as cluster:
        site = Site(tmp_path, {"RAFTLOG_ENDPOINTS": ",".join(cluster.urls)})
        export = ("export", "--to", "table", "--engine", "arrow")
        cluster.restore()
        with SyncClient(cluster.urls, sessions=False) as client:
            write(client, 0, 150)
            client.call(requests.trim(200))
            session = str(client.open_session(600_000).session)
            once = ("append", "once", "--session", session, "--sequence", "1")
            answer = site.json(*once)
            billing = client.consumer("billing")
            billing.claim(start=300)
            billing.commit(400)
            site.run(*export)
            site.run("sink", "run", "sinks.toml", "--once")
            first = site.json("backup", "site")
            write(client, 150, 60)
            second = site.json("backup", "site", "--rate", "50")
            last = second["last"]
            assert first["first"] <= 200 < first["last"] < last
            assert 0 < second["added"] < first["added"]
            before = entries(client, 200, last)
            kept = keys(client)
        cluster.stop()
        shutil.copytree(cluster.folder, tmp_path / "old")
        for node in cluster.nodes:
            shutil.rmtree(cluster.data(node))
        site.run("disk", "check", "site")
        rows = site.json("restore", "site", "--cluster", str(cluster.file), "--keep-log", "--new-ids")
        assert [row["after"] for row in rows] == [last] * 3
        for node in cluster.nodes:
            site.run("disk", "check", str(cluster.data(node)))
        cluster.restore()
        with SyncClient(cluster.urls, sessions=False) as client:
            assert entries(client, 200, last) == before
            assert keys(client) == kept
            assert client.log_page(200).oldest == 200
            assert site.json(*once)["index"] == answer["index"]
            again = client.consumer("billing")
            again.owned = billing.owned
            assert again.status().position.next == {"0": 400}
            again.commit(500)
            write(client, 210, 30)
            site.run(*export, "--append")
            site.run("verify", "table", "--engine", "arrow")
            site.run("sink", "run", "sinks.toml", "--once")
            (compared,) = site.json("sink", "verify", "sinks.toml")
            assert (compared["same"], compared["rows"]) == (True, 30)
            assert site.json("backup", "site")["last"] > last
        old_node_is_refused(cluster, tmp_path / "old")


def old_node_is_refused(cluster: LocalCluster, old: Path) -> None:
    """The disk of the old node 3 takes the place of the new one."""
    cluster.stop_node(3)
    log = old / "again.log"
    with log.open("wb") as written:
        words = [*RAFTLOG, "node", "--config", str(old / "node-3.toml")]
        process = subprocess.Popen(words, cwd=old, stdin=subprocess.PIPE, stdout=written, stderr=written)
    try:
        wait_until(lambda: b"was removed from this cluster" in log.read_bytes(), what="its refusal")
        with SyncClient(cluster.urls[:2]) as others:
            others.put(b"still", b"there")
        assert cluster.leader() != 3
    finally:
        process.kill()
        process.communicate()
