"""A real node whose sealed segment is damaged under it: it ends with its code, is started again, and ends up whole."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog import ClientError, SyncClient
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.files.findings import FileHealth
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.offline.check import check_folder
from raftlog.raft.wal.formats import HARD_STATE_SLOT, SLOT_SIZE
from tests.cluster.files.disk_folder import flip
from tests.support import wait_until

pytestmark = [pytest.mark.timeout(180)]

SETTINGS: dict[str, Any] = {"disk.segment_bytes": 65_536, "scrub.bytes_per_second": 50_000_000, "scrub.pause_ms": 200}
RECORDS = 400


def value(number: int) -> bytes:
    """Of the n-th record."""
    return b"value-%06d-" % number + bytes(900)


@contextmanager
def started(folder: Path) -> Iterator[LocalCluster]:
    """Three nodes that scrub all the time, ready."""
    with LocalCluster(folder / "cluster", 3, settings=SETTINGS) as cluster:
        cluster.restore()
        yield cluster


def lines_of(cluster: LocalCluster, node: int, event: str) -> list[dict[str, Any]]:
    """What that node's log says of it."""
    lines = [json.loads(line) for line in cluster.log_file(node).read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_a_byte_flipped_under_a_running_node_is_found_and_heals(tmp_path: Path, who: str) -> None:
    """No client reads the place. The node names file, byte and index, ends with 17, and its next start heals. No
    acknowledged record is missing on it, nothing wrong is served, and its files are intact in the end.
    """
    with started(tmp_path) as cluster:
        with SyncClient(cluster.urls, deadline_s=30) as client:
            for number in range(RECORDS):
                client.append(value(number))
            leader = cluster.leader()
            node = leader if who == "leader" else next(each for each in cluster.nodes if each != leader)
            path = sorted((cluster.data(node) / "shard-0/log").glob("*.seg"))[1]
            position = path.read_bytes().index(b"value-")
            flip(path, position)
            assert ended(cluster, node) == NodeExit.DAMAGED
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
        assert {finding.state for finding in report.findings} <= {FileHealth.INTACT, FileHealth.UNFINISHED}, (
            report.troubles
        )


AREAS = ["seg"] * 8 + ["idx"] * 4 + ["ledger"] * 4 + ["newest"] * 3 + ["hard_state"] * 2 + ["identity"] * 2


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_flips_all_over_the_files_of_real_nodes_end_healthy(tmp_path: Path) -> None:
    """23 flips, one after the other, on nodes of any role. Under the running node they hit a sealed segment, its .idx
    and .ledger, where it reads them while another client does too. In a stopped node they hit the newest segment, one
    slot of the hard state and the identity, which a start reads. Each is detected. No reader gets a record that was not
    written. Every node serves and votes again before the next flip, and in the end all have every acknowledged record.
    """
    chance = Random(20_261_122)
    with started(tmp_path) as cluster:
        with SyncClient(cluster.urls, deadline_s=60) as client:
            written = [value(number) for number in range(300)]
            for each in written:
                client.append(each)
            for area in chance.sample(AREAS, len(AREAS)):
                for _ in range(60):
                    written.append(value(len(written)))
                    client.append(written[-1])
                node = chance.choice(cluster.nodes)
                if area in ("seg", "idx", "ledger"):
                    hit_running(cluster, node, area, chance, written)
                else:
                    hit_stopped(cluster, node, area, chance)
                cluster.start_node(node)
                written.append(value(len(written)))
                client.append(written[-1])  # a healing node needs an entry of the next leader
                wait_until(partial(is_whole, cluster, node), 120, what=f"node {node} whole after {area}")
            wait_until(lambda: all(is_whole(cluster, each) for each in cluster.nodes), 60)
        for node in cluster.nodes:
            assert served_by(cluster, node, written) == len(written)
        cluster.stop()
        for node in cluster.nodes:
            assert check_folder(cluster.data(node)).troubles == []


def hit_running(cluster: LocalCluster, node: int, area: str, chance: Random, written: list[bytes]) -> None:
    """Under the running node, where it reads in the background: it names the file, and ends with its code."""
    said = len(lines_of(cluster, node, "file_damaged"))
    segments = sorted((cluster.data(node) / "shard-0/log").glob("*.seg"))
    path = chance.choice(segments[:-2]).with_suffix(f".{area}")  # the last but one may not be finished yet
    flip_within(path, chance)
    served_by(cluster, node, written)
    assert ended(cluster, node) == NodeExit.DAMAGED, path
    told = lines_of(cluster, node, "file_damaged")[said:]
    assert path.stem in told[0]["file"], (path, told)


def hit_stopped(cluster: LocalCluster, node: int, area: str, chance: Random) -> None:
    """In a stopped node, where every start reads; with a changed identity it does not start."""
    cluster.stop_node(node)
    data = cluster.data(node)
    if area == "newest":
        flip_within(max((data / "shard-0/log").glob("*.seg")), chance)
    elif area == "hard_state":
        flip(data / "shard-0/hard_state", chance.choice((0, HARD_STATE_SLOT)) + chance.randrange(SLOT_SIZE))
    else:
        path = data / "identity.json"
        before = path.read_bytes()
        flip_within(path, chance)
        cluster.start_node(node)
        assert ended(cluster, node) == NodeExit.DATA
        path.write_bytes(before)  # restored from a copy, as the message says


def ended(cluster: LocalCluster, node: int) -> int:
    """How the process ended, by itself."""
    wait_until(lambda: cluster.exit_code(node) is not None, 120, what=f"the end of node {node}")
    code = cluster.exit_code(node)
    assert code is not None
    return code


def flip_within(path: Path, chance: Random) -> None:
    """Turns one bit of what the file holds; not in the zeros behind it."""
    flip(path, chance.randrange(len(path.read_bytes().rstrip(b"\0"))), 1 << chance.randrange(8))


def served_by(cluster: LocalCluster, node: int, written: list[bytes]) -> int:
    """How many of the written values this very node serves, in their order.

    It does not serve unreadable values and those behind them. Anything else is wrong.
    """
    values: list[bytes | None] = []
    with SyncClient([cluster.url(node)], bound=True, deadline_s=10) as client:
        with suppress(ClientError):
            values.extend(each.value for each in client.log())
    assert values == written[: len(values)], f"node {node} serves a value that was not written"
    return len(values)


def is_whole(cluster: LocalCluster, node: int) -> bool:
    """Whether it serves, votes, and has applied the committed entries."""
    told = cluster.status(node)
    return told is not None and told.role in ("leader", "follower") and told.applied == told.committed > 0
