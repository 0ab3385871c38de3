"""Ctrl-C and SIGTERM: the leader hands over, answers what it took, leaves with 0; it listens on loopback only."""

import asyncio
import itertools
import signal
import socket
import struct
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.conftest import Measure
from tests.acceptance.load import Load
from tests.acceptance.logs import check_exactly_once
from tests.support import TooSlow, stretch

TIMEOUTS = {"unknown/timeout", "not_applied/timeout", "lost/timed_out"}
GAP_S = 1.0  # generous: a hand-over takes some ms, an election without one 300 and more


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
async def test_a_clean_stop_of_the_leader_hands_over(
    cluster: LocalCluster, number: signal.Signals, record_property: Measure
) -> None:
    """A leader that is asked to stop under load ends with 0, another leads at once, and no write is lost, doubled or
    left unknown."""
    async with Load(cluster.urls) as load:
        await load.more(200)
        leader = cluster.leader()
        mark = len(load.acknowledged)
        code = await asyncio.to_thread(cluster.stop_node, leader, number)
        await load.more(200)
        times = [write.at for write in load.acknowledged[mark - 1 :]]
        gap = max(later - earlier for earlier, later in itertools.pairwise(times))
        answers = dict(load.answers)  # before the node is back: it may need longer to catch up than a writer waits
        assert cluster.leader() != leader
        cluster.start_node(leader)
        await asyncio.to_thread(cluster.wait_ready)
    record_property("measured", f"longest gap between writes: {gap * 1000:.0f} ms; {answers}")
    assert code == 0, cluster.tail(leader)
    if gap >= GAP_S * stretch() or set(answers) & TIMEOUTS:
        raise TooSlow(f"{gap:.2f} s without a write, {answers}")
    assert set(answers) <= {
        "applied/applied",
        "not_applied/shutting_down",
        "not_applied/no_leader",
        "lost/not_sent",
    }, f"a leader that stops cleanly answers what it took, and takes nothing that it cannot answer: {answers}"
    await check_exactly_once(cluster, load)


def test_all_nodes_stop_cleanly(cluster: LocalCluster) -> None:
    """Stopped one after the other, the last two without a majority, every node ends with 0 and in time."""
    assert [cluster.stop_node(node) for node in list(cluster.nodes)] == [0, 0, 0]


def test_nothing_listens_beyond_loopback(cluster: LocalCluster) -> None:
    """By the kernel's own table: every listening socket of the nodes is on a loopback address, and there are two."""
    for node in cluster.nodes:
        pid = cluster.pid(node)
        inodes = set()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(descriptor.readlink())
            except FileNotFoundError:
                continue
            if target.startswith("socket:["):
                inodes.add(target.removeprefix("socket:[").removesuffix("]"))
        heard = set()
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and columns[9] in inodes:
                    heard.add((table, *columns[1].split(":")))
        places = {cluster.place(node).peer, urlsplit(cluster.url(node)).netloc}
        assert {f"{_host(table, host)}:{int(port, 16)}" for table, host, port in heard} == places


def _host(table: str, hexadecimal: str) -> str:
    """An address as the kernel writes it: words in the machine's byte order."""
    words = [int(hexadecimal[i : i + 8], 16) for i in range(0, len(hexadecimal), 8)]
    raw = b"".join(struct.pack("=I", word) for word in words)
    return socket.inet_ntop(socket.AF_INET if table == "tcp" else socket.AF_INET6, raw)
