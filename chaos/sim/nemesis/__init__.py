"""Injects faults into a world: one stream for each kind of fault in the seed's swarm.

Each stream draws from its own Random, everything before it asks `World.fault`, which numbers and records a fault and
may say no: so a run with one fault left out (shrinking) stays as like the first one as it can. One file per family.
Every fault brings its own end along; `World.heal` ends all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Final

from raftlog.chaos.sim.ground.trace import EVERYONE
from raftlog.chaos.sim.nemesis import (
    breaks,
    clocks,
    damage,
    disks,
    forged,
    members,
    network,
    operators,
    processes,
    promises,
    states,
    strand,
)
from raftlog.chaos.sim.world.world import World
from raftlog.raft.types import NodeId

__all__ = ["FAULTS", "heal", "heal_disks", "unleash"]

FAULTS: Final[dict[str, Callable[[World, Random], None]]] = {
    **network.FAULTS,
    **breaks.FAULTS,
    **processes.FAULTS,
    **disks.FAULTS,
    **damage.FAULTS,
    **promises.FAULTS,
    **clocks.FAULTS,
    **operators.FAULTS,
    **members.FAULTS,
    **strand.FAULTS,
    **states.FAULTS,
    **forged.FAULTS,
}
"""Kind (as in `raftlog.chaos.sim.ground.swarm.KINDS`) -> what does it, once."""


def heal(world: World, nodes: Collection[NodeId] | None = None, running: Collection[NodeId] = ()) -> None:
    """Ends all faults for those nodes (all, if None is given). The other nodes are held down, if they are not
    `running`."""
    world.is_healed = True
    world.trace.line(world.now_us, EVERYONE, "healed", *(nodes or ()))
    world.network.heal_all()
    heal_disks(world)
    for node, replica in world.replicas.items():
        replica.is_paused = False
        replica.is_held = nodes is not None and node not in nodes
        if not replica.is_held:
            world.restart(node)
            replica.wake()
        elif replica.core is not None and node not in running:
            replica.crash("held down", power=False)


def heal_disks(world: World) -> None:
    """Gives disks their space and their speed back, and takes away nodes that are beyond repair."""
    disks.heal(world)
    promises.heal(world)
    damage.heal(world)
    clocks.heal(world, world.replicas)


def unleash(world: World) -> None:
    """Start every stream of trouble that the seed's swarm has, the snapshots, and the trims."""
    swarm = world.swarm
    states.begin(world)
    for kind, every_us in swarm.faults:
        if kind in FAULTS:
            _again(world, Random(f"{world.seed} {kind}"), every_us, FAULTS[kind])
    if swarm.compact_every_us:
        _again(world, Random(f"{world.seed} compact"), swarm.compact_every_us, operators.compact)
    if swarm.trim_every_us:
        _again(world, Random(f"{world.seed} trim"), swarm.trim_every_us, operators.retain)


def _again(world: World, random: Random, every_us: int, what: Callable[[World, Random], None]) -> None:
    def act() -> None:
        if not world.is_healed:
            what(world, random)
            world.after(random.randint(1, 2 * every_us), act)

    world.after(random.randint(1, 2 * every_us), act)
