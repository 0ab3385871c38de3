"""Counts the bytes that clients make the node hold, per kind and against one limit, with a part kept for small ones.

The call and both connection classes use it. There are two kinds: bodies of unanswered requests, and answers that
clients have not read yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from raftlog.cluster.api.errors import ApiError, Code

SMALL_BYTES: Final = 64 << 10
"""A holder with at most this many bytes may use the whole budget, a larger one LARGE_PERCENT of it. So large bodies
that stay half sent do not keep small requests out."""
LARGE_PERCENT: Final = 75

SCANS_MAX: Final = 16
"""Slices of the log that are read and encoded at once, for pages and for lines. Their entries, up to
raft.entry_bytes_max each, are in memory before an answer can be counted."""

PEAK_BYTES: Final = 16 << 20
"""A budget that held more than this, and then at most a quarter of it, has had a peak."""


class Budget:
    """The held bytes of one kind. Belongs to the event loop."""

    __slots__ = ("_high", "_kind", "_low", "_over", "_was_high", "bytes_max", "large_max", "used")

    def __init__(self, kind: Literal["bodies", "answers"], bytes_max: int, over: Callable[[], object]) -> None:
        """`bytes_max`: the limit of the settings. `over` is called at the end of each peak."""
        self._kind = kind
        self.bytes_max = bytes_max
        self.large_max = bytes_max * LARGE_PERCENT // 100
        self.used = 0
        self._over, self._was_high = over, False
        self._high = min(PEAK_BYTES, bytes_max // 4)
        self._low = self._high // 4

    def add(self, more: int) -> None:
        self.used += more
        if self.used > self._high:
            self._was_high = True
        elif self._was_high and self.used <= self._low:
            self._was_high = False
            self._over()

    def has_room(self, size: int, more: int) -> bool:
        """Whether a holder that would then have `size` bytes may get `more` bytes. A single holder always may:
        otherwise an item larger than the budget would be refused for ever."""
        if more <= 0 or self.used == size - more:
            return True
        return self.used + more <= (self.bytes_max if size <= SMALL_BYTES else self.large_max)

    def full(self) -> ApiError:
        """The error for a holder for which there is no room."""
        return ApiError(
            Code.BUSY,
            f"{self.used} bytes of {self._kind} are held, of {self.bytes_max} (limits.{self._kind}_bytes_max; a part "
            f"is kept for {self._kind} up to {SMALL_BYTES} bytes): try again, with less, or try another node",
        )


class Share:
    """The bytes of a budget that one holder has."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def hold(self, size: int) -> bool:
        """Holds `size` bytes instead of the bytes before.

        Returns whether there is room; without room nothing changes.
        """
        more = size - self.size
        if more and not self._budget.has_room(size, more):
            return False
        self._budget.add(more)
        self.size = size
        return True

    def keep(self, size: int) -> None:
        """Holds `size` bytes even without room, because they are in memory already."""
        self._budget.add(size - self.size)
        self.size = size
