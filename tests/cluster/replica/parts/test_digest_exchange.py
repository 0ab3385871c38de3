"""Tests digest points on real nodes in one process: a node whose state differs from the majority's stops serving."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raftlog.chaos.sim.nemesis.states import flip
from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.errors import FolderDamaged
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.replica.upkeep import backfill
from raftlog.raft.wal.divergence import NOTE, DivergenceNote
from tests.cluster.fake_node import serve
from tests.cluster.http.http_probe import ask
from tests.cluster.nodes import QUICK, Nodes, cluster_of, deadline, host_of, put_block
from tests.cluster.replica.upkeep.test_snapshots import EARLY, fall_behind, installed
from tests.support import hang_s, wait_until_async

OFTEN: dict[str, Any] = {"limits__digest_point_entries": 10}


async def put(nodes: Nodes, count: int, key: bytes = b"k") -> int:
    """So many puts through the leader, one entry each; the last index."""
    last = 0
    for number in range(count):
        leader = await nodes.leader()
        last = (await leader.submit(put_block(key, b"%d" % number), 1, deadline=deadline())).last
    return last


def told_of(node: Replica, name: str) -> int:
    """That index in its status."""
    index: int = getattr(node.status().digests, name)
    return index


def all_still(nodes: Nodes) -> bool:
    """Whether every node has applied whatever any has in its log, and no point is due."""
    last = max(node.state.core.state.log.last.index for node in nodes.running.values())
    machines = [node.machine for node in nodes.running.values()]
    every = OFTEN["limits__digest_point_entries"]
    return all(each.applied_index == last and each.entries_since_point() < every for each in machines)


async def ended(node: Replica) -> NodeExit:
    """How it ended, within some seconds."""
    async with asyncio.timeout(hang_s()):
        return await asyncio.shield(host_of(node).ended)


async def test_points_are_committed_and_agreed_on_every_node(tmp_path: Path) -> None:
    """After so many entries the leader commits one; each node finds that its state is the majority's, and says so in
    its status and metrics. An idle log gets none."""
    assert LimitSettings().digest_point_entries == 1_000
    async with cluster_of(3, tmp_path, **OFTEN) as nodes:
        await put(nodes, 25)
        for node in nodes.running.values():
            await wait_until_async(partial(told_of, node, "agreed"), what="an agreed point")
            told = node.status().digests
            assert told.points >= 1
            assert (told.newest, told.differ) == (told.agreed, 0)
            assert 0 <= told.age_ms < 60_000
            sample = node.metrics.registry.get_sample_value
            assert sample("raftlog_digest_agreed_index") == told.agreed
            assert sample("raftlog_digest_points_total") == told.points
            assert sample("raftlog_digests_differ") == 0
        leader = await nodes.leader()
        entries = await leader.read_log(1, 1_000, 1 << 20)
        effects = [effect.result for entry, done in entries for effect in done.requests if not effect.changes]
        assert len(effects) == leader.status().digests.points
        before = leader.applied
        await wait_until_async(lambda: leader.applied == leader.state.core.state.log.last.index)
        assert leader.applied - before <= 1


@pytest.mark.parametrize("who", ["a follower", "the leader"])
async def test_a_node_whose_state_differs_fences_itself_and_is_rebuilt(tmp_path: Path, who: str) -> None:
    """It gives no answers any more and ends with its code; the others go on with every acknowledged write. Restarted it
    builds its state from its log, also if a snapshot holds the wrong one, and removes the note.
    """
    async with cluster_of(
        3, tmp_path, **OFTEN, limits__snapshot_log_bytes=1_500, limits__snapshot_log_percent=1
    ) as nodes:
        await put(nodes, 1, b"kept")
        await put(nodes, 30)
        leader = await nodes.leader()
        wrong = leader if who == "the leader" else (await nodes.followers())[0]
        await wait_until_async(lambda: not wrong.state.snapshots.is_saving, what="a snapshot that is not being made")
        before = wrong.state.snapshots.index
        flip(wrong.machine, b"kept", b"flipped")
        last = 0
        while not host_of(wrong).ended.done():
            try:
                last = max(last, await put(nodes, 1))
            except ApiError as error:
                assert error.row.outcome in (Outcome.NOT_APPLIED, Outcome.UNKNOWN)  # noqa: PT017
                await asyncio.sleep(0)  # refused at once, while the third node has not reported
            except AssertionError:
                break  # there is no leader that all follow: one of them has ended
        assert await ended(wrong) is NodeExit.DIVERGED
        assert wrong.status().role == "fenced"
        with pytest.raises(ApiError) as refused:
            wrong.submit(put_block(b"x", b"y"), 1, deadline=deadline())
        assert refused.value.code is Code.FENCED
        folder = wrong.state.disk._opened.shard
        nodes.running.pop(wrong.node_id)
        await host_of(wrong).stop()
        assert (folder / NOTE).exists()
        last = max(last, await put(nodes, 25))
        again = await nodes.start(wrong.node_id)
        assert not (folder / NOTE).exists()
        assert again.state.snapshots.index <= before
        await nodes.all_at(last)
        healthy = next(node for node in nodes.running.values() if node is not again)
        assert again.machine.digest_at(last) == healthy.machine.digest_at(last)
        await put(nodes, 25)
        await wait_until_async(lambda: again.status().digests.agreed > last, what="an agreed point")


async def test_without_an_equal_majority_writes_are_refused_on_every_node(tmp_path: Path) -> None:
    """Three states, no majority: writes and linearizable reads are refused with a code of their own, readyz and status
    report it; no node is fenced.
    """
    async with cluster_of(3, tmp_path, **OFTEN) as nodes:
        await put(nodes, 1, b"kept")
        await put(nodes, 15)
        # Both go wrong in one turn of the loop, with no point due: one in between finds only the first, and fences it.
        await wait_until_async(partial(all_still, nodes), what="the same applied everywhere, and no point due")
        for node, key in zip(nodes.running.values(), (b"kept", b"k"), strict=False):
            flip(node.machine, key, b"flipped")
        try:
            await put(nodes, 30, b"other")
        except ApiError as error:
            assert error.code is Code.STATES_DIFFER  # noqa: PT017
            assert error.row.outcome is Outcome.NOT_APPLIED  # noqa: PT017
        for node in nodes.running.values():
            await wait_until_async(partial(told_of, node, "differ"), what="states that differ")
            assert not host_of(node).ended.done()
            with pytest.raises(ApiError) as refused:
                node.submit(put_block(b"x", b"y"), 1, deadline=deadline())
            assert refused.value.code is Code.STATES_DIFFER
            with pytest.raises(ApiError) as unread:
                await node.read_barrier(deadline())
            assert unread.value.code is Code.STATES_DIFFER
        async with serve(node) as served:
            reply = await ask(served.port, "GET", "/readyz")
            assert (reply.status, b"states differ" in reply.body) == (503, True)


async def test_a_start_with_a_wrong_state_that_cannot_be_rebuilt_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a leader's snapshot took the place of the log, and is not trusted, the start is refused with the command
    that helps; nothing was changed, so that it is refused again."""
    monkeypatch.setattr(backfill, "_may_go_on", lambda replica: False)
    async with cluster_of(3, tmp_path, **EARLY) as nodes:
        _, follower = await fall_behind(nodes)
        again = await nodes.start(follower)
        await wait_until_async(lambda: installed(again))
        assert again.state.disk.oldest > 1
        await again.state.disk.write_divergence(DivergenceNote(agreed=5, point=10))
        folder = again.state.disk._opened.shard
        await nodes.stop(follower)
        before = sorted(folder.glob("snapshots/*"))
        for _ in range(2):
            with pytest.raises(FolderDamaged, match=r"digest point 10, and it cannot.*raftlog members replace"):
                Disk.open(folder.parent, segment_bytes=QUICK["disk.segment_bytes"])
        assert sorted(folder.glob("snapshots/*")) == before
