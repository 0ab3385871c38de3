"""Real nodes on disks that fail, fill up, hang and lose power: nothing that was acknowledged is lost."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cluster.settings import NodeExit
from tests.chaos.shim_cluster import DEADLINE_S, ShimCluster
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
    (line,) = [line for line in log.read_text().splitlines() if '"fenced"' in line]
    return datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp() * 1_000


def other_leader(three: ShimCluster, than: int) -> int | None:
    """Who leads, where it is another node."""
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


def test_a_full_disk_makes_writes_wait_and_recovers_by_itself(three: ShimCluster) -> None:
    """No room for a new segment on the leader: writes wait, the process lives, and goes on once there is room."""
    leader = three.cluster.leader(DEADLINE_S)
    rule = three.shim.inject("allocate", error="ENOSPC", root=three.data(leader))
    three.begin_load("full")
    wait_until(lambda: "disk_full" in three.cluster.log_file(leader).read_text(), DEADLINE_S, what="a full disk")
    assert three.shim.hits(rule)
    assert three.cluster.pid(leader) is not None
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
    ("pwrite", 1, "before", "*"), ("pwrite", 2, "half", "*.seg"), ("pwrite", 7, "after", "*"),
    ("fdatasync", 1, "before", "*"), ("fdatasync", 2, "half", "*"), ("fdatasync", 5, "after", "*.seg"),
    ("rename", 1, "before", "*"), ("rename", 1, "after", "*.seg"),
]  # fmt: skip
IN_A_START = (1, 4, 9)


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.long)])
def test_killed_at_the_nth_step_with_what_was_not_synced_dropped(tmp_path: Path, stride: int) -> None:
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
    record_property("measured", f"{cuts} power cuts of three nodes: {count} acknowledged writes all there, "
                                f"{in_doubt} bytes were in doubt")  # fmt: skip
