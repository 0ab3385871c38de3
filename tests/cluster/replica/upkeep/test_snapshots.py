"""Snapshots between real nodes in one process: a follower that lacks too much log gets the state instead."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.files.errors import NoSpace, StoredSnapshotDamaged
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.replica.upkeep import backfill, snapshots
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.ready import SnapshotFetch, SnapshotWrite
from raftlog.statemachine.commands import Operation, Result
from tests.cluster.files.disk_folder import flip
from tests.cluster.nodes import LONG_ELECTIONS, Nodes, append_block, cluster_of, deadline, put_block
from tests.support import wait_until_async

# Snapshots early and in small pieces, and no log beside them for slow followers; segments are of 1 MiB (QUICK).
EARLY: dict[str, Any] = {
    "limits__snapshot_log_bytes": 200_000,
    "limits__trailing_log_bytes": 1,
    "limits__trailing_log_percent": 1,
    "raft__snapshot_chunk_bytes": 8_192,
    "raft__snapshot_retry_ms": 200,
    "raft__tail_bytes_max": 30_000,
}
VALUE = b"v" * 4_000


@pytest.fixture
def no_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that begins behind a snapshot stays so."""
    monkeypatch.setattr(backfill, "_may_go_on", lambda replica: False)


async def write(nodes: Nodes, count: int, seconds: float = 20.0) -> int:
    """Puts over a few keys through the leader; the last index."""
    last = 0
    for first in range(0, count, 20):
        leader = await nodes.leader()
        blocks = [put_block(b"k%03d" % (number % 150), VALUE) for number in range(first, first + 20)]
        settled = await asyncio.gather(*(leader.submit(block, 1, deadline=deadline(seconds)) for block in blocks))
        last = max(each.last for each in settled)
    return last


async def fall_behind(nodes: Nodes) -> tuple[Replica, int]:
    """Stops a follower, and writes until the leader would rather send a snapshot than the log; (leader, follower)."""
    leader = await nodes.leader()
    follower = next(node for node in nodes.running if node != leader.node_id)
    had = nodes.running[follower].state.core.state.log.last.index
    await nodes.stop(follower)
    for _ in range(20):
        await write(nodes, 300)
        leader = await nodes.leader()
        if leader.state.core.state.log.first > had + 1:
            return leader, follower
    raise AssertionError(f"the log begins at {leader.state.core.state.log.first}, the follower has {had}")


def installed(node: Replica) -> float:
    """How many snapshots that process installed."""
    return node.metrics.registry.get_sample_value("raftlog_raft_events_total", {"event": "SnapshotInstalled"}) or 0.0


@pytest.mark.usefixtures("no_backfill")
async def test_a_follower_far_behind_gets_the_state_while_writes_go_on(tmp_path: Path) -> None:
    """It installs the leader's snapshot under load, and ends with the same state and sessions. It serves later records
    itself and earlier ones through its peers. The leader's own log stays whole: compaction is not retention (pitfall
    57: a log deleted beyond its snapshot).
    """
    async with cluster_of(3, tmp_path, **EARLY) as nodes:
        leader = await nodes.leader()
        opened = encode_block([BlockRecord(Operation.SESSION_OPEN, None, None, None, 600_000)])
        session = (await leader.submit(opened, 1, deadline=deadline())).last
        kept = append_block(b"once", session=session, sequence=1)
        once = await leader.submit(kept, 1, deadline=deadline(), session=session, sequence=1)
        leader, follower = await fall_behind(nodes)
        assert leader.oldest == 1
        again = await nodes.start(follower)
        while not installed(again):  # small, one by one: 20 of VALUE at once grew the state faster than it was sent
            await (await nodes.leader()).submit(put_block(b"k000", b"meanwhile"), 1, deadline=deadline(20))
        last = await write(nodes, 20)
        await nodes.all_at(last)
        assert again.machine.digest() == leader.machine.digest()
        assert again.machine.session_count == 1
        repeated = await again.submit(kept, 1, deadline=deadline(), session=session, sequence=1)
        assert (once.effect.result, repeated.effect.result) == (Result.APPLIED, Result.REPEATED)
        assert again.last_user_index >= last
        begins = again.state.disk.oldest
        assert (begins > 1, again.oldest) == (True, 1)
        for first in (1, begins):
            pairs = await again.read_log(first, 10_000, 1 << 22)
            assert pairs[0][0].first == first
            assert (await again.read_raw(first, last, 1 << 20)).first == first
        assert await again.find_time(0) == 1
        state = again.machine.digest()
        await nodes.stop(follower)
        third = await nodes.start(follower)
        await third.wait_applied(last, deadline(30))
        assert third.state.disk.oldest == begins, "a restart keeps the installed state"
        await nodes.all_at((await nodes.leader()).applied)
        assert third.machine.digest() == (await nodes.leader()).machine.digest()
        assert state.count == third.machine.digest().count


