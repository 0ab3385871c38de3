"""Checks that a cluster whose disks are all full keeps a leader, answers reads, and goes on after a trim.

In some worlds, behind all other trouble: the disks of the voters get a size, each its own or one for all. They are
filled by records, or by another program. Then the leader's process ends, or all processes, or none. The demands are
those of docs/decisions/0028.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from raftlog.chaos.sim.disk.files import DiskSpace
from raftlog.chaos.sim.ground.failure import NoProgress
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.seed.agreement import agree
from raftlog.chaos.sim.seed.bad_disks import Writer, voters_of_today
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.protocol.request import RequestResult
from raftlog.cluster.replica.upkeep.disk_space import LOOK_S
from raftlog.raft.codec.block import BlockRecord
from raftlog.statemachine.commands import Operation

ONE_WORLD_IN: Final = 4
SEGMENTS: Final = 6
"""So many segments has the log of each voter before its disk gets a size: there is something to free."""

SEGMENTS_FREE_MAX: Final = 3
"""At most so many fit on the disk before it is full, beside the reserve."""

FILLED_US: Final = 60_000_000
QUIET_US: Final = 2_000_000
"""Without an acknowledged write for so long, the disks are full."""

ELECTED_US: Final = 10_000_000
"""The longest time until a leader answers a read: an election of the slowest options, with one split vote."""

STAYS_US: Final = 5_000_000
FREED_US: Final = 20_000_000
"""From the trim to the next acknowledged write: two snapshots with a pause of two seconds, and an election between."""

ASK_US: Final = 200_000
LEADS: Final = "full disks keep a leader that answers reads"
TAKES_TRIM: Final = "full disks take a trim"
GOES_ON: Final = "after a trim of full disks writes go on"


def with_full_disks(world: World) -> None:
    """In some worlds, as said above; no disk has a size any more behind it. Raises NoProgress."""
    random = world.random_of("full disks")
    voters = [world.replicas[node] for node in voters_of_today(world)]
    if random.randrange(ONE_WORLD_IN) or not voters:
        return
    writer = Writer(world)
    world.wait(LEADS, FILLED_US, lambda: all(map(_has_log, voters)))
    world.run_until(world.now_us + int(2e6 * LOOK_S))  # the reserve follows the state
    _fill(world, random, voters, writer)
    how = random.randrange(3)
    for each in ([], [world.leading()], voters)[how]:
        if each is not None and each.core is not None:
            each.crash("killed", power=False)
    _until_answered(world, LEADS, lambda leading, done: leading.read_barrier(done, world.now_us + ASK_US), int)
    # Until a started node has applied its log, its reserve seems whole: a full leader may hand over to it.
    world.run_until(world.now_us + ELECTED_US, lambda: all(map(_has_applied, voters)))
    world.run_until(world.now_us + int(2e6 * LOOK_S))
    term, written = max([each.core.state.term for each in voters if each.core is not None]), writer.acknowledged
    world.run_until(world.now_us + STAYS_US)
    world.wait(LEADS, ELECTED_US, lambda: world.leading() is not None)
    now = max([each.core.state.term for each in voters if each.core is not None])
    if now > term + 1 and writer.acknowledged == written:  # one that has room again takes over, and writes
        raise NoProgress(LEADS, f"term {term} became {now} within {STAYS_US / 1e6:g} s")
    has_log = all(len(each.disk.segment_firsts) >= SEGMENTS for each in voters)
    _until_answered(world, TAKES_TRIM, _trim, RequestResult)
    before = writer.acknowledged
    if has_log:  # else a policy trimmed it before, and the state fills the disks
        world.wait(GOES_ON, FREED_US, lambda: writer.acknowledged > before)
    writer.is_on = False
    world.sometimes("full disks were trimmed, and writes went on")
    for each in voters:
        each.disk.files.space = None
    agree(world)


def _trims_by_itself(replica: Node) -> bool:
    """Whether a policy trims its log."""
    kept = replica.state.settings.retention
    return bool(kept.bytes or kept.age_ms)


def _has_log(replica: Node) -> bool:
    """Whether its log has enough segments, if no policy trims it, and its reserve is whole."""
    if replica.core is None or replica.disk.reserve.is_used:
        return False
    return len(replica.disk.segment_firsts) >= SEGMENTS or _trims_by_itself(replica)


def _has_applied(replica: Node) -> bool:
    """Whether it runs and has applied all of its log that is committed."""
    return replica.core is not None and replica.applied_index >= replica.core.state.log.committed


def _fill(world: World, random: Random, voters: list[Node], writer: Writer) -> None:
    """The disks get their size, and are full: no write is acknowledged any more. Or a policy trims the log in time."""
    is_shared, is_taken = random.randrange(2) == 0, random.randrange(2) == 0
    world.note(0, "disks with a size", *[each.node for each in voters])
    files = [each.disk.files for each in voters]
    spaces: list[tuple[DiskSpace, int]] = []
    for those in [files] if is_shared else [[each] for each in files]:
        most = len(those) * SEGMENTS_FREE_MAX * world.swarm.segment_bytes
        free = random.randrange(most)
        space = DiskSpace(sum([each.used for each in those]) + free, those)
        space.taken = free if is_taken else 0
        spaces.append((space, most))
    trims = _trims_by_itself(voters[0])

    def is_full() -> bool:
        for space, most in spaces if not trims else ():  # another program takes what an old snapshot leaves
            space.taken += max(0, space.free - most)
        return world.now_us - writer.newest_us > QUIET_US

    if not (world.run_until(world.now_us + FILLED_US, is_full) or trims):
        raise NoProgress("full disks refuse writes", f"not within {FILLED_US / 1e6:g} s")


def _trim(leading: Node, done: Callable[[Any], None]) -> None:
    """Asks the leader to trim all but its newest records."""
    leading.ask([BlockRecord(int(Operation.TRIM), argument=leading.applied_index - 1)], done, for_us=ASK_US)


def _until_answered(
    world: World, rule: str, ask: Callable[[Node, Callable[[Any], None]], None], good: type[object]
) -> None:
    """Asks whichever node leads again and again, until an answer is of that kind."""
    answers: list[object] = []

    def again() -> None:
        if not is_answered():
            leading = world.leading()
            if leading is not None:
                ask(leading, answers.append)
            world.after(ASK_US, again)

    def is_answered() -> bool:
        return any(isinstance(each, good) for each in answers)

    again()
    world.wait(rule, ELECTED_US, is_answered, lambda: answers[-3:])
