"""Tests damage in files of a running node: reported, never served, repaired by a start if the others are well."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files import scrub
from raftlog.cluster.files.errors import NoSpace
from raftlog.cluster.offline.check import check_folder
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.replica.upkeep import damage, history_guard, snapshots
from raftlog.raft.types import Mark
from raftlog.raft.wal.formats import SIDE_HEADER_SIZE
from raftlog.statemachine.effects import Effects
from tests.cluster.files.disk_folder import flip
from tests.cluster.nodes import Nodes, cluster_of, host_of
from tests.support import hang_s, wait_until_async

SMALL: dict[str, Any] = {"disk__segment_bytes": 8_192, "limits__recent_bytes_max": 1}
OFF: dict[str, Any] = {"scrub__bytes_per_second": 0}
ON: dict[str, Any] = {"scrub__bytes_per_second": 1 << 30, "scrub__pause_ms": 20}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "AGAIN_S", 0.01)
    monkeypatch.setattr(damage, "RETRY_S", 0.1)
    monkeypatch.setattr(damage, "CALM_S", 0.3)


async def written(nodes: Nodes, entries: int = 60) -> int:
    """So many entries of half a kilobyte, on every node; the index of the last."""
    leader = await nodes.leader()
    last = 0
    for number in range(entries):
        last = (await nodes.append(leader, value(number))).last
    await nodes.all_at(last)
    return last


def value(number: int) -> bytes:
    """Of the n-th entry that `written` writes."""
    return b"value-%06d-" % number + bytes(500)


def folder_of(node: Replica) -> Path:
    """Where its segments are."""
    return Path(node.state.disk._opened.shard) / "log"


def segments_of(node: Replica) -> list[Path]:
    """In order; the last one is written."""
    return sorted(folder_of(node).glob("*.seg"))


def spoil(node: Replica, number: int = 1, ending: str = ".seg") -> Path:
    """Changes a byte in its n-th sealed segment, or beside it: an entry's data, a row, an effect."""
    path = segments_of(node)[number].with_suffix(ending)
    flip(path, path.read_bytes().index(b"value-") if ending == ".seg" else SIDE_HEADER_SIZE + 16)
    return path


async def ended(node: Replica) -> NodeExit:
    """How it ended, within some seconds."""
    async with asyncio.timeout(hang_s()):
        return await asyncio.shield(host_of(node).ended)


async def restarted(nodes: Nodes, node: Replica) -> Replica:
    """The process goes, and a supervisor starts it again."""
    nodes.running.pop(node.node_id)
    await host_of(node).stop()
    return await nodes.start(node.node_id, **OFF)


def keep_history_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other node is known to have a node's older history, so that node does not end for damage in it."""
    monkeypatch.setattr(history_guard, "is_kept_by_others", AsyncMock(return_value=False))


async def log_of(node: Replica) -> list[tuple[bytes, Effects]]:
    """Header and data of every entry that it serves, and what it did; answers to clients are kept in memory alone."""
    found: list[tuple[bytes, Effects]] = []
    index = node.oldest
    while index <= node.applied:
        for entry, effects in await node.read_log(index, 1_000, 1 << 20):
            requests = tuple([each._replace(answer=b"") for each in effects.requests])
            found.append((entry.header + entry.data, effects._replace(requests=requests)))
            index = entry.index + 1
    return found


async def test_a_damaged_segment_is_found_and_heals_from_the_others(tmp_path: Path) -> None:
    """No client read it: scrubbing names file, byte and index, and the node ends with its code. The next start reads
    that segment, cuts the log there and gets the rest from the others. Until then it served nothing wrong.
    """
    async with cluster_of(3, tmp_path, **SMALL, **ON) as nodes:
        last = await written(nodes)
        damaged, healthy = await nodes.followers()
        path = spoil(damaged)
        position = path.read_bytes().index(b"RLEN", 0)
        assert await ended(damaged) is NodeExit.DAMAGED
        told = damaged.status()
        assert told.role == "fenced"
        assert told.scrub.damage.startswith(f"log/{path.name}: damaged at byte ")
        assert int(told.scrub.damage.split("byte ")[1].split(",")[0]) >= position
        assert f"after index {int(path.stem) - 1}" in told.scrub.damage
        assert damaged.metrics.registry.get_sample_value("raftlog_damaged_places") == len(damaged.state.damage.findings)
        again = await restarted(nodes, damaged)
        assert again.state.core.state.recall.floor > 0, "it has lost acknowledged entries, and may not vote"
        last = (await nodes.append(await nodes.leader(), b"after")).last
        await nodes.all_at(last)
        await wait_until_async(lambda: again.state.core.state.recall.floor == 0, what="healed")
        assert again.machine.digest_at(last) == healthy.machine.digest_at(last)
        assert await log_of(again) == await log_of(healthy)


