"""Tests a full disk: the reserve, the work that goes on in it, and how the node recovers by itself."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.config.settings import DiskSettings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.errors import NoSpace
from raftlog.cluster.files.findings import FileHealth
from raftlog.cluster.files.reserve import RESERVE, RESERVE_SEGMENTS
from raftlog.cluster.offline.check import check_folder
from raftlog.cluster.protocol.request import Inflight, RequestResult
from raftlog.cluster.replica.parts import writes
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.replica.upkeep.disk_space import frees_disk_space
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.wal.formats import index_name
from raftlog.raft.wal.journal import FIRST_SEGMENT_BYTES
from raftlog.statemachine.commands import Operation, Result
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from tests.cluster.disk.small_disk import SmallDisks
from tests.cluster.files.disk_lab import SEGMENT_BYTES, batch, effects_of, make_folder, open_disk, read_all
from tests.cluster.nodes import Nodes, append_block, cluster_of, deadline, put_block
from tests.raft.wal.journal_driver import CONFIGURATION, FIRST, make_entries
from tests.support import wait_until_async

SEGMENT = 16_384
SMALL: dict[str, Any] = {
    "disk__segment_bytes": SEGMENT
}  # snapshots and trailing log as shipped: none is due, all stays
ROOM = 16 * SEGMENT
VALUE = bytes(1_000)
SEGMENT_WHOLE = DiskSettings().segment_bytes


def is_trim(before: int) -> bytes:
    """A request that trims the log."""
    return encode_block([BlockRecord(int(Operation.TRIM), argument=before)])


def disk_use(folder: Path) -> int:
    """Bytes that its files take on the disk."""
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file())


async def fill(disk: Disk) -> NoSpace:
    """Appends entries until there is no room, not even in the reserve."""
    while True:
        new = make_entries(disk._journal.last, 1, (3_000,))
        try:
            await disk.carry_out(batch(*new))
        except NoSpace as error:
            return error


# ---------------------------------------------------------------------------------------------------------------
# The disk.


async def test_the_reserve_is_used_up_and_made_again(small: SmallDisks, tmp_path: Path) -> None:
    """A batch without room goes on in the space of the reserve; when nothing is left the batch waits. With room the
    reserve is there again, and a snapshot makes it larger: two more like it fit."""
    folder = make_folder(tmp_path)
    small.room[folder] = 10 * SEGMENT_BYTES
    disk, _ = open_disk(folder)
    assert (folder / RESERVE).stat().st_size == disk.reserve.bytes == RESERVE_SEGMENTS * SEGMENT_BYTES
    assert not disk.reserve.is_used
    assert "writes wait" in str(await fill(disk))
    assert (disk.reserve.bytes, disk.reserve.is_used) == (0, True)
    assert not (folder / RESERVE).exists()
    assert small.used(folder) > 9 * SEGMENT_BYTES
    disk.keep_reserve()
    last = disk._journal.last.index
    assert len(await read_all(disk, last)) == last  # behind it in the same thread
    assert disk.reserve.bytes == 0
    small.room[folder] += 6 * SEGMENT_BYTES  # also for the next segment, which the writer thread prepares at any time
    disk.keep_reserve()
    await disk.read_entries(0, 1, 1)
    assert disk.reserve.bytes == (folder / RESERVE).stat().st_size == RESERVE_SEGMENTS * SEGMENT_BYTES
    assert not disk.reserve.is_used
    assert not disk.is_fenced
    log = await read_all(disk, disk._journal.last.index)
    await disk.write_effects(effects_of(log))
    await disk.save_snapshot(log[-1].mark, CONFIGURATION, [bytes(5_000)], 1)
    disk.keep_reserve()
    await disk.read_entries(0, 1, 1)
    assert disk.reserve.bytes == (folder / RESERVE).stat().st_size == RESERVE_SEGMENTS * SEGMENT_BYTES + 2 * 5_000
    await disk.close()
    assert FileHealth.UNKNOWN not in [finding.state for finding in check_folder(folder).findings]


async def test_an_empty_node_takes_16_mb_and_a_log_of_two_segments_has_its_whole_reserve(tmp_path: Path) -> None:
    """With segments as shipped. Behind the small first segment come whole ones, and the reserve grows with them."""
    folder = make_folder(tmp_path, segment_bytes=SEGMENT_WHOLE)
    disk, _ = open_disk(folder, SEGMENT_WHOLE)
    assert disk_use(folder) < 16 << 20
    assert disk.reserve.bytes == RESERVE_SEGMENTS * FIRST_SEGMENT_BYTES
    await disk.carry_out(batch(*make_entries(FIRST.mark, 1, (FIRST_SEGMENT_BYTES,))))
    disk.keep_reserve()
    await disk.read_entries(0, 1, 1)
    assert [each.size for each in disk._journal.segments] == [FIRST_SEGMENT_BYTES, SEGMENT_WHOLE]
    assert disk.reserve.bytes == RESERVE_SEGMENTS * SEGMENT_WHOLE


async def test_another_program_gets_no_space_of_the_reserve(small: SmallDisks, tmp_path: Path) -> None:
    """It takes every byte that becomes free. A roll takes the space that the reserve gives before it can."""
    folder = make_folder(tmp_path)
    small.room[folder] = 10 * SEGMENT_BYTES
    disk, _ = open_disk(folder)
    while not disk.reserve.is_used:
        small.room[folder] = small.used(folder)
        await disk.carry_out(batch(*make_entries(disk._journal.last, 1, (3_000,))))
        await disk.write_mark()  # rows too
    last = disk._journal.last.index
    for _ in range(3):
        small.room[folder] = small.used(folder)
        await disk.carry_out(batch(*make_entries(disk._journal.last, 1, (3_000,))))
    assert disk._journal.last.index == last + 3
    assert 0 < disk.reserve.bytes < RESERVE_SEGMENTS * SEGMENT_BYTES


async def test_a_start_on_a_full_disk_uses_the_reserve(small: SmallDisks, tmp_path: Path) -> None:
    """It makes a missing file of rows again, before the node can make room."""
    folder = make_folder(tmp_path)
    disk, _ = open_disk(folder)
    await disk.carry_out(batch(*make_entries(FIRST.mark, 1, (3_000, 3_000))))
    await disk.close()
    (folder / "shard-0" / index_name(1)).unlink()
    small.room[folder] = small.used(folder)
    again, _ = open_disk(folder)
    assert (again.reserve.is_used, again._journal.last.index) == (True, 3)
    assert len(await read_all(again, 3)) == 3


async def test_a_reserve_that_finds_too_little_room_takes_none(small: SmallDisks, tmp_path: Path) -> None:
    """Beside too small a disk nothing half-made is there, not even for a moment: what room there is can be used."""
    folder = make_folder(tmp_path)
    small.room[folder] = small.used(folder) + SEGMENT_BYTES
    disk, _ = open_disk(folder)
    assert disk.reserve.bytes == 0
    assert RESERVE not in small.allocated
    await disk.carry_out(batch(*make_entries(FIRST.mark, 1, (3_000, 3_000))))


async def test_another_program_gets_no_space_of_a_deleted_snapshot(small: SmallDisks, tmp_path: Path) -> None:
    """It takes every byte that is free once a snapshot is saved. The reserve has taken back what the oldest one left:
    so it has room for one more, and one more, where without that it would have none for the second."""
    folder = make_folder(tmp_path)
    small.room[folder] = 40 * SEGMENT_BYTES
    disk, _ = open_disk(folder)
    state = [bytes(2 * SEGMENT_BYTES)] * 3

    async def save() -> None:
        await disk.carry_out(batch(*make_entries(disk._journal.last, 1, (10,))))
        log = await read_all(disk, disk._journal.last.index)
        await disk.write_effects(effects_of(log[-1:]) if disk.snapshot_bytes else effects_of(log))
        await disk.save_snapshot(log[-1].mark, CONFIGURATION, state, 1)

    for _ in range(2):
        await save()
    disk.keep_reserve()
    await disk.read_entries(0, 1, 1)
    whole = disk.reserve.bytes
    assert not disk.reserve.is_used
    for _ in range(3):
        small.room[folder] = small.used(folder)
        await save()
        assert whole - SEGMENT_BYTES <= disk.reserve.bytes == (folder / RESERVE).stat().st_size < whole
        assert disk.reserve.is_used
    await disk.close()


async def test_a_snapshot_without_room_uses_the_reserve(small: SmallDisks, tmp_path: Path) -> None:
    """The first attempt has the reserved space. If that is not enough: NoSpace, and no unfinished file stays."""
    folder = make_folder(tmp_path)
    small.room[folder] = 10 * SEGMENT_BYTES
    disk, _ = open_disk(folder)
    await disk.write_effects(effects_of([FIRST]))
    await disk.write_mark()
    small.room[folder] = small.used(folder) + 1_000
    large = [bytes(SEGMENT_BYTES)] * 4
    with pytest.raises(NoSpace):
        await disk.save_snapshot(FIRST.mark, CONFIGURATION, large, 1)
    assert disk.reserve.bytes == 0
    await disk.save_snapshot(FIRST.mark, CONFIGURATION, [bytes(6_000)], 1)
    assert disk.reserve.is_used


# ---------------------------------------------------------------------------------------------------------------
# Accepted requests.


def consumer(action: ConsumerAction) -> bytes:
    """A request about a consumer group."""
    command = encode_consumer(ConsumerCommand(int(action)))
    return encode_block([BlockRecord(int(Operation.CONSUMER), b"readers", command)])


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (is_trim(5), True),
        (encode_block([BlockRecord(int(Operation.COMPACT), argument=5)]), True),
        (consumer(ConsumerAction.DELETE), True),
        (consumer(ConsumerAction.CLAIM), False),
        (encode_block([BlockRecord(int(Operation.CONSUMER), b"readers", b"?")]), False),
        (
            encode_block(
                [BlockRecord(int(Operation.TRIM), argument=5), BlockRecord(int(Operation.APPEND), None, b"x")]
            ),
            False,
        ),
        (append_block(b"x"), False),
        (put_block(b"k", b"v"), False),
        (is_trim(5)[:-1], False),
        (b"", False),
    ],
)
def test_only_records_that_free_space_are_taken_when_full(block: bytes, expected: bool) -> None:
    """One record that does nothing but let go; everything else, bytes that are no request among it, does not."""
    assert frees_disk_space(block) is expected


async def test_queued_writes_are_refused_once_the_disk_is_full(tmp_path: Path) -> None:
    """A full disk's reserve is not for what waited to be proposed: that is not applied. A trim among it stays."""
    async with cluster_of(1, tmp_path, **SMALL) as nodes:
        leader = await nodes.leader()
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[RequestResult]] = [loop.create_future() for _ in range(2)]
        leader.state.syncer.has_space = False
        for block, future in zip((append_block(b"x"), is_trim(1)), futures, strict=True):
            leader.state.writes.pending.submit(Inflight(block, 1, deadline(10), 0, 0, future))
        writes.propose_or_forward(leader.state, clock.monotonic(), is_due=True)
        error = futures[0].exception()
        assert isinstance(error, ApiError)
        assert (error.code, error.row.outcome) == (Code.DISK_FULL, Outcome.NOT_APPLIED)
        assert (await futures[1]).effect.result is Result.APPLIED


