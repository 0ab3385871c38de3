"""A refused hello acts only once it is proved, and seldom; a removed node is refused by name, and its links end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from raftlog.cluster.peers import accepted, refused_hellos
from raftlog.cluster.peers.hello import Hello, Purpose, decode_refusal, encode_hello
from raftlog.cluster.peers.refused_hellos import EVERY_S, RefusedHello, RefusedHellos
from raftlog.raft.changes import AddLearners, Remove
from raftlog.raft.codec.frame import FrameDecoder
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.hello import PeerProcess, Start
from tests.cluster.nodes import Nodes, cluster_of, deadline, host_of
from tests.cluster.peers.test_forged_hello import forged, silent, spoken, told
from tests.cluster.peers.test_transport import answer_to, configuration_of, hello_of, transports
from tests.cluster.replica.parts.test_members import formatted, settled
from tests.support import hang_s, streams_served, wait_until_async


def start_of(run: int) -> Start:
    """What a process says of itself that found an empty disk."""
    return Start(run=run, last_index=0, last_term=0, term=0, floor=0)


async def refusal_of(nodes: Nodes, hello: Hello) -> str:
    """Why the node that it greets refuses that hello."""
    async with told(nodes, hello) as reader:
        said = FrameDecoder().feed(await asyncio.wait_for(reader.read(), hang_s()))
    return decode_refusal(said[-1]) or ""


def test_the_core_hears_of_proved_hellos_alone_and_of_one_a_second_from_each_peer() -> None:
    """Those in between are not lost: the newest follows. A process that is believed meanwhile may have promised more,
    so the core hears of the next refused one at once. Nodes that are dialled no more are forgotten."""
    seen = RefusedHellos()
    first, second, other = (
        RefusedHello(2, "a", start_of(1)),
        RefusedHello(2, "a", start_of(2)),
        RefusedHello(3, "b", start_of(3)),
    )
    seen.refuse(first, is_proved=False)
    assert seen.due(10.0) == []
    for each in (first, other):
        seen.refuse(each, is_proved=True)
    assert seen.due(10.0) == [first, other]
    seen.refuse(first, is_proved=True)
    seen.refuse(second, is_proved=True)
    assert seen.due(10.0 + EVERY_S / 2) == []
    assert seen.due(10.0 + EVERY_S) == [second]
    assert seen.due(20.0) == []
    seen.refuse(first, is_proved=True)
    assert seen.due(20.0) == [first]
    seen.refuse(second, is_proved=True)
    seen.believed(2)
    assert seen.due(20.0) == [second]
    seen.refuse(first, is_proved=True)
    seen.keep([3])
    assert seen.due(99.0) == []


async def test_forged_refused_hellos_change_nothing_about_the_node_that_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dozens of hellos in the names of both followers, of processes that never were: older starts of their disks, and
    some of another log. Before, each began a new round at the leader, so that no acknowledgement under way counted:
    33 of them a second stopped all writes where a round trip takes 80 ms. The status said that the leader refuses both.
    """
    heard: list[tuple[int, Start | None]] = []
    monkeypatch.setattr(RaftCore, "hello_refused", lambda _, peer, disk, now, start=None: heard.append((peer, start)))
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        await nodes.append(leader, b"before")
        role = leader.state.core.state.role
        assert isinstance(role, Leader)
        members = [node for node in (1, 2, 3) if node != leader.node_id]
        for node in members:  # as after some starts
            disk = nodes.running[node].state.identity.incarnation
            host_of(leader).transport.incoming.met[node, disk] = PeerProcess(9, 9)
        said = {
            await refusal_of(nodes, forged(nodes, node, leader.node_id, boot=boot, start=start_of(run), **other))
            for node in members
            for run, boot in enumerate(range(1, 9), 1)
            for other in ({}, {"log": "f" * 32})
        }
        assert any("its data folder is an old copy" in each for each in said)
        assert any("two clusters share an address" in each for each in said)
        transport = host_of(leader).transport
        transport.check_silence()
        assert heard == []
        assert [transport.refused_of(node) for node in members] == ["", ""]
        assert [each.refused for each in leader.status().followers] == ["", ""]
        assert all(who.startswith("unproved node ") for _, who, _ in transport.refused_lately)


