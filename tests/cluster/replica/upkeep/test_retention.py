"""Retention on real nodes: one oldest index, files that go on every disk, a policy that keeps the log in its bytes."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.replica.upkeep import retention, snapshots
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.mark import MARK_SIZE
from raftlog.statemachine.commands import Operation, Result, Txn, TxnOperation
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.txn import encode_txn
from tests.cluster.nodes import Nodes, append_block, cluster_of, deadline, put_block
from tests.support import wait_until_async

SEGMENT = 8_192
SMALL: dict[str, Any] = {
    "disk__segment_bytes": SEGMENT,
    "limits__snapshot_log_bytes": 10_000,
    "limits__snapshot_log_percent": 1,
    "limits__trailing_log_bytes": SEGMENT,
    "limits__trailing_log_percent": 1,
}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LOOK_S", 0.02)


async def write(nodes: Nodes, entries: int) -> int:
    """Writes that many entries of half a kilobyte, under any leader; returns the index of the last."""
    last = 0
    for number in range(entries):
        written = 0
        while not written:  # one more than wanted in the log, if an election took only the answer, does no harm here
            try:
                written = (await nodes.append(await nodes.leader(), b"%06d" % number + bytes(500), seconds=20)).last
            except ApiError as error:
                if error.code not in (Code.LEADER_LOST, Code.NO_LEADER, Code.OVERWRITTEN):
                    raise
        last = written
    return last


async def trim(node: Replica, before: int) -> Result:
    """Through that node."""
    block = encode_block([BlockRecord(Operation.TRIM, argument=before)])
    return (await node.submit(block, 1, deadline=deadline())).effect.result


def log_bytes(node: Replica) -> int:
    """What the files of its log take on disk."""
    folder = Path(node.state.disk._opened.shard) / "log"
    size = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # deleted meanwhile
            size += path.stat().st_size
    return size


def fits(node: Replica, size: int) -> bool:
    """Whether those files take no more."""
    return log_bytes(node) <= size


def begins_after(node: Replica, index: int) -> bool:
    """Whether its log on disk does."""
    return node.state.disk.oldest > index


async def test_pitfall_80_a_trim_is_one_fact_of_the_cluster_and_files_follow(tmp_path: Path) -> None:
    """A follower is asked for a trim: every node names the same oldest index and refuses the same reads, whatever its
    files hold. Then the segments below go on every disk, nothing above does, and a restart keeps the index.
    """
    async with cluster_of(3, tmp_path, **SMALL) as nodes:
        last = await write(nodes, 150)
        follower = (await nodes.followers())[0]
        before = 101
        assert await trim(follower, last + 1_000) is Result.REFUSED
        assert await trim(follower, before) is Result.APPLIED
        assert await trim(follower, 5) is Result.APPLIED
        await nodes.all_at(follower.applied)
        for node in nodes.running.values():
            assert (node.machine.oldest, node.oldest) == (before, before)
            for index in (1, before - 1):
                with pytest.raises(ApiError) as caught:
                    await node.read_log(index, 1, 1)
                told = (caught.value.code, caught.value.more["oldest"], caught.value.more["snapshot"])
                assert told == (Code.COMPACTED, before, before - 1)
            (pair,) = await node.read_log(before, 1, 1)
            assert pair[0].first == before
            assert await node.find_time(0) == before
        await write(nodes, 60)
        for node in nodes.running.values():
            await wait_until_async(partial(begins_after, node, 60))
            assert node.state.disk.oldest <= before
            assert log_bytes(node) < 30 * SEGMENT
            raw = await node.read_raw(before, last, 1 << 20)
            assert raw.first == before
        restarted = follower.node_id
        await nodes.stop(restarted)
        again = await nodes.start(restarted)
        await nodes.all_at((await nodes.leader()).applied)
        assert again.oldest == before
        assert (await again.read_log(before, 1, 1))[0][0].first == before


async def test_a_policy_keeps_the_log_in_its_bytes(tmp_path: Path) -> None:
    """The leader trims, every node deletes: at rest the files take no more than `retention.bytes`, on every disk, after
    three times as much was written; the newest records are all there."""
    kept = 12 * SEGMENT
    async with cluster_of(3, tmp_path, **SMALL, retention__bytes=kept) as nodes:
        last = await write(nodes, 600)
        for node in nodes.running.values():
            await node.wait_applied(last, deadline())
            await wait_until_async(partial(fits, node, kept), what=f"{kept} bytes on disk")
        await wait_until_async(lambda: len({node.machine.oldest for node in nodes.running.values()}) == 1)
        assert (await nodes.leader()).machine.oldest > 300
        for node in nodes.running.values():
            assert node.state.disk.oldest <= node.machine.oldest
            position = node.oldest
            while position <= last:
                pairs = await node.read_log(position, 1_000, 1 << 20)
                assert pairs[0][0].first <= position
                position = pairs[-1][0].index + 1


async def test_files_fit_into_the_policy_after_a_burst_whose_first_snapshot_was_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client writes more than half of the policy before the node looks whether a snapshot is due. Then the client
    stops. Two snapshots must cover a segment that goes, and no more writes come that make the second one due."""
    kept, is_due = 24 * SEGMENT, snapshots._is_due
    async with cluster_of(1, tmp_path, disk__segment_bytes=SEGMENT, retention__bytes=kept) as nodes:
        leader = await nodes.leader()
        monkeypatch.setattr(snapshots, "_is_due", lambda replica: False)
        while log_bytes(leader) < kept - 3 * SEGMENT:
            await nodes.append(leader, bytes(500), seconds=20)
        monkeypatch.setattr(snapshots, "_is_due", is_due)
        await wait_until_async(lambda: leader.state.snapshots.index and not leader.state.snapshots.is_saving)
        while fits(leader, kept):
            await nodes.append(leader, bytes(500), seconds=20)
        await wait_until_async(partial(fits, leader, kept), what=f"{kept} bytes on disk")  # without more writes
        assert leader.state.disk.oldest > 1