@pytest.mark.parametrize("ending", [".idx", ".ledger"])
async def test_derived_files_are_rebuilt_from_their_segment(tmp_path: Path, ending: str) -> None:
    """A wrong row, a wrong effect: nothing that was acknowledged is lost, so the node starts with its vote."""
    async with cluster_of(3, tmp_path, **SMALL, **ON) as nodes:
        last = await written(nodes)
        damaged, healthy = await nodes.followers()
        path = spoil(damaged, 1, ending)
        assert await ended(damaged) is NodeExit.DAMAGED
        again = await restarted(nodes, damaged)
        assert again.state.core.state.recall.floor == 0
        await nodes.all_at(last)
        await wait_until_async(lambda: again.state.applier.is_written, what="effects in their files")
        assert (await log_of(again))[:last] == (await log_of(healthy))[:last]
        await nodes.stop(again.node_id)
        assert path.exists()
        assert check_folder(path.parents[2]).troubles == []


async def test_damage_found_by_a_reader_ends_the_node(tmp_path: Path) -> None:
    """Without scrubbing: the reader gets an error and no data, and the node does as if it had found it itself."""
    async with cluster_of(3, tmp_path, **SMALL, **OFF) as nodes:
        last = await written(nodes)
        damaged, healthy = await nodes.followers()
        path = spoil(damaged)
        with pytest.raises(ApiError) as refused:
            await log_of(damaged)
        assert refused.value.code is Code.INTERNAL
        assert path.name in refused.value.message
        assert await ended(damaged) is NodeExit.DAMAGED
        assert f"log/{path.name}: damaged at byte" in damaged.status().scrub.damage
        again = await restarted(nodes, damaged)
        await nodes.append(await nodes.leader(), b"after")
        await nodes.all_at(last)
        await wait_until_async(lambda: again.state.core.state.recall.floor == 0, what="healed")
        assert (await log_of(again))[:last] == (await log_of(healthy))[:last]


async def test_a_node_that_cannot_apply_ends_once_the_others_are_well(tmp_path: Path) -> None:
    """Damage lies behind the newest snapshot, met by the replay of a start that believed the .idx. The node never
    catches up, so none of its own digest points can show that the others are well. A stable leader shows it.
    """
    async with cluster_of(3, tmp_path, **SMALL, **OFF) as nodes:
        last = await written(nodes)
        damaged, healthy = await nodes.followers()
        await nodes.stop(damaged.node_id)
        spoil(damaged)
        stuck = await nodes.start(damaged.node_id)
        assert await ended(stuck) is NodeExit.DAMAGED
        assert stuck.applied < last
        again = await restarted(nodes, stuck)
        last = (await nodes.append(await nodes.leader(), b"after")).last
        await nodes.all_at(last)
        assert again.machine.digest_at(last) == healthy.machine.digest_at(last)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_damaged_node_that_no_peer_can_heal_serves_on(tmp_path: Path, count: int) -> None:
    """A start would refuse such a log, because no majority can go on without this node: a log with one unreadable place
    is better than none. The node reports it, serves everything else, and ends on request.
    """
    async with cluster_of(count, tmp_path, **SMALL, **ON) as nodes:
        last = await written(nodes)
        node = await nodes.leader()
        path = spoil(node)
        await wait_until_async(lambda: node.status().scrub.damage, what="reported damage")
        rounds = node.status().scrub.rounds
        await wait_until_async(lambda: node.status().scrub.rounds > rounds + 1, what="further rounds")
        assert not host_of(node).ended.done()
        assert path.with_suffix(".idx").exists()
        with pytest.raises(ApiError):
            await log_of(node)
        assert (await nodes.append(node, b"after")).last == last + 1
        assert await node.read_log(last, 1, 1)


