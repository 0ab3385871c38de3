"""Damage in the files of a running node is told, never served, and mended by a start when the others are well."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cluster import node_damage, node_kept, scrubbing
from cluster.disk import Disk
from cluster.disk_check import check_folder
from cluster.disk_errors import NoSpace
from cluster.node import Node
from cluster.node_damage import DamageWork
from cluster.points import Points, Reports
from cluster.settings import NodeExit
from cluster.wire import ApiError, Code
from raft.formats import SIDE_HEADER_SIZE
from raft.types import Mark
from statemachine.effects import Effects
from tests.cluster.disk_folder import flip
from tests.cluster.nodes import Nodes, cluster_of
from tests.support import wait_until_async

SMALL: dict[str, Any] = {"disk__segment_bytes": 8_192, "limits__recent_bytes_max": 1}
OFF: dict[str, Any] = {"scrub__bytes_per_second": 0}
ON: dict[str, Any] = {"scrub__bytes_per_second": 1 << 30, "scrub__pause_ms": 20}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "AGAIN_S", 0.01)
    monkeypatch.setattr(node_damage, "RETRY_S", 0.1)
    monkeypatch.setattr(node_damage, "CALM_S", 0.3)


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


def folder_of(node: Node) -> Path:
    """Where its segments are."""
    return Path(node.disk._opened.shard) / "log"


def segments_of(node: Node) -> list[Path]:
    """In order; the last one is written."""
    return sorted(folder_of(node).glob("*.seg"))


def spoil(node: Node, number: int = 1, ending: str = ".seg") -> Path:
    """Changes a byte in its n-th sealed segment, or beside it: an entry's data, a row, an effect."""
    path = segments_of(node)[number].with_suffix(ending)
    flip(path, path.read_bytes().index(b"value-") if ending == ".seg" else SIDE_HEADER_SIZE + 16)
    return path


async def ended(node: Node) -> NodeExit:
    """How it ended, within some seconds."""
    async with asyncio.timeout(20):
        return await asyncio.shield(node.ended)


async def restarted(nodes: Nodes, node: Node) -> Node:
    """The process goes, and a supervisor starts it again."""
    nodes.running.pop(node.node_id)
    await node.stop()
    return await nodes.start(node.node_id, **OFF)


async def log_of(node: Node) -> list[tuple[bytes, Effects]]:
    """Header and data of every entry that it serves, and what it did."""
    found: list[tuple[bytes, Effects]] = []
    index = node.oldest
    while index <= node.applied:
        for entry, effects in await node.read_log(index, 1_000, 1 << 20):
            found.append((entry.header + entry.data, effects))
            index = entry.index + 1
    return found


async def test_a_damaged_segment_is_found_and_heals_from_the_others(tmp_path: Path) -> None:
    """Nobody read it: scrubbing says file, byte and index, the node ends with its code, and the next start reads that
    segment, cuts the log there and gets the rest from the others. Until then it served nothing wrong."""
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
        assert damaged.metrics.registry.get_sample_value("raftlog_damaged_places") == len(damaged.damage._findings)
        again = await restarted(nodes, damaged)
        assert again.core.state.floor > 0, "it has lost what was acknowledged, and may not vote"
        last = (await nodes.append(await nodes.leader(), b"after")).last
        await nodes.all_at(last)
        await wait_until_async(lambda: again.core.state.floor == 0, what="healed")
        assert again.machine.digest_at(last) == healthy.machine.digest_at(last)
        assert await log_of(again) == await log_of(healthy)


@pytest.mark.parametrize("ending", [".idx", ".ledger"])
async def test_what_was_made_from_the_segment_is_made_anew(tmp_path: Path, ending: str) -> None:
    """A wrong row, a wrong effect: nothing that was acknowledged is lost, so the node starts with its vote."""
    async with cluster_of(3, tmp_path, **SMALL, **ON) as nodes:
        last = await written(nodes)
        damaged, healthy = await nodes.followers()
        path = spoil(damaged, 1, ending)
        assert await ended(damaged) is NodeExit.DAMAGED
        again = await restarted(nodes, damaged)
        assert again.core.state.floor == 0
        await nodes.all_at(last)
        await wait_until_async(lambda: again.applier.is_written, what="effects in their files")
        assert (await log_of(again))[:last] == (await log_of(healthy))[:last]
        await nodes.stop(again.node_id)
        assert path.exists()
        assert check_folder(path.parents[2]).troubles == []


