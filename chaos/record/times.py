"""Measures the times of a run: without an acknowledged write, without a leader, and of faults that overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final


@dataclass(frozen=True, slots=True)
class Standstill:
    """The interruption of writes by one fault: the longest time without an acknowledged write that overlaps it, and the
    time from its end to the next acknowledged write.

    `recovery_s` is None if no write was acknowledged any more.
    """

    longest_s: float
    recovery_s: float | None


def standstill(progress_ns: Sequence[int], began_ns: int, ended_ns: int) -> Standstill:
    """From the times of acknowledged writes, in order."""
    before = bisect_left(progress_ns, began_ns) - 1
    after = bisect_right(progress_ns, ended_ns)
    first = progress_ns[before] if before >= 0 else began_ns
    last = progress_ns[after] if after < len(progress_ns) else ended_ns
    marks = [max(first, 0), *progress_ns[before + 1 : after], last]
    longest = max((later - earlier for earlier, later in pairwise(marks)), default=0)
    recovery = (progress_ns[after] - ended_ns) / 1e9 if after < len(progress_ns) else None
    return Standstill(longest / 1e9, recovery)


SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def quantiles(values: Sequence[float], digits: int | None = None) -> dict[str, float]:
    """By its name the value below which that share of all lies (the nearest of those that are there); {} of none."""
    ordered = sorted(values)
    places = {name: min(len(ordered) - 1, int(share * len(ordered))) for name, share in SHARES.items() if ordered}
    return {name: round(ordered[place], digits) for name, place in places.items()}


@dataclass(slots=True)
class Stretch:
    """What one node said of itself for a while."""

    node: int
    role: str
    term: int
    from_ns: int
    until_ns: int


def leaders_of(stretches: Sequence[Stretch]) -> list[tuple[int, int]]:
    """Term and node of every leader that was seen, by term."""
    return sorted({(each.term, each.node) for each in stretches if each.role == "leader"})


def without_leader(stretches: Sequence[Stretch], until_ns: int) -> list[tuple[int, int]]:
    """From when to when no node said that it leads."""
    gaps: list[tuple[int, int]] = []
    reached = 0
    for start, end in sorted((each.from_ns, each.until_ns) for each in stretches if each.role == "leader"):
        if start >= until_ns:
            break
        if start > reached:
            gaps.append((reached, start))
        reached = max(reached, end)
    if reached < until_ns:
        gaps.append((reached, until_ns))
    return gaps


def without_leader_s(stretches: Sequence[Stretch], until_ns: int) -> float:
    """Seconds in which no node said that it leads."""
    return sum(end - start for start, end in without_leader(stretches, until_ns)) / 1e9


def overlapping_max(spans: Iterable[tuple[float, float]]) -> int:
    """The most faults at one time, from their beginnings and ends."""
    ends = [end for began, ended in spans for end in ((began, 1), (ended, -1))]
    most = now = 0
    for _, step in sorted(ends):
        now += step
        most = max(most, now)
    return most
