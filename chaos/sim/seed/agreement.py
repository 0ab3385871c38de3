"""Checks a world after all faults: every node agrees, goes on and has the whole log, and no wrong state is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.chaos.sim.world.world import World
from raftlog.raft.types import NodeId

PROPERTY: Final = "a healed cluster makes progress"
HEALED_US: Final = 60_000_000
"""How long a healed cluster may take to agree: the smallest windows send one entry per round trip."""

NUDGE_US: Final = 100_000
"""How often something is written until the next digest point."""


def agree(world: World, is_excused: Callable[[], bool] = lambda: False) -> None:
    """Waits until all nodes that can run take writes again, and agree, or are excused. Raises NoProgress."""
    before = world.acknowledged

    def has_agreed() -> bool:
        return is_excused() or (world.acknowledged > before and world.has_agreed(before))

    def nudge() -> None:
        if world.acknowledged <= before:  # the clients may know only nodes that are lost
            world.write()
            world.after(world.patience_us, nudge)

    world.after(world.patience_us, nudge)
    world.wait(PROPERTY, HEALED_US, has_agreed, world.statuses)


def find_out(world: World) -> None:
    """Every member that has a wrong state is found out by the next digest points. Raises NoProgress.

    A node that was removed while it was down does not know it, and receives no digest points any more."""

    def wrong() -> list[NodeId]:
        leading = world.leading()
        if leading is None or leading.core is None:
            return [node for node, replica in world.replicas.items() if replica.corrupted]
        members = [member.node for member in leading.core.state.configuration.members]
        return [node for node in members if world.replicas[node].corrupted]

    def nudge() -> None:
        if wrong():
            world.write()
            world.after(NUDGE_US, nudge)

    if wrong():
        world.sometimes("a wrong state outlived the trouble")
        world.after(0, nudge)
        world.wait("a wrong state is found out", HEALED_US, lambda: not wrong(), wrong)
        agree(world)


def reach_back(world: World) -> None:
    """The log of every running member begins at the oldest index that may be read. Raises NoProgress.

    Nothing is asked of a world with damaged disks, or whose first voters are not all there: they may have taken records
    with them (docs/decisions/0012, remaining risk).
    """
    leading = world.leading()
    voters = leading.core.state.configuration.voters if leading is not None and leading.core is not None else ()
    if world.atlas.hits or not set(world.configuration.voters) <= set(voters):
        return

    def late() -> dict[NodeId, str]:
        found: dict[NodeId, str] = {}
        for node, replica in world.replicas.items():
            core = replica.core
            if core is not None and core.state.configuration.member(node) is not None:
                oldest, begins = replica.machine.oldest, replica.state.disk.oldest
                if begins > oldest:
                    found[node] = f"begins at {begins}, not {oldest}: {replica.state.backfill.waits}"
        return found

    world.wait("the readable log comes back", HEALED_US, lambda: not late(), late)
