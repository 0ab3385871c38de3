"""Real nodes on disks that fail, fill up, hang and lose power: nothing that was acknowledged is lost."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog.cluster.api.errors import Code
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import NotApplied
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.files.reserve import RESERVE
from tests.chaos.shim.shim_cluster import DEADLINE_S, ShimCluster
from tests.support import wait_until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(900)]

FENCED_MS = 1_000
"""From the sync that failed until the node has answered everyone and serves no more; then its process ends."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShimCluster]:
    """Three nodes, which every test leaves running and sound."""
    with ShimCluster(tmp_path_factory.mktemp("three"), 3) as cluster:
        cluster.start()
        yield cluster


def fenced_at_ms(log: Path) -> float:
    """When the node fenced itself, in Unix milliseconds, by its own log."""
    (line,) = [line for line in log.read_text().splitlines() if '"event":"fenced"' in line]
    return datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp() * 1_000


def other_leader(three: ShimCluster, than: int) -> int | None:
    """The leader, if it is another node."""
    for node in three.cluster.running:
        status = three.cluster.status(node)
        if node != than and status is not None and status.role == "leader":
            return node
    return None


def test_a_failed_fsync_ends_the_node_within_a_second(
    three: ShimCluster, record_property: Callable[[str, object], None]
) -> None:
    """The leader's fdatasync fails once, and would succeed the next time: the process ends with its exit code, no write
    that was begun after the error is acknowledged by it, the others go on, and started again it has everything."""
    three.begin_load("fsync-all")
    three.go_on(50)
    leader = three.cluster.leader(DEADLINE_S)
    three.begin_load("fsync-leader", only=leader)
    three.go_on(50)
    rule = three.shim.inject("fdatasync", error="EIO", root=three.data(leader), times=1)
    assert three.gone(leader) == NodeExit.FENCED
    gone_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    (hit,) = three.shim.hits(rule)
    failed_ms = (wall_ns - (gone_ns - hit.time_ns)) / 1e6  # Unix time of the failed sync
    took_ms = fenced_at_ms(three.cluster.log_file(leader)) - failed_ms
    ended_ms = (gone_ns - hit.time_ns) / 1e6
    text = f"fdatasync EIO on the leader: fenced {took_ms:.0f} ms later, its process gone after {ended_ms:.0f} ms"
    record_property("measured", text)
    three.go_on(50)
    assert three.newest_ns.get("fsync-leader", 0) < hit.time_ns
    three.end_load()
    three.shim.heal()
    three.start()
    assert three.nothing_is_lost()
    assert took_ms <= FENCED_MS


def test_a_full_disk_of_the_leader_alone_stops_no_writes(three: ShimCluster) -> None:
    """No room for a new segment on the leader: another node leads, writes go on, the process lives, and follows on once
    there is room."""
    leader = three.cluster.leader(DEADLINE_S)
    rule = three.shim.inject("allocate", error="ENOSPC", root=three.data(leader))
    three.begin_load("full")
    wait_until(lambda: "disk_full" in three.cluster.log_file(leader).read_text(), DEADLINE_S, what="a full disk")
    assert three.shim.hits(rule)
    wait_until(lambda: other_leader(three, leader), DEADLINE_S, what="another leader")
    three.go_on(200)
    assert three.cluster.pid(leader) is not None
    assert '"why":"disk_full"' in three.cluster.log_file(leader).read_text()
    three.shim.heal()
    three.go_on(50)
    three.end_load()
    assert three.cluster.pid(leader) is not None
    assert three.nothing_is_lost()


def test_a_hanging_disk_makes_the_leader_step_down(three: ShimCluster) -> None:
    """The leader's syncs hang: another node leads, writes go on; when the disk moves again, all of it is there."""
    leader = three.cluster.leader(DEADLINE_S)
    rule = three.shim.inject("fdatasync", hang=True, root=three.data(leader))
    three.begin_load("hang")
    wait_until(lambda: other_leader(three, leader), DEADLINE_S, what="another leader")
    three.go_on(50)
    assert three.shim.hits(rule)
    three.shim.heal()
    three.go_on(50)
    three.end_load()
    three.cluster.wait_ready(timeout_s=DEADLINE_S)
    assert three.nothing_is_lost()


# Steps of a node's work at which it is killed: the call, which of them from some moment on, and where in it.
STEPS: list[tuple[Any, int, Any, str]] = [
    ("pwrite", 1, "before", "*"),
    ("pwrite", 2, "half", "*.seg"),
    ("pwrite", 7, "after", "*"),
    ("fdatasync", 1, "before", "*"),
    ("fdatasync", 2, "half", "*"),
    ("fdatasync", 5, "after", "*.seg"),
    ("rename", 1, "before", "*"),
    ("rename", 1, "after", "*.seg"),
]
IN_A_START = (1, 4, 9)


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_at_the_nth_step_without_unsynced_bytes_loses_no_write(tmp_path: Path, stride: int) -> None:
    """One node, so every acknowledgement is its own promise: killed in its writes, syncs and rolls, and in its
    starts, the power gone with it each time, it has every acknowledged write once and starts by itself."""
    chance = Random(20_261)
    with ShimCluster(tmp_path, 1) as one:
        folder = one.data(1)
        for number, (call, nth, when, name) in enumerate(STEPS[::stride]):
            one.start()
            one.begin_load(f"step-{number}")
            one.go_on(20)
            rule = one.shim.kill_at(call, nth, when=when, root=folder, name=name)
            assert one.gone(1) == -signal.SIGKILL
            one.end_load()
            assert len(one.shim.hits(rule)) == 1, (call, nth, when)
            one.shim.heal()
            one.shim.restore_synced(folder, torn=chance if number % 2 else None)
        for nth in IN_A_START[::stride]:
            one.shim.kill_at("any", nth, when=chance.choice(["before", "half", "after"]), root=folder)
            one.cluster.start()
            assert one.gone(1) == -signal.SIGKILL
            one.shim.heal()
            one.shim.restore_synced(folder, torn=chance)
        one.start()
        assert one.nothing_is_lost() >= 20 * len(STEPS[::stride])


