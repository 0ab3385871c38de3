"""Counts the bytes that clients make the node hold, all of one kind against one limit, with a part kept for small ones.

There are two budgets: of request bodies that are not answered yet, and of answers that their readers have not taken.
"""

from __future__ import annotations

from typing import Final

SMALL_BYTES: Final = 64 << 10
"""A holder of no more than this may use the whole budget, a larger one LARGE_PERCENT of it: large bodies that stay
half sent do not keep small requests out."""
LARGE_PERCENT: Final = 75


class Budget:
    """The bytes held of one kind. Belongs to the event loop."""

    __slots__ = ("bytes_max", "large_max", "used")

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: the limit of the settings."""
        self.bytes_max = bytes_max
        self.large_max = bytes_max * LARGE_PERCENT // 100
        self.used = 0

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
        self._budget.used += more
        self.size = size
        return True

    def keep(self, size: int) -> None:
        """Holds `size` bytes whether or not there is room: they are here already."""
        self._budget.used += size - self.size
        self.size = size
