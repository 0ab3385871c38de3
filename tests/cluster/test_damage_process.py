"""A real node whose sealed segment is damaged under it: it ends with its code, is started again, and ends up whole."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.client_sync import SyncClient
from cluster.disk_check import check_folder
from cluster.disk_findings import State
from cluster.local_cluster import LocalCluster
from cluster.settings import NodeExit
from tests.cluster.disk_folder import flip
from tests.support import wait_until

pytestmark = [pytest.mark.timeout(180)]

SETTINGS: dict[str, Any] = {"disk.segment_bytes": 65_536, "scrub.bytes_per_second": 50_000_000, "scrub.pause_ms": 200}
RECORDS = 400


def value(number: int) -> bytes:
    """Of the n-th record."""
    return b"value-%06d-" % number + bytes(900)


def lines_of(cluster: LocalCluster, node: int, event: str) -> list[dict[str, Any]]:
    """What that node's log says of it."""
    lines = [json.loads(line) for line in cluster.log_file(node).read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_a_byte_flipped_under_a_running_node_is_found_and_heals(tmp_path: Path, who: str) -> None:
    """Nobody reads the place. The node says which file, byte and index, ends with 17, and its next start heals; nothing
    that was acknowledged is missing on it, nothing wrong is served, and its files are intact in the end."""
    with LocalCluster(tmp_path / "cluster", 3, settings=SETTINGS) as cluster:
        cluster.start()
        cluster.wait_ready()
        with SyncClient(cluster.urls, deadline_s=30) as client:
            for number in range(RECORDS):
                client.append(value(number))
            leader = cluster.leader()
            node = leader if who == "leader" else next(each for each in cluster.nodes if each != leader)
            path = sorted((cluster.data(node) / "shard-0/log").glob("*.seg"))[1]
            position = path.read_bytes().index(b"value-")
            flip(path, position)
            assert wait_until(lambda: cluster.exit_code(node) is not None, 60, what="the end of the node")
            assert cluster.exit_code(node) == NodeExit.DAMAGED
            told, *_ = lines_of(cluster, node, "file_damaged")
            assert told["file"] == f"log/{path.name}"
            assert told["position"] <= position < told["position"] + 2_000
            assert told["after"] >= int(path.stem) - 1
            assert told["by"] == "scrub"
            assert "start the node again" in lines_of(cluster, node, "files_damaged")[0]["mend"]
            client.append(b"meanwhile")
            cluster.start_node(node)
            last = client.append(b"after").last
            wait_until(lambda: bool(lines_of(cluster, node, "healed")), 60, what="healed")
            cluster.wait_ready()
            wait_until(lambda: (told := cluster.status(node)) is not None and told.applied >= last, 30)
        with SyncClient([cluster.url(node)], bound=True, deadline_s=30) as client:
            values = [each.value for each in client.log(to=last + 1)]
            assert values == [*map(value, range(RECORDS)), b"meanwhile", b"after"]
        cluster.stop()
        report = check_folder(cluster.data(node))
        assert {finding.state for finding in report.findings} <= {State.INTACT, State.UNFINISHED}, report.troubles
