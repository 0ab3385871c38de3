"""A node that was built from a snapshot: older reads are passed on, and the older log comes in the background."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.offline.check import check_folder
from raftlog.cluster.protocol.log_frames import Question, QuestionKind
from raftlog.cluster.replica import readiness
from raftlog.cluster.replica.log import peer_log
from raftlog.cluster.replica.log.log_reader import decode_slice
from raftlog.cluster.replica.parts import serving
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import backfill
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.codec.raw import RAW_SIZE, decode_raw_header
from raftlog.raft.wal.reading import RawSlice
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.effects import encode_effects
from tests.cluster.fake_node import serve
from tests.cluster.http.http_probe import ask, get, open_stream
from tests.cluster.nodes import Nodes, cluster_of, deadline, put_block
from tests.cluster.replica.upkeep.test_snapshots import EARLY, fall_behind, installed
from tests.support import wait_until_async

MANY: dict[str, Any] = EARLY | {"disk__segment_bytes": 256 << 10}
"""As EARLY, with segments so small that several of them are before a snapshot."""


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Nothing is fetched in the background before this is set."""
    gate, real = asyncio.Event(), backfill._may_go_on
    monkeypatch.setattr(backfill, "_may_go_on", lambda replica: gate.is_set() and real(replica))
    monkeypatch.setattr(backfill, "RETRY_S", 0.05)
    monkeypatch.setattr(backfill, "SHARE", 0)
    return gate


async def late(nodes: Nodes) -> tuple[Replica, Replica]:
    """A node whose log is whole, and one that was just built from a snapshot. The leader may have changed."""
    leader, follower = await fall_behind(nodes)
    again = await nodes.start(follower)
    await wait_until_async(lambda: installed(again), 60, what="the snapshot is installed")
    await nodes.all_at((await nodes.leader()).applied)
    assert (leader.state.disk.oldest, again.machine.oldest) == (1, 1)
    assert again.state.disk.oldest > 1
    return leader, again


async def trim(nodes: Nodes, node: Replica, before: int) -> None:
    """Lets the records below an index go, and waits until that node knows it."""
    block = encode_block([BlockRecord(int(Operation.TRIM), argument=before)])
    while node.machine.oldest < before:
        with suppress(ApiError):  # the leader was just lost
            await node.submit(block, 1, deadline=deadline())


def is_whole(node: Replica) -> bool:
    """Whether its disk has all that may be read."""
    return node.state.disk.oldest <= node.machine.oldest


async def everything(node: Replica, last: int) -> list[Any]:
    """Entries and effects from the oldest to `last`, through that node."""
    found: list[Any] = []
    position = node.oldest
    while position <= last:
        pairs = await node.read_log(position, 10_000, 1 << 20)
        assert pairs, f"nothing from {position} on"
        assert pairs[0][0].first <= position, "a gap"
        found += pairs
        position = pairs[-1][0].index + 1
    return found


def number(node: Replica, name: str) -> float:
    """One of its metrics."""
    return node.metrics.registry.get_sample_value(name) or 0.0


