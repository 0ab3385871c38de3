"""Whole nodes over real sockets and files: elect, replicate, forward, read, restart, stop."""

import asyncio
from pathlib import Path

import pytest

from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.files.errors import DiskFenced
from raftlog.cluster.protocol.request import RequestResult
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.block import BlockRecord, decode_blocks, decode_records, encode_block
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import EntryKind
from raftlog.statemachine.commands import Operation, Result
from tests.cluster.nodes import LONG_ELECTIONS, append_block, cluster_of, deadline, host_of, put_block, sync_with
from tests.support import hang_s, wait_until_async


async def log_of(node: Replica, first: int = 1) -> list[bytes | None]:
    """The values of all applied records from `first` on, in order, read page by page."""
    values: list[bytes | None] = []
    while first <= node.applied:
        for entry, effects in await node.read_log(first, 1_000, 1 << 20):
            assert effects.index == entry.index
            if entry.kind is EntryKind.COMMANDS:
                records = [record for block in decode_blocks(entry.data) for record in decode_records(block)]
                values += [record.value for record in records]
            first = entry.index + 1
    return values


async def settled(*futures: asyncio.Future[RequestResult]) -> list[RequestResult]:
    """All of them."""
    return await asyncio.gather(*futures)


async def test_a_write_through_any_node_is_applied_on_all(tmp_path: Path) -> None:
    """The leader proposes, followers forward; each answers after its own apply, with dense indexes."""
    async with cluster_of(3, tmp_path) as nodes:
        await nodes.leader()
        seen: list[int] = []
        for node in nodes.running.values():
            answer = await nodes.append(node, b"a", b"b")
            assert answer.last == answer.first + 1
            assert node.applied >= answer.last
            seen.append(answer.last)
        await nodes.all_at(max(seen))
        logs = [await log_of(node) for node in nodes.running.values()]
        assert logs == [[b"a", b"b"] * 3] * 3
        assert len({node.machine.digest() for node in nodes.running.values()}) == 1
        assert {node.last_user_index for node in nodes.running.values()} == {max(seen)}


async def test_one_turns_requests_become_one_entry(tmp_path: Path) -> None:
    """Requests drained in one turn are packed into one entry; on a follower into one frame."""
    async with cluster_of(3, tmp_path) as nodes:
        await nodes.all_at((await nodes.leader()).applied)
        for node in nodes.running.values():
            before = node.applied
            answers = await settled(*(node.submit(append_block(b"%d" % n), 1, deadline=deadline()) for n in range(50)))
            assert [answer.first for answer in answers] == list(range(before + 1, before + 51))
            pairs = await node.read_log(before + 1, 1_000, 1 << 20)
            assert [entry.count for entry, _ in pairs] == [50]
            await nodes.all_at(answers[-1].last)


async def test_each_request_gets_its_own_effect(tmp_path: Path) -> None:
    """Of a mixed entry every future gets its result, on the leader and through a follower."""
    async with cluster_of(3, tmp_path) as nodes:
        await nodes.leader()
        for node in nodes.running.values():
            wrong = encode_block([BlockRecord(Operation.PUT, b"k%d" % node.node_id, b"x", None, 999)])
            blocks = [put_block(b"k%d" % node.node_id, b"1"), wrong, append_block(b"v")]
            answers = await settled(*(node.submit(block, 1, deadline=deadline()) for block in blocks))
            assert [answer.effect.result for answer in answers] == [
                Result.APPLIED,
                Result.COMPARE_FAILED,
                Result.APPLIED,
            ]


async def test_a_read_on_any_node_sees_writes_acknowledged_anywhere(tmp_path: Path) -> None:
    """ReadIndex through followers: after an answered write, a read barrier on every node covers it."""
    async with cluster_of(3, tmp_path) as nodes:
        await nodes.leader()
        for writer in nodes.running.values():
            answer = await nodes.append(writer, b"v")
            for reader in nodes.running.values():
                index = await reader.read_barrier(deadline())
                assert answer.last <= index <= reader.applied


async def test_a_leader_cut_off_never_says_applied(tmp_path: Path) -> None:
    """Without a majority a queued write is unknown at its deadline; later its place is taken: it was never applied."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        others = await nodes.followers()
        for node in others:
            await nodes.kill(node.node_id)
        with pytest.raises(ApiError) as failed:
            await nodes.append(leader, b"lonely", seconds=0.2)
        assert failed.value.code is Code.TIMEOUT
        assert failed.value.row.outcome is Outcome.UNKNOWN
        await wait_until_async(lambda: not leader.is_leader, what="a leader without a majority steps down")
        with pytest.raises(ApiError) as failed:
            await nodes.append(leader, b"nobody", seconds=0.1)
        assert failed.value.code is Code.NO_LEADER
        with pytest.raises(ApiError) as failed:
            await leader.read_barrier(deadline(0.1))
        assert failed.value.row.outcome is Outcome.NOT_APPLIED


async def test_forwards_to_a_leader_that_dies_end_as_unknown_at_once(tmp_path: Path) -> None:
    """A link closed after sending: the outcome is unknown, and is answered before the deadline; never sent again."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        follower = (await nodes.followers())[0]
        leader.state.writes.pending.submit = lambda request: None  # type: ignore[method-assign]  # takes it and never answers
        future = follower.submit(append_block(b"x"), 1, deadline=deadline(60))
        await wait_until_async(lambda: follower.state.writes.pending.inflight == 1)
        await nodes.kill(leader.node_id)
        with pytest.raises(ApiError) as failed:
            await asyncio.wait_for(future, hang_s())
        assert failed.value.code is Code.LEADER_LOST


