"""Holds what everything in a world shares: virtual time, chance, the record, and the conditions that were drawn."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from raftlog.chaos.sim.ground.failure import NoProgress
from raftlog.chaos.sim.ground.outcome import Fault
from raftlog.chaos.sim.ground.swarm import Swarm, draw
from raftlog.chaos.sim.ground.trace import Trace
from raftlog.raft.types import NodeId


class ProcessEnded(BaseException):
    """Unwinds the code of a process that died in the middle of it. No code of the server catches it."""


class Stage:
    """The time of a world, and the record of what happens in it. Times are microseconds."""

    patience_us = 3_000_000
    """How long a client of the world's own waits for an answer."""

    def __init__(self, seed: int, swarm: Swarm | None, trace: Trace | None, skip: frozenset[int]) -> None:
        self.seed = seed
        self.random = self.random_of("world")
        self.swarm = swarm or draw(self.random_of("swarm"))
        self.trace = trace or Trace()
        self.skip = skip
        self.now_us = 0
        self.is_healed = False
        self.breach: Exception | None = None  # the first that a watched part found
        self.stats: dict[str, int] = {}
        self.faults: list[Fault] = []
        self._fault_number = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self.crash_random = self.random_of("crash")

    def random_of(self, purpose: str) -> Random:
        """A source of chance for one purpose only, so that what one part draws changes nothing for the others."""
        return Random(f"{self.seed} {purpose}")

    def at(self, time_us: int, action: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time_us, self._sequence, action, arguments))

    def after(self, delay_us: int, action: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now_us + delay_us, self._sequence, action, arguments))

    def run_until(self, end_us: int, done: Callable[[], bool] | None = None) -> bool:
        """Let things happen until then, or until `done` (asked every 10 ms); whether it ended by `done`."""
        ask_us = self.now_us
        events, pop = self._events, heapq.heappop
        while events and events[0][0] <= end_us:
            self.now_us, _, action, arguments = pop(events)
            action(*arguments)
            if done is not None and self.now_us >= ask_us:
                if done():
                    return True
                ask_us = self.now_us + 10_000
        self.now_us = end_us
        return False

    def wait(self, rule: str, within_us: int, done: Callable[[], bool], shown: Callable[[], object] = str) -> None:
        """Let things happen until `done`. Raises NoProgress, with the value of `shown`, where that takes longer."""
        if not self.run_until(self.now_us + within_us, done):
            raise NoProgress(rule, f"not within {within_us / 1e6:g} s: {shown()}")

    # -- chance ------------------------------------------------------------------------------------------------

    def sync_us(self) -> int:
        """How long one write with its sync takes."""
        random, sync = self.random, self.swarm.sync
        if not self.is_healed and sync.slow_sync and random.randrange(1_000) < sync.slow_sync:
            return random.randint(sync.sync_max_us, 900_000)
        return random.randint(sync.sync_min_us, sync.sync_max_us)

    def may_crash(self, step: str, weight: int = 1) -> None:
        """Raises ProcessEnded now and then: a crash can fall on any step of carrying out a Ready. `weight` makes up for
        steps that are rare themselves."""
        chance = self.swarm.crash_at_step
        if chance and not self.is_healed and self.crash_random.getrandbits(20) * 100_000 >> 20 < chance * weight:
            self.count(f"crash {step}")
            raise ProcessEnded(step)

    def step_cuts_power(self) -> bool:
        """Whether a crash at a step is a power cut."""
        return self.crash_random.randrange(1_000) < self.swarm.step_power_cut

    # -- the record --------------------------------------------------------------------------------------------

    def note(self, node: NodeId, *words: object) -> None:
        self.trace.line(self.now_us, node, *words)  # type: ignore[arg-type]

    def fault(self, kind: str, nodes: NodeId | Sequence[NodeId], detail: str = "", lasts_us: int = 0) -> bool:
        """A fault is about to happen: recorded under a running number; False if it is to be left out (shrinking)."""
        self._fault_number = number = self._fault_number + 1
        if number in self.skip:
            return False
        hit = (nodes,) if isinstance(nodes, int) else tuple(nodes)
        self.faults.append(Fault(number, self.now_us, kind, hit, detail, lasts_us))
        self.trace.fault(self.faults[-1])
        self.count("faults")
        self.count(f"fault: {kind}")
        return True

    def count(self, what: str) -> None:
        """Something worth counting happened."""
        self.stats[what] = self.stats.get(what, 0) + 1

    def sometimes(self, what: str) -> None:
        """A state that many seeds together must reach, or they prove little."""
        self.count(f"sometimes: {what}")
