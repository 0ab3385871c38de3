"""What operators and housekeeping do while things go wrong: hand leadership over, make snapshots, trim the log."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from raft.codec import Record, encode_block
from raft.core import RaftCore
from raft.retention import Policy, piece_of, trim_before
from raft.types import NOBODY, Now
from statemachine.commands import Operation

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


def retain(world: World, random: Random) -> None:
    """A node is asked to trim the log: as a policy decides, or below any index, ones too high among them. And some node
    deletes what was trimmed before: housekeeping, no fault."""
    replicas = list(world.replicas.values())
    replica, other = random.choice(replicas), random.choice(replicas)
    kept, age_ms, jump = random.choice((2, 3, 6)), random.choice((0, 2_000, 20_000)), random.randint(-2, 60)
    by_policy, deadline_us = random.randrange(2) == 0, world.now_us + 3_000_000
    other.delete_trimmed()
    if replica.core is None or replica.is_paused:
        return
    machine, size = replica.machine, world.swarm.segment_bytes
    before: int | None = max(1, machine.applied_index - jump)
    if by_policy:
        lowest = machine.consumers.lowest()
        policy = Policy(bytes=kept * size, age_ms=age_ms, held_bytes=(kept + 2) * size)
        pieces = [piece_of(replica.disk.files, segment) for segment in replica.disk.running().journal.segments]
        before = trim_before(policy, pieces, machine.oldest, machine.time_ms, size, lowest)
    if before is not None:
        world.count("trims asked for")
        block = encode_block([Record(int(Operation.TRIM), argument=before)])
        replica.submit(block, 1, 0, 0, deadline_us, lambda _: None)


FAULTS: Final[dict[str, Callable[[World, Random], None]]] = {"transfer": transfer}