async def test_requests_wait_for_a_leader_within_their_deadline(tmp_path: Path) -> None:
    """Sent before anyone leads, a write is taken up as soon as somebody does."""
    async with cluster_of(3, tmp_path) as nodes:
        futures = [node.submit(append_block(b"early"), 1, deadline=deadline(10)) for node in nodes.running.values()]
        answers = await settled(*futures)
        assert len({answer.last for answer in answers}) == 3


async def test_a_clean_stop_hands_leadership_over_and_refuses_new_work(tmp_path: Path) -> None:
    """No election timeout passes; what waits is answered, new requests hear shutting_down."""
    async with cluster_of(3, tmp_path, **LONG_ELECTIONS) as nodes:
        leader = await nodes.leader()
        waiting = leader.submit(append_block(b"last"), 1, deadline=deadline())
        stopping = asyncio.ensure_future(nodes.stop(leader.node_id))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            leader.submit(append_block(b"late"), 1, deadline=deadline())
        assert refused.value.code is Code.SHUTTING_DOWN
        answer = await waiting
        began_ms = clock.read().monotonic_ms
        new = await nodes.leader()
        assert clock.read().monotonic_ms - began_ms < 1_400
        await stopping
        assert host_of(leader).ended.result() is NodeExit.OK
        await new.wait_applied(answer.last, deadline())
        assert await log_of(new) == [b"last"]


async def test_a_fenced_node_answers_every_request_and_ends_with_its_code(tmp_path: Path) -> None:
    """Promise 1: after a failed sync the node serves no more; a write in a log is unknown, an unproposed one is
    refused.
    """
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()

        async def broken(batch: SyncBatch) -> None:
            raise DiskFenced("fdatasync: Input/output error")

        sync_with(leader, broken)  # a disk that fails
        with pytest.raises(ApiError) as failed:
            await nodes.append(leader, b"x")
        assert failed.value.row.outcome is Outcome.UNKNOWN
        assert host_of(leader).ended.result() is NodeExit.FENCED
        with pytest.raises(ApiError) as refused:
            leader.submit(append_block(b"y"), 1, deadline=deadline())
        assert refused.value.code is Code.FENCED
        assert leader.status().role == "fenced"
        assert not leader.is_ready
        await nodes.kill(leader.node_id)
        new = await nodes.leader()
        await nodes.append(new, b"z")


async def test_a_leader_whose_disk_hangs_hands_over(tmp_path: Path) -> None:
    """Pitfall 72: the watchdog of the disk's thread is asked on every turn; leadership goes to another node."""
    async with cluster_of(3, tmp_path, limits__disk_stall_ms=10) as nodes:
        leader = await nodes.leader()
        stuck: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def hang(batch: SyncBatch) -> None:
            await stuck

        sync_with(leader, hang)  # a disk that hangs
        leader.state.disk.stalled_ms = lambda: 60_000 if leader.state.syncer.is_busy else 0  # type: ignore[method-assign]  # and says so
        future = leader.submit(append_block(b"x"), 1, deadline=deadline(10))
        await wait_until_async(lambda: any(n.is_leader for n in nodes.running.values() if n is not leader))
        stuck.set_exception(DiskFenced("gave up"))
        await asyncio.gather(future, return_exceptions=True)


