"""Numbers as people write them on a command line: `0:100`, `7`, `1,4-9`.

Seeds are half-open ranges, as in Python; a list of faults is single numbers and closed runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

SEEDS_MAX: Final = 1 << 63
"""Seeds are below this: they fit everywhere, and an open range ends there."""

NUMBER_MAX: Final = 1_000_000
"""Of what `numbers` reads: a run has thousands of faults at most, and a typing error must not fill the memory."""


def seed_range(text: str) -> range:
    """`A:B` as a range without B, `A` as that one seed, `A:` as all from A on. Raises ValueError."""
    found = re.fullmatch(r"(\d+)(?::(\d*))?", text.strip())
    if found is not None:
        first = int(found[1])
        end = first + 1 if found[2] is None else int(found[2] or SEEDS_MAX)
        if first < end <= SEEDS_MAX:
            return range(first, end)
    raise ValueError(f"{text!r}: give seeds as A:B with A below B, such as 0:100, or as one number")


def numbers(text: str) -> frozenset[int]:
    """`1,4-9` as the numbers 1, 4, 5 … 9; nothing as none. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if not first <= last <= NUMBER_MAX:
            raise ValueError(f"{part!r}: give numbers and runs of numbers with commas between, such as 1,4-9")
        found.update(range(first, last + 1))
    return frozenset(found)


def ranges_text(wanted: Iterable[int]) -> str:
    """The shortest text that `numbers` reads back."""
    runs: list[list[int]] = []
    for number in sorted(set(wanted)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