def raw_entries(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """First index, bytes and effects of every entry in a row of raw chunks; each names the oldest index 1."""
    found: list[tuple[int, bytes, bytes]] = []
    at = 0
    while at < len(body):
        head = decode_raw_header(body, at)
        assert head.oldest == 1
        rows = at + RAW_SIZE
        segment = rows + IDX_ROW.size * head.rows
        ledger = segment + head.segment_bytes
        at = ledger + head.ledger_bytes
        piece = RawSlice(body[rows:segment], body[segment:ledger], body[ledger:at], head.base, head.first, head.next)
        found += [(entry.first, entry.header + entry.data, encode_effects(did)) for entry, did in decode_slice(piece)]
    return found


@pytest.mark.parametrize("busy", ["", "is_ready", "is_damage_known", "is_receiving"])
def test_nothing_is_fetched_before_the_log_is_at_rest(monkeypatch: pytest.MonkeyPatch, busy: str) -> None:
    """A node that is behind, repairs its log, or receives a snapshot in place of the log fetches no older log."""
    monkeypatch.setattr(readiness, "is_ready", lambda _: busy != "is_ready")
    replica: Any = SimpleNamespace(
        is_damage_known=busy == "is_damage_known", snapshots=SimpleNamespace(is_receiving=busy == "is_receiving")
    )
    assert backfill._may_go_on(replica) is not bool(busy)


async def test_reads_below_the_snapshot_are_passed_on(tmp_path: Path, held: asyncio.Event) -> None:
    """Every route that takes a position gives what a whole node gives, with the same `oldest`, from the same first
    record on, while not one segment was fetched."""
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        whole, again = await late(nodes)
        begins = again.state.disk.oldest
        last = again.applied
        assert again.oldest == whole.oldest == 1
        assert await again.find_time(0) == 1
        middle = (await whole.read_log(begins // 2, 1, 1))[0][0]
        assert await again.find_time(middle.time_ms) == await whole.find_time(middle.time_ms)
        async with serve(again) as here, serve(whole) as there:
            for target in (
                "/v1/log?from=1&limit=500&consistency=stale",
                f"/v1/log?from=7&to={begins + 9}&internal=true",
                "/v1/log?limit=3",
                "/v1/log?from_time=0&limit=3",
                f"/v1/log?to={begins + 9}&format=ndjson&limit=100000",
                f"/v1/explain/{begins - 3}",
                f"/v1/digest?index={last}&log_from=3",
                f"/v1/log?from=2&to={begins}&format=msgpack",
            ):
                mine, theirs = [(await ask(each.port, "GET", target)) for each in (here, there)]
                assert mine.status == theirs.status == 200, (target, mine.body, theirs.body)
                if "digest" in target:
                    assert mine.json()["log_digest"] == theirs.json()["log_digest"]
                elif "explain" in target:
                    assert mine.json()["record"] == theirs.json()["record"]
                elif "ndjson" in target:
                    assert [row for row in mine.body.splitlines() if b'"kind"' in row] == [
                        row for row in theirs.body.splitlines() if b'"kind"' in row
                    ]
                elif "msgpack" not in target:
                    assert mine.json()["records"] == theirs.json()["records"]
                    assert (mine.json()["next"], mine.json()["oldest"]) == (theirs.json()["next"], 1)
            target = f"/v1/log?to={begins + 9}&format=raw"
            raw = [raw_entries((await ask(each.port, "GET", target)).body) for each in (here, there)]
            assert raw[0] == raw[1]
            assert raw[0][0][0] == 1
            end = (await (await nodes.leader()).submit(put_block(b"k-end", b""), 1, deadline=deadline())).last
            await nodes.all_at(end)
            watching = get("/v1/watch?prefix=k&from=1&format=ndjson", ("Raftlog-Deadline-Ms", "20000"))
            seen: list[list[int]] = []
            for each in (here, there):
                indexes: list[int] = []
                async with open_stream(each.port, watching) as stream:
                    await stream.head()
                    while not indexes or indexes[-1] < end:
                        message = await stream.json()
                        indexes += [message["index"]] if "changes" in message else []
                seen.append(indexes)
            assert seen[0] == seen[1]
            assert seen[0][0] < 10
        assert number(again, "raftlog_reads_passed_on_total") > 0
        assert again.state.disk.oldest == begins


async def test_the_older_log_comes_in_the_background(tmp_path: Path, held: asyncio.Event) -> None:
    """It comes segment by segment until this disk's oldest index is the cluster's. Then it reads the same as a whole
    log, entry by entry with effects. `raftlog disk check` finds nothing wrong, and a restart keeps it and needs no
    more.
    """
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        whole, again = await late(nodes)
        missing = number(again, "raftlog_backfill_missing")
        assert missing == again.status().backfill.missing == again.state.disk.oldest - 1
        held.set()
        await wait_until_async(partial(is_whole, again), 60, what="the older log")
        last = again.applied
        passed = number(again, "raftlog_reads_passed_on_total")
        mine, theirs = await everything(again, last), await everything(whole, last)
        assert [pair[0] for pair in mine] == [pair[0] for pair in theirs]
        assert [encode_effects(pair[1]) for pair in mine] == [encode_effects(pair[1]) for pair in theirs]
        assert number(again, "raftlog_reads_passed_on_total") == passed, "read from this disk"
        assert number(again, "raftlog_backfill_segments_total") >= 1
        assert number(again, "raftlog_backfill_missing") == 0
        await wait_until_async(lambda: not again.state.backfill.task, 60, what="it is at rest")
        told = again.status().backfill
        assert (told.missing, told.waits) == (0, "")
        assert told.segments == number(again, "raftlog_backfill_segments_total")
        assert told.bytes == number(again, "raftlog_backfill_bytes_total") > 0
        assert await again.find_time(0) == 1
        who = again.node_id
        await nodes.stop(who)
        report = await asyncio.to_thread(check_folder, tmp_path / f"node-{who}")
        assert not [each for each in report.findings if each.is_trouble], report
        third = await nodes.start(who)
        await nodes.all_at((await nodes.leader()).applied)
        assert third.state.disk.oldest == 1
        assert [pair[0] for pair in await everything(third, last)] == [pair[0] for pair in mine]
        assert number(third, "raftlog_backfill_segments_total") == 0


def spoiled(raw: RawSlice) -> RawSlice:
    """Entries and effects that are whole each for itself, but whose effects are those of the entry before."""
    half = len(raw.ledger) // 2
    return RawSlice(raw.rows, raw.segment, raw.ledger[half:] + raw.ledger[:half], raw.base, raw.first, raw.next)


async def test_a_wrong_peer_is_found_out_and_another_one_is_asked(
    tmp_path: Path, held: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One peer's segment fails its check: none of it gets a name, it is reported, and the other peer's is taken. With
    only the wrong one left the node waits, and goes on once that peer is right again.
    """
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        whole, again = await late(nodes)
        liar = next(each for each in nodes.running.values() if each not in (whole, again))
        begins, asked = again.state.disk.oldest, [liar.node_id]
        real = liar.state.reader.own

        async def lie(first: int, last: int, bytes_max: int) -> RawSlice:
            return spoiled(await real(first, last, bytes_max))

        monkeypatch.setattr(liar.state.reader, "own", lie)
        monkeypatch.setattr(peer_log.PeerLog, "peers", lambda self: asked)
        held.set()
        await wait_until_async(
            lambda: number(again, "raftlog_backfill_wrong_total") == 1, 60, what="the lie is found out"
        )
        await wait_until_async(lambda: "effects" in again.state.backfill.waits, 60, what="it waits")
        await wait_until_async(lambda: "was wrong" in again.status().backfill.waits, 60, what="it asks no more")
        assert again.state.disk.oldest == begins
        again.state.backfill.avoided.clear()
        asked.append(whole.node_id)
        await wait_until_async(lambda: again.state.disk.oldest < begins, 60, what="a segment of the other one")
        assert number(again, "raftlog_backfill_wrong_total") == 2
        asked.remove(whole.node_id)
        monkeypatch.setattr(liar.state.reader, "own", real)
        again.state.backfill.avoided.clear()
        await wait_until_async(partial(is_whole, again), 60, what="the older log")
        last = again.applied
        mine, theirs = await everything(again, last), await everything(whole, last)
        assert [encode_effects(pair[1]) for pair in mine] == [encode_effects(pair[1]) for pair in theirs]


async def test_a_node_killed_half_way_goes_on(
    tmp_path: Path, held: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each segment, and in the middle of one, the log on disk is without a gap. The start removes unfinished
    files, and keeps those with a name.
    """
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        _, again = await late(nodes)
        who, begins = again.node_id, again.state.disk.oldest
        real = peer_log.PeerLog.slice

        async def one_segment(self: peer_log.PeerLog, peer: int, first: int, last: int, bytes_max: int = 1) -> RawSlice:
            if self._disk.oldest < begins and last < self._disk.oldest - 1:
                held.clear()
            if self._disk.oldest < begins and first < last:
                await asyncio.Event().wait()  # in the second one
            return await real(self, peer, first, last)

        monkeypatch.setattr(peer_log.PeerLog, "slice", one_segment)
        held.set()
        await wait_until_async(lambda: again.state.disk.oldest < begins, 60, what="one segment")
        reached = again.state.disk.oldest
        log = tmp_path / f"node-{who}" / "shard-0" / "log"
        (log / "spare-fetched.seg").write_bytes(b"x" * 10_000)  # as a crash would leave it
        await nodes.kill(who)
        monkeypatch.setattr(peer_log.PeerLog, "slice", real)
        held.clear()
        again = await nodes.start(who)
        await nodes.all_at((await nodes.leader()).applied)
        assert again.state.disk.oldest == reached
        assert not [path.name for path in log.iterdir() if path.name.startswith("spare-fetched")]
        held.set()
        await wait_until_async(partial(is_whole, again), 60, what="the older log")
        await everything(again, again.applied)


async def test_backfill_gives_way_to_a_trim(tmp_path: Path, held: asyncio.Event) -> None:
    """Records trimmed meanwhile are not fetched: the backfill ends at the cluster's oldest index of that moment, and
    records below it are refused as on any node.
    """
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        _, again = await late(nodes)
        before = again.state.disk.oldest - again.state.disk.oldest // 4
        await trim(nodes, again, before)
        held.set()
        await wait_until_async(partial(is_whole, again), 60, what="the older log")
        assert before - 20 <= again.state.disk.oldest <= before, "from the entry that holds it on, which has 20 records"
        pairs = await everything(again, again.applied)
        assert pairs[0][0].first <= before
        with pytest.raises(ApiError) as caught:
            await again.read_log(before - 1, 1, 1)
        assert (caught.value.code, caught.value.more["oldest"]) == (Code.COMPACTED, before)
        await trim(nodes, again, again.applied)
        who = again.node_id
        await nodes.stop(who)
        third = await nodes.start(who)
        await nodes.all_at((await nodes.leader()).applied)
        assert number(third, "raftlog_backfill_missing") == 0


async def test_records_without_any_reachable_copy_are_an_error_never_gone(
    tmp_path: Path, held: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers that lack it too say so at once, and pass nothing on; peers that cannot be heard are waited for, by one
    read for all. The answer names each of them, changed nothing, and may be tried again."""
    monkeypatch.setattr(peer_log, "PATIENCE_S", 0.5)
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        _, again = await late(nodes)
        others = [each for each in nodes.running.values() if each is not again]
        reals = [each.state.reader.own for each in others]

        async def nothing(first: int, last: int, bytes_max: int) -> RawSlice:
            return RawSlice(b"", b"", b"", 0, first, first)

        for each in others:
            monkeypatch.setattr(each.state.reader, "own", nothing)
        for read in (again.read_log(5, 1, 1), again.read_raw(5, 9, 1)):
            with pytest.raises(ApiError, match="its disk has no index 5") as caught:
                await read
            assert caught.value.code is Code.DEADLINE
            assert (caught.value.row.outcome, caught.value.row.retryable) == (Outcome.NOT_APPLIED, True)
        assert [number(each, "raftlog_reads_passed_on_total") for each in others] == [0, 0]
        for each, real in zip(others, reals, strict=True):
            monkeypatch.setattr(each.state.reader, "own", real)
        assert (await again.read_log(5, 1, 1))[0][0].first <= 5
        for each in others:
            await nodes.kill(each.node_id)
        for told in ("link is down", "link is down"):
            with pytest.raises(ApiError, match=told) as caught:
                await again.read_log(5, 1, 1)
            assert caught.value.code is Code.DEADLINE


async def test_many_readers_take_turns(tmp_path: Path, held: asyncio.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred at once are all answered, while no peer ever has more than a few of their questions; a peer that has
    too many says so, and is asked again."""
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        _, again = await late(nodes)
        others = [each for each in nodes.running.values() if each is not again]
        most = 0
        real = serving._serve

        async def counted(replica: ReplicaState, peer: int, question: Question) -> None:
            nonlocal most
            most = max(most, replica.served.count[peer])
            await real(replica, peer, question)

        monkeypatch.setattr(serving, "_serve", counted)
        found = await asyncio.gather(*(again.read_log(1 + number % 50, 1, 1) for number in range(100)))
        assert all(pairs[0][0].first <= 1 + number % 50 <= pairs[0][0].index for number, pairs in enumerate(found))
        assert 1 <= most <= peer_log.READS_MAX < peer_log.SERVED_MAX
        for each in others:
            each.state.served.count[again.node_id] = peer_log.SERVED_MAX
        reading = asyncio.ensure_future(again.read_log(5, 1, 1))
        with pytest.raises(peer_log.NoAnswer, match="it answers 8 questions") as busy:
            await again.state.peer_log.ask(others[0].node_id, QuestionKind.STATE)
        assert not busy.value.is_certain
        for each in others:
            each.state.served.count[again.node_id] = 0
        assert (await reading)[0][0].first <= 5


async def test_a_slice_that_comes_back_empty_is_read_again(
    tmp_path: Path, held: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that comes to the front, or goes, while a slice is read makes it empty, never wrong. The next try is
    whole, and no reader gets the answer that the record is gone.
    """
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        _, again = await late(nodes)
        held.set()
        await wait_until_async(partial(is_whole, again), 60, what="the older log")
        real, empty = again.state.disk.read_raw, 0

        async def racing(first: int, last: int, bytes_max: int) -> RawSlice:
            nonlocal empty
            empty += 1
            if empty % 3:
                return RawSlice(b"", b"", b"", 0, first, first)
            return await real(first, last, bytes_max)

        monkeypatch.setattr(again.state.disk, "read_raw", racing)
        assert (await again.read_log(5, 1, 1))[0][0].first <= 5
        assert (await again.read_raw(7, 9, 1)).next > 7
        async with serve(again) as here:
            assert (await ask(here.port, "GET", "/v1/explain/5")).status == 200


def test_a_look_that_found_nothing_is_followed_by_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is logged once, not at each look."""
    lines: list[str] = []
    monkeypatch.setattr(backfill, "missing", lambda _: (1, 9))
    monkeypatch.setattr("raftlog.cluster.runtime.clock.monotonic", lambda: 100.0)
    replica: Any = SimpleNamespace(
        backfill=SimpleNamespace(not_before=0.0, waits=""),
        logger=SimpleNamespace(warning=lambda event, **fields: lines.append(fields["reason"])),
    )
    for why in ("node 2: busy", "node 2: busy", "there is no peer"):
        backfill._wait(replica, why)
        assert replica.backfill.not_before == 100.0 + backfill.RETRY_S
    assert lines == ["node 2: busy", "there is no peer"]


async def test_backfill_waits_on_a_full_disk(
    tmp_path: Path, held: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is room for few segments more, nothing is fetched: writes need it. It goes on when there is room."""
    async with cluster_of(3, tmp_path, **MANY) as nodes:
        _, again = await late(nodes)
        begins = again.state.disk.oldest
        monkeypatch.setattr("raftlog.cluster.disk.older_segments.free_bytes", lambda files: 3 * (256 << 10) - 1)
        held.set()
        await wait_until_async(
            lambda: "are free on the disk" in again.state.backfill.waits, 60, what="it waits for room"
        )
        assert again.state.disk.oldest == begins
        monkeypatch.setattr("raftlog.cluster.disk.older_segments.free_bytes", lambda files: 3 * (256 << 10))
        await wait_until_async(partial(is_whole, again), 60, what="the older log")
