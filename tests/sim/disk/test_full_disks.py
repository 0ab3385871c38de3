"""Directed worlds whose disks have a size and are all full, and the demands of `chaos.sim.seed.full_disks`."""

from __future__ import annotations

import pytest

from raftlog.chaos.sim.seed import full_disks
from raftlog.chaos.sim.seed.full_disks import with_full_disks
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.protocol.request import RequestResult
from tests.sim.disk.test_bad_disks import sound
from tests.sim.world.test_world import leader_of, put, told


def demanded(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Raises NoProgress where that cluster breaks a demand."""
    monkeypatch.setattr(full_disks, "ONE_WORLD_IN", 1)
    with_full_disks(world)
    assert world.stats["sometimes: full disks were trimmed, and writes went on"] == 1
    assert all(replica.disk.files.space is None for replica in world.replicas.values())


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_full_disks_keep_a_leader_and_go_on_after_a_trim(
    monkeypatch: pytest.MonkeyPatch, seed: int, nodes: int
) -> None:
    """Own disks or a shared one, filled by records or by another program, with or without a killed process."""
    demanded(monkeypatch, sound(seed, nodes))


@pytest.mark.parametrize("has_snapshot", [True, False])
@pytest.mark.parametrize("seed", [1, 3])
def test_full_disks_have_room_for_the_snapshots_of_a_state_that_grew(
    monkeypatch: pytest.MonkeyPatch, seed: int, has_snapshot: bool
) -> None:
    """The state is many times as large as the reserve's two segments. Its newest snapshot is of a time when it was
    small, or there is none: two of the present size have to be written before a trimmed file goes."""

    def grow(keys: int) -> None:
        for number in range(keys):
            assert isinstance(told(world, leader_of(world), put(b"%d" % number, bytes(1_200))), RequestResult)

    world = sound(seed)
    grow(2)
    for replica in world.replicas.values() if has_snapshot else ():
        replica.save_snapshot()
    world.run_until(world.now_us + 2_000_000)
    grow(40)
    demanded(monkeypatch, world)
