"""Defines the figures of the bench as values, and their arithmetic: medians of ratios, and which ratios are noisy."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

SPREAD_MAX = 1.6
"""A ratio is called noisy when its largest round is more than this many times its smallest. Three rounds of 4 s stay
within 1.2 on an undisturbed two-core machine.
"""


OTHERS_MAX = 0.15
"""What strangers may use of the processors during a run; a little of it is the kernel's own work for the load."""


class Run(msgspec.Struct, frozen=True):
    """One run of one contender under one load. `bad` counts answers that were no success, and broken connections."""

    connections: int
    requests: int
    per_second: float
    bad: int
    p50_ms: float
    p99_ms: float
    p999_ms: float


class Figure(msgspec.Struct, frozen=True):
    """One contender at one number of connections: its rounds, and the processor time of all nodes an operation.

    `scale`: what one request carries (entries of a batch, MB of an answer), so rates are in those.
    """

    contender: str
    load: str
    connections: int
    runs: list[Run]
    cpu_us_per_operation: float
    memory_mib: float
    scale: float = 1.0
    others: float = 0.0  # share of the processors that strangers used, in the worst round

    @property
    def per_second(self) -> float:
        """Median of the rounds, in units of the load."""
        return median(run.per_second for run in self.runs) * self.scale

    def rate(self, number: int) -> float:
        """Of one round."""
        return self.runs[number].per_second * self.scale

    @property
    def bad(self) -> int:
        """Failures of all rounds."""
        return sum(run.bad for run in self.runs)


class Ratio(msgspec.Struct, frozen=True):
    """One contender over another: median over the rounds of the rates' ratios, and their smallest and largest."""

    ours: str
    peer: str
    load: str
    connections: int
    throughput: float
    lowest: float
    highest: float
    p99: float  # our p99 over the peer's: below 1 is better
    others: float = 0.0  # share of the processors that strangers used, in the worst round of either

    @property
    def is_noisy(self) -> bool:
        """Whether somebody else used the machine, or the rounds disagree so much that the median says nothing."""
        return self.highest > SPREAD_MAX * self.lowest or self.others > OTHERS_MAX


def ratio(ours: Figure, peer: Figure) -> Ratio | None:
    """Round by round, not total by total: a round that the machine spoilt for both does not count double.

    None where a round of either did nothing.
    """
    numbers = range(min(len(ours.runs), len(peer.runs)))
    if not numbers or any(not each.rate(number) for number in numbers for each in (ours, peer)):
        return None
    rounds = [ours.rate(number) / peer.rate(number) for number in numbers]
    p99 = [one.p99_ms / two.p99_ms for one, two in zip(ours.runs, peer.runs, strict=False) if two.p99_ms]
    return Ratio(
        ours.contender,
        peer.contender,
        ours.load,
        ours.connections,
        round(median(rounds), 2),
        round(min(rounds), 2),
        round(max(rounds), 2),
        round(median(p99), 2) if p99 else 0.0,
        max(ours.others, peer.others),
    )


def compare(figures: Sequence[Figure], ours: Sequence[str]) -> list[Ratio]:
    """Each of `ours` beside every other contender of the same load and connections."""
    found = []
    for mine in figures:
        if mine.contender not in ours:
            continue
        for other in figures:
            same = (other.load, other.connections) == (mine.load, mine.connections)
            if same and other.contender not in ours and (each := ratio(mine, other)) is not None:
                found.append(each)
    return found


def at(times: Sequence[float], share: float) -> float:
    """A percentile of sorted values; 0 without any."""
    return times[min(len(times) - 1, int(len(times) * share))] if times else 0.0


def run_of(connections: int, seconds: float, latencies_ms: list[float], bad: int = 0, requests: int = 0) -> Run:
    """A run from the latencies of its requests; `requests` where they were counted otherwise."""
    latencies_ms.sort()
    count = requests or len(latencies_ms)
    p50, p99, p999 = (round(at(latencies_ms, share), 3) for share in (0.5, 0.99, 0.999))
    return Run(connections, count, round(count / max(seconds, 1e-9), 1), bad, p50, p99, p999)
