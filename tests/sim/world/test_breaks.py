"""Which leaders the fault "break links" judges."""

from __future__ import annotations

import pytest

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.nemesis import breaks
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.world.world import World, quiet
from raftlog.cluster.protocol.disk_reports import Handover, Why


def led(nodes: int) -> tuple[World, Node]:
    """A world of so many nodes, and the leader that all of them follow."""
    world = World(1, quiet(nodes))
    world.start()
    assert world.run_until(10_000_000, lambda: breaks._healthy_leader(world) is not None)
    leading = breaks._healthy_leader(world)
    assert leading is not None
    return world, leading


def test_a_leader_whose_follower_does_not_answer_is_not_judged() -> None:
    """The follower's disk hangs: it votes and answers once the disk does. The leader of two nodes gives up before."""
    world, leading = led(2)
    follower = next(node for node in world.replicas if node != leading.node)
    leading.hellos.heard_us[follower] -= 1_000 * world.swarm.options.election_timeout_min_ms
    assert breaks._healthy_leader(world) is None


def test_a_leader_that_hands_over_because_of_its_disk_is_not_judged() -> None:
    """Its disk became slow before the links broke. A leader that ends its term for no such reason fails."""
    for why in (None, Why.SLOW):
        world, leading = led(3)
        breaks._judge(world, leading, 200_000)
        assert leading.replica is not None
        to = leading.node % 3 + 1
        if why is not None:
            leading.replica.state.disks.handed_over = Handover(why, to), 1
        leading.tell(lambda core, now: core.transfer(leading.node % 3 + 1, now))  # noqa: B023 - it runs in this round
        if why is None:
            with pytest.raises(Failure, match=breaks.PROPERTY):
                world.run_until(world.now_us + 500_000)
        else:
            world.run_until(world.now_us + 500_000)
            assert world.leading() is not leading
