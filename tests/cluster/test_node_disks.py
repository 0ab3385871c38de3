"""Nodes on disks of different room and speed: who leads, who is sent entries, and what clients are told."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster import clock, disk_reports, node_retention, node_room
from cluster.disk_reports import Why
from cluster.node import Node
from cluster.wire import ApiError, Code, Outcome
from raft.codec import Record, encode_block
from statemachine.commands import Operation
from tests.cluster.nodes import Nodes, cluster_of
from tests.cluster.small_disk import SmallDisks
from tests.support import wait_until_async

SEGMENT = 262_144  # far more than what is appended in the moment until a leader hears of a full disk
SMALL: dict[str, Any] = {"disk__segment_bytes": SEGMENT}
ROOM = 2 * SEGMENT
VALUE = bytes(1_000)
MANY = [VALUE] * 64


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> SmallDisks:
    """Disks that are full when the test says so; nodes look at them often."""
    for module, name in ((node_room, "LOOK_S"), (node_room, "SAVE_PAUSE_S"), (node_retention, "LOOK_S")):
        monkeypatch.setattr(module, name, 0.02)
    return SmallDisks(monkeypatch)


def shrink(small: SmallDisks, nodes: Nodes, node: Node, room: int) -> Path:
    """From now on that node's disk has so many bytes of room. Its folder."""
    root = nodes.folder / f"node-{node.node_id}"
    small.room[root] = small.used(root) + room
    return root


def fill_of(small: SmallDisks, nodes: Nodes, node: Node) -> int:
    """How many bytes that node's files take."""
    return small.used(nodes.folder / f"node-{node.node_id}")


async def append_anywhere(nodes: Nodes) -> Node | None:
    """Appends through whichever node takes it, as a client does. Through whom; None: no node took it."""
    for node in list(nodes.running.values()):
        try:
            await nodes.append(node, VALUE, seconds=1)
        except ApiError:
            continue
        return node
    await asyncio.sleep(0)
    return None


async def append_until(nodes: Nodes, is_so: Callable[[], bool], what: str) -> None:
    """Appends without pause until it is so: a disk may find room again once or twice before it is full for good."""
    end = clock.monotonic() + 20
    while not is_so():
        await append_anywhere(nodes)
        assert clock.monotonic() < end, f"not within 20 s: {what}"


async def test_a_leader_without_room_hands_over_to_a_voter_that_has_some(small: SmallDisks, tmp_path: Path) -> None:
    """Only the leader's disk is full: another voter leads at once, writes go on, and what was acknowledged is there."""
    async with cluster_of(3, tmp_path, **SMALL) as nodes:
        leader = await nodes.leader()
        shrink(small, nodes, leader, ROOM)
        await append_until(nodes, lambda: not leader.syncer.has_space, "a full disk")
        began = clock.monotonic()
        await append_until(nodes, lambda: not leader.is_leader, "another leader")
        took_s = clock.monotonic() - began
        second = await nodes.leader()
        for _ in range(20):
            await nodes.append(second, VALUE)
        assert took_s < 1.0


