"""A leader stranded with writes: it takes what it cannot commit, and the log of the next leader conflicts with its own.

Ordinary cuts seldom catch a leader with more than an entry under way, and most mistakes about conflicts need several.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from raftlog.chaos.sim.nemesis.targets import for_a_while
from raftlog.chaos.sim.network import topologies
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.world.world import World
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation


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
    links = topologies.halves(nodes, side)
    for link in links:
        world.network.cut(*link)
    for _ in range(writes):
        count = random.choice((1, 2, 3, 5))
        for_a_while(world, random.randint(0, 400_000), _writes(world, leading, count))
    if dies:
        life = leading.life
        for_a_while(world, us // 2, lambda: leading.crash("stranded") if leading.life == life else None)

    def heal() -> None:
        for link in links:
            world.network.heal(*link)

    for_a_while(world, us, heal)


def _writes(world: World, replica: Node, count: int) -> Callable[[], None]:
    block = encode_block([BlockRecord(Operation.APPEND, None, b"stranded")] * count, plain=True)

    def write() -> None:
        replica.submit(block, count, 0, 0, world.now_us + 2_000_000, lambda _: world.count("stranded writes answered"))

    return write


FAULTS: Final[dict[str, Callable[[World, Random], None]]] = {"strand leader": strand_leader}
