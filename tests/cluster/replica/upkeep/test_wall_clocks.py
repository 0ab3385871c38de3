"""A node whose wall clock is wrong: which times entries get, and what retention by age does (docs/decisions/0018)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import pytest

from raftlog.cluster.api.diagnosis import diagnose
from raftlog.cluster.replica.parts import disk_exchange
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.runtime import clock
from raftlog.raft.types import EntryKind, Now
from tests.cluster import nodes as nodes_of_tests
from tests.cluster.files.disk_lab import SEGMENT_BYTES
from tests.cluster.nodes import cluster_of
from tests.support import wait_until_async

HOUR_MS = 3_600_000


def jumped(by_ms: int) -> Now:
    """The clocks of a node whose wall clock jumped."""
    now = clock.read()
    return Now(now.monotonic_ms, now.wall_ms + by_ms)


def commit_a_clock(leader: Replica, by_ms: int = 2 * HOUR_MS) -> int:
    """Its clock entry by the wrong clock; its index."""
    index = leader.state.core.propose(EntryKind.CLOCK, 1, b"", jumped(by_ms)).last
    leader.state.driver.carry_out()
    return index


@pytest.mark.parametrize("by_ms", [2 * HOUR_MS, -2 * HOUR_MS])
async def test_an_entry_gets_no_time_far_from_a_majoritys_clock(tmp_path: Path, by_ms: int) -> None:
    """From the first entry after the jump on. Every later entry would keep a time that is ahead; one that is
    behind would be that of the entry before it, perhaps of hours ago: retention by age would trim the new record."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        log = leader.state.core.state.log
        await wait_until_async(lambda: len(leader.state.disks.reports.clocks((1, 2, 3), clock.monotonic())) == 2)
        await wait_until_async(lambda: log.times is not None, what="a majority's clock")
        before_ms = clock.read().wall_ms
        leader.state.core.state.log.last = replace(log.last, time_ms=before_ms - HOUR_MS)
        await nodes.all_at(commit_a_clock(leader, by_ms))
        skew_ms = disk_exchange.skew_ms(leader.state)
        assert skew_ms is not None
        assert abs(skew_ms) < HOUR_MS
        assert before_ms - HOUR_MS // 2 < leader.state.machine.time_ms < clock.read().wall_ms + HOUR_MS


async def test_a_started_leader_stamps_no_record_before_it_has_heard_a_majoritys_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock may be hours behind, and retention by age would take the record of a client for an old one: the write
    waits, and `raftlog explain` says so. An entry that the leader makes by itself keeps the newest time of the log."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        await nodes.append(leader, b"before")
        view, log = leader.state.disks, leader.state.core.state.log

        def is_long_unknown() -> bool:
            return leader.view().clock_unknown_ms > leader.view().silent_ms

        with monkeypatch.context() as patched:
            patched.setattr(disk_exchange, "majority_clock", lambda *_: 0)
            view.knows_time, log.times = False, None
            await wait_until_async(lambda: log.times is not None, what="the bound of a process that knows no clock")
            newest_ms, last = log.last.time_ms, log.last.index
            writing = asyncio.ensure_future(nodes.append(leader, b"waits"))
            index = commit_a_clock(leader)
            await wait_until_async(lambda: log.committed >= index, what="the entry of the leader")
            await wait_until_async(is_long_unknown, what="that to last")
            assert index == log.last.index == last + 1
            assert newest_ms <= log.last.time_ms < newest_ms + HOUR_MS
            assert not writing.done()
            (said,) = [each.words for each in diagnose([leader.view()], {}).causes if each.code == "clock_unknown"]
            assert said.endswith("writes wait; look at the links between the nodes")
        await writing
        assert log.last.index == last + 2
        assert leader.view().clock_unknown_ms == 0


async def test_records_are_not_trimmed_by_a_time_that_no_majoritys_clock_has_reached(tmp_path: Path) -> None:
    """An entry two hours ahead is committed all the same, by a program without that bound. Retention keeps an hour, and
    every record is seconds old: all stay."""
    settings = {"retention__age_ms": HOUR_MS, "disk__segment_bytes": SEGMENT_BYTES}
    async with cluster_of(3, tmp_path, **settings) as nodes:
        leader = await nodes.leader()
        for _ in range(12):
            await nodes.append(leader, bytes(SEGMENT_BYTES // 4))
        await wait_until_async(lambda: leader.state.core.state.log.times is not None, what="a majority's clock")
        leader.state.core.state.log.times = None
        await nodes.all_at(commit_a_clock(leader))
        assert leader.state.machine.time_ms > clock.read().wall_ms + HOUR_MS
        looks = leader.state.retention.looks
        await wait_until_async(lambda: leader.state.retention.looks >= looks + 3, 30, what="looks of retention")
        assert leader.state.machine.oldest == 1


async def test_the_status_shows_each_clock_and_the_bound_is_a_setting(tmp_path: Path) -> None:
    """`limits.clock_skew_ms`. A clock that is not known is missing, and none is shown without a majority's."""
    async with cluster_of(3, tmp_path, limits__clock_skew_ms=60_000) as nodes:
        leader = await nodes.leader()
        await wait_until_async(lambda: len(leader.status().clock_skews_ms) == 3, what="all clocks")
        await wait_until_async(lambda: leader.state.core.state.log.times is not None, what="a majority's clock")
        assert max(map(abs, leader.status().clock_skews_ms.values())) < HOUR_MS
        before_ms = clock.read().wall_ms
        await nodes.all_at(commit_a_clock(leader))
        assert before_ms + 30_000 < leader.state.machine.time_ms < clock.read().wall_ms + 90_000
        first, second = (node for node in (1, 2, 3) if node != leader.node_id)
        heard = leader.state.disks.reports._clocks
        heard[first] = (clock.monotonic(), clock.read().wall_ms + 2 * HOUR_MS)
        assert leader.status().clock_skews_ms[first] > HOUR_MS
        del heard[first]
        assert sorted(leader.status().clock_skews_ms) == sorted({leader.node_id, second})
        heard.clear()
        assert leader.status().clock_skews_ms == {}


async def test_a_busy_machine_sets_no_clock_of_a_cluster_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that this process waited for a core is left out of each clock alike. Once it was not of the clock in a
    report: on a busy machine each leader found the others' clocks ahead, and handed over."""
    waits_ns = chain([0], repeat(60 * 10**9))  # as the first node starts; from then on
    monkeypatch.setattr(nodes_of_tests, "_waited_ns", lambda: next(waits_ns))
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        assert abs(clock.read().wall_ms - clock.wall_ms()) < 30_000
        await wait_until_async(lambda: len(leader.status().clock_skews_ms) == 3, what="all clocks")
        assert max(map(abs, disk_exchange.skews_ms(leader.state).values())) < 30_000
