"""Real nodes in one process that change their members: joining, leaving, replacing, moving, handing over."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from pathlib import Path

import msgspec
import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config.cluster_file import ClusterNode, render_cluster_file
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.node.formatting import format_cluster
from raftlog.cluster.peers.hello import decode_hello, encode_hello
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.runtime import clock
from raftlog.raft.changes import AddLearners, ChangeAddresses, MemberChange, Promote, Remove, Replace
from raftlog.raft.codec.frame import FrameDecoder
from raftlog.raft.configuration import Member
from raftlog.raft.consensus import recall
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.types import NOBODY
from tests.cluster.nodes import Nodes, cluster_of, deadline, host_of
from tests.cluster.peers.test_forged_hello import spoken
from tests.cluster.peers.test_transport import hello_of
from tests.support import free_ports, hang_s, streams_served, wait_until_async


def member_of(node: Replica) -> Member:
    """A node as the configuration in force names it."""
    member = node.state.core.state.configuration.member(node.node_id)
    assert member is not None
    return member


def formatted(nodes: Nodes, number: int) -> Member:
    """A new disk under that number, formatted with the log's first entry, and put into the cluster file of the test."""
    peer, url = free_ports(2)
    place = ClusterNode(
        number, f"127.0.0.1:{peer}", f"http://127.0.0.1:{url}", f"disk-{secrets.token_hex(4)}", secrets.token_hex(16)
    )
    first = nodes.first
    others = [each for each in nodes.cluster.node if each.id != number]
    nodes.cluster = msgspec.structs.replace(
        nodes.cluster,
        cluster=msgspec.structs.replace(nodes.cluster.cluster, join=number, first=first),
        node=sorted([*others, place], key=lambda each: each.id),
    )
    nodes.file.write_text(render_cluster_file(nodes.cluster), encoding="utf-8")
    format_cluster(nodes.cluster, nodes.file, segment_bytes=nodes.flags["disk.segment_bytes"], nodes=[number])
    return Member(number, place.incarnation, place.peer, place.url)


async def settled(nodes: Nodes, voters: tuple[int, ...]) -> Replica:
    """The leader, once the configuration with these voters alone is committed and nothing is under way."""

    def is_so() -> Replica | None:
        for node in nodes.running.values():
            told = node.state.core.status()
            is_done = told.configuration.voters == voters and not told.is_changing
            if node.is_leader and node.state.members.is_member and is_done:
                return node
        return None

    found = await wait_until_async(is_so, 30, what=f"voters {voters}")
    assert found is not None
    return found


async def moved_to_a_free_port(nodes: Nodes, leader: Replica, number: int) -> Replica:
    """That node, started again at a peer address that the leader committed before."""
    before = member_of(nodes.running[number])
    (port,) = free_ports(1)
    place = Member(number, before.incarnation, f"127.0.0.1:{port}", before.url)
    await leader.change_members(ChangeAddresses((place,)), deadline())
    await nodes.stop(number)
    return await nodes.start(number, peer__listen=place.peer)


async def test_a_new_node_catches_up_and_votes(tmp_path: Path) -> None:
    """It is dialled as soon as a configuration names it, catches up from the log, and becomes a voter by itself."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        for number in range(20):
            await nodes.append(leader, b"before %d" % number)
        joining = formatted(nodes, 4)
        four = await nodes.start(4)
        assert four.status().role == "joining"
        assert four.is_ready is False
        leader = await settled(nodes, (1, 2, 3))  # the start held the loop up: another one may lead by now
        index = await leader.change_members(AddLearners((joining,)), deadline())
        assert index <= leader.applied
        await settled(nodes, (1, 2, 3, 4))
        placed = await nodes.append(four, b"by the new one")
        await nodes.all_at(placed.last)
        assert four.machine.digest() == leader.machine.digest()
        await wait_until_async(lambda: four.status().role == "follower")  # it has no vote until it has everything
        assert sorted(four.status().voters) == [1, 2, 3, 4]


async def test_a_removed_node_says_so_and_stays_harmless(tmp_path: Path) -> None:
    """It hears of it, takes nothing more, never raises the term of the others, and ends with its own exit code."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        gone = (await nodes.followers())[0]
        await leader.change_members(Remove((gone.node_id,)), deadline())
        await wait_until_async(lambda: gone.state.members.is_removed, what="it hears that it is removed")
        assert gone.status().role == "removed"
        assert not gone.is_ready
        with pytest.raises(ApiError) as refused:
            await nodes.append(gone, b"x")
        assert refused.value.code is Code.NO_LEADER
        term = leader.term
        for number in range(5):
            await nodes.append(leader, b"after %d" % number)
        until = clock.monotonic() + 3 * gone.state.options.election_timeout_max_ms / 1_000
        await wait_until_async(lambda: clock.monotonic() > until, what="it had time to disturb")
        assert leader.is_leader
        assert leader.term == term
        assert (
            host_of(leader).transport.connections().keys() & {f"{gone.node_id}/consensus", f"{gone.node_id}/bulk"}
            == set()
        )
        await nodes.stop(gone.node_id)
        assert host_of(gone).ended.result() is NodeExit.REMOVED
        again = await nodes.start(gone.node_id)
        assert again.status().role == "removed"
        assert not again.is_ready
        await nodes.stop(gone.node_id)
        assert host_of(again).ended.result() is NodeExit.REMOVED