async def test_bytes_counted_between_snapshots_equal_the_file_sizes(tmp_path: Path) -> None:
    """Appends, puts and transactions: the bytes since the start are those of entries, rows and effects on disk."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()
        steps = tuple(TxnOperation(Operation.PUT, b"key %d" % number, b"v" * 100) for number in range(5))
        txn = encode_block([BlockRecord(Operation.TXN, None, encode_txn(Txn((), steps, ())))])
        for block, count in ((append_block(b"a", b"b", b"c"), 3), (put_block(b"key", b"value"), 1), (txn, 1)) * 30:
            await leader.submit(block, count, deadline=deadline(20))
        counted, records = leader.state.applier.log_bytes, leader.state.applier.log_records
        assert records == leader.applied
        await leader.state.disk.write_mark()
        log = Path(leader.state.disk._opened.shard) / "log"
        sizes = {kind: (log / f"{1:020d}.{kind}").stat().st_size for kind in ("idx", "ledger")}
        used = leader.state.disk._journal.active.end + sum(sizes.values())
        assert counted <= used <= counted + 4_096 + 100 * MARK_SIZE, "headers and durable marks come on top"


async def test_a_consumer_group_holds_the_log_back_within_its_budget(tmp_path: Path) -> None:
    """What a group has not read stays while the files take less than `retention.held_bytes`; then it goes."""
    budget = 30 * SEGMENT
    async with cluster_of(1, tmp_path, **SMALL, retention__bytes=6 * SEGMENT, retention__held_bytes=budget) as nodes:
        leader = await nodes.leader()
        claim = encode_consumer(ConsumerCommand(ConsumerAction.CLAIM, next=1))
        block = encode_block([BlockRecord(Operation.CONSUMER, b"slow", claim)])
        assert (await leader.submit(block, 1, deadline=deadline())).effect.result is Result.APPLIED
        await write(nodes, 200)
        looks = leader.state.retention.looks
        await wait_until_async(lambda: leader.state.retention.looks > looks + 3)
        assert leader.machine.oldest == 1
        await write(nodes, 300)
        await wait_until_async(lambda: leader.machine.oldest > 1 and log_bytes(leader) <= budget)
        assert log_bytes(leader) > 15 * SEGMENT