@pytest.mark.usefixtures("known_challenge")
async def test_a_proved_refused_hello_is_told_once_a_second_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older copy repeats the challenge that came to the member's address. Its peers must report to it."""
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)), streams_served(silent) as other:
        one.set_members(configuration_of([port, other]))
        hello = hello_of(start=start_of(7))
        one.incoming.met[hello.sender, hello.incarnation] = PeerProcess(hello.boot + 1, 0)
        await answer_to(port, encode_hello(replace(hello, answer=0)))
        await answer_to(port, encode_hello(replace(hello, log="f" * 32)))
        assert (ear.turned_away, one.refused_of(2)) == ([], "")
        for _ in range(5):
            await answer_to(port, encode_hello(hello))
        assert ear.turned_away == [(2, hello.incarnation)]
        assert "is an old copy" in one.refused_of(2)
        monkeypatch.setattr(refused_hellos, "EVERY_S", 0.0)
        one.check_silence()
        assert ear.turned_away == 2 * [(2, hello.incarnation)], "the last one was kept back"


async def test_a_removed_node_is_refused_by_name_and_its_connections_end() -> None:
    """It stays unknown to the links: no process with its disk makes this node dial anything."""
    async with transports(2) as ((one, two), (ear, _), (port, _)):
        await wait_until_async(lambda: len(one.incoming.current) == 2, what="both connections of node 2")
        ear.removed.add(hello_of().incarnation)
        one.set_members(replace(one.configuration, members=one.configuration.members[:1], voters=(1,)))
        await wait_until_async(lambda: not one.incoming.current, what="their end")
        assert b"was removed from this cluster" in await answer_to(port, encode_hello(hello_of()))
        await wait_until_async(lambda: any("was removed" in why for _, _, why in one.refused_lately))
        await wait_until_async(lambda: any("was removed" in link.trouble for link in two.links_to(1)), what="its word")
        assert (one.strangers, ear.turned_away) == ({}, [])


async def test_a_removed_number_is_refused_where_a_certificate_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder of a removed node's key can make up a disk. Without TLS a number shows nothing, and a new disk may
    have it: this node may have slept meanwhile."""
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)):
        ear.removed.add(2)
        one.set_members(configuration_of([port]))
        hello = encode_hello(hello_of(incarnation="f" * 32))
        async with spoken(port, hello):
            await wait_until_async(lambda: any(each.sender == 2 for each in one.incoming.open), what="it is heard")
        monkeypatch.setattr(accepted, "shown_certificate", lambda _: {"subject": ()})
        assert b"was removed from this cluster" in await answer_to(port, hello)


async def test_a_node_that_is_about_to_join_gets_in_and_a_removed_one_does_not(tmp_path: Path) -> None:
    """Node 4 is a learner, and is removed: from then on all others refuse its hellos, and have none of its connections.
    Before, they heard it, and took its entries and forwarded requests."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        joining = formatted(nodes, 4)
        four = await nodes.start(4)
        assert not any(node.state.core.state.has_removed(4, joining.incarnation) for node in nodes.running.values())
        leader = await settled(nodes, (1, 2, 3))
        await leader.change_members(AddLearners((joining,), promote=False), deadline())
        last = (await nodes.append(leader, b"for all")).last
        await four.wait_applied(last, deadline())
        await (await nodes.leader()).change_members(Remove((4,)), deadline())
        await nodes.all_at((await nodes.append(await nodes.leader(), b"without it")).last)
        for node in (1, 2, 3):
            links = host_of(nodes.running[node]).transport.incoming.open
            await wait_until_async(lambda: not any(each.sender == 4 for each in links), what="no link")  # noqa: B023 - awaited here
            log, disk = nodes.cluster.cluster.log, joining.incarnation
            hello = Hello(
                log=log,
                sender=4,
                to=node,
                incarnation=disk,
                boot=9,
                purpose=Purpose.CONSENSUS,
                start=start_of(9),
            )
            assert "was removed from this cluster" in await refusal_of(nodes, hello)
