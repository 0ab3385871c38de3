"""A healthy majority elects a leader in time, whatever the other nodes remember or send."""

import pytest

from tests.raft.consensus.majority_lab import live


@pytest.mark.parametrize("nodes", [3, 4, 5])
def test_a_healthy_majority_elects_a_leader_whatever_the_others_remember_or_send(nodes: int) -> None:
    """Random worlds, also of joint configurations: disks hang, writes tear, logs are cut, members leave. No disk loses
    what it confirmed."""
    for seed in range(25):
        assert live(seed, nodes), f"seed {seed}: no entry was committed in time"