async def test_older_history_is_not_given_up_for_one_place_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the newest snapshot a start would repair by dropping the log up to it, and that may be the last copy. The
    node reports it and serves everything else. For a file that a start builds again from the segment the node ends:
    that costs nothing.
    """

    keep_history_alone(monkeypatch)
    async with cluster_of(3, tmp_path, **SMALL, **ON, limits__snapshot_log_bytes=20_000) as nodes:
        last = await written(nodes)
        node, healthy = await nodes.followers()
        await wait_until_async(
            lambda: node.state.snapshots.index and not node.state.snapshots.is_saving, what="a snapshot"
        )
        assert node.state.snapshots.index > int(segments_of(node)[2].stem)
        spoil(node)
        await wait_until_async(lambda: node.status().scrub.damage, what="reported damage")
        rounds = node.status().scrub.rounds
        await wait_until_async(lambda: node.status().scrub.rounds > rounds + 3, what="further rounds")
        assert not host_of(node).ended.done()
        assert await node.read_log(1, 1, 1)
        assert (await nodes.append(node, b"after")).last == last + 1
        spoil(node, 0, ".idx")
        assert await ended(node) is NodeExit.DAMAGED
        again = await restarted(nodes, node)
        assert (again.oldest, again.state.core.state.recall.floor) == (1, 0)
        await nodes.all_at(last)
        with pytest.raises(ApiError):
            await log_of(again)
        assert (await again.read_log(1, 1, 1))[0][0] == (await healthy.read_log(1, 1, 1))[0][0]


async def test_a_leader_that_cannot_read_a_followers_entries_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it goes on otherwise, because it may have the only copy: another node can read it."""
    keep_history_alone(monkeypatch)
    little = {"limits__snapshot_log_bytes": 20_000, "raft__tail_bytes_max": 1_000}
    async with cluster_of(3, tmp_path, **SMALL, **OFF, **little) as nodes:
        leader = await nodes.leader()
        away = (await nodes.followers())[0]
        await nodes.stop(away.node_id)
        await written(nodes)
        await wait_until_async(
            lambda: leader.state.snapshots.index and not leader.state.snapshots.is_saving, what="a snapshot"
        )
        spoil(leader)
        again = await nodes.start(away.node_id)
        await wait_until_async(lambda: again.applied >= 50, what="all that it lacked")
        assert not leader.is_leader
        assert not host_of(leader).ended.done()


async def test_of_two_damaged_nodes_that_look_at_once_at_most_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three voters two with cut logs could elect no leader. While a node asks whether the others are well, it
    reports no digest point itself. So two that ask together wait for each other and ask again; one alone may end.
    """
    monkeypatch.setattr(damage, "POINT_S", 0.3)
    async with cluster_of(3, tmp_path, **SMALL, **OFF) as nodes:
        await written(nodes, 3)
        ill = [node.state for node in await nodes.followers()]
        for _ in range(10):
            assert not all(await asyncio.gather(*map(damage._are_others_well, ill)))
            for each in ill:
                each.watch.points.is_ending = False
        monkeypatch.setattr(damage, "POINT_S", 10.0)
        assert await damage._are_others_well(ill[0])
        assert not ill[0].watch.points.reports(), "it reports nothing any more until it ends"


async def test_a_damaged_snapshot_is_saved_again(tmp_path: Path) -> None:
    """A start would ignore it; no node has to end for it, and no further log is needed for another snapshot. It stays
    as the older of the two kept ones, and is reported as long as it is there.
    """
    async with cluster_of(3, tmp_path, **SMALL, **ON, limits__snapshot_log_bytes=20_000) as nodes:
        await written(nodes, 45)  # enough for one snapshot, not for two
        node = (await nodes.followers())[0]
        await wait_until_async(
            lambda: node.state.snapshots.index and not node.state.snapshots.is_saving, what="a snapshot"
        )
        await nodes.all_at((await nodes.append(node, b"little")).last)  # the next one has another name
        index = node.state.snapshots.index
        damaged = f"snapshots/{index:020d}/chunks"
        path = Path(node.state.disk._opened.shard) / damaged
        flip(path, path.stat().st_size // 2)
        await wait_until_async(lambda: node.state.snapshots.index > index, 30, what="another snapshot")
        await node.state.disk.check_snapshot(node.state.snapshots.index)
        await wait_until_async(lambda: node.status().scrub.damage, 30, what="the damage of the older snapshot")
        assert node.status().scrub.damage.startswith(f"{damaged}: damaged at byte ")
        assert not host_of(node).ended.done()
        assert not node.state.is_damage_known, "nothing waits for it: older log is fetched, and members change, as ever"


async def test_a_damaged_snapshot_that_finds_no_room_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving it again would fill a full disk again and again: it waits for the next round of scrubbing to ask."""
    tried: list[int] = []

    async def save(self: Disk, mark: Mark, *_: object) -> None:
        tried.append(mark.index)
        raise NoSpace("no room for a snapshot")

    async with cluster_of(1, tmp_path, **SMALL, **OFF) as nodes:
        node = await nodes.leader()
        monkeypatch.setattr(Disk, "save_snapshot", save)
        for _ in range(2):
            before = len(tried)
            node.state.snapshots.is_damaged = True
            await wait_until_async(lambda: len(tried) > before, what="an attempt")  # noqa: B023 - awaited here
            await wait_until_async(lambda: not node.state.snapshots.is_saving, what="its end")
            snapshots.save_if_due(node.state)
            assert not node.state.snapshots.is_saving