async def test_a_leader_hands_over_before_it_ends(tmp_path: Path) -> None:
    """Nobody waits for an election, and no write is lost or unknown."""
    async with cluster_of(3, tmp_path, **SMALL, **ON) as nodes:
        await written(nodes)
        leader = await nodes.leader()
        spoil(leader)
        await wait_until_async(lambda: not leader.is_leader, what="another leader")
        assert await ended(leader) is NodeExit.DAMAGED
        again = await restarted(nodes, leader)
        last = (await nodes.append(await nodes.leader(), b"after")).last
        await nodes.all_at(last)
        await wait_until_async(lambda: again.core.state.floor == 0, what="healed")


async def test_a_reader_meets_it_first(tmp_path: Path) -> None:
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
        await wait_until_async(lambda: again.core.state.floor == 0, what="healed")
        assert (await log_of(again))[:last] == (await log_of(healthy))[:last]


async def test_one_that_cannot_apply_ends_in_a_calm_time(tmp_path: Path) -> None:
    """Damage behind the newest snapshot, met by the replay of a start that believed the .idx: the node never catches
    up, so no digest point of its own will say that the others are well; a leader that stays does."""
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


async def test_it_goes_on_while_another_node_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that heal at once leave nobody who could be elected: the node serves on, without what it cannot read, until
    all the others are there and have reported a point."""
    looks: list[bool] = []
    silent: set[int] = set()
    really, take = DamageWork._are_others_well, Points.take

    def taken(self: Points, peer: int, incarnation: str, reports: Reports) -> None:
        if peer not in silent:
            take(self, peer, incarnation, reports)

    async def counted(self: DamageWork) -> bool:
        looks.append(await really(self))
        return looks[-1]

    monkeypatch.setattr(node_damage, "POINT_S", 0.3)
    monkeypatch.setattr(DamageWork, "_are_others_well", counted)
    monkeypatch.setattr(Points, "take", taken)
    async with cluster_of(3, tmp_path, **SMALL, **ON) as nodes:
        await written(nodes)
        damaged, away = await nodes.followers()
        await nodes.kill(away.node_id)
        spoil(damaged)
        await wait_until_async(lambda: len(looks) >= 4, what="some looks")
        last = (await nodes.append(damaged, b"meanwhile")).last
        await nodes.all_at(last)
        assert not damaged.ended.done()
        assert damaged.is_ready
        silent.add(away.node_id)
        await nodes.start(away.node_id)
        await wait_until_async(damaged.damage._are_links_up, what="links")
        seen = len(looks)
        await wait_until_async(lambda: len(looks) >= seen + 3, what="further looks")
        assert not damaged.ended.done(), "it is there, and may still be healing: it has reported no point"
        silent.clear()
        assert await ended(damaged) is NodeExit.DAMAGED


@pytest.mark.parametrize("count", [1, 2])
async def test_where_nobody_could_heal_it_a_node_goes_on(tmp_path: Path, count: int) -> None:
    """A start would refuse such a log, for no majority can go on without this node: a log with one place that cannot
    be read is better than none. It is told, everything else is served, and it ends when it is asked to."""
    async with cluster_of(count, tmp_path, **SMALL, **ON) as nodes:
        last = await written(nodes)
        node = await nodes.leader()
        path = spoil(node)
        await wait_until_async(lambda: node.status().scrub.damage, what="damage told")
        rounds = node.status().scrub.rounds
        await wait_until_async(lambda: node.status().scrub.rounds > rounds + 1, what="further rounds")
        assert not node.ended.done()
        assert path.with_suffix(".idx").exists()
        with pytest.raises(ApiError):
            await log_of(node)
        assert (await nodes.append(node, b"after")).last == last + 1
        assert await node.read_log(last, 1, 1)


async def test_older_history_that_others_have_is_fetched_again(tmp_path: Path) -> None:
    """Damage below the newest snapshot: a start mends it by dropping the log up to there. A majority of the others has
    that log, so the node ends for it all the same, and gets it back from them: byte by byte the same."""
    async with cluster_of(3, tmp_path, **SMALL, **ON, limits__snapshot_log_bytes=20_000) as nodes:
        last = await written(nodes)
        node, healthy = await nodes.followers()
        await wait_until_async(lambda: node.snapshots.index and not node.snapshots.is_saving, what="a snapshot")
        assert node.snapshots.index > int(segments_of(node)[2].stem)
        spoil(node)
        assert await ended(node) is NodeExit.DAMAGED
        again = await restarted(nodes, node)
        await nodes.append(await nodes.leader(), b"after")
        await wait_until_async(lambda: again.disk.oldest == 1, 30, what="the older log")
        await nodes.all_at(last)
        assert again.metrics.registry.get_sample_value("raftlog_backfill_segments"), "it came from the others"
        assert (await log_of(again))[:last] == (await log_of(healthy))[:last]


async def test_older_history_is_not_given_up_for_one_place_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the newest snapshot a start would mend by dropping the log up to it, and that may be the last copy: it is
    told, everything else is served. What a start makes anew from the segment costs nothing, so for that it ends."""

    async def is_kept(_: Node) -> bool:
        return False

    monkeypatch.setattr(node_kept, "is_kept_by_others", is_kept)
    async with cluster_of(3, tmp_path, **SMALL, **ON, limits__snapshot_log_bytes=20_000) as nodes:
        last = await written(nodes)
        node, healthy = await nodes.followers()
        await wait_until_async(lambda: node.snapshots.index and not node.snapshots.is_saving, what="a snapshot")
        assert node.snapshots.index > int(segments_of(node)[2].stem)
        spoil(node)
        await wait_until_async(lambda: node.status().scrub.damage, what="damage told")
        rounds = node.status().scrub.rounds
        await wait_until_async(lambda: node.status().scrub.rounds > rounds + 3, what="further rounds")
        assert not node.ended.done()
        assert await node.read_log(1, 1, 1)
        assert (await nodes.append(node, b"after")).last == last + 1
        spoil(node, 0, ".idx")
        assert await ended(node) is NodeExit.DAMAGED
        again = await restarted(nodes, node)
        assert (again.oldest, again.core.state.floor) == (1, 0)
        await nodes.all_at(last)
        with pytest.raises(ApiError):
            await log_of(again)
        assert (await again.read_log(1, 1, 1))[0][0] == (await healthy.read_log(1, 1, 1))[0][0]


