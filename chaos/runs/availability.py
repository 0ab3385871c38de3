"""Measures the times without an acknowledged write: per fault, and from its end until writes go on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


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


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of all lies (the nearest of those that are there)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