async def test_pieces_go_by_the_bulk_link_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    """A piece that does not follow, or of a snapshot that was never begun, is distinguished from one that does."""
    async with cluster_of(1, tmp_path) as nodes:
        disk = (await nodes.leader()).state.disk
        with pytest.raises(StoredSnapshotDamaged, match="no snapshot of 9 was begun"):
            await disk.write_pieces([SnapshotWrite(9, 1, 100, 200, b"x" * 100)])
        await disk.write_pieces([SnapshotWrite(9, 1, 0, 200, b"\x40\0\0\0" + b"x" * 46)])
        with pytest.raises(StoredSnapshotDamaged, match="came after 50"):
            await disk.write_pieces([SnapshotWrite(9, 1, 100, 200, b"x" * 100)])
        aside = tmp_path / "node-1" / "shard-0" / "snapshots"
        assert [path.name for path in aside.iterdir()] == [f"{9:020d}.new"]
        await disk.write_pieces([SnapshotWrite(12, 1, 0, 200, b"\x40\0\0\0")])
        assert [path.name for path in aside.iterdir()] == [f"{12:020d}.new"], "one at a time"
        with pytest.raises(StoredSnapshotDamaged):
            await disk.check_received(12)


async def test_a_saved_snapshot_does_not_disturb_one_being_received(tmp_path: Path) -> None:
    """Saving removes unfinished snapshots, but not the one whose pieces are coming in right now."""
    async with cluster_of(1, tmp_path, limits__snapshot_log_bytes=20_000) as nodes:
        leader = await nodes.leader()
        await leader.state.disk.write_pieces([SnapshotWrite(10_000, 1, 0, 200, b"\x40\0\0\0")])
        await write(nodes, 20)
        await wait_until_async(lambda: leader.state.snapshots.index > 0 and not leader.state.snapshots.is_saving)
        names = [path.name for path in (tmp_path / "node-1" / "shard-0" / "snapshots").iterdir()]
        assert f"{10_000:020d}.new" in names


async def test_a_snapshot_damaged_at_the_leader_is_saved_again(tmp_path: Path) -> None:
    """One that fails its check is not sent (for ever): the leader saves another, and sends that."""
    async with cluster_of(3, tmp_path, **EARLY, **LONG_ELECTIONS) as nodes:
        leader, follower = await fall_behind(nodes)
        await wait_until_async(lambda: not leader.state.snapshots.is_saving)
        folder = tmp_path / f"node-{leader.node_id}" / "shard-0" / "snapshots"
        damaged = leader.state.snapshots.index
        for path in folder.glob("*/chunks"):
            with path.open("r+b") as file:
                file.seek(10_000)
                file.write(b"damage")
        again = await nodes.start(follower)
        await wait_until_async(lambda: installed(again), 60)
        await nodes.all_at(await write(nodes, 20))
        assert again.machine.digest() == leader.machine.digest()
        assert leader.state.snapshots.index >= damaged
        assert leader.is_leader


def test_an_older_snapshot_that_cannot_be_sent_makes_no_new_one() -> None:
    """A follower asks for a snapshot that is gone or damaged, while a newer one is whole: that one is sent next. Saving
    the state once more would help no follower.
    """

    async def story(parent: Path) -> None:
        async with cluster_of(1, parent) as nodes:
            node = await nodes.leader()
            saved: list[int] = []
            for _ in range(3):  # two are kept
                await nodes.append(node, b"more")
                assert snapshots.save(node.state)
                await wait_until_async(lambda: not node.state.snapshots.is_saving, what="a snapshot")
                saved.append(node.state.snapshots.index)
            folder = parent / "node-1" / "shard-0" / "snapshots"
            assert sorted(int(path.name) for path in folder.iterdir()) == saved[1:]
            for index, is_needed in ((saved[0], False), (saved[1], False), (saved[2], True)):
                if index != saved[0]:
                    flip(folder / f"{index:020d}" / "chunks", 40)
                node.state.snapshots.is_damaged = False
                with pytest.raises(StoredSnapshotDamaged):
                    await snapshots._read(node.state, SnapshotFetch(2, index, node.term, 0, 1 << 20))
                assert node.state.snapshots.is_damaged == is_needed

    with TemporaryDirectory() as parent:
        asyncio.run(story(Path(parent)))


