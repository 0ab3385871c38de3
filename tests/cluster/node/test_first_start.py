"""The first start of a cluster by `raftlog node --format-new`, and lost data folders.

raftlog.cluster.node.first_start, docs/decisions/0033.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from raftlog import SyncClient
from raftlog.cluster.api.encoding import to_b64
from raftlog.cluster.config.cluster_file import first_entry
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.config.settings import load_settings
from raftlog.cluster.node.first_start import make_folder
from raftlog.cluster.node.formatting import YOUNG_S, format_file, may_exist
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.offline.survivor import was_led
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.logging import get_logger
from raftlog.raft.hello import BOOT_JUMP_MAX
from tests.cluster.node.test_process import append
from tests.cluster.nodes import QUICK
from tests.support import wait_until, wait_until_async

pytestmark = pytest.mark.serial
FORMAT_NEW = "import sys; sys.argv[2:2] = ['--format-new']; from raftlog.cluster.cli.main import main; main()"


def without_folders(folder: Path, nodes: int = 3, *, secure: bool = False) -> LocalCluster:
    """A cluster whose nodes start with --format-new, and have no data folder.

    With `secure` they speak TLS and listen beyond loopback. So they refuse every request until there is an admin."""
    command = (sys.executable, "-c", FORMAT_NEW)
    cluster = LocalCluster(folder, nodes, settings=QUICK, secure=secure, command=command)
    for node in cluster.nodes:
        shutil.rmtree(cluster.data(node))
        if secure:
            with cluster.settings_file(node).open("a") as settings:
                settings.write(f'http.listen = "0.0.0.0:{urlsplit(cluster.url(node)).port}"\n')
    return cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster without data folders."""
    made = without_folders(tmp_path / "cluster")
    yield made
    made.kill(*made.nodes)


def events(cluster: LocalCluster, node: int, event: str) -> list[dict[str, Any]]:
    """The lines of that event in the node's log."""
    if not cluster.log_file(node).exists():
        return []
    lines = cluster.log_file(node).read_text("utf-8").splitlines()
    return [
        line for line in map(json.loads, filter(lambda each: each.startswith("{"), lines)) if line["event"] == event
    ]


def waits(cluster: LocalCluster, node: int, *members: int) -> None:
    """That node waits for just these members."""
    wanted = [str(each) for each in members]
    wait_until(
        lambda: (said := events(cluster, node, "waits_for_members")) and list(said[-1]["members"]) == wanted,
        what=f"node {node} waits for {members}",
    )


def refuses(cluster: LocalCluster, node: int) -> None:
    """That node, which has no folder, refuses to start, names the commands, and makes nothing."""
    cluster.start_node(node)
    wait_until(lambda: cluster.exit_code(node) is not None, 30, what="it refuses")
    assert cluster.exit_code(node) == NodeExit.DATA
    reason = events(cluster, node, "not_started")[-1]["reason"]
    assert "answers that this cluster was led" in reason
    assert f"raftlog members replace {node} " in reason
    assert f"raftlog format --join join-{node}.toml" in reason
    assert "Traceback" not in cluster.tail(node)
    assert not cluster.data(node).exists()


def lose(cluster: LocalCluster, node: int) -> Path:
    """The folder of that node is somewhere else now."""
    return cluster.data(node).rename(cluster.folder / f"lost-{node}")


