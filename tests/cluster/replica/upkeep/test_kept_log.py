"""The log that a leader's snapshot replaces stays on the disk, and comes back: snapshots take no record from a node."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from raftlog.cluster.offline.check import check_folder
from raftlog.cluster.replica.replica import Replica
from raftlog.statemachine.effects import encode_effects
from tests.cluster.nodes import Nodes, cluster_of
from tests.cluster.replica.upkeep.test_backfill import MANY, everything, held, is_whole, number, trim
from tests.cluster.replica.upkeep.test_snapshots import installed, write
from tests.support import wait_until_async

__all__ = ["held"]

KEPT = "shard-0/kept"


async def replaced(nodes: Nodes, node: int) -> Replica:
    """Kills that node, writes until each other one would send it a snapshot rather than the log, whichever leads by
    then, and starts it again: a snapshot replaces its log."""
    had = nodes.running[node].state.core.state.log.last.index
    await nodes.kill(node)
    for _ in range(20):
        await write(nodes, 300)
        if all(each.state.core.state.log.first > had + 1 for each in nodes.running.values()):
            break
    again = await nodes.start(node)
    await wait_until_async(lambda: installed(again), 60, what="the snapshot is installed")
    await nodes.all_at((await nodes.leader()).applied)
    assert again.state.disk.oldest > had, "its log begins after the snapshot"
    return again


def kept(nodes: Nodes, node: int) -> list[str]:
    """The kept segments of that node."""
    folder = nodes.data(node) / KEPT
    return sorted(path.name for path in folder.glob("*.seg")) if folder.exists() else []


async def test_snapshots_on_all_nodes_one_after_the_other_lose_no_record(tmp_path: Path, held: asyncio.Event) -> None:
    """Every node gets a snapshot, and none has fetched anything before the next one gets its own: no log reaches back
    any more. All of them come back whole, with the same entries and effects.

    Guard: `keep_segments` in `install` of raft/wal/storage.py.
    """
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        await write(nodes, 300)
        wanted = await everything(await nodes.leader(), (await nodes.leader()).applied)
        leader = (await nodes.leader()).node_id
        for who in [*[who for who in nodes.running if who != leader], leader]:
            await replaced(nodes, who)
        assert all(node.state.disk.oldest > 1 for node in nodes.running.values())
        assert all(kept(nodes, who) for who in nodes.running)
        held.set()
        for node in nodes.running.values():
            await wait_until_async(partial(is_whole, node), 60, what=f"the older log of node {node.node_id}")
            found = await everything(node, node.applied)
            assert [pair[0] for pair in found[: len(wanted)]] == [pair[0] for pair in wanted]
            assert [encode_effects(pair[1]) for pair in found[: len(wanted)]] == [
                encode_effects(pair[1]) for pair in wanted
            ]
            assert number(node, "raftlog_reads_passed_on_total") == 0, "it comes from its own disk"
        folders = [nodes.data(who) / KEPT for who in nodes.running]
        await wait_until_async(lambda: not any(each.exists() for each in folders), 60, what="the kept files are gone")


async def test_only_what_the_node_never_had_is_fetched(tmp_path: Path, held: asyncio.Event) -> None:
    """The node is killed once more before anything was fetched: its start finds the kept log again. `raftlog disk
    check` finds nothing wrong with such a folder. The peers send only the records between the kept log and the
    snapshot."""
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        await write(nodes, 600)
        await nodes.all_at((await nodes.leader()).applied)
        who = (await nodes.followers())[0].node_id
        had = nodes.running[who].applied
        begins = (await replaced(nodes, who)).state.disk.oldest
        await nodes.kill(who)
        report = await asyncio.to_thread(check_folder, nodes.data(who))
        assert not [each for each in report.findings if each.is_trouble], report
        assert kept(nodes, who)
        again = await nodes.start(who)
        await nodes.all_at((await nodes.leader()).applied)
        held.set()
        await wait_until_async(partial(is_whole, again), 60, what="the older log")
        found = await everything(again, again.applied)
        gap = sum(pair[0].size for pair in found if had < pair[0].index < begins)
        assert gap < number(again, "raftlog_backfill_bytes_total") < 1.3 * gap, "and the files beside the segments"
        assert sum(pair[0].size for pair in found if pair[0].index <= had) > 600 * 4_000


async def test_a_trim_deletes_what_was_kept(tmp_path: Path, held: asyncio.Event) -> None:
    """All records before the snapshot are trimmed while the backfill is held: nothing is fetched, and no kept file
    stays on the disk."""
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        await write(nodes, 300)
        who = (await nodes.followers())[0].node_id
        again = await replaced(nodes, who)
        assert kept(nodes, who)
        await trim(nodes, again, again.state.disk.oldest)
        held.set()
        await wait_until_async(lambda: not (nodes.data(who) / KEPT).exists(), 60, what="the kept files are gone")
        assert number(again, "raftlog_backfill_segments_total") == 0
