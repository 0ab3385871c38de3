"""Keeps rates and times of the last ten minutes by second, and of the last day by minute, in bounded memory.

The node's tick calls `look`. Once a second it reads the counters of `raftlog.cluster.runtime.metrics`; a row is what
they rose since the row before. So a reader sees what happened before it asked, without a Prometheus.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import isnan, nan
from typing import Final, NamedTuple

ROWS: Final = {1: 600, 60: 1_440}
"""Rows that are kept, by their step in seconds: ten minutes, and a day. All columns of both take 230 KB."""
BOUNDS_MS: Final = (0.1, 0.2, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Bounds of the buckets from which percentiles are read, in milliseconds."""
COLUMNS: Final = (
    *("reads", "writes", "problems", "records"),  # a second
    *("read_p50_ms", "read_p99_ms", "write_p50_ms", "write_p99_ms"),
    *("batch", "queue", "syncs", "sync_ms", "memory_bytes"),
)
"""Requests that read and that write, without those that wait as asked; answered problems; applied indexes; requests of
one entry, and those that wait; calls of fdatasync a second and the time of one; the process's memory."""


def empty_times() -> list[int]:
    """The buckets of request times before the first request: the last one is of those beyond all bounds."""
    return [0] * (len(BOUNDS_MS) + 1)


def bucket_of(seconds: float) -> int:
    """The place of a request's time in the buckets."""
    return bisect_left(BOUNDS_MS, 1_000 * seconds)


class Counters(NamedTuple):
    """What a node has counted since its start, and what it measures now."""

    reads: Sequence[int]  # by `bucket_of`
    writes: Sequence[int]
    problems: float
    applied: float
    batches: float
    batched: float  # requests in these entries
    syncs: float
    sync_s: float
    queue: float
    memory_bytes: float


def row_of(before: Counters, now: Counters, seconds: float) -> list[float]:
    """The values of COLUMNS between two readings; NaN for a time of which there was none. Pure."""
    reads = [new - old for old, new in zip(before.reads, now.reads, strict=True)]
    writes = [new - old for old, new in zip(before.writes, now.writes, strict=True)]
    batches, syncs = now.batches - before.batches, now.syncs - before.syncs
    return [
        sum(reads) / seconds,
        sum(writes) / seconds,
        (now.problems - before.problems) / seconds,
        max(0.0, now.applied - before.applied) / seconds,
        *(percentile(counts, share) for counts in (reads, writes) for share in (0.5, 0.99)),
        (now.batched - before.batched) / batches if batches else nan,
        now.queue,
        syncs / seconds,
        1_000 * (now.sync_s - before.sync_s) / syncs if syncs else nan,
        now.memory_bytes,
    ]


def percentile(counts: Sequence[int], share: float) -> float:
    """The time in ms below which that share of the requests took, in its bucket by proportion; NaN without any."""
    left = share * sum(counts)
    if not left:
        return nan
    low = 0.0
    for count, high in zip(counts, BOUNDS_MS, strict=False):
        if count >= left:
            return low + (high - low) * left / count
        left -= count
        low = high
    return low


class History:
    """The rows of one node. Belongs to the event loop."""

    def __init__(self, read: Callable[[], Counters]) -> None:
        self._read = read
        self._due_s = 0.0
        self._rings = {step: _Ring(rows) for step, rows in ROWS.items()}
        self._begun: dict[
            int, tuple[int, Counters]
        ] = {}  # by step: when its row began, in steps, and the counters then

    def look(self, mono_s: float) -> None:
        """Makes the rows that are due. A node that was held up has rows of NaN for that time."""
        if mono_s < self._due_s:
            return
        self._due_s = int(mono_s) + 1
        now = self._read()
        for step, ring in self._rings.items():
            at = int(mono_s) // step
            begun, before = self._begun.get(step, (at, now))
            if at > begun:
                ring.add(row_of(before, now, step * (at - begun)))
                for _ in range(min(at - begun - 1, ring.rows)):
                    ring.add([nan] * len(COLUMNS))
            if at > begun or step not in self._begun:
                self._begun[step] = at, now

    def columns(self, step: int, rows: int) -> dict[str, list[float | None]]:
        """The newest rows by column, oldest first; None for a value that is not known."""
        return self._rings[step].columns(rows)

    def age_s(self, step: int, mono_s: float) -> float:
        """How long ago the newest row ended, in seconds."""
        return mono_s - step * self._begun[step][0] if step in self._begun else 0.0


class _Ring:
    """The newest rows, one array of doubles a column."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._columns = [array("d") for _ in COLUMNS]
        self._next = 0  # where the next row goes, once the ring is full

    def add(self, row: Sequence[float]) -> None:
        is_full = len(self._columns[0]) == self.rows
        for column, value in zip(self._columns, row, strict=True):
            if is_full:
                column[self._next] = value
            else:
                column.append(value)
        if is_full:
            self._next = (self._next + 1) % self.rows

    def columns(self, rows: int) -> dict[str, list[float | None]]:
        found = {}
        for name, column in zip(COLUMNS, self._columns, strict=True):
            newest = [*column[self._next :], *column[: self._next]][-rows:]
            found[name] = [None if isnan(value) else float(f"{value:.4g}") for value in newest]
        return found
