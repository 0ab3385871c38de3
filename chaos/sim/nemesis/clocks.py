"""Faults of clocks: the wall clock jumps, and the monotonic one changes its pace; safety depends on neither.

The clocks of a majority are right, within what `limits.clock_skew_ms` allows: the times of records depend on that.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

from raftlog.chaos.sim.ground.clocks import RATE
from raftlog.chaos.sim.nemesis.targets import anyone, for_a_while
from raftlog.chaos.sim.world.world import World
from raftlog.raft.types import NodeId

HOUR_MS: Final = 3_600_000
JUMPS_US: Final = (1_000_000, 20_000_000)


def clock_jump(world: World, random: Random) -> None:
    """Somebody sets a wall clock or those of a minority for some seconds: a little, or up to three hours off."""
    first, count = anyone(world, random), random.randint(1, max(1, (len(world.replicas) - 1) // 2))
    nodes = sorted({first, *random.sample(list(world.replicas), count - 1)})
    jump_ms = random.choice((random.randint(-500, 500), random.randint(-3 * HOUR_MS, 3 * HOUR_MS)))
    us, clocks = random.randint(*JUMPS_US), [world.replicas[node].clock for node in nodes]
    right = [node for node, replica in world.replicas.items() if not (replica.clock.off_ms or node in nodes)]
    if not world.atlas.quorum(world.random, right) or any(clock.off_ms for clock in clocks):
        return
    if world.fault("clock jump", nodes, f"{jump_ms} ms", us):
        for clock in clocks:
            clock.jump_wall(jump_ms)
        for_a_while(world, us, lambda: heal(world, nodes))


def heal(world: World, nodes: Iterable[NodeId]) -> None:
    """Their wall clocks are right again."""
    for node in nodes:
        clock = world.replicas[node].clock
        clock.jump_wall(-clock.off_ms)


def clock_drift(world: World, random: Random) -> None:
    """A node's clock runs at another pace for a while: up to a fifth too fast or too slow."""
    node, rate, us = anyone(world, random), RATE + random.randint(-200, 200), random.randint(100_000, 10_000_000)
    if world.fault("clock drift", node, f"{rate} thousandths", us):
        clock = world.replicas[node].clock
        clock.set_rate(world.now_us, rate)
        for_a_while(world, us, lambda: clock.set_rate(world.now_us, RATE))