@pytest.mark.parametrize("cuts", [2, pytest.param(20, marks=pytest.mark.long)])
def test_power_cuts_of_all_nodes_at_once(
    tmp_path: Path, cuts: int, record_property: Callable[[str, object], None]
) -> None:
    """All three nodes lose power in the middle of writes, un-synced bytes dropped or torn: after every start each
    acknowledged write is in the log once."""
    chance = Random(cuts)
    in_doubt = 0
    with ShimCluster(tmp_path, 3) as three:
        for number in range(cuts):
            three.start()
            three.begin_load(f"cut-{number}")
            three.go_on(100)
            in_doubt += three.cut_power(chance)
            three.end_load()
        three.start()
        count = three.nothing_is_lost()
    assert count >= 100 * cuts
    assert in_doubt > 0, "no byte was ever in doubt: the cuts proved nothing"
    record_property(
        "measured",
        f"{cuts} power cuts of three nodes: {count} acknowledged writes all there, {in_doubt} bytes were in doubt",
    )


class FullDisks:
    """No node finds room for its reserve again, and a leader that is filled none for a segment before it gave that up.
    The room that this leaves is there from the next `look` on.

    The others have room meanwhile: without a majority that has it, a leader takes no write, and its disk never fills.
    """

    def __init__(self, three: ShimCluster) -> None:
        self._three = three
        three.shim.inject("allocate", error="ENOSPC", name=f"*/{RESERVE}")
        self._rules: dict[int, int] = {}

    def look(self) -> list[int]:
        """Whose reserve is in use."""
        there = [node for node in self._three.cluster.nodes if self._has_reserve(node)]
        for node in [node for node in self._rules if node not in there]:
            rule = self._rules.pop(node)
            assert self._three.shim.hits(rule), f"node {node} gave its reserve up, and had not asked for room"
            self._three.shim.heal(rule)
        return [node for node in self._three.cluster.nodes if node not in there]

    def _has_reserve(self, node: int) -> bool:
        try:
            return (self._three.data(node) / RESERVE).stat().st_size > 0  # empty: it was just tried to make it again
        except FileNotFoundError:
            return False

    def fill(self) -> int:
        """Writes until the leader has deleted its reserve; returns that leader."""
        leader = self._three.cluster.leader(DEADLINE_S)
        self._rules[leader] = self._three.shim.inject(
            "allocate", error="ENOSPC", root=self._three.data(leader), name="shard-0/log/*"
        )
        self._three.begin_load(f"node {leader} leads")
        wait_until(lambda: leader in self.look(), DEADLINE_S, what="the leader's reserve in use")
        self._three.end_load()
        return leader


def test_full_disks_are_trimmed_in_the_reserve(tmp_path: Path) -> None:
    """A leader without room for a segment gives its reserve up and goes on in that; it is killed, and so goes the next
    one. Then writes are refused, nothing that was acknowledged is missing, and still a trim is taken and its files go.
    With room again, all three have their reserve, and writes go on by themselves."""
    with ShimCluster(tmp_path, 3) as three:
        three.start()
        disks = FullDisks(three)
        first = disks.fill()
        three.cluster.kill(first)
        wait_until(lambda: disks.look() and other_leader(three, first), DEADLINE_S, what="another leader")
        leader = disks.fill()
        (follower,) = [node for node in three.cluster.nodes if node not in (first, leader)]
        with SyncClient([three.cluster.url(follower)], deadline_s=DEADLINE_S, bound=True) as client:  # with sessions
            records = list(client.log(1))
            there = Counter(record.value for record in records)
            assert [value for value in three.acknowledged if there[value] != 1] == []
            before = (
                records[-1].index + 1
            )  # behind the end of the segment that found no next one, also if that is its last
            with ThreadPoolExecutor(1) as aside:
                asked = aside.submit(client.call, requests.trim(before))
                wait_until(lambda: disks.look() and asked.done(), DEADLINE_S, what="the trim")
            assert asked.result().oldest == before
        log = three.cluster.log_file(leader)
        wait_until(lambda: disks.look() and "log_deleted" in log.read_text(), DEADLINE_S, what="files that went")
        three.cluster.start_node(first)
        three.cluster.wait_ready(timeout_s=DEADLINE_S)
        with SyncClient([three.cluster.url(leader)], deadline_s=1.0, sessions=False, bound=True) as client:
            with pytest.raises(NotApplied, match=r"has no room on its disk|has room on its disk:") as refused:
                client.append(b"x")
            assert refused.value.code is Code.DISK_FULL
        three.shim.heal()
        three.begin_load("room again")
        three.go_on(50)
        three.end_load()
        wait_until(lambda: disks.look() == [], DEADLINE_S, what="three reserves")
