"""Counts the bytes that clients make the node hold, all of one kind against one limit, with a part kept for small ones.

There are two budgets: of request bodies that are not answered yet, and of answers that their readers have not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SMALL_BYTES: Final = 64 << 10
"""A holder of no more than this may use the whole budget, a larger one LARGE_PERCENT of it: large bodies that stay
half sent do not keep small requests out."""
LARGE_PERCENT: Final = 75


PEAK_BYTES: Final = 16 << 20
"""A budget that held more than this, and then no more than a quarter of it, has had a peak."""


def _nothing() -> None:
    pass


class Budget:
    """The bytes held of one kind. Belongs to the event loop."""

    __slots__ = ("_high", "_low", "_over", "_was_high", "bytes_max", "large_max", "used")

    def __init__(self, bytes_max: int, over: Callable[[], None] = _nothing) -> None:
        """`bytes_max`: the limit of the settings. `over` is called at the end of each peak."""
        self.bytes_max = bytes_max
        self.large_max = bytes_max * LARGE_PERCENT // 100
        self.used = 0
        self._over, self._was_high = over, False
        self._high = min(PEAK_BYTES, bytes_max // 4)
        self._low = self._high // 4

    def add(self, more: int) -> None:
        """Counts so many bytes more, or less."""
        self.used += more
        if self.used > self._high:
            self._was_high = True
        elif self._was_high and self.used <= self._low:
            self._was_high = False
            self._over()

    def has_room(self, size: int, more: int) -> bool:
        """Whether a holder that would then have `size` bytes may have `more` bytes than now. A holder that is alone
        may: else what is larger than the budget would be refused for ever."""
        if more <= 0 or self.used == size - more:
            return True
        return self.used + more <= (self.bytes_max if size <= SMALL_BYTES else self.large_max)


class Share:
    """What one holder has of a budget, in bytes."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def hold(self, size: int) -> bool:
        """Holds `size` bytes instead of what it held; whether there is room. Without room nothing changes."""
        more = size - self.size
        if more and not self._budget.has_room(size, more):
            return False
        self._budget.add(more)
        self.size = size
        return True

    def keep(self, size: int) -> None:
        """Holds `size` bytes whether or not there is room: they are here already."""
        self._budget.add(size - self.size)
        self.size = size
