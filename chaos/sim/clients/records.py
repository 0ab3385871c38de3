"""Appends records that your own state machine makes (`raftlog.chaos.sim.ground.machines.Machine`)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from raftlog.chaos.sim.world.world import World
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation

RECORD_EVERY_US: Final = 250_000
"""Mean time between two of these records, in microseconds."""

PATIENCE_US: Final = 3_000_000
"""How long the client waits for an answer, in microseconds."""


def feed(world: World) -> None:
    """Have a client append records that your machine makes, if it makes any, until the end of the run."""
    if world.yours is None:
        return
    make: Callable[[Random], bytes] | None = getattr(world.yours.yours, "record", None)
    if make is None:
        return
    random = world.random_of("records")

    def append() -> None:
        block = encode_block([BlockRecord(Operation.APPEND, None, make(random))], plain=True)
        node = random.choice(list(world.replicas))
        world.replicas[node].submit(block, 1, 0, 0, world.now_us + PATIENCE_US, lambda _: world.count("records made"))
        world.after(random.randint(1, 2 * RECORD_EVERY_US), append)

    world.after(0, append)
