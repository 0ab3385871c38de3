"""Reads the log at random positions and nodes, and compares every entry with the one that was applied first.

Consumers of a log read on where they stopped, at whatever node answers, also while it installs a snapshot, trims, or
loses the leadership. The server's own reader answers them (`raftlog.cluster.replica.log.log_reader`): from memory,
from its disk, or from a peer that still has the older log.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from random import Random
from typing import Any, Final

import xxhash

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.api.errors import Code, Problem
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.runtime import clock
from raftlog.raft.types import Entry
from raftlog.statemachine.effects import Effects, encode_effects

SKIPS: Final = "a reader of the log skips nothing"
EQUAL: Final = "a reader of the log gets the applied entries"
EVERY_US: Final = 400_000
"""How often a reader asks, on average, in microseconds; one that reads on where it stopped asks at once."""

WAITS_US: Final = 500_000
"""How long a reader at the end of the log waits for more, in microseconds."""

DEADLINE_US: Final = 50_000_000
"""Longest time until a process that lives answers, in microseconds: a reader has no deadline of its own."""

READERS: Final = 2


class LogReaders:
    """All readers of a world, and the log as it was applied first."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = world.random_of("log readers")
        self._ends: list[int] = []
        self._times: list[int] = []
        self.oldest = 1  # the highest index that any node has taken for the oldest one
        self._log: dict[int, tuple[int, int, int]] = {}  # by the index of an entry: the end before, CRC, effects
        for number in range(READERS):
            _Reader(self, Random(f"{world.seed} log reader {number}")).later()

    def applied(self, entry: Entry, effects: Effects, oldest: int) -> None:
        """Some node applied this entry, and takes `oldest` for the oldest index."""
        self.oldest = max(self.oldest, oldest)
        if not self._ends or entry.index > self._ends[-1]:
            self._ends.append(entry.index)
            self._times.append(entry.time_ms)
            self._log[entry.index] = (entry.before, entry.mark.header_crc, _hash(effects))

    def check(self, node: int, from_index: int, applied: int, found: list[tuple[Entry, Effects]]) -> None:
        """A node that had applied `applied` gave these entries. Raises Failure."""
        where = f"node {node}, asked for {from_index} with {applied} applied"
        if not found:
            if from_index <= applied:
                raise Failure(SKIPS, f"{where}, gave nothing")
            return
        before = found[0][0].before
        if not before < from_index <= found[0][0].index:
            raise Failure(SKIPS, f"{where}, began with {before + 1} to {found[0][0].index}")
        for entry, effects in found:
            if entry.before != before:
                raise Failure(SKIPS, f"{where}, gave {entry.before + 1} behind {before}")
            if self._log.get(entry.index) != (entry.before, entry.mark.header_crc, _hash(effects)):
                raise Failure(EQUAL, f"{where}, gave another entry {entry.index}")
            before = entry.index

    def check_time(self, node: int, time_ms: int, applied: int, found: int) -> None:
        """A node that had applied `applied` found that index for a time. Raises Failure."""
        place = bisect_left(self._times, time_ms)
        after = self._ends[-1] + 1 if self._ends else 1
        expected = self._log[self._ends[place]][0] + 1 if place < len(self._ends) else after
        if found != expected and not applied < found < expected and found > self.oldest:
            raise Failure(EQUAL, f"node {node} found {found} for time {time_ms}, {expected} has it first")

    def time_of_any(self, random: Random) -> int:
        return random.choice(self._times) if self._times else 0


class _Reader:
    """One reader: it reads on where it stopped, or jumps."""

    def __init__(self, readers: LogReaders, random: Random) -> None:
        self._readers, self._random = readers, random
        self._next = 1
        self._number = 0  # of the newest question

    def later(self) -> None:
        world = self._readers.world
        world.after(self._random.randint(1, 2 * EVERY_US), self._ask, self._number)

    def _ask(self, number: int) -> None:
        world, random = self._readers.world, self._random
        if number != self._number:
            return
        self._number = number = number + 1
        if random.randrange(4) == 0:
            self._next = random.randint(1, max(1, world.acknowledged + 2))
        replica = world.replicas[random.choice(list(world.replicas))]
        is_of_time = random.randrange(8) == 0
        if replica.core is None:
            self.later()
            return
        limit, bytes_max = random.choice((1, 10, 1_000)), random.choice((1, 2_000, 1 << 20))
        waits_us = WAITS_US if random.getrandbits(1) else 0
        done: Any = partial(self._answered, number, replica.node, self._next)
        work: Any = partial(_read, self._next, limit, bytes_max, waits_us)
        if is_of_time:
            time_ms = self._readers.time_of_any(random)
            done, work = partial(self._found, number, replica.node, time_ms), partial(_find, time_ms)
        replica.serve(work, done, world.now_us + DEADLINE_US)
        world.after(DEADLINE_US, self._give_up, number)

    def _give_up(self, number: int) -> None:
        if number == self._number:  # the process ended
            self._number += 1
            self.later()

    def _answered(self, number: int, node: int, from_index: int, answer: Any) -> None:
        world = self._readers.world
        if isinstance(answer, Problem):
            self._refused(number, from_index, answer)
            return
        applied, found = answer
        self._readers.check(node, from_index, applied, found)
        world.count("pages of the log read")
        if number == self._number:
            if found:
                self._next = found[-1][0].index + 1
                world.after(self._random.randint(100, 20_000), self._ask, number)
            else:
                self.later()

    def _found(self, number: int, node: int, time_ms: int, answer: Any) -> None:
        if isinstance(answer, Problem):
            self._refused(number, 0, answer)
            return
        self._readers.check_time(node, time_ms, *answer)
        self._readers.world.count("times found in the log")
        if number == self._number:
            self.later()

    def _refused(self, number: int, from_index: int, problem: Problem) -> None:
        self._readers.world.count(f"pages of the log refused: {problem.code}")
        if problem.code is Code.COMPACTED:
            if problem.oldest is None or not from_index < problem.oldest <= self._readers.oldest:
                raise Failure(SKIPS, f"index {from_index} counts as gone: {problem.message}")
            self._next = problem.oldest
        if number == self._number:
            self.later()


async def _read(
    from_index: int, limit: int, bytes_max: int, waits_us: int, server: Replica
) -> tuple[int, list[tuple[Entry, Effects]]]:
    if waits_us:
        await server.wait_beyond(from_index - 1, clock.monotonic() + waits_us / 1e6)
    applied = server.applied
    return applied, await server.read_log(from_index, limit, bytes_max)


async def _find(time_ms: int, server: Replica) -> tuple[int, int]:
    applied = server.applied
    return applied, await server.find_time(time_ms)


def _hash(effects: Effects) -> int:
    return xxhash.xxh64_intdigest(encode_effects(effects))
