"""A cluster of real processes is upgraded to a made-up next version under load, and back before the version rises."""

import sys
from pathlib import Path

from raftlog import SyncClient
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.load import Load
from tests.acceptance.logs import check_exactly_once
from tests.compiled import INTERPRETED_ONLY
from tests.support import free_ports, wait_until

PROGRAM = Path(__file__).with_name("next_version.py")
STEPS = ((1, True, [2, 1, 1]), (2, True, [2, 2, 1]), (2, False, [2, 1, 1]), (2, True, [2, 2, 1]))
"""The node that is restarted, whether with the next program, and what each node knows then."""


class Upgraded(LocalCluster):
    """Three nodes, each with the program of today or the next one."""

    def restart(self, node: int, *, is_next: bool) -> None:
        """Stops the node cleanly, and starts that program on its folder."""
        self.stop_node(node)
        self.environments[node] = {"NEXT_VERSION": "1"} if is_next else {}
        self.start_node(node)
        self.wait_ready()

    def versions(self) -> list[tuple[int, int]]:
        """The cluster version in force and the newest known one, as each node says."""
        found = [self.status(node) for node in self.nodes]
        return [(each.cluster_version, each.known_version) for each in found if each is not None]


@INTERPRETED_ONLY
async def test_pitfall_77_a_cluster_is_upgraded_node_by_node_under_load_and_back_before_the_version_rises(
    tmp_path: Path,
) -> None:
    """While one node lacks the next program, the cluster stays at version 1, applies by its rules, and each node may
    have today's program again. With the last node the version rises by itself, at one index on all nodes: they apply
    by the new rules and agree in every digest point. No acknowledged write is lost on the way, and none is doubled.
    Then today's program does not start on such a folder; the next one does.
    """
    settings = {"limits.digest_point_entries": 10}
    nodes = Upgraded(tmp_path / "nodes", settings=settings, ports=free_ports(6), command=(sys.executable, str(PROGRAM)))
    with nodes, SyncClient(nodes.urls) as client:
        nodes.start()
        nodes.wait_ready()

        def read() -> bytes:
            item = client.get(b"k")
            return b"" if item is None else item.value

        async with Load(nodes.urls, writers=4, think_s=0.01) as load:
            for node, is_next, known in STEPS:
                nodes.restart(node, is_next=is_next)
                await load.more(20)
                assert nodes.versions() == [(1, each) for each in known]
                client.put(b"k", b"quiet")
                assert read() == b"quiet"
            nodes.restart(3, is_next=True)
            wait_until(lambda: nodes.versions() == [(2, 2)] * 3, what="cluster version 2 on each node")
            await load.more(20)
            client.put(b"k", b"loud")
            assert read() == b"LOUD"
        await check_exactly_once(nodes, load)
        assert [found.digests.differ for node in nodes.nodes if (found := nodes.status(node))] == [0, 0, 0]
        nodes.stop_node(1)
        nodes.environments[1] = {}
        nodes.start_node(1)
        wait_until(lambda: nodes.exit_code(1) is not None, what="the end of today's program")
        assert nodes.exit_code(1) == NodeExit.UNKNOWN_VERSION
        assert "is at version 2, this program knows versions up to 1" in nodes.tail(1)
        nodes.restart(1, is_next=True)
        assert nodes.versions() == [(2, 2)] * 3