async def test_a_leader_that_cannot_send_what_a_follower_lacks_hands_over(tmp_path: Path) -> None:
    """Not even where it goes on otherwise: another node can read it."""
    little = {"limits__snapshot_log_bytes": 20_000, "raft__tail_bytes_max": 1_000}
    async with cluster_of(3, tmp_path, **SMALL, **OFF, **little) as nodes:
        leader = await nodes.leader()
        away = (await nodes.followers())[0]
        await nodes.stop(away.node_id)
        await written(nodes)
        await wait_until_async(lambda: leader.snapshots.index and not leader.snapshots.is_saving, what="a snapshot")
        spoil(leader)
        again = await nodes.start(away.node_id)
        await wait_until_async(lambda: again.applied >= 50, what="all that it lacked")
        assert not leader.is_leader
        assert not leader.ended.done()


async def test_a_damaged_snapshot_is_saved_anew(tmp_path: Path) -> None:
    """A start would pass over it; nothing has to end for it, and no more has to be written for another. It stays as the
    older of the two that are kept, and is told as long as it is there."""
    async with cluster_of(3, tmp_path, **SMALL, **ON, limits__snapshot_log_bytes=20_000) as nodes:
        await written(nodes, 45)  # enough for one snapshot, not for two
        node = (await nodes.followers())[0]
        await wait_until_async(lambda: node.snapshots.index and not node.snapshots.is_saving, what="a snapshot")
        await nodes.all_at((await nodes.append(node, b"little")).last)  # the next one has another name
        index = node.snapshots.index
        damaged = f"snapshots/{index:020d}/chunks"
        path = Path(node.disk._opened.shard) / damaged
        flip(path, path.stat().st_size // 2)
        await wait_until_async(lambda: node.snapshots.index > index, 30, what="another snapshot")
        await node.disk.check_snapshot(node.snapshots.index)
        await wait_until_async(lambda: node.status().scrub.damage, 30, what="the older one told")
        assert node.status().scrub.damage.startswith(f"{damaged}: damaged at byte ")
        assert not node.ended.done()
        assert not node.damage.is_known, "nothing waits for it: older log is fetched, and members change, as ever"


async def test_a_damaged_snapshot_that_finds_no_room_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving it anew would fill a full disk again and again: it waits for the next round of scrubbing to ask."""
    tried: list[int] = []

    async def save(self: Disk, mark: Mark, *_: object) -> None:
        tried.append(mark.index)
        raise NoSpace("no room for a snapshot")

    async with cluster_of(1, tmp_path, **SMALL, **OFF) as nodes:
        node = await nodes.leader()
        monkeypatch.setattr(Disk, "save_snapshot", save)
        for _ in range(2):
            before = len(tried)
            node.snapshots.is_damaged = True
            await wait_until_async(lambda: len(tried) > before, what="an attempt")  # noqa: B023 - awaited here
            await wait_until_async(lambda: not node.snapshots.is_saving, what="its end")
            node.snapshots.save_if_due()
            assert not node.snapshots.is_saving
