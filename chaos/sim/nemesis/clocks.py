"""Faults of clocks: the wall clock jumps, and the monotonic one changes its pace; safety depends on neither."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from raftlog.chaos.sim.ground.clocks import RATE
from raftlog.chaos.sim.nemesis.targets import anyone, for_a_while
from raftlog.chaos.sim.world.world import World

HOUR_MS: Final = 3_600_000


def clock_jump(world: World, random: Random) -> None:
    """Somebody sets a wall clock: a little, or up to an hour off."""
    node = anyone(world, random)
    jump_ms = random.choice((random.randint(-500, 500), random.randint(-HOUR_MS, HOUR_MS)))
    if world.fault("clock jump", node, f"{jump_ms} ms"):
        world.replicas[node].clock.jump_wall(jump_ms)


def clock_drift(world: World, random: Random) -> None:
    """A node's clock runs at another pace for a while: up to a fifth too fast or too slow."""
    node, rate, us = anyone(world, random), RATE + random.randint(-200, 200), random.randint(100_000, 10_000_000)
    if world.fault("clock drift", node, f"{rate} thousandths", us):
        clock = world.replicas[node].clock
        clock.set_rate(world.now_us, rate)
        for_a_while(world, us, lambda: clock.set_rate(world.now_us, RATE))


FAULTS: Final[dict[str, Callable[[World, Random], None]]] = {"clock jump": clock_jump, "clock drift": clock_drift}
