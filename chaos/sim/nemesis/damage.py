"""What damages a disk for good: flipped bits, misdirected and stale blocks, and a disk that comes back empty.

The atlas is asked first: of everything promised enough intact copies stay, so that whatever is damaged, the healed
cluster goes on with what it acknowledged. A node beyond repair stops loudly, at its next start at the latest; when the
world is healed it is taken away.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from chaos.sim.disk_faults import AREAS
from chaos.sim.nemesis.targets import anyone
from raft.types import NodeId

if TYPE_CHECKING:
    from chaos.sim.world import World


def heal(world: World) -> None:
    """Operators take away every node that is beyond repair."""
    for node in sorted(world.atlas.lost):
        replica = world.replicas[node]
        replica.is_retired = True
        if replica.core is not None:
            replica.crash("taken away: its disk is damaged", power=False)


def flip_bit(world: World, random: Random) -> None:
    """A bit flips at rest: in a segment, the hard state, a snapshot, the ledger or the index."""
    _damage(world, random, "flip bit")


def misdirect(world: World, random: Random) -> None:
    """A block was written over another one."""
    _damage(world, random, "misdirect")


def stale_block(world: World, random: Random) -> None:
    """A block never got its newest write, though the disk said so."""
    _damage(world, random, "stale block")


def wipe(world: World, random: Random) -> None:
    """A machine comes back with an empty disk under its old number: it must not take part."""
    node, power = anyone(world, random), random.randrange(2) == 0
    if not _may_hit(world, node, "wipe") or not world.fault("wipe", node):
        return
    if world.replicas[node].core is not None:
        world.replicas[node].crash("its disk is wiped", power=power)
    world.disks[node].wipe()
    world.atlas.hit(node, "wipe", "the disk was wiped")
    world.witness.lost(node)


def _damage(world: World, random: Random, kind: str) -> None:
    node, area = anyone(world, random), random.choice(AREAS)
    if not _may_hit(world, node, area) or not world.fault(kind, node, area):
        return
    disk = world.disks[node]
    what = {"flip bit": disk.flip_bit, "misdirect": disk.misdirect, "stale block": disk.stale_block}[kind](area, random)
    if what:
        world.count(f"damage: {area}")
        world.note(node, "damaged", what)
        world.atlas.hit(node, area, what)


def _may_hit(world: World, node: NodeId, area: str) -> bool:
    return not world.replicas[node].is_retired and world.atlas.may_hit(node, area)


FAULTS: Final[dict[str, Callable[[World, Random], None]]] = {
    "flip bit": flip_bit,
    "misdirect": misdirect,
    "stale block": stale_block,
    "wipe": wipe,
}
