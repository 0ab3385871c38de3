"""Tests nodes on disks of different space and speed: leaders, held followers, and clients' answers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.protocol import disk_reports
from raftlog.cluster.protocol.disk_reports import DiskReport, SyncTimes, Why
from raftlog.cluster.replica.parts import disk_exchange
from raftlog.cluster.replica.replica import Replica
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation
from tests.cluster.disk.small_disk import SmallDisks
from tests.cluster.nodes import LONG_ELECTIONS, Nodes, cluster_of, deadline
from tests.raft.lab import configuration
from tests.support import Patience, wait_until_async

SEGMENT = 262_144  # far more than is appended in the moment until a leader learns of a full disk
SMALL: dict[str, Any] = {"disk__segment_bytes": SEGMENT} | LONG_ELECTIONS
ROOM = 2 * SEGMENT
VALUE = bytes(1_000)
MANY = [VALUE] * 64


def shrink(small: SmallDisks, nodes: Nodes, node: Replica, room: int) -> Path:
    """From now on that node's disk has so many bytes of room. Its folder."""
    root = nodes.folder / f"node-{node.node_id}"
    small.room[root] = small.used(root) + room
    return root


def fill_of(small: SmallDisks, nodes: Nodes, node: Replica) -> int:
    """How many bytes that node's files take."""
    return small.used(nodes.folder / f"node-{node.node_id}")


async def append_anywhere(nodes: Nodes) -> Replica | None:
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
    patience = Patience(20, every_s=0.01)
    while not is_so():
        await append_anywhere(nodes)
        assert not patience.is_over(), f"not within 20 s: {what}"


