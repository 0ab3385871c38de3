"""Sums up a run of many seeds: hours, medians per simulated minute, unreached states, failures.

A run in which too little happened proves nothing, so it does not count as clean: see FLOORS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Final

import xxhash

from raftlog.chaos.sim.runs.runner import SECONDS, Result

FLOORS: Final[dict[str, tuple[str, int]]] = {
    "client operations": ("client operations", 200),
    "faults": ("faults", 10),
    "leader changes": ("leaders", 2),
}
"""What the median seed must reach per simulated minute, and the statistic that counts it."""

FLOORS_SEEDS: Final = 20
"""A run of fewer seeds, or of shorter ones, has no median worth a verdict."""

SOMETIMES: Final = "sometimes: "
"""How the statistics of a seed begin that count a state which must be reached now and then."""


@dataclass(slots=True)
class Summary:
    """The results of a run, added up as they come."""

    seconds: int  # simulated seconds of trouble per seed
    states: tuple[str, ...] = ()  # every "sometimes" state that there is
    seeds: int = 0
    simulated_ms: int = 0
    reached: dict[str, int] = field(default_factory=dict)  # state -> in how many seeds
    failures: list[Result] = field(default_factory=list)
    seeds_until_failure: int = 0
    _rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in FLOORS})
    _digests: dict[int, str] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        self.seeds += 1
        if result.broken is not None:
            self.failures.append(result)
            self.seeds_until_failure = self.seeds_until_failure or self.seeds
            return
        stats = result.stats
        simulated_ms = stats.get("simulated ms", 0)
        self.simulated_ms += simulated_ms
        self._digests[result.job.seed] = result.digest
        for name, (key, _) in FLOORS.items():
            self._rates[name].append(stats.get(key, 0) * 60_000 / max(simulated_ms, 1))
        for name, number in stats.items():
            if name.startswith(SOMETIMES) and number:
                state = name.removeprefix(SOMETIMES)
                self.reached[state] = self.reached.get(state, 0) + 1

    @property
    def hours(self) -> float:
        return self.simulated_ms / 3_600_000

    @property
    def medians(self) -> dict[str, int]:
        """Of the seeds that held, per simulated minute."""
        return {name: int(median(rates)) if rates else 0 for name, rates in self._rates.items()}

    @property
    def too_little(self) -> list[str]:
        """What happened less often than its floor, in a run that is judged by them."""
        if self.seeds < FLOORS_SEEDS or self.seconds < SECONDS:
            return []
        medians = self.medians
        return [f"{name}: {medians[name]} < {floor}" for name, (_, floor) in FLOORS.items() if medians[name] < floor]

    @property
    def never_reached(self) -> list[str]:
        """The "sometimes" states that no seed came to."""
        return [state for state in self.states if state not in self.reached]

    @property
    def digest(self) -> str:
        """16 hex digits over the trace digests of all seeds that held, whatever the order they ended in."""
        together = xxhash.xxh64()
        for seed in sorted(self._digests):
            together.update(f"{seed} {self._digests[seed]}\n".encode())
        return together.hexdigest()


def speed_text(summary: Summary, elapsed_s: float) -> str:
    """How fast it goes, and how much simulated time there was."""
    return (
        f"{summary.seeds / elapsed_s:.2f} seeds/s, {summary.hours:.2f} simulated hours, "
        f"{summary.simulated_ms / 1000 / elapsed_s:.0f} simulated seconds per second"
    )


def medians_text(summary: Summary) -> str:
    """The medians beside their floors, as one line."""
    medians = summary.medians
    return ", ".join(f"{name} {medians[name]} (floor {floor})" for name, (_, floor) in FLOORS.items())


def rarest(summary: Summary, count: int = 3) -> str:
    """The states that the fewest seeds reached, with how many, as words."""
    rows = sorted(summary.reached.items(), key=lambda row: (row[1], row[0]))[:count]
    return ", ".join(f"{state} ({seeds})" for state, seeds in rows)
