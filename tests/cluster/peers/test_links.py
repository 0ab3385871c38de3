"""What breaks of the links between real nodes do to a leader: nothing, while its process can be dialled again."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest

from raftlog.cluster.peers import dialled
from raftlog.cluster.peers.dialled import HELD_S
from raftlog.cluster.peers.hello import Purpose, decode_hello
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.frame import FrameDecoder
from raftlog.raft.consensus.roles import Follower
from tests.cluster.nodes import Nodes, cluster_of, host_of
from tests.cluster.peers.test_transport import Ear, a_transport, configuration_of, transports
from tests.support import free_ports, streams_served, wait_until_async

DEFAULTS = {"raft__heartbeat_ms": 60, "raft__election_timeout_min_ms": 300, "raft__election_timeout_max_ms": 600}
"""The elections of the product, not the quick ones of these tests: the delays after a closed link belong to them."""

Pair = tuple[int, int]


def break_links(nodes: Nodes, pairs: Collection[Pair]) -> list[object]:
    """Aborts what the first of each pair has dialled to the second: consensus and bulk. The connections."""
    broken: list[object] = []
    for node in nodes.running.values():
        for (sender, _, _), connection in list(host_of(node).transport.incoming.current.items()):
            if (sender, node.node_id) in pairs:
                broken.append(connection)
                connection.abort()
    return broken


async def joined_again(nodes: Nodes, broken: Collection[object]) -> None:
    """Waits until none of these connections is left, each link has a new one, and one leader is heard by all."""

    def is_joined() -> bool:
        others = len(nodes.running) - 1
        return all(
            not any(old in host_of(node).transport.incoming.open for old in broken)
            and len(host_of(node).transport.incoming.current) == 2 * others
            and follows(node)
            for node in nodes.running.values()
        )

    def follows(node: Replica) -> bool:
        role = node.state.core.state.role
        return node.is_leader or (isinstance(role, Follower) and role.leader != 0 and not role.link_closed)

    await wait_until_async(is_joined, what="every link again, and one leader that is heard")


def all_pairs(nodes: Nodes) -> list[Pair]:
    """Every link, as a pair of dialler and listener."""
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


async def test_a_connection_that_closes_at_once_counts_as_a_refused_dial() -> None:
    """A proxy takes connections whether or not a process listens behind it."""

    async def proxy(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with transports(1) as ((one,), (ear,), _):
        port = int(one.configuration.member(2).peer.rpartition(":")[2])  # type: ignore[union-attr]
        async with streams_served(proxy, port):
            await wait_until_async(lambda: ear.dialled)
            before = len(ear.refused)
            await wait_until_async(lambda: len(ear.refused) > before + 3)


async def test_a_connection_that_was_up_is_dialled_again_at_once() -> None:
    """Also when it breaks again and again: each new one is there within the shortest pause between two dials."""
    async with transports(2) as ((one, two), (ear, _), _):
        await wait_until_async(lambda: all(one.connections().values()))
        early = list(ear.refused)  # node 2 did not listen yet
        for times in range(1, 6):
            since = clock.monotonic()
            await wait_until_async(lambda since=since: clock.monotonic() > since + 2 * HELD_S)  # type: ignore[misc]
            for connection in list(two.incoming.open):
                connection.abort()
            await wait_until_async(lambda times=times: len(ear.dialled) == 1 + times)  # type: ignore[misc]
        assert ear.refused == early


async def test_a_link_that_is_dialled_again_is_not_reported_as_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node closes a link on which no answer comes, and dials again at once: between the two connections the peer is
    still reached. Once a dial has failed it is not, with the reason.

    Before, `raftlog explain` called both directions down at such a moment, though only one of them was cut.
    """
    monkeypatch.setattr(dialled, "HELD_S", 0.0)

    async def listen(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with transports(1) as ((one,), _, _):
        link = one.link_to(2)
        assert link is not None
        async with streams_served(listen, int(link.address.rpartition(":")[2])):
            await wait_until_async(lambda: link.is_up)
            link.redial()
            assert one.links_seen()[2][:3] == (False, True, "")
            await wait_until_async(lambda: link.is_up, what="the link is dialled again")
        await wait_until_async(lambda: not link.is_reached, what="a dial has failed")
        assert "Connect call failed" in one.links_seen()[2].trouble


async def test_dial_overrides_lead_through_a_proxy() -> None:
    """`dial` names another address for a node; its own is never dialled."""
    (port, proxy_port) = free_ports(2)
    dials: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        dials.append(await reader.read(1_000))

    async with streams_served(proxy, proxy_port):
        transport = a_transport(1, Ear(), dial={2: f"127.0.0.1:{proxy_port}"})
        transport.set_members(configuration_of([port, port]))
        await wait_until_async(lambda: len(dials) >= 2)
        await transport.close()
    hellos = [decode_hello(FrameDecoder().feed(data)[0]) for data in dials[:2]]
    assert {hello.purpose for hello in hellos} == set(Purpose)
    assert {hello.to for hello in hellos} == {2}
