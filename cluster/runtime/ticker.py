"""Calls a function at a fixed interval on the event loop: the ticks of a host.

Apart from `raftlog.cluster.runtime.clock`, which the blocking client imports: it has no loop, and asyncio takes long to
import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftlog.cluster.runtime import clock


class Ticker:
    """Calls `tick(lag)` every `interval_s` on the event loop; `lag` is by how many seconds it came late.

    Each call is scheduled from the end of the one before: a loop that was blocked gets one late tick, not a burst
    (pitfall 14: stale timers fire after a stall).
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
        self._due = clock.monotonic() + self._interval
        self._handle = asyncio.get_running_loop().call_at(self._due, self._fire)

    def _fire(self) -> None:
        lag = clock.monotonic() - self._due
        self._arm()
        self._tick(max(0.0, lag))
