"""Checks that writes go on in a sound cluster with bad disks or a wrong clock, while a majority has disk space.

In some worlds, behind all other trouble: a minority of the disks is full, or the leader's is slow, or its wall clock is
hours off; everything else is healthy. Then every client is answered within a bound, and full followers are sent
nothing more.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

from raftlog.chaos.sim.ground.failure import Failure, NoProgress
from raftlog.chaos.sim.replica.answers import Answer
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.seed.agreement import agree
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.protocol.disk_reports import Why
from raftlog.cluster.protocol.request import RequestResult
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.types import NodeId
from raftlog.statemachine.commands import Operation

ONE_WORLD_IN: Final = 3
VALUE: Final = bytes(1_200)
"""With its entry it fits the swarm's `entry_bytes_max`; a few fill a segment."""

EVERY_US: Final = 60_000
"""How often something is written: each slot of `raftlog.cluster.protocol.disk_reports.SyncTimes` has syncs."""

STILL_US: Final = 8_000_000
"""The longest time without an acknowledged write: a hand-over that fails (one second), the pause before the next one
(three), and an election of the slowest options (two to four)."""

MORE: Final = 20
"""Writes that must be acknowledged once all full disks are known: none of their nodes is sent any of them."""

SLOW_US: Final = 400_000
SLOW_FOR_US: Final = 15_000_000
"""A slow leader goes by then: five seconds until it counts as slow, and as long again for an election in between."""

SETTLED_US: Final = 2_000_000
"""A full follower may be sent entries for so long after it has found its disk full, until its leader knows."""