def written_at(url: str) -> int:
    """The index of a write by a client that asks this node alone, from before there is a leader."""
    with SyncClient(url, bound=True, deadline_s=60) as client:
        return client.put(b"a", b"1").index


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_nodes_without_folders_wait_for_each_other_and_come_up(tmp_path: Path, secure: bool) -> None:
    """Two wait and name the third; one of them is killed meanwhile. Each is alive, not ready, and refuses a write with
    a sentence. With the third all have folders, elect, and write; a client that asks all the while gets its answer.
    Later starts with the same option go on with them."""
    cluster = without_folders(tmp_path / "cluster", secure=secure)
    try:
        cluster.start([1])
        waits(cluster, 1, 2, 3)
        cluster.start([2])
        waits(cluster, 1, 3)
        waits(cluster, 2, 3)
        assert cluster.ask(1, "/livez")[0] == 200
        status, body = cluster.ask(1, "/readyz")
        assert (status, b"waits for node 3" in body) == (503, True)
        status, body = cluster.ask(1, "/v1/kv/a")
        assert (status, json.loads(body)["code"]) == (503, "no_leader")
        cluster.kill(2)
        assert not cluster.data(2).exists()
        with ThreadPoolExecutor() as threads:
            asking = threads.submit(written_at, cluster.urls[0])
            cluster.start([2, 3])
            cluster.wait_ready()
            assert secure or asking.result() > 1
        cluster.stop()
        cluster.restore()
        assert [len(events(cluster, node, "data_folder_made")) for node in cluster.nodes] == [1, 1, 1]
    finally:
        cluster.kill(*cluster.nodes)


async def test_silent_members_count_as_members_of_a_led_cluster(tmp_path: Path) -> None:
    """No member answers, so no folder is made, and the log names them."""
    cluster = without_folders(tmp_path / "cluster")
    loaded, stop = load_settings(cluster.settings_file(1)), asyncio.Event()
    with capture_logs() as lines:
        making = asyncio.ensure_future(make_folder(loaded, cluster.cluster, None, get_logger(), stop))
        await wait_until_async(lambda: making.done() or lines, what="it names them")
        stop.set()
        assert await making is False
    assert [sorted(line["members"]) for line in lines] == [[2, 3]]
    assert not cluster.data(1).exists()


def test_a_waiting_node_ends_when_it_is_told(cluster: LocalCluster) -> None:
    """SIGTERM and SIGINT end it with 0, and leave no folder."""
    for number in (signal.SIGTERM, signal.SIGINT):
        cluster.start([1])
        waits(cluster, 1, 2, 3)
        assert cluster.stop_node(1, number) == NodeExit.OK
        cluster.log_file(1).unlink()
    assert not cluster.data(1).exists()


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_folder_that_is_lost_before_the_first_election_is_made_again(tmp_path: Path, secure: bool) -> None:
    """Nodes 1 and 2 have folders and wait for node 3, which is killed before it has one. Node 1's folder is lost: node
    1 waits for node 3, too, because that one may know the log. With it all come up: nothing was promised, or the voters
    say what."""
    cluster = without_folders(tmp_path / "cluster", secure=secure)
    try:
        for node in (1, 2):  # as if node 3 had answered both of them, and ended then
            format_file(cluster.file, segment_bytes=QUICK["disk.segment_bytes"], nodes=[node])
        cluster.start([1, 2])
        for node in (1, 2):
            wait_until(lambda node=node: events(cluster, node, "peer_connected"), 30, what="they met")  # type: ignore[misc]
        cluster.kill(1)
        lose(cluster, 1)
        cluster.start([1])
        waits(cluster, 1, 3)
        cluster.start([3])
        cluster.wait_ready()
    finally:
        cluster.kill(*cluster.nodes)


