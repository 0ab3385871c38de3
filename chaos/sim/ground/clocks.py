"""A node's clocks: a monotonic one that may run too fast or too slow, and a wall clock that may be set to anything.

Everything is whole microseconds of world time and thousandths of rate, so that no float decides when something is due.
"""

from __future__ import annotations

from raftlog.raft.types import Now

RATE = 1_000
"""A monotonic clock of this rate keeps world time."""


class Clock:
    """The clocks of one machine. Rate and wall time are changed by the nemesis, at any moment."""

    def __init__(self, *, rate: int = RATE, wall_ms: int = 1_700_000_000_000) -> None:
        self.rate = rate  # local time passes at rate / RATE of the world's
        self.wall_ms = wall_ms  # what the wall clock shows when the monotonic one shows 0
        self.off_ms = 0  # how far somebody set the wall clock wrong
        self._anchor_us = 0  # world time at which the monotonic clock showed `_shown_us`
        self._shown_us = 0

    def boot(self, now_us: int, shown_us: int) -> None:
        """The machine starts: its monotonic clock shows something of its own; the wall clock keeps its time."""
        before_us = self.monotonic_us(now_us)
        self.wall_ms += (before_us - shown_us) // 1_000
        self._anchor_us, self._shown_us = now_us, shown_us

    def set_rate(self, now_us: int, rate: int) -> None:
        """From now on local time passes at rate / RATE of the world's. It never goes back."""
        self._shown_us = self.monotonic_us(now_us)
        self._anchor_us = now_us
        self.rate = rate

    def jump_wall(self, by_ms: int) -> None:
        self.off_ms += by_ms
        self.wall_ms += by_ms

    def monotonic_us(self, now_us: int) -> int:
        return self._shown_us + (now_us - self._anchor_us) * self.rate // RATE

    def read(self, now_us: int) -> Now:
        """Both clocks, as a driver reads them once per turn."""
        monotonic_ms = (self._shown_us + (now_us - self._anchor_us) * self.rate // RATE) // 1_000
        return Now(monotonic_ms, self.wall_ms + monotonic_ms)

    def due_us(self, monotonic_ms: int) -> int:
        """The world time at which the monotonic clock will show that."""
        return self._anchor_us - (-(monotonic_ms * 1_000 - self._shown_us) * RATE // self.rate)

    def due_at_us(self, monotonic_us: int) -> int:
        return self._anchor_us - (-(monotonic_us - self._shown_us) * RATE // self.rate)
