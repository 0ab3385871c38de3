"""Chooses the nodes that a fault hits, and for how long: the choices that every family of the nemesis shares."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from raftlog.chaos.sim.world.world import World
from raftlog.raft.types import NodeId


def anyone(world: World, random: Random) -> NodeId:
    """A node; every other time the leader, because a fault of the leader does the most harm."""
    wants_leader, other = random.randrange(2) == 0, random.choice(list(world.replicas))
    leading = world.leading() if wants_leader else None
    return other if leading is None else leading.node


def several(world: World, random: Random) -> list[NodeId]:
    """A minority or a majority, sorted; half of the time the leader is among them."""
    nodes = list(world.replicas)
    chosen = random.sample(nodes, random.randint(1, max(1, len(nodes) - 1)))
    first = anyone(world, random)
    return sorted({first, *chosen[1:]})


def for_a_while(world: World, us: int, undo: Callable[[], None]) -> None:
    """Call `undo` after that time, unless the world was healed before: that ends everything at once."""

    def end() -> None:
        if not world.is_healed:
            undo()

    world.after(us, end)
