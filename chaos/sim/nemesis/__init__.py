"""Injects faults into a world: one stream for each kind of fault in the seed's swarm.

Each stream draws from its own Random, everything before it asks `World.fault`, which numbers and records a fault and
may say no: so a run with one fault left out (shrinking) stays as like the first one as it can. One file per family.
Every fault brings its own end along; `World.heal` ends all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from random import Random
from typing import Final

from raftlog.chaos.sim.disk import faults
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
from raftlog.chaos.sim.nemesis.targets import anyone, several
from raftlog.chaos.sim.world.world import World
from raftlog.raft.types import NodeId

__all__ = ["FAULTS", "heal", "heal_disks", "unleash"]

FAULTS: Final[dict[str, Callable[[World, Random], None]]] = {
    "cut link": network.cut_link,
    "cut node": network.cut_node,
    "cut halves": network.cut_halves,
    "cut shape": network.cut_shape,
    "clog": network.clog,
    "flap": network.flap,
    "reset link": network.reset_link,
    "break links": breaks.break_links,
    "kill": partial(processes.end_one, kind="kill", power=False),
    "power cut": partial(processes.end_one, kind="power cut", power=True),
    "kill several": processes.kill_several,
    "kill all": lambda world, _: processes.end(world, "kill all", world.replicas, power=False),
    "power cut all": lambda world, _: processes.end(world, "power cut all", world.replicas, power=True),
    "restart storm": processes.restart_storm,
    "pause": lambda world, random: processes.stop(world, random, "pause", [anyone(world, random)]),
    "pause several": lambda world, random: processes.stop(world, random, "pause several", several(world, random)),
    "slow disk": disks.slow_disk,
    "hanging disk": disks.hanging_disk,
    "full disk": disks.full_disk,
    "fail read": partial(disks.fail, kind="read"),
    "fail write": partial(disks.fail, kind="write"),
    "fail sync": partial(disks.fail, kind="sync"),
    "flip bit": partial(damage.damage, kind="flip bit", how=faults.flip_bit),
    "flip newest": damage.flip_newest,
    "misdirect": partial(damage.damage, kind="misdirect", how=faults.misdirect),
    "stale block": partial(damage.damage, kind="stale block", how=faults.stale_block),
    "wipe": damage.wipe,
    "roll back": damage.roll_back,
    "restore copy": damage.restore,
    "format again": damage.format_again,
    "lying sync": promises.lying_sync,
    "clone": promises.clone,
    "refused copy": promises.refused_copy,
    "clock jump": clocks.clock_jump,
    "clock drift": clocks.clock_drift,
    "transfer": operators.transfer,
    "add": members.add,
    "promote": members.promote,
    "remove": members.remove,
    "replace": members.replace,
    "strand leader": strand.strand_leader,
    "strand follower": strand.strand_follower,
    "corrupt state": states.corrupt,
    "removed key": forged.removed_key,
    "forged hello": forged.forged_hello,
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
