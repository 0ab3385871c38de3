"""How long a cluster has no leader after its leader was killed, on a slow network: votes are split, and repaired."""

from dataclasses import replace

import pytest

from raftlog.chaos.sim.ground.swarm import SyncTimes, quiet
from raftlog.chaos.sim.world.world import World
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.options import Options

WORLDS = 30
DRAIN_US = 10_000  # the old leader's last messages arrive: over TCP none comes behind the end of its connection


def without_leader_ms(seed: int, nodes: int) -> float:
    """Milliseconds between the leader's end and the next leader, in a world whose messages take 1 to 8 ms, about as
    long as the followers' delays differ, and whose syncs take 2 to 20 ms."""
    swarm = quiet(nodes)
    network = replace(swarm.network, delay_min_us=1_000, delay_max_us=8_000)
    swarm = replace(swarm, options=Options(), network=network, sync=SyncTimes(2_000, 20_000, 0))
    world = World(seed, swarm)
    world.start()
    world.run_until(3_000_000)
    leading = world.leading()
    assert leading is not None
    assert leading.core is not None
    term = leading.core.state.term
    leading.is_paused = leading.is_held = True
    world.run_until(world.now_us + DRAIN_US)
    began_us = world.now_us
    leading.crash("killed")

    def is_led() -> bool:
        states = [replica.core.state for replica in world.replicas.values() if replica.core is not None]
        return any(state.term > term and isinstance(state.role, Leader) for state in states)

    assert world.run_until(began_us + 5_000_000, is_led)
    return (world.now_us - began_us) / 1_000


@pytest.mark.parametrize("nodes", [3, 5])
def test_followers_that_ask_at_the_same_time_do_not_wait_for_a_timeout(nodes: int) -> None:
    """Several followers ask within a few milliseconds. In no world but one does the next leader take as long as an
    election timeout, of which the least is 300 ms: without the two rules of `raft/consensus/election.py` for it about
    every third world did. In one world votes may be split again and again by chance."""
    took_ms = sorted(without_leader_ms(seed, nodes) for seed in range(WORLDS))
    assert took_ms[-2] < Options().election_timeout_min_ms
