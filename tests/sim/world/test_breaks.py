"""Which leaders the fault "break links" judges."""

from __future__ import annotations

from raftlog.chaos.sim.nemesis import breaks
from raftlog.chaos.sim.world.world import World, quiet


def test_a_leader_whose_follower_does_not_answer_is_not_judged() -> None:
    """The follower's disk hangs: it votes and answers once the disk does. The leader of two nodes gives up before."""
    world = World(1, quiet(2))
    for replica in world.replicas.values():
        replica.start()
    assert world.run_until(10_000_000, lambda: breaks._healthy_leader(world) is not None)
    leading = breaks._healthy_leader(world)
    assert leading is not None
    follower = next(node for node in world.replicas if node != leading.node)
    leading.heard_us[follower] -= 1_000 * world.swarm.options.election_timeout_min_ms
    assert breaks._healthy_leader(world) is None
