"""Faults of disks: slow, silent or full for a while, and errors of one read, write or sync.

A failed write or sync fences the node (it stops, and an operator starts it again), a failed read is nothing but a
read that did not deliver, and a full disk holds back what has not begun. What damages a disk for good is in
`damage`, and asks the atlas first.
"""

from __future__ import annotations

from random import Random
from typing import Final

from raftlog.chaos.sim.nemesis.targets import anyone, for_a_while, several
from raftlog.chaos.sim.world.world import World

HANGS_US: Final = 2_000_000
"""A sync of a hanging disk takes this long: more than three election timeouts."""


def heal(world: World) -> None:
    """Every disk has room and its own pace again."""
    for disk in world.disks.values():
        disk.files.is_full = False
        disk.slow_us = 0


def full_disk(world: World, random: Random) -> None:
    """There is no room on one disk, or on several at once (they were bought on one day)."""
    nodes = several(world, random) if random.randrange(4) == 0 else [anyone(world, random)]
    us = _while(world, random)
    if not world.fault("full disk", nodes, "", us):
        return
    for node in nodes:
        world.disks[node].files.is_full = True

    def make_room() -> None:
        for node in nodes:
            world.disks[node].files.is_full = False

    for_a_while(world, us, make_room)


def slow_disk(world: World, random: Random) -> None:
    """Each sync of one node takes up to a second longer."""
    _slow(world, "slow disk", anyone(world, random), random.randint(1_000, 1_000_000), _while(world, random))


def hanging_disk(world: World, random: Random) -> None:
    """No sync of one node ends for long."""
    _slow(world, "hanging disk", anyone(world, random), HANGS_US, _while(world, random))


def _slow(world: World, kind: str, node: int, slow_us: int, us: int) -> None:
    """Each sync of one node takes that much longer."""
    disk = world.disks[node]
    if disk.slow_us or not world.fault(kind, node, f"{slow_us} us", us):
        return
    disk.slow_us = slow_us

    def go_on() -> None:
        disk.slow_us = 0

    for_a_while(world, us, go_on)


def fail(world: World, random: Random, kind: str) -> None:
    """The next operation of that kind fails at one node. After a write or a sync it must fence itself, and not try
    again; what a failed sync should have saved is clean in the cache, and lost."""
    node = anyone(world, random)
    if world.replicas[node].core is not None and world.fault(f"fail {kind}", node):
        world.disks[node].fail_next(kind)


def _while(world: World, random: Random) -> int:
    return random.randint(50_000, world.swarm.fault_times.disk_max_us)
