"""Reads time: no other file of the service does.

Deadlines of requests are `monotonic()` seconds, the clock of the event loop, so that every layer compares the same
numbers.
"""

from __future__ import annotations

import time
from typing import Final

from raftlog.raft.types import Now


def read() -> Now:
    """Both clocks, read together, for the core."""
    return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)


monotonic: Final = time.monotonic
"""Seconds that never go back; equal to the event loop's time."""


thread_s: Final = time.thread_time
"""Seconds that the calling thread has run on a processor."""


def offset_ns() -> int:
    """What makes Unix time of `monotonic`, in nanoseconds: for people, as `wall_ms`."""
    return time.time_ns() - time.monotonic_ns()


def wall_ms() -> int:
    """Unix time in milliseconds: for people, never for a decision."""
    return time.time_ns() // 1_000_000