# ---------------------------------------------------------------------------------------------------------------
# Nodes.


async def fill_up(nodes: Nodes, node: Replica) -> ApiError:
    """Appends through that node until it refuses one."""
    while True:
        try:
            await nodes.append(node, VALUE, seconds=10)
        except ApiError as error:
            return error


def is_open(node: Replica) -> bool:
    """Whether it takes writes, and keeps its reserve."""
    return node.state.syncer.has_space and node.state.disk.reserve.bytes > 0


async def trim_to_end(node: Replica) -> int:
    """Trims all but the newest records through that node; returns the oldest index then."""
    before = node.applied - 5
    assert (await node.submit(is_trim(before), 1, deadline=deadline(10))).effect.result is Result.APPLIED
    return before


async def test_a_full_disk_can_be_trimmed_and_goes_on(small: SmallDisks, tmp_path: Path) -> None:
    """Writes are refused, not applied, and no accepted write is lost. A trim is accepted, two snapshots come without
    any other write, the files go, the reserve is back, and writes are accepted again.
    """
    async with cluster_of(1, tmp_path, **SMALL) as nodes:
        leader = await nodes.leader()
        root = nodes.folder / "node-1"
        small.room[root] = small.used(root) + ROOM
        error = await fill_up(nodes, leader)
        assert (error.code, error.row.outcome) == (Code.DISK_FULL, Outcome.NOT_APPLIED)
        assert "it still accepts a trim" in error.message
        taken = leader.applied
        assert small.used(root) > ROOM - 4 * SEGMENT
        assert leader.state.disk.oldest == 1
        before = await trim_to_end(leader)
        await wait_until_async(partial(is_open, leader), what="room again")
        assert taken - 100 < leader.state.disk.oldest <= before
        assert (await nodes.append(leader, VALUE)).first > taken
        await wait_until_async(lambda: small.used(root) < ROOM * 3 // 4, what="the files to go")


async def test_a_node_restarted_on_a_full_disk_takes_trims(small: SmallDisks, tmp_path: Path) -> None:
    """A restart makes no room: the door is as it was, until somebody makes some, and the node says so in /metrics."""
    async with cluster_of(1, tmp_path, **SMALL) as nodes:
        leader = await nodes.leader()
        root = nodes.folder / "node-1"
        small.room[root] = small.used(root) + ROOM
        await fill_up(nodes, leader)
        await nodes.stop(1)
        again = await nodes.start(1)
        await nodes.leader()
        await wait_until_async(lambda: not again.state.syncer.has_space)
        with pytest.raises(ApiError) as refused:
            await nodes.append(again, VALUE)
        assert refused.value.code is Code.DISK_FULL
        assert b'raftlog_disk_full{node="1"} 1.0' in again.metrics.text()
        small.room[root] += 4 * SEGMENT
        await wait_until_async(partial(is_open, again), what="room again")
        await nodes.append(again, VALUE)