class Writer:
    """Writes to the leader now and then, and notes the time of the last acknowledgement."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.acknowledged = 0
        self.newest_us = world.now_us
        self.is_on = True
        self._write()

    def _write(self) -> None:
        world = self._world
        if self.is_on:
            replica = world.leading()
            if replica is not None:
                replica.ask([BlockRecord(Operation.APPEND, None, VALUE)], self._answered, plain=True)
            world.after(EVERY_US, self._write)

    def _answered(self, answer: Answer) -> None:
        if isinstance(answer, RequestResult):
            self.acknowledged += 1
            self.newest_us = self._world.now_us


def with_bad_disks(world: World) -> None:
    """In some worlds, as said above; all disks are well again behind it. Raises Failure."""
    random = world.random_of("bad disks")
    voters = voters_of_today(world)
    if random.randrange(ONE_WORLD_IN) or len(voters) < 3:
        return
    random.choice((_full, _full, _slow, _wrong_clock))(world, random, voters)
    for disk in world.disks.values():
        disk.files.is_full, disk.slow_us = False, 0
    agree(world)


def voters_of_today(world: World) -> list[NodeId]:
    """All voters, the leader first, if every one runs and no change of the members is under way."""
    leading = world.leading()
    if leading is None or leading.core is None or leading.core.status().is_changing:
        return []
    configuration = leading.core.state.configuration
    replicas = [world.replicas[node] for node in configuration.voters]
    if any(each.core is None for each in replicas):
        return []
    return sorted(configuration.voters, key=lambda node: node != leading.node)


def _full(world: World, random: Random, voters: list[NodeId]) -> None:
    """A minority is full: writes go on through the others, and none of them reaches a disk that is known to be full."""
    count = random.randint(1, (len(voters) - 1) // 2)
    first = [voters[0]] if random.randrange(4) else []
    full = sorted(first + random.sample(voters[1:], count - len(first)))
    world.note(0, "full disks", *full)
    for node in full:
        world.disks[node].files.is_full = True
    known: dict[NodeId, FullFollower] = {}

    def is_done() -> bool:
        if world.now_us - writer.newest_us > STILL_US:
            raise NoProgress(PROPERTY, f"full {full}, no write acknowledged for {STILL_US / 1e6:g} s")
        for node in full:
            _look_at(world, world.replicas[node], known)
        if not all(node in known and known[node].held_at for node in full):
            settled.clear()
        elif not settled:
            settled.append(writer.acknowledged)
        return bool(settled) and writer.acknowledged >= settled[0] + MORE

    writer = Writer(world)
    settled: list[int] = []  # how many writes were acknowledged when every full node was known to be
    world.wait(PROPERTY, 10 * STILL_US, is_done, lambda: f"full {full}, {writer.acknowledged} writes, {known}")
    writer.is_on = False
    world.sometimes("a majority with room went on")


PROPERTY: Final = "while a majority has room on its disks, writes go on"
WRONG_MS: Final = 7_200_000
HELD: Final = "a full follower is sent no entries while a majority can do without it"


class FullFollower(NamedTuple):
    """A full follower whose disk the leader of a term should know to be full."""

    term: int
    since_us: int  # the follower follows that leader, and knows that its disk is full
    held_at: int = 0  # the last index of its log soon after; 0: not yet


def _look_at(world: World, replica: Node, known: dict[NodeId, FullFollower]) -> None:
    """Raises Failure where a full follower got an entry that does not help to make room: the newest entry that lets go
    of something, and all before it, are sent (docs/decisions/0018). A new leader first has to hear of the full disk."""
    core, now_us = replica.core, world.now_us
    assert core is not None, "nothing crashes any more"
    if replica.state.syncer.has_space or replica.leader in (0, replica.node):
        known.pop(replica.node, None)
        return
    last, term = core.state.log.last.index, core.state.term
    each = known.get(replica.node)
    if each is None or each.term != term:
        each = FullFollower(term, now_us)
    leading = world.leading()
    if each.held_at and leading is not None and each.held_at < last <= leading.state.disk_space.trim_index:
        each = each._replace(held_at=last)
    elif each.held_at and last > each.held_at:
        raise Failure(HELD, f"node {replica.node}: its log went from {each.held_at} to {last}")
    if not each.held_at and now_us - each.since_us >= SETTLED_US:
        each = each._replace(held_at=last)
    known[replica.node] = each


def _slow(world: World, random: Random, voters: list[NodeId]) -> None:
    """The leader's disk is slow, those of the others are as before: another voter leads soon, and writes go on. Not
    demanded during the pause between two hand-overs: a leader must not move on before it ends."""
    slow = voters[0]
    leading = world.replicas[slow]
    view = leading.state.disks
    times_ms = [at_ms for handover, at_ms in view.last_ms.items() if handover.why is Why.SLOW]
    if times_ms and leading.now().monotonic_ms < max(times_ms) + view.rules.slow_pause_ms:
        return  # it handed over for its disk within the last minute, and leads again: it may not do so again yet
    world.note(0, "slow disk", slow)
    world.disks[slow].slow_us = random.randint(SLOW_US, 2 * SLOW_US)

    _goes(world, leading, SLOW_FOR_US, "a leader with a much slower disk hands over")
    world.sometimes("a slow disk did not keep the leadership")


def _goes(world: World, leading: Node, within_us: int, rule: str) -> None:
    """Waits until another node leads, and writes go on."""
    writer = Writer(world)
    world.wait(rule, within_us, lambda: world.leading() not in (None, leading), lambda: f"node {leading.node} leads")
    before = writer.acknowledged
    world.wait(rule, STILL_US, lambda: writer.acknowledged >= before + MORE, lambda: "writes do not go on")
    writer.is_on = False


def _wrong_clock(world: World, random: Random, voters: list[NodeId]) -> None:
    """The leader's wall clock jumps by hours: another voter leads soon, and writes go on."""
    leading = world.replicas[voters[0]]
    world.note(0, "wrong clock", leading.node)
    leading.clock.jump_wall(random.choice((-1, 1)) * WRONG_MS)
    _goes(world, leading, STILL_US, "a leader with a wrong clock hands over")
    leading.clock.jump_wall(-leading.clock.off_ms)
    world.sometimes("a wrong clock did not keep the leadership")