async def make_full(small: SmallDisks, nodes: Nodes, node: Node) -> None:
    """That node's disk has no room: it gives its reserve up with the next segment, and says so to the others."""
    shrink(small, nodes, node, SEGMENT // 2)
    others = [each for each in nodes.running.values() if each is not node]

    def is_known() -> bool:
        return all((report := each.disks.reports().get(node.node_id)) and report.is_full for each in others)

    await append_until(nodes, lambda: not node.syncer.has_space and is_known(), "the others to hear of the full disk")


async def test_the_reserve_of_a_full_follower_is_not_used_up_and_it_catches_up_later(
    small: SmallDisks, tmp_path: Path
) -> None:
    """The leader sends it no entries, and writes go on; reads through it say why they are not answered. With room
    again it gets what it lacks."""
    async with cluster_of(3, tmp_path, **SMALL) as nodes:
        leader = await nodes.leader()
        full = (await nodes.followers())[0]
        await make_full(small, nodes, full)
        await wait_until_async(lambda: full.node_id in leader.disks.holds, what="the leader to hold it")
        await wait_until_async(
            lambda: not full.syncer.is_waiting, what="its last batch on disk: the reserve is for that"
        )
        before = fill_of(small, nodes, full)
        for _ in range(6 * SEGMENT // (64 * len(VALUE))):  # far more than a reserve of two segments
            await nodes.append(leader, *MANY)
        assert leader.is_leader
        assert fill_of(small, nodes, full) - before < SEGMENT // 4
        assert not full.syncer.is_waiting
        assert full.core.state.leader == leader.node_id
        with pytest.raises(ApiError, match=r"its log ends at \d+, before \d+: ask another node") as unread:
            await full.read_barrier(clock.monotonic() + 5)
        assert unread.value.code is Code.DISK_FULL
        with pytest.raises(
            ApiError, match=r"node \d has no room on its disk, other nodes may: node \d lacks"
        ) as refused:
            await nodes.append(full, VALUE)
        assert (refused.value.code, refused.value.row.outcome) == (Code.DISK_FULL, Outcome.NOT_APPLIED)
        del small.room[nodes.folder / f"node-{full.node_id}"]
        await nodes.all_at(leader.applied)
        await wait_until_async(lambda: leader.disks.holds == {}, what="the end of the hold")
        assert leader.is_leader


async def test_a_held_follower_gets_a_trim_and_makes_room_with_it(small: SmallDisks, tmp_path: Path) -> None:
    """It is sent entries up to the trim and the few that its second snapshot needs, its files go, and it follows
    again; the cluster is idle otherwise."""
    async with cluster_of(3, tmp_path, **SMALL) as nodes:
        leader = await nodes.leader()
        for _ in range(4 * SEGMENT // (64 * len(VALUE))):
            await nodes.append(leader, *MANY)
        await nodes.all_at(leader.applied)
        full = (await nodes.followers())[0]
        await make_full(small, nodes, full)
        await wait_until_async(lambda: full.node_id in leader.disks.holds, what="the leader to hold it")
        await nodes.append(leader, VALUE)
        before = leader.applied
        block = encode_block([Record(int(Operation.TRIM), argument=before)])
        await leader.submit(block, 1, deadline=clock.monotonic() + 5)
        await wait_until_async(lambda: full.syncer.has_space, what="room again")
        await wait_until_async(lambda: leader.disks.holds == {}, what="the end of the hold")
        await nodes.append(leader, VALUE)
        await nodes.all_at(leader.applied)
        assert full.disk.oldest > 1


async def test_without_a_majority_with_room_the_answer_says_which_nodes_lack_how_much(
    small: SmallDisks, tmp_path: Path
) -> None:
    """Two of three disks are full: nothing is written into their reserves, every node refuses writes by name of the
    full ones, the leader stays, and a trim is taken and makes room."""
    async with cluster_of(3, tmp_path, **SMALL) as nodes:
        leader = await nodes.leader()
        for _ in range(4 * SEGMENT // (64 * len(VALUE))):
            await nodes.append(leader, *MANY)
        await nodes.all_at(leader.applied)
        one, other = await nodes.followers()
        await make_full(small, nodes, one)
        await make_full(small, nodes, other)
        await wait_until_async(lambda: not leader.disks.takes_writes, what="the leader to know")

        def is_measured(node: Node) -> bool:
            reports = node.disks.reports()
            return all(reports[full.node_id].lacks_bytes for full in (one, other))

        for node in nodes.running.values():
            await wait_until_async(partial(is_measured, node), what="how much the full disks lack")
        for node in nodes.running.values():
            with pytest.raises(ApiError) as refused:
                await nodes.append(node, VALUE)
            error = refused.value
            assert (error.code, error.row.outcome, error.row.retryable) == (Code.DISK_FULL, Outcome.NOT_APPLIED, True)
            for full in (one, other):
                assert f"node {full.node_id} lacks" in error.message
        with pytest.raises(ApiError, match="no majority of the voters 1, 2, 3 answers and has room on its disk"):
            await nodes.append(leader, VALUE)
        assert leader.is_leader
        block = encode_block([Record(int(Operation.TRIM), argument=leader.applied)])
        await leader.submit(block, 1, deadline=clock.monotonic() + 5)
        await wait_until_async(lambda: one.syncer.has_space and other.syncer.has_space, what="room again")
        await wait_until_async(lambda: leader.disks.takes_writes, what="writes to be taken again")
        await nodes.append(one, VALUE)


async def test_a_leader_hands_over_at_most_once_per_pause(small: SmallDisks, tmp_path: Path) -> None:
    """It is full; an operator gives leadership back to it twice: it hands over once and then waits for its pause."""
    async with cluster_of(3, tmp_path, **SMALL, limits__disk_full_pause_ms=60_000) as nodes:
        leader = await nodes.leader()
        await make_full(small, nodes, leader)
        await wait_until_async(lambda: not leader.is_leader, what="another leader")
        del small.room[nodes.folder / f"node-{leader.node_id}"]
        await wait_until_async(lambda: leader.syncer.has_space, what="room again")
        second = await nodes.leader()
        await nodes.all_at(second.applied)
        await second.transfer(leader.node_id, clock.monotonic() + 5)
        await make_full(small, nodes, leader)
        with pytest.raises(ApiError, match="which leads, has no room on its disk, and hands over to a voter that has"):
            await nodes.append(leader, VALUE)
        assert leader.disks.handed_over is not None
        assert b'raftlog_disk_handovers_total{why="disk_full"} 1.0' in leader.metrics.text()


async def test_an_older_peer_is_told_nothing_and_never_leads_for_its_disk(small: SmallDisks, tmp_path: Path) -> None:
    """A rolling upgrade: one of three programs speaks protocol 3. The full leader hands over to the new one, and the
    older peer's connections stay."""
    async with cluster_of(3, tmp_path, **SMALL) as nodes:
        leader = await nodes.leader()
        older = (await nodes.followers())[0].node_id
        await nodes.stop(older)
        await nodes.start(older, speaks=3)
        leader = await nodes.leader()
        await nodes.all_at(leader.applied)
        shrink(small, nodes, leader, SEGMENT // 2)
        await append_until(nodes, lambda: not leader.is_leader, "another leader")
        second = await nodes.leader()
        assert second.node_id not in (older, leader.node_id)
        assert older not in leader.disks.reports()
        assert leader.disks._reports._told.keys() == {second.node_id}


async def test_a_leader_with_a_slow_disk_hands_over_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its syncs take 100 ms more than those of the others: soon another voter leads and stays, writes through it are
    fast again, and the old leader says why it went."""
    monkeypatch.setattr(disk_reports, "SLOT_S", 0.1)
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        slow, real, never = leader.node_id, os.fdatasync, threading.Event()
        root = nodes.folder / f"node-{slow}"

        def fdatasync(descriptor: int) -> None:
            if Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(root):
                never.wait(0.1)
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", fdatasync)
        await append_until(nodes, lambda: not leader.is_leader, "another leader")
        assert leader.disks.handed_over is not None
        assert leader.disks.handed_over[0].why is Why.SLOW
        second = await nodes.leader()
        assert second.node_id != slow
        for _ in range(20):
            await nodes.append(second, VALUE)
        assert second.is_leader
