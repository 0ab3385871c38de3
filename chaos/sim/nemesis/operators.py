"""Acts as operators and housekeeping during faults: hand-overs, upgrades, snapshots, trims."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from raftlog.chaos.sim.world.world import World
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.refusals import ProposalRefused
from raftlog.raft.types import NOBODY, NodeId, Now
from raftlog.raft.wal.retention import RetentionPolicy, piece_of, trim_before
from raftlog.statemachine.commands import Operation


def attempt(world: World, node: NodeId, ask: Callable[[], object]) -> object:
    """Ask a core for something; False if it refuses."""
    try:
        return ask()
    except ProposalRefused as refusal:
        world.note(node, "refuses", type(refusal).__name__)
        world.count(f"refused {type(refusal).__name__}")
        return False


def transfer(world: World, random: Random) -> None:
    """An operator moves the leadership, to a named voter or to the best one."""
    to, leading = random.choice([NOBODY, *world.replicas]), world.leading()
    if leading is None or not world.fault("transfer", leading.node, f"to {to}"):
        return

    def ask(core: RaftCore, now: Now) -> None:
        if attempt(world, leading.node, lambda: core.transfer(to, now)):
            world.count("transfers")

    leading.tell(ask)


def compact(world: World, random: Random) -> None:
    """A node makes a snapshot of what it applied: housekeeping, no fault."""
    world.replicas[random.choice(list(world.replicas))].save_snapshot()


def retain(world: World, random: Random) -> None:
    """A node is asked to trim the log, as a policy decides or below any index, which may be too high. Housekeeping, no
    fault."""
    replica = random.choice(list(world.replicas.values()))
    kept, age_ms, jump = random.choice((2, 3, 6)), random.choice((0, 2_000, 20_000)), random.randint(-2, 60)
    by_policy = random.randrange(2) == 0
    if replica.core is None or replica.is_paused:
        return
    machine, size = replica.machine, world.swarm.segment_bytes
    before: int | None = max(1, machine.applied_index - jump)
    if by_policy:
        lowest = machine.consumers.lowest()
        policy = RetentionPolicy(bytes=kept * size, age_ms=age_ms, held_bytes=(kept + 2) * size)
        pieces = [piece_of(replica.disk.files, segment) for segment in replica.disk.running().journal.segments]
        before = trim_before(policy, pieces, machine.oldest, machine.time_ms, size, lowest)
    if before is not None:
        world.count("trims asked for")
        replica.ask([BlockRecord(int(Operation.TRIM), argument=before)])
