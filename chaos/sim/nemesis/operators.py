"""What operators and housekeeping do while things go wrong: hand leadership over, make snapshots."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from raft.core import RaftCore
from raft.types import NOBODY, Now

if TYPE_CHECKING:
    from chaos.sim.world import World


def transfer(world: World, random: Random) -> None:
    """An operator moves the leadership, to somebody or to whoever is best."""
    to, leading = random.choice([NOBODY, *world.replicas]), world.leading()
    if leading is None or not world.fault("transfer", leading.node, f"to {to}"):
        return

    def ask(core: RaftCore, now: Now) -> None:
        if world.attempt(leading.node, lambda: core.transfer(to, now)):
            world.count("transfers")

    leading.tell(ask)


def compact(world: World, random: Random) -> None:
    """A node makes a snapshot of what it applied: housekeeping, no fault."""
    world.replicas[random.choice(list(world.replicas))].save_snapshot()


FAULTS: Final[dict[str, Callable[[World, Random], None]]] = {"transfer": transfer}