@pytest.mark.parametrize("each", [1, 3], ids=["one node", "every node"])
def test_a_lost_folder_is_refused_in_each_phase(cluster: LocalCluster, each: int) -> None:
    """After the first election, after a write, after a change of leader, and when all were stopped: a node refuses to
    start without its folder as soon as a member answers. With its folder it goes on, and every write is there."""
    cluster.restore()
    turns = cycle(cluster.nodes)

    def each_is_refused() -> None:
        for node in islice(turns, each):
            cluster.kill(node)
            lost = lose(cluster, node)
            refuses(cluster, node)
            lost.rename(cluster.data(node))
            cluster.start_node(node)
            cluster.wait_ready()

    each_is_refused()
    written = [append(cluster.url(cluster.leader()), b"first")]
    each_is_refused()
    cluster.kill(led := cluster.leader())
    assert cluster.leader() != led
    cluster.restore()
    written.append(append(cluster.url(cluster.leader()), b"second"))
    each_is_refused()
    for node in islice(turns, each):
        cluster.stop()
        lost = lose(cluster, node)
        cluster.start_node(node)  # no member answers: it waits, and makes nothing
        others = [other for other in cluster.nodes if other != node]
        waits(cluster, node, *others)
        cluster.start(others)
        wait_until(lambda node=node: cluster.exit_code(node) is not None, 30, what="it refuses")  # type: ignore[misc]
        assert (cluster.exit_code(node), cluster.data(node).exists()) == (NodeExit.DATA, False)
        lost.rename(cluster.data(node))
        cluster.start_node(node)
        cluster.wait_ready()
    for node in cluster.nodes:
        values = [cluster.ask(node, f"/v1/log?from={index}&limit=1&format=ndjson")[1] for index in written]
        assert [b"first" in values[0], b"second" in values[1]] == [True, True], values


@pytest.mark.parametrize(
    ("nodes", "join"), [(1, ""), (3, "join = 2\nfirst = 'AA=='\n")], ids=["one node", "a join file"]
)
def test_where_no_member_can_know_the_folder_is_left_to_format(tmp_path: Path, nodes: int, join: str) -> None:
    """A cluster of one node, and a node that joins: the node ends with 2, and names the command."""
    cluster = without_folders(tmp_path / "cluster", nodes)
    text = cluster.file.read_text("utf-8")
    entry = first_entry(cluster.cluster)
    join = join.replace("AA==", to_b64(entry.header + entry.data))
    cluster.file.write_text(text.replace("\n[[node]]", f"{join}\n[[node]]", 1), "utf-8")
    try:
        cluster.start([node := min(2, nodes)])
        wait_until(lambda: cluster.exit_code(node) is not None, 30, what="it refuses")
        assert cluster.exit_code(node) == NodeExit.SETTINGS
        assert "raftlog format" in events(cluster, node, "not_started")[-1]["reason"]
    finally:
        cluster.kill(*cluster.nodes)


def test_a_half_made_folder_is_made_again(cluster: LocalCluster) -> None:
    """A crash while the folder was made leaves its identity under another name: no node ever ran on it."""
    (folder := cluster.data(1)).mkdir()
    (folder / "identity.json.new").write_bytes(b"{")
    (folder / "shard-0").mkdir()
    cluster.restore()
    assert not (folder / "identity.json.new").exists()


def test_a_folder_made_again_counts_as_started_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else peers that met its earlier disk refuse it as an old copy. The count only rises, and peers take the jump for
    nine years."""
    made_ms, ages_s = clock.wall_ms(), [0, 1, YOUNG_S - 1, YOUNG_S, YOUNG_S + 600, 9 * 365 * 86_400]
    boots = []
    for age_s in ages_s:
        monkeypatch.setattr(clock, "wall_ms", lambda age_s=age_s: made_ms + 1_000 * age_s)
        boots.append(may_exist(made_ms).boot)
    assert boots == sorted(set(boots))
    assert boots[-1] < BOOT_JUMP_MAX


def test_a_folder_shows_whether_its_cluster_was_led(tmp_path: Path) -> None:
    """With the first configuration alone it was not. What cannot be read counts as led; another log's does not."""
    cluster = LocalCluster(tmp_path / "cluster", 1, settings=QUICK)
    log, folder = cluster.cluster.cluster.log, cluster.data(1)
    assert not was_led(folder, log)
    assert not was_led(tmp_path / "none", log)
    with cluster:
        cluster.restore()
        assert was_led(folder, log), "a node runs on it"
    assert was_led(folder, log)
    assert not was_led(folder, "0" * 32)
    (folder / "identity.json").write_bytes(b"?")
    assert was_led(folder, log)
