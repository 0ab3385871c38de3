"""The only file that reads time, and that sleeps for ticks.

Deadlines of requests are `monotonic()` seconds, the clock of the event loop, so that every layer compares the same
numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from raft.types import Now

if TYPE_CHECKING:
    import asyncio


def read() -> Now:
    """Both clocks, read together: what the core is told."""
    return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)


monotonic: Final = time.monotonic
"""Seconds that never go back; equal to the event loop's time."""


thread_s: Final = time.thread_time
"""Seconds that the calling thread has been on a processor."""


def wall_ms() -> int:
    """Unix time in milliseconds: for people, never for a decision."""
    return time.time_ns() // 1_000_000


class Ticker:
    """Calls `tick(lag)` every `interval_s` on the event loop; `lag` is by how many seconds it came late.

    Each call is scheduled from the end of the one before: a loop that was blocked gets one late tick, not a burst
    (pitfall 14).
    """

    __slots__ = ("_due", "_handle", "_interval", "_tick")

    def __init__(self, interval_s: float, tick: Callable[[float], None]) -> None:
        self._interval = interval_s
        self._tick = tick
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins; the first tick is one interval away."""
        self._arm()

    def stop(self) -> None:
        """No further tick."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        import asyncio  # here: a command line client has no loop, and asyncio takes long to import

        self._due = time.monotonic() + self._interval
        self._handle = asyncio.get_running_loop().call_at(self._due, self._fire)

    def _fire(self) -> None:
        lag = time.monotonic() - self._due
        self._arm()
        self._tick(max(0.0, lag))