async def make_full(small: SmallDisks, nodes: Nodes, node: Replica) -> None:
    """That node's disk has no room: it gives its reserve up with the next segment, and says so to the others."""
    shrink(small, nodes, node, SEGMENT // 2)
    others = [each for each in nodes.running.values() if each is not node]

    def is_known() -> bool:
        told = [disk_exchange.reports(each.state).get(node.node_id) for each in others]
        return not node.state.syncer.has_space and all(report is not None and report.is_full for report in told)

    await append_until(
        nodes, lambda: not node.state.syncer.has_space and is_known(), "the others to hear of the full disk"
    )


async def test_the_reserve_of_a_full_follower_is_not_used_up_and_it_catches_up_later(
    small: SmallDisks, tmp_path: Path
) -> None:
    """The leader sends it no entries, and writes go on; reads through it say why they are not answered. With room
    again it gets what it lacks."""
    async with cluster_of(3, tmp_path, **SMALL) as nodes:
        leader = await nodes.leader()
        full = (await nodes.followers())[0]
        await make_full(small, nodes, full)
        await wait_until_async(lambda: full.node_id in leader.state.disks.holds, what="the leader to hold it")
        await wait_until_async(
            lambda: not full.state.syncer.is_waiting, what="its last batch on disk: the reserve is for that"
        )
        before = fill_of(small, nodes, full)
        for _ in range(6 * SEGMENT // (64 * len(VALUE))):  # far more than a reserve of two segments
            await nodes.append(leader, *MANY)
        assert leader.is_leader
        assert fill_of(small, nodes, full) - before < SEGMENT // 4
        assert not full.state.syncer.is_waiting
        assert full.state.core.state.leader == leader.node_id
        with pytest.raises(ApiError, match=r"its log ends at \d+, before \d+: ask another node") as unread:
            await full.read_barrier(deadline())
        assert unread.value.code is Code.DISK_FULL
        lacks = r"node \d (lacks|has found no room)"  # the second one until it has looked again
        with pytest.raises(ApiError, match=rf"node \d has no room on its disk, other nodes may: {lacks}") as refused:
            await nodes.append(full, VALUE)
        assert (refused.value.code, refused.value.row.outcome) == (Code.DISK_FULL, Outcome.NOT_APPLIED)
        del small.room[nodes.folder / f"node-{full.node_id}"]
        await nodes.all_at(leader.applied)
        await wait_until_async(lambda: leader.state.disks.holds == {}, what="the end of the hold")
        assert leader.is_leader


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
        await wait_until_async(lambda: not leader.state.disks.takes_writes, what="the leader to know")

        def is_measured(node: Replica) -> bool:
            reports = disk_exchange.reports(node.state)
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
        block = encode_block([BlockRecord(int(Operation.TRIM), argument=leader.applied)])
        await leader.submit(block, 1, deadline=deadline())
        await wait_until_async(lambda: one.state.syncer.has_space and other.state.syncer.has_space, what="room again")
        await wait_until_async(lambda: leader.state.disks.takes_writes, what="writes to be taken again")
        await nodes.append(one, VALUE)


@pytest.mark.parametrize("is_alone", [True, False], ids=["one full", "two full"])
async def test_a_full_follower_that_lacks_more_than_its_reserve_gets_the_leaders_snapshot_after_a_trim(
    small: SmallDisks, tmp_path: Path, is_alone: bool
) -> None:
    """Entries up to the trim would fill its reserve, and wait there for the space that the trim behind them frees.
    Nor is it sent them when a second disk gets full, and no majority has space: then it gets a snapshot at once."""
    async with cluster_of(3, tmp_path, **SMALL) as nodes:
        leader = await nodes.leader()
        full, other = await nodes.followers()
        for _ in range(4 * SEGMENT // (64 * len(VALUE))):
            await nodes.append(leader, *MANY)
        await nodes.all_at(leader.applied)
        await make_full(small, nodes, full)
        await wait_until_async(lambda: full.node_id in leader.state.disks.holds, what="the leader to hold it")
        await wait_until_async(lambda: not full.state.syncer.is_waiting, what="its last batch on disk")
        for _ in range(6 * SEGMENT // (64 * len(VALUE))):  # far more than a reserve of two segments
            await nodes.append(leader, *MANY)
        if not is_alone:
            await make_full(small, nodes, other)
            await wait_until_async(lambda: not leader.state.disks.takes_writes, what="the leader to know")
        block = encode_block([BlockRecord(int(Operation.TRIM), argument=leader.applied)])
        await leader.submit(block, 1, deadline=deadline())
        await wait_until_async(lambda: full.state.syncer.has_space and other.state.syncer.has_space, what="room again")
        await nodes.append(full, VALUE)
        await nodes.all_at(leader.applied)


class SeldomSynced(SyncTimes):
    """Measured a sync in too few slots for a median."""

    def __init__(self) -> None:
        super().__init__()
        self.any_us = 4_096

    def look(self, now_s: float, syncs: int, seconds: float, under_way_s: float) -> None:
        """Measures nothing more."""


async def test_a_follower_that_syncs_seldom_reports_its_sync_time(tmp_path: Path) -> None:
    """Too few slots with a sync to hand over by, as under a leader with a slow disk: the others hear of the time."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        seldom = (await nodes.followers())[0]
        seldom.state.disks.times = SeldomSynced()

        def is_known() -> bool:
            report = disk_exchange.reports(leader.state).get(seldom.node_id)
            return report is not None and report.sync_us == 4_096

        await wait_until_async(is_known, what="the leader to hear of the time")


@pytest.mark.parametrize("slow_s", [0.1, 0.5])
async def test_a_leader_with_a_slow_disk_hands_over_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_s: float
) -> None:
    """Its syncs take longer than those of the others: soon another voter leads and stays, writes through it are
    fast again, and the old leader says why it went. With 0.5 s followers sync in few slots."""
    monkeypatch.setattr(disk_reports, "SLOT_S", 0.1)
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        slow, real, never = leader.node_id, os.fdatasync, threading.Event()
        root = nodes.folder / f"node-{slow}"

        def fdatasync(descriptor: int) -> None:
            if Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(root):
                never.wait(slow_s)
            real(descriptor)

        followers = await nodes.followers()
        await wait_until_async(
            lambda: not any(each.state.disks.times.median_us for each in followers), what="idle disks"
        )
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        await append_until(nodes, lambda: not leader.is_leader, "another leader")
        assert leader.state.disks.handed_over is not None
        assert leader.state.disks.handed_over[0].why is Why.SLOW
        second = await nodes.leader()
        assert second.node_id != slow
        for _ in range(20):
            await nodes.append(second, VALUE)
        assert second.is_leader


def leader_of_three(monkeypatch: pytest.MonkeyPatch, **status: int) -> Any:
    """A leader that heard both followers a moment ago; node 2 reports a full disk."""
    told = {1: DiskReport(free_bytes=1), 2: DiskReport(is_full=True)}
    monkeypatch.setattr(disk_exchange, "reports", lambda replica: told)
    followers = [SimpleNamespace(node=node, last_contact_ms=990) for node in (2, 3)]
    facts = SimpleNamespace(
        followers=followers, configuration=configuration(3), **{"persisted": 9, "commit": 9} | status
    )
    return SimpleNamespace(
        identity=SimpleNamespace(node=1),
        options=SimpleNamespace(election_timeout_max_ms=100),
        core=SimpleNamespace(
            status=lambda: facts,
            state=SimpleNamespace(now=SimpleNamespace(monotonic_ms=1_000)),
        ),
        links=SimpleNamespace(has_dialled=lambda peer: True),
        syncer=SimpleNamespace(is_waiting=False),
    )


def test_a_voter_whose_link_closed_counts_as_one_without_disk_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was heard a moment ago, and nothing is known of its disk. Where the third voter is full, a leader that counts
    it would fill that voter's reserve.

    Guard: `has_dialled` in `all_disks` of cluster/replica/parts/disk_exchange.py.
    """
    replica = leader_of_three(monkeypatch)
    replica.links.has_dialled = lambda peer: peer == 2
    assert not disk_exchange.all_disks(replica).takes_writes
    replica.links.has_dialled = lambda peer: True
    assert disk_exchange.all_disks(replica).takes_writes


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("persisted", [8, 9])
def test_a_leader_cannot_apply_what_waits_for_its_disk(
    monkeypatch: pytest.MonkeyPatch, is_waiting: bool, persisted: int
) -> None:
    """Committed entries that are only under way to the disk are none of these, nor are others that wait."""
    replica = leader_of_three(monkeypatch, persisted=persisted)
    replica.syncer.is_waiting = is_waiting
    assert disk_exchange.all_disks(replica).cannot_apply is (is_waiting and persisted < 9)
