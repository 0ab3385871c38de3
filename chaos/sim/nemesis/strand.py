"""Strands a leader with writes that it cannot commit, or a follower behind a trim.

Ordinary cuts seldom catch a leader with more than an entry under way, and most mistakes about conflicts need several.
And they end before the others have written a segment, saved two snapshots and trimmed the log that the follower needs.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from raftlog.chaos.sim.nemesis.network import hinder
from raftlog.chaos.sim.nemesis.targets import for_a_while
from raftlog.chaos.sim.network import topologies
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.world.world import World
from raftlog.raft.codec.block import BlockRecord
from raftlog.statemachine.commands import Operation

STRANDED_US: Final = (1_000_000, 10_000_000)
"""For so long a follower is stranded at most."""

WRITE_US: Final = 30_000
PATIENCE_US: Final = 2_000_000
WRITTEN: Final = bytes(1_200)
"""With its entry it fits the swarm's `entry_bytes_max`; a few fill the smallest segment."""


def strand_leader(world: World, random: Random) -> None:
    """Cut the leader off, alone or with a minority, and write to it meanwhile; sometimes it dies before it is back."""
    leading, nodes = world.leading(), list(world.replicas)
    others = [node for node in nodes if leading is None or node != leading.node]
    friends = random.sample(others, min(len(others), random.randint(0, max(0, (len(nodes) - 1) // 2))))
    us, writes, dies = random.randint(200_000, 3_000_000), random.randint(2, 8), random.randrange(3) == 0
    if leading is None or not others:
        return
    side = sorted([leading.node, *friends])
    if not world.fault("strand leader", side, f"{leading.node} with {writes} writes{', and dies' * dies}", us):
        return
    heal = hinder(topologies.halves(nodes, side), world.network.cut, world.network.heal)
    for _ in range(writes):
        count = random.choice((1, 2, 3, 5))
        for_a_while(world, random.randint(0, 400_000), _writes(world, leading, count))
    if dies:
        life = leading.life
        for_a_while(world, us // 2, lambda: leading.crash("stranded") if leading.life == life else None)
    for_a_while(world, us, heal)


def _writes(world: World, replica: Node, count: int) -> Callable[[], None]:
    records = [BlockRecord(Operation.APPEND, None, b"stranded")] * count
    answered = "stranded writes answered"
    return lambda: replica.ask(records, lambda _: world.count(answered), for_us=PATIENCE_US, plain=True)


def strand_follower(world: World, random: Random) -> None:
    """Stop a follower or cut it off until the others have deleted log that it needs. One that was cut off then begins
    to save its state, and a leader's snapshot may overtake that."""
    leading, nodes = world.leading(), list(world.replicas)
    node, is_cut, end_us = random.choice(nodes), random.randrange(3) > 0, world.now_us + random.randint(*STRANDED_US)
    replica = world.replicas[node]
    if leading in (None, replica) or replica.core is None or len(nodes) < 3:
        return
    if not world.fault("strand follower", node, "cut off" if is_cut else "stopped", end_us - world.now_us):
        return
    links, life = topologies.halves(nodes, [node]) if is_cut else (), replica.life
    heal = hinder(links, world.network.cut, world.network.heal)
    if not is_cut:
        replica.is_held = True
        replica.crash("stopped for a while", power=False)

    def write() -> None:
        ends = [each.disk.first_index for each in world.replicas.values() if each.core is not None]
        if world.now_us < end_us and max(ends, default=0) <= replica.disk.view.durable_last + 1:
            _write_and_trim(world, random, replica)
            for_a_while(world, WRITE_US, write)
            return
        if is_cut and replica.life == life:
            replica.save_snapshot()
        heal()
        replica.is_held = False
        world.restart(node)

    write()


def _write_and_trim(world: World, random: Random, stranded: Node) -> None:
    leading, other = world.leading(), world.replicas[random.choice(list(world.replicas))]
    if other is not stranded:
        other.save_snapshot()
    if leading not in (None, stranded):
        operation = BlockRecord(Operation.APPEND, None, WRITTEN)
        if random.randrange(8) == 0:
            operation = BlockRecord(Operation.TRIM, argument=max(1, leading.applied_index - 1))
        leading.ask([operation], for_us=PATIENCE_US)