async def test_reads_of_the_old_state_and_heartbeats_go_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a snapshot is put in force the follower still shows its old state, and stays with its leader."""
    async with cluster_of(3, tmp_path, **EARLY) as nodes:
        leader, follower = await fall_behind(nodes)
        again = await nodes.start(follower)
        real, gate = again.state.disk.check_received, asyncio.Event()

        async def held(index: int) -> Any:
            await gate.wait()
            return await real(index)

        monkeypatch.setattr(again.state.disk, "check_received", held)
        await wait_until_async(lambda: again.state.core.state.is_installing, 60)
        before, term = again.applied, again.term
        assert again.machine.applied_index == before
        contact = leader.state.core.state.now.monotonic_ms
        await wait_until_async(
            lambda: any(
                each.node == follower and each.last_contact_ms > contact + 400
                for each in leader.state.core.status().followers
            ),
            60,
        )
        assert (again.applied, again.term) == (before, term)
        gate.set()
        await wait_until_async(lambda: installed(again), 60)
        assert again.applied > before


async def test_a_snapshot_is_saved_by_hand_once_for_each_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer has all that was applied before. The same state is not saved again. One under way is waited for until
    the deadline, and goes on behind it. While it cannot begin, or has no room, the answer says so."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()
        state = leader.state
        await leader.submit(put_block(b"k", b"v"), 1, deadline=deadline())
        applied = leader.applied
        assert await leader.save_snapshot(deadline()) >= applied
        before = state.snapshots.index
        assert await leader.save_snapshot(deadline()) == before
        await leader.submit(put_block(b"k", b"w"), 1, deadline=deadline())
        with pytest.raises(ApiError) as late:
            await leader.save_snapshot(0.0)
        assert (late.value.code, late.value.row.outcome) == (Code.TIMEOUT, Outcome.UNKNOWN)
        assert await leader.save_snapshot(deadline()) >= leader.applied - 1
        await leader.submit(put_block(b"k", b"x"), 1, deadline=deadline())
        with monkeypatch.context() as patch:
            patch.setattr(snapshots, "_may_save", lambda _: False)
            with pytest.raises(ApiError, match="ask again") as busy:
                await leader.save_snapshot(deadline())
        assert busy.value.code is Code.BUSY

        async def no_room(*_: object) -> None:
            raise NoSpace("planted")

        monkeypatch.setattr(state.disk, "save_snapshot", no_room)
        with pytest.raises(ApiError) as full:
            await leader.save_snapshot(deadline())
        assert full.value.code is Code.DISK_FULL


async def test_a_snapshot_is_saved_after_the_set_number_of_records(tmp_path: Path) -> None:
    """Small records: long before `limits.snapshot_log_bytes` there are `limits.snapshot_log_records`, each of which a
    start would replay. With a large state they wait until there is as much log as that state takes."""
    async with cluster_of(1, tmp_path, limits__snapshot_log_records=50) as nodes:
        leader = await nodes.leader()
        for number in range(60):
            await leader.submit(put_block(b"k%d" % number, b"v"), 1, deadline=deadline())
        await wait_until_async(lambda: leader.state.snapshots.index > 0 and not leader.state.snapshots.is_saving)
        await leader.submit(put_block(b"large", b"v" * 500_000), 1, deadline=deadline())
        await wait_until_async(lambda: snapshots.save(leader.state))
        await wait_until_async(lambda: not leader.state.snapshots.is_saving)
        before = leader.state.snapshots.index
        for number in range(60):
            await leader.submit(put_block(b"k%d" % number, b"v"), 1, deadline=deadline())
        snapshots.save_if_due(leader.state)
        assert not leader.state.snapshots.is_saving
        assert leader.state.snapshots.index == before, "little log beside half a megabyte of state"
        assert leader.state.applier.log_records >= 60
        assert not snapshots._is_late(leader.state), "nor would one that is being made be: that goes by bytes"
        leader.state.applier.log_bytes += leader.state.settings.limits.snapshot_log_bytes
        assert snapshots._is_late(leader.state)
        leader.state.applier.log_bytes -= leader.state.settings.limits.snapshot_log_bytes
        await leader.submit(put_block(b"large", b"w" * 500_000), 1, deadline=deadline())
        await wait_until_async(lambda: leader.state.snapshots.index > before)
