"""What breaks of the links between real nodes do to a leader: nothing, while its process lives and can be dialled again."""

from collections.abc import Collection
from pathlib import Path

import pytest

from cluster.node import Node
from raft.roles import Follower
from tests.cluster.nodes import Nodes, cluster_of
from tests.support import wait_until_async

DEFAULTS = {"raft__heartbeat_ms": 60, "raft__election_timeout_min_ms": 300, "raft__election_timeout_max_ms": 600}
"""The elections of the product, not the quick ones of these tests: the delays after a closed link belong to them."""

Pair = tuple[int, int]


def break_links(nodes: Nodes, pairs: Collection[Pair]) -> list[object]:
    """Aborts what the first of each pair has dialled to the second: consensus and bulk. The connections."""
    broken: list[object] = []
    for node in nodes.running.values():
        for (sender, _, _), connection in list(node.transport.current.items()):
            if (sender, node.node_id) in pairs:
                broken.append(connection)
                connection.abort()
    return broken


async def joined_again(nodes: Nodes, broken: Collection[object]) -> None:
    """Waits until none of these connections is left, each link has a new one, and one leader is heard by all."""

    def is_joined() -> bool:
        others = len(nodes.running) - 1
        return all(
            not any(old in node.transport.accepted for old in broken)
            and len(node.transport.current) == 2 * others
            and follows(node)
            for node in nodes.running.values()
        )

    def follows(node: Node) -> bool:
        role = node.core.state.role
        return node.is_leader or (isinstance(role, Follower) and role.leader != 0 and not role.link_closed)

    await wait_until_async(is_joined, what="every link again, and one leader that is heard")


def all_pairs(nodes: Nodes) -> list[Pair]:
    """Every link, by who dials whom."""
    return [(one, other) for one in nodes.running for other in nodes.running if one != other]


@pytest.mark.parametrize("count", [3, 5])
async def test_a_break_of_all_links_leaves_a_healthy_leader_in_place(tmp_path: Path, count: int) -> None:
    """As a reload of a firewall does it: all connections end at once, and each can be made again at once."""
    async with cluster_of(count, tmp_path, **DEFAULTS) as nodes:
        leader = await nodes.leader()
        term = leader.term
        for _ in range(10):
            await joined_again(nodes, break_links(nodes, all_pairs(nodes)))
            assert (leader.is_leader, leader.term) == (True, term)
        assert (await nodes.append(leader, b"after")).term == term
