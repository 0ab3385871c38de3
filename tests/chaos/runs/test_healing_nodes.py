"""Real processes: bytes flip in a stopped follower's log; started again it heals, and holds the same as the others."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from raftlog.chaos.nemesis.damage import flip
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.support import wait_until

pytestmark = pytest.mark.serial

SETTINGS = {"disk.segment_bytes": 65_536, "limits.snapshot_log_bytes": 100_000}
PATIENCE_S = 60.0


def events(cluster: LocalCluster, node: int) -> list[str]:
    """The names of what a node said in its log, in order."""
    lines = cluster.log_file(node).read_text().splitlines()
    return [json.loads(line).get("event", "") for line in lines if line.startswith("{")]


def agree(cluster: LocalCluster) -> bool:
    """Whether every node has applied the same, hashes to the same, and has its vote."""
    told = [cluster.status(node) for node in cluster.nodes]
    roles = {status.role for status in told if status is not None}
    states = {(status.applied, str(status.state)) for status in told if status is not None}
    return None not in told and len(states) == 1 and roles == {"leader", "follower"}


@pytest.mark.parametrize("flips", [2, pytest.param(20, marks=pytest.mark.long)])
def test_a_follower_whose_log_was_damaged_heals(tmp_path: Path, flips: int) -> None:
    """One byte of the newest segment below its durable mark, one follower after the other: the start sets it aside,
    says that it heals, gets the rest from the leader, and in the end has the same state, and its vote. The leader goes
    on in its term, however often a disk is found damaged."""
    chance = random.Random(7)
    with LocalCluster(tmp_path, 3, settings=SETTINGS) as cluster:
        cluster.restore()
        with SyncClient(cluster.urls) as client:
            for number in range(flips):
                for _ in range(40):
                    client.append(b"%d" % number * 300)
                leader = cluster.leader()
                terms = {status.term for status in map(cluster.status, cluster.nodes) if status is not None}
                node = chance.choice([each for each in cluster.nodes if each != leader])
                assert cluster.stop_node(node) == 0
                hit = flip(cluster.data(node), "log", chance)
                assert hit is not None
                client.append(b"while it is down")
                before = events(cluster, node).count("healing")
                cluster.start_node(node)
                wait_until(lambda: agree(cluster), PATIENCE_S, what=f"node {node} has healed: {hit.what}")
                said = events(cluster, node)
                assert said.count("healing") == before + 1, hit.what
                assert "healed" in said
                assert {status.term for status in map(cluster.status, cluster.nodes) if status is not None} == terms
                assert list((cluster.data(node) / "shard-0/quarantine").glob("log-*/*.seg"))