async def test_a_wiped_node_comes_back_under_its_number(tmp_path: Path) -> None:
    """Replaced by itself with another disk: the old one goes out first, the new one catches up and votes. Its boot
    counter begins at 1 again, which is no rollback of the old disk.
    """
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        lost = (await nodes.followers())[0].node_id
        await nodes.kill(lost)
        await nodes.append(leader, b"while it is away")
        disk = formatted(nodes, lost)
        await leader.change_members(Replace(lost, disk), deadline())
        back = await nodes.start(lost)
        await settled(nodes, (1, 2, 3))
        placed = await nodes.append(back, b"again")
        await nodes.all_at(placed.last)
        assert member_of(back).incarnation == disk.incarnation


async def test_links_follow_a_changed_address(tmp_path: Path) -> None:
    """A node that listens elsewhere is dialled there once the configuration says so, by everyone."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        moved = (await nodes.followers())[0].node_id
        before = member_of(nodes.running[moved])
        await nodes.stop(moved)
        (port,) = free_ports(1)
        await leader.change_members(
            ChangeAddresses((Member(moved, before.incarnation, f"127.0.0.1:{port}", before.url),)), deadline()
        )
        again = await nodes.start(moved, peer__listen=f"127.0.0.1:{port}")
        placed = await nodes.append(leader, b"there")
        await again.wait_applied(placed.last, deadline(30))
        for node in nodes.running.values():
            assert node is again or host_of(node).transport.connections()[f"{moved}/consensus"] == 1


async def test_a_restarted_node_believes_a_moved_peer_once_it_knows_the_address(tmp_path: Path) -> None:
    """At the address that it knows, no process confirms the other's hello, so it accepts only requests from that node.
    The leader sends it the new address, and then the two elect and acknowledge without the third.
    """
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        moved, away = [node.node_id for node in await nodes.followers()]
        await nodes.stop(away)
        await moved_to_a_free_port(nodes, leader, moved)
        again = await nodes.start(away)
        last = (await nodes.append(leader, b"there")).last
        await nodes.all_at(last)
        await nodes.kill(leader.node_id)
        assert (await nodes.append(again, b"of the two", seconds=20)).last > last


async def test_a_restarted_node_answers_a_leader_that_it_does_not_know(tmp_path: Path) -> None:
    """The members changed while it was down, and the new one leads. Without its answers the leader would never send it
    the entries that name the new member.
    """
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        replaced, away = [node.node_id for node in await nodes.followers()]
        await nodes.stop(away)
        old_file = nodes.file.read_bytes()
        disk = formatted(nodes, 5)
        new = await nodes.start(5)
        await leader.change_members(Replace(replaced, disk), deadline())
        await settled(nodes, tuple(sorted({1, 2, 3, 5} - {replaced})))
        await leader.transfer(5, deadline())
        for number in range(3):
            await nodes.append(new, b"of the new leader %d" % number)
        await nodes.stop(replaced)
        nodes.file.write_bytes(old_file)  # of the day of its start, too
        again = await nodes.start(away)
        last = (await nodes.append(new, b"there")).last
        await again.wait_applied(last, deadline(20))
        assert again.state.core.state.configuration.member(5) is not None
        await nodes.kill(leader.node_id)
        assert (await nodes.append(again, b"of the two", seconds=20)).last > last


async def test_a_restarted_node_answers_a_leader_that_has_moved(tmp_path: Path) -> None:
    """At the address that it knows no process listens any more."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        moved, away = [node.node_id for node in await nodes.followers()]
        await nodes.stop(away)
        new = await moved_to_a_free_port(nodes, leader, moved)
        await wait_until_async(lambda: new.is_ready, what="the moved node follows")
        await leader.transfer(moved, deadline())
        await nodes.append(new, b"before")
        again = await nodes.start(away)
        last = (await nodes.append(new, b"there")).last
        await again.wait_applied(last, deadline(20))
        await nodes.kill(leader.node_id)
        assert (await nodes.append(again, b"of the two", seconds=20)).last > last


