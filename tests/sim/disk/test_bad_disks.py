"""Directed worlds with full and slow disks, and the demands of `chaos.sim.seed.bad_disks` that planted bugs break."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.invariants.elections.hand_overs import HandOvers
from raftlog.chaos.sim.mutants import plant
from raftlog.chaos.sim.seed import bad_disks
from raftlog.chaos.sim.seed.bad_disks import HELD, PROPERTY, with_bad_disks
from raftlog.chaos.sim.world.world import World, quiet
from raftlog.cluster.api.errors import Code, Problem
from raftlog.cluster.protocol.disk_reports import Handover, Why
from raftlog.cluster.protocol.request import RequestResult
from raftlog.raft.consensus.invariants import InvariantBroken
from tests.sim.world.test_world import agreed, leader_of, put, told, written


def sound(seed: int, nodes: int = 3) -> World:
    """A world without trouble whose nodes all run programs of today, and have a leader."""
    swarm = quiet(nodes)
    # No window holds entries back. Entries that a full disk gives no row are not read back: they must stay in memory.
    wide = replace(swarm.options, inflight_messages_max=64, inflight_bytes_max=16 << 20, tail_bytes_max=1 << 20)
    world = agreed(World(seed, replace(swarm, segment_bytes=4_096, options=wide)))
    world.is_healed = True
    return world


def demanded(monkeypatch: pytest.MonkeyPatch, kind: str, seed: int, nodes: int = 3) -> dict[str, int]:
    """What happened in a world in which that is demanded; as Failure raised."""
    world = sound(seed, nodes)
    monkeypatch.setattr(bad_disks, "ONE_WORLD_IN", 1)
    chosen = getattr(bad_disks, f"_{kind}")
    for name in ("_full", "_slow", "_wrong_clock"):
        monkeypatch.setattr(bad_disks, name, chosen)
    with_bad_disks(world)
    return world.stats


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("nodes", [3, 5])
def test_writes_go_on_while_a_minority_of_the_disks_is_full(
    monkeypatch: pytest.MonkeyPatch, seed: int, nodes: int
) -> None:
    """Where it is the leader's it hands over; a full follower is sent no entries."""
    stats = demanded(monkeypatch, "full", seed, nodes)
    assert stats["sometimes: a majority with room went on"] == 1
    assert stats["sometimes: a full follower is sent no entries"] > 0


@pytest.mark.parametrize("nodes", [3, 5])
def test_a_leader_with_room_refuses_what_no_majority_has_room_for(nodes: int) -> None:
    """All followers are full: their reserves are for writes that free disk space, so the leader refuses all others."""
    world = sound(1, nodes)
    leading = leader_of(world)
    followers = [replica for replica in world.replicas.values() if replica is not leading]
    for follower in followers:
        follower.disk.files.is_full = True
    answers = [told(world, leading, put(b"k", bytes(900)), for_us=300_000) for _ in range(12)]
    assert Code.DISK_FULL in [answer.code for answer in answers if isinstance(answer, Problem)]
    assert leading is leader_of(world)
    assert leading.state.syncer.has_space
    assert world.stats["sometimes: no majority has room"] > 0
    for follower in followers:
        follower.disk.files.is_full = False
    world.run_until(world.now_us + 1_000_000)
    assert isinstance(told(world, leading, put(b"k", b"v")), RequestResult)


@pytest.mark.parametrize("seed", range(3))
def test_full_disks_whose_entries_wait_for_space_still_elect_and_keep_a_leader(seed: int) -> None:
    """No disk takes another entry, and the leader's process ends. The two others vote and answer heartbeats all the
    same, so one of them leads from then on. With space again all that waited is written, and writes go on."""
    world = sound(seed)
    leading = leader_of(world)
    for replica in world.replicas.values():
        replica.disk.files.is_full = True
    for _ in range(12):
        leading.ask([put(b"k", bytes(900))], for_us=1_000_000)
    world.run_until(world.now_us + 1_000_000)
    others = [replica for replica in world.replicas.values() if replica is not leading]
    assert any(replica.state.syncer.is_waiting for replica in others)
    leading.is_held = True
    leading.crash("killed", power=False)
    assert world.run_until(world.now_us + 10_000_000, lambda: world.leading() is not None), "no leader"
    new = leader_of(world)
    assert new.core is not None
    term = new.core.state.term
    world.run_until(world.now_us + 20_000_000)
    assert (leader_of(world), new.core.state.term) == (new, term)
    for replica in world.replicas.values():
        replica.disk.files.is_full = False
    assert world.run_until(world.now_us + 10_000_000, written(world))


@pytest.mark.parametrize("seed", range(2))
def test_a_leader_whose_clock_jumps_by_hours_does_not_keep_the_leadership(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Ahead or behind: a voter with a right clock leads within seconds, and writes go on."""
    stats = demanded(monkeypatch, "wrong_clock", seed)
    assert stats["sometimes: a wrong clock did not keep the leadership"] == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_with_a_slow_disk_does_not_keep_the_leadership(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """It hands over once, and writes go on."""
    stats = demanded(monkeypatch, "slow", seed)
    assert stats["sometimes: a slow disk did not keep the leadership"] == 1
    assert stats["sometimes: a leader with a slow disk hands over"] == 1


@pytest.mark.parametrize(
    ("mutant", "kind", "broken"),
    [
        ("full_leader_stays", "full", PROPERTY),
        ("reserves_of_followers_filled", "full", HELD),
        ("slow_leader_stays", "slow", "a leader with a much slower disk hands over"),
    ],
)
def test_a_planted_bug_breaks_what_is_demanded(
    monkeypatch: pytest.MonkeyPatch, mutant: str, kind: str, broken: str
) -> None:
    """In one of a few worlds: the full disks of some are those of followers alone."""
    seen = []
    with plant(mutant):
        for seed in range(6):
            try:
                demanded(monkeypatch, kind, seed)
            except Failure as failure:
                seen.append(failure.property)
    assert seen
    assert set(seen) == {broken}


def test_hand_overs_of_one_process_for_one_reason_need_a_pause() -> None:
    """Another reason, another process and the time after the pause are free."""
    full, slow = Handover(Why.FULL, 2), Handover(Why.SLOW, 2)
    looks = HandOvers()
    looks.began(1, 1, full, 1_000, 3_000)
    looks.began(1, 1, slow, 1_001, 60_000)
    looks.began(1, 2, full, 1_002, 3_000)
    looks.began(2, 1, full, 1_003, 3_000)
    looks.began(1, 1, full, 4_000, 3_000)
    with pytest.raises(InvariantBroken, match="hand-overs for a disk are rare"):
        looks.began(1, 1, full, 6_999, 3_000)
