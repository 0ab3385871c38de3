"""Directed worlds whose disks have a size and are all full, and the demands of `chaos.sim.seed.full_disks`."""

from __future__ import annotations

import pytest

from raftlog.chaos.sim.seed import full_disks
from raftlog.chaos.sim.seed.full_disks import with_full_disks
from tests.sim.disk.test_bad_disks import sound


def demanded(monkeypatch: pytest.MonkeyPatch, seed: int, nodes: int = 3) -> None:
    """Raises NoProgress where the cluster of that seed breaks a demand."""
    monkeypatch.setattr(full_disks, "ONE_WORLD_IN", 1)
    monkeypatch.setattr(full_disks, "SEGMENT_BYTES_MIN", 0)
    world = sound(seed, nodes)
    with_full_disks(world)
    assert world.stats["sometimes: full disks were trimmed, and writes went on"] == 1
    assert all(replica.disk.files.space is None for replica in world.replicas.values())


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_full_disks_keep_a_leader_and_go_on_after_a_trim(
    monkeypatch: pytest.MonkeyPatch, seed: int, nodes: int
) -> None:
    """Own disks or a shared one, filled by records or by another program, with or without a killed process."""
    demanded(monkeypatch, seed, nodes)