async def test_impossible_changes_are_refused_with_the_reason(tmp_path: Path) -> None:
    """Each refusal is one of two codes with one word of why, and leaves everything as it was."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        follower = (await nodes.followers())[0]
        configuration = leader.state.core.state.configuration
        twin = Member(7, member_of(follower).incarnation, "127.0.0.1:1", "http://127.0.0.1:1")
        refusals: list[tuple[MemberChange, Code, str]] = [
            (AddLearners((member_of(follower),)), Code.MEMBERS_REFUSED, "already_member"),
            (AddLearners((twin,)), Code.MEMBERS_REFUSED, "incarnation_reused"),
            (Remove((9,)), Code.MEMBERS_REFUSED, "unknown_node"),
            (Remove((1, 2, 3)), Code.MEMBERS_REFUSED, "last_voter"),
            (Promote((follower.node_id,)), Code.MEMBERS_REFUSED, "nothing_changes"),
            (ChangeAddresses((member_of(follower),)), Code.MEMBERS_REFUSED, "nothing_changes"),
        ]
        for change, code, why in refusals:
            with pytest.raises(ApiError) as refused:
                await leader.change_members(change, deadline())
            assert (refused.value.code, refused.value.more["why"]) == (code, why), change
        with pytest.raises(ApiError) as refused:
            await follower.change_members(Remove((follower.node_id,)), deadline())
        assert refused.value.code is Code.NO_LEADER
        with pytest.raises(ApiError) as refused:
            await leader.transfer(leader.node_id, deadline())
        assert refused.value.more["why"] == "cannot_transfer"
        assert leader.state.core.state.configuration == configuration


async def test_a_join_file_has_the_first_entry_also_where_a_snapshot_took_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new node's log must begin as that of everyone: else a leader that has index 1 could never go on from it."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()
        from_log = await leader.first_entry()
        assert from_log.index == 1

        def gone(index: int) -> None:
            raise ApiError(Code.COMPACTED, f"index {index} is gone")

        monkeypatch.setattr(leader.state.reader, "check_oldest", gone)
        assert await leader.first_entry() == from_log


async def test_a_copy_from_when_its_node_was_the_only_voter_stops_leading_once_a_peer_meets_it(tmp_path: Path) -> None:
    """Its configuration names no peer that it could ask before it leads. A peer dials it, refuses it and reports what
    its disk lost. Before, it led by itself until it was stopped."""
    async with cluster_of(3, tmp_path) as nodes:
        alone = (await nodes.leader()).node_id
        others = [node for node in (1, 2, 3) if node != alone]
        places = tuple(member_of(nodes.running[node]) for node in others)
        await nodes.running[alone].change_members(Remove(tuple(others)), deadline())
        await settled(nodes, (alone,))
        folder = nodes.data(alone)
        shutil.copytree(folder, tmp_path / "copy")
        for node in others:
            await nodes.stop(node)
        grown = tuple(formatted(nodes, place.node) for place in places)
        for node in others:
            await nodes.start(node)
        await nodes.running[alone].change_members(AddLearners(grown), deadline())
        await settled(nodes, (1, 2, 3))
        await nodes.kill(alone)
        await nodes.start(alone)
        leader = await nodes.leader()
        last = (await nodes.append(leader, b"acknowledged by three")).last
        role = leader.state.core.state.role
        assert isinstance(role, Leader)
        await wait_until_async(lambda: leader.node_id == alone or role.progress[alone].match >= last)
        await nodes.kill(alone)
        shutil.rmtree(folder)
        (tmp_path / "copy").rename(folder)
        copied = await nodes.start(alone)
        await wait_until_async(lambda: bool(copied.state.core.state.recall.floor), what="the copy is under a floor")
        assert not copied.is_leader


async def test_a_node_without_a_leader_dials_a_node_that_it_does_not_know(tmp_path: Path) -> None:
    """A candidate that joined while this node was cut off needs its vote, and gets the answer only on a link that this
    node dials. Before, it dialled back no node but a leader, and the two of them elected none. The simulator showed it.
    """
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        one, two = await nodes.followers()
        await nodes.kill(leader.node_id)
        await nodes.kill(two.node_id)
        state = one.state.core.state
        await wait_until_async(lambda: state.leader == NOBODY and not recall.is_waiting(state), what="no leader")
        dialled = asyncio.Event()

        async def listens(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            (hello,) = FrameDecoder().feed(await reader.read(1_000))
            assert decode_hello(hello).to == 9
            dialled.set()

        port = int(member_of(one).peer.rpartition(":")[2])
        async with streams_served(listens) as there:
            hello = hello_of(log=one.state.identity.log_id, sender=9, to=one.node_id, at=f"127.0.0.1:{there}")
            async with spoken(port, encode_hello(hello)):
                await asyncio.wait_for(dialled.wait(), hang_s())