async def test_long_polls_wake_for_their_own_index(tmp_path: Path) -> None:
    """`wait_beyond` returns with news or at its deadline; `wait_applied` fails for an index that does not come."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()
        start = leader.applied
        polls = [asyncio.ensure_future(leader.wait_beyond(start, deadline())) for _ in range(10)]
        await asyncio.sleep(0)
        assert len(leader.state.applier.waiters) == 10
        await nodes.append(leader, b"x")
        await asyncio.gather(*polls)
        assert len(leader.state.applier.waiters) == 0
        await leader.wait_beyond(leader.applied, deadline(0.01))
        with pytest.raises(ApiError) as late:
            await leader.wait_applied(leader.applied + 1, deadline(0.01))
        assert late.value.code is Code.FUTURE_INDEX


async def test_the_log_reads_the_same_from_memory_and_from_disk(tmp_path: Path) -> None:
    """Old entries come from the segment and ledger bytes, new ones from memory; raw slices hold the same."""
    async with cluster_of(1, tmp_path, limits__recent_bytes_max=5_000) as nodes:
        leader = await nodes.leader()
        for number in range(30):
            answer = await nodes.append(leader, b"%d" % number * 100, b"second")
        assert leader.state.applier.recent.read(1, 10, 1_000) is None, "the oldest have left memory"
        values = await log_of(leader)
        assert values[0::2] == [b"%d" % number * 100 for number in range(30)]
        inside = answer.first - 20  # in the middle of an entry: the whole entry comes
        (entry, _), *_ = await leader.read_log(inside, 1, 1)
        assert entry.first <= inside <= entry.index
        raw = await leader.read_raw(1, answer.last, 1 << 20)
        assert (raw.first, raw.next) == (1, answer.last + 1)
        assert await leader.find_time(0) == 1
        assert await leader.find_time(2**50) == answer.last + 1


async def test_a_snapshot_shortens_replay_and_keeps_the_last_user_index(tmp_path: Path) -> None:
    """After `limits.snapshot_log_bytes` of log the state is saved; a restart begins there and has the same state."""
    async with cluster_of(1, tmp_path, limits__snapshot_log_bytes=20_000) as nodes:
        leader = await nodes.leader()
        for number in range(60):
            answer = await leader.submit(put_block(b"k%d" % number, b"v" * 500), 1, deadline=deadline())
        await wait_until_async(lambda: leader.state.core.state.log.snapshot.index > 0)
        await wait_until_async(lambda: not leader.state.snapshots.is_saving)
        digest, snapshot = leader.machine.digest(), leader.state.core.state.log.snapshot.index
        await nodes.stop(1)
        again = await nodes.start(1)
        assert again.applied >= snapshot, "restored, not replayed from the start"
        assert again.last_user_index > 0
        await nodes.leader()
        await again.wait_applied(answer.last, deadline())
        assert again.machine.digest() == digest
        assert again.last_user_index == answer.last


async def test_an_idle_log_gets_a_clock_entry_when_a_session_falls_due(tmp_path: Path) -> None:
    """Sessions expire by the cluster clock alone; the leader moves it when no client write does."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()
        opened = encode_block([BlockRecord(Operation.SESSION_OPEN, None, None, None, 1_000)])
        await leader.submit(opened, 1, deadline=deadline())
        assert leader.machine.session_count == 1
        await wait_until_async(lambda: leader.machine.session_count == 0)
        pairs = await leader.read_log(1, 100, 1 << 20)
        assert [entry.kind for entry, _ in pairs].count(EntryKind.CLOCK) == 1


async def test_replies_for_a_turn_leave_before_the_sync(tmp_path: Path) -> None:
    """A leader's AppendEntries may overtake its own fsync: a write commits while the leader's disk still works."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        real = leader.state.disk.carry_out

        async def slow(batch: SyncBatch) -> None:
            await gate
            await real(batch)

        sync_with(leader, slow)  # a slow disk
        future = leader.submit(append_block(b"x"), 1, deadline=deadline())
        last = leader.state.core.state.log.last.index + 1
        await wait_until_async(lambda: leader.committed >= last, what="a commit by the followers alone")
        assert not future.done(), "applied only once it is durable here too"
        gate.set_result(None)
        assert (await future).last == last


async def test_members_status_and_metrics_match_the_replica(tmp_path: Path) -> None:
    """What operators see: roles, leader hint, lag, and gauges that can be read at any time."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        answer = await nodes.append(leader, b"x")
        await nodes.all_at(answer.last)
        status = leader.status()
        assert status.role == "leader"
        assert status.leader is not None
        assert status.leader.url == nodes.cluster.node[leader.node_id - 1].url
        await wait_until_async(lambda: all(each.lag == 0 for each in leader.status().followers))
        assert {each.node for each in status.followers} == set(nodes.running) - {leader.node_id}
        for node in nodes.running.values():
            assert [member.role for member in node.members().members] == ["voter"] * 3
            text = node.metrics.text().decode()
            assert f"raftlog_applied_index {float(node.applied)}" in text
            assert 'raftlog_link_up{link="' in text


async def test_an_unforeseen_error_ends_the_node_and_answers_every_request(tmp_path: Path) -> None:
    """A bug must not leave a zombie: the node says so, settles its requests and names its exit code."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()

        def broken() -> bool:
            raise RuntimeError("a bug")

        leader.state.applier.run = broken  # type: ignore[method-assign]  # a bug
        with pytest.raises(ApiError) as failed:
            await nodes.append(leader, b"x")
        assert failed.value.row.outcome is Outcome.UNKNOWN
        assert host_of(leader).ended.result() is NodeExit.FAILURE
        host_of(leader).begin_stop()
