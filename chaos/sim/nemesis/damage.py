"""What damages a disk for good: flipped bits, misdirected and stale blocks, and a disk that comes back empty.

The atlas is asked first: of everything promised enough intact copies stay, so that whatever is damaged, the healed
cluster goes on with what it acknowledged. A damaged log is cut at the next start, and heals from the others. A node
beyond repair stops loudly, at its next start at the latest; when the world is healed it is taken away.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from chaos.sim.disk_faults import AREAS, FATAL
from chaos.sim.nemesis.targets import anyone, for_a_while
from chaos.sim.wires import NOBODY_YET
from raft.hello import NEVER_MET
from raft.operations import Delete
from raft.types import NodeId

if TYPE_CHECKING:
    from chaos.sim.world import World

AROUND_US: Final = 2_000_000
"""How long a machine with an old copy of its disk stays at most."""

CHECKED_US: Final = 3_000_000
"""How soon an operator stops a node and looks at its disk."""

LOOK_US: Final = 500
"""Shorter than any process is down: its peers' ends are noticed before one of them is back."""


def heal(world: World) -> None:
    """Operators check every disk: a node beyond repair is taken away, one with damage is started anew, and mends it."""
    for node, disk in sorted(world.disks.items()):
        if world.atlas.is_beyond_repair(node):
            _take_away(world, node)
        elif disk.damaged and not world.replicas[node].is_retired:
            _check_disk(world, node)


def _check_disk(world: World, node: NodeId) -> None:
    """As docs/operations.md says: what `raftlog disk check` finds in a sealed segment is found by the next start too,
    once the .idx beside it is gone; a start that cannot mend it refuses."""
    replica, disk = world.replicas[node], world.disks[node]
    if replica.core is not None:
        replica.crash("stopped to check its disk", power=False)
    for name in [name for name in disk.damaged if name.endswith(".seg")]:
        disk.files.carry_out(Delete(f"{name[:-4]}.idx"))
    replica.is_paused = replica.is_held = False
    world.restart(node)
    if disk.refused:
        _take_away(world, node)


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
    _lose(world, node, "wipe", "the disk was wiped", power=power)
    world.disks[node].wipe()


def roll_back(world: World, random: Random) -> None:
    """A machine comes back with a copy of its disk that was made some starts ago: its peers must not believe it.

    They know it by the boot counter that they saw last (docs/formats.md, Undecidable), so it runs only as long as every
    other process has seen a newer one and lives on; then it is taken away.
    """
    node, ago_us = anyone(world, random), random.randint(1_000_000, 20_000_000)
    image = world.disks[node].copy()

    def bring_back() -> None:
        replica = world.replicas[node]
        boot, peers = image.view.hard_state.boot + 2, [peer for peer in world.replicas.values() if peer is not replica]
        disk = (node, world.disks[node].incarnation)
        if replica.core is None or any(peer.met.get(disk, NEVER_MET).boot < boot for peer in peers):
            return  # there are those whom an old copy could deceive
        if not _may_hit(world, node, "roll_back") or not world.fault("roll back", node, f"by {ago_us} us", AROUND_US):
            return
        _lose(world, node, "roll_back", f"rolled back by {ago_us} us", power=True)
        world.disks[node].roll_back(image)
        replica.start()
        # Its own end counts too: with each start its counter comes nearer to what the peers have seen.
        everyone = [replica, *peers]
        lives = [each.life for each in everyone]

        def look() -> None:
            if lives != [each.life for each in everyone] or world.now_us - began_us > AROUND_US:
                _take_away(world, node)
            elif not replica.is_retired:
                world.after(LOOK_US, look)

        began_us = world.now_us
        world.after(LOOK_US, look)

    for_a_while(world, ago_us, bring_back)


def _lose(world: World, node: NodeId, area: str, what: str, *, power: bool) -> None:
    """That disk is no longer the one that made promises."""
    replica = world.replicas[node]
    if replica.core is not None:
        replica.crash(what, power=power)
    replica.hello = NOBODY_YET
    world.witness.lost(node)
    world.atlas.hit(node, area, what)


def _take_away(world: World, node: NodeId) -> None:
    replica = world.replicas[node]
    replica.is_retired = True
    if replica.core is not None:
        replica.crash("taken away: its disk is beyond repair", power=False)


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
        if area in FATAL and random.randrange(2):  # else scrubbing finds it, the next start, or a reader
            for_a_while(world, random.randrange(CHECKED_US), lambda: _look_again(world, node))


def _look_again(world: World, node: NodeId) -> None:
    if world.disks[node].is_hurt and not world.replicas[node].is_retired:
        _check_disk(world, node)


def _may_hit(world: World, node: NodeId, area: str) -> bool:
    return not world.replicas[node].is_retired and world.atlas.may_hit(node, area)


FAULTS: Final[dict[str, Callable[[World, Random], None]]] = {
    "flip bit": flip_bit,
    "misdirect": misdirect,
    "stale block": stale_block,
    "wipe": wipe,
    "roll back": roll_back,
}
