"""A node whose wall clock is wrong: which times entries get, and what retention by age does (docs/decisions/0018)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raftlog.cluster.replica.parts import disk_exchange
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.runtime import clock
from raftlog.raft.types import EntryKind, Now
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
