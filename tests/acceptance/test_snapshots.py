"""A node that lacks too much log catches up by a snapshot, on real processes, under load and with nodes killed."""

import asyncio
import random
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from raftlog.cluster.client.aio.client import Client
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.conftest import SETTINGS, Measure, own_cluster
from tests.acceptance.load import Load
from tests.acceptance.logs import is_append, records_of, settle
from tests.support import fresh_seed, wait_until, wait_until_async

EARLY = SETTINGS | {
    "disk.segment_bytes": 1 << 20,
    "limits.snapshot_log_bytes": 2 << 20,
    "limits.trailing_log_bytes": 2 << 20,
    "limits.trailing_log_percent": 1,
    "raft.snapshot_chunk_bytes": 16 << 10,
}
"""Snapshots early, little log kept for slow followers, and pieces so small that a kill falls between two of them."""

VALUE = random.Random(1).randbytes(64 << 10)
TRIES = 4
"""Times as many kills at most, until one has fallen into the sending of a snapshot."""
CATCH_UP_S = 90.0
"""On a machine that does other things too."""


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory, secure: bool) -> Iterator[LocalCluster]:
    """Three nodes that make and send snapshots after few megabytes."""
    with own_cluster(tmp_path_factory.mktemp("snapshots"), EARLY, secure=secure) as cluster:
        yield cluster


def has_all(cluster: LocalCluster, node: int) -> bool:
    """Whether that node answers, and its disk has all readable records: it has fetched those before its snapshot."""
    return metric(cluster, node, "raftlog_disk_oldest_index") == 1


def metric(cluster: LocalCluster, node: int, name: str) -> float:
    """A number of that node's /metrics; 0 where it does not answer, or never counted any."""
    try:
        _, body = cluster.ask(node, "/metrics")
    except OSError:
        return 0.0
    return sum(float(line.split()[-1]) for line in body.decode().splitlines() if line.startswith(name))


def installs(cluster: LocalCluster, node: int) -> float:
    """How many snapshots that process has put in force."""
    return metric(cluster, node, 'raftlog_raft_events_total{event="SnapshotInstalled"}')


def wait_for_piece(cluster: LocalCluster, node: int, bytes_min: int) -> bool:
    """Waits until that process has received that many bytes of a snapshot, or needs no more. It needs no more if it has
    put one in force, or has all records of the others from a log that still had them. Returns whether it is half-way.
    """
    others = [told.committed for other in cluster.running if other != node and (told := cluster.status(other))]

    def is_there() -> bool:
        told = cluster.status(node)
        return told is not None and (told.applied >= max(others, default=0) or installs(cluster, node) > 0)

    wait_until(
        lambda: metric(cluster, node, "raftlog_snapshot_received_bytes_total") > bytes_min or is_there(),
        CATCH_UP_S,
        what=f"{bytes_min} bytes of a snapshot on node {node}",
    )
    return not is_there()


async def fill(cluster: LocalCluster, puts: int) -> None:
    """Puts 64 KiB values over 60 keys."""
    async with Client(cluster.urls, deadline_s=60) as client:
        for first in range(0, puts, 10):
            await asyncio.gather(*(client.put(b"big-%02d" % (n % 60), VALUE) for n in range(first, first + 10)))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
async def test_catch_up_by_snapshot_under_load_and_kills(
    nodes: LocalCluster, kills: int, record_property: Measure
) -> None:
    """A follower that was down while the others wrote and compacted gets the state; it and its leader are killed with
    -9 again and again while that is under way. In the end all states are equal, with the writers' sessions; whatever
    was acknowledged is in the logs, once; and the log before its snapshot, which the follower fetched, is the same."""
    seed = fresh_seed("snapshots")
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with Load(nodes.urls, writers=4, think_s=0.01) as load:
        await load.more(50)
        leader = nodes.leader()
        follower = chance.choice([node for node in nodes.nodes if node != leader])
        killed = half_way = 0
        while killed < kills or (not half_way and killed < TRIES * kills):
            nodes.kill(follower)
            await fill(nodes, 80 if killed else 200)
            nodes.start_node(follower)
            bytes_min = chance.randint(0, 3 << 20) if killed < kills else 0  # a fast machine may be past it by then
            half_way += await asyncio.to_thread(wait_for_piece, nodes, follower, bytes_min)
            victim = nodes.leader() if killed % 2 else follower
            killed += 1
            nodes.kill(victim)
            nodes.start_node(victim)
            await load.more(20, 60)
        nodes.start()
        await load.more(50, 60)
    await asyncio.to_thread(nodes.wait_ready, timeout_s=CATCH_UP_S)
    last = await asyncio.to_thread(settle, nodes, CATCH_UP_S)
    told = [nodes.status(node) for node in nodes.nodes]
    states = {msgspec.json.encode((each.applied, each.state, each.sessions, each.revision)) for each in told if each}
    assert len(states) == 1, states
    assert all(each is not None and each.sessions >= len(load.sessions) for each in told)
    assert {each.oldest for each in told if each} == {1}
    for node in nodes.nodes:
        await wait_until_async(partial(has_all, nodes, node), CATCH_UP_S, what=f"the older log on node {node}")
    logs = await asyncio.gather(*(records_of(url, 1, last) for url in nodes.urls))
    assert logs[0] == logs[1] == logs[2]
    kept = logs[0][min(load.sessions) - 1 :]
    values = [record.value for record in kept if record.session in load.sessions and is_append(record)]
    assert len(values) == len(set(values)), "applied twice"
    lost = {write.value.decode() for write in load.acknowledged} - set(values)
    assert not lost, f"acknowledged and lost: {lost}"
    record_property(
        "measured",
        f"{killed} kills, {half_way} of them half-way, {len(load.acknowledged)} acknowledged, {last} records",
    )
    assert half_way, "no kill fell into the sending of a snapshot: try a larger one"
