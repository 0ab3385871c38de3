"""A disk of the simulator: what was synced stays, what was only written may be torn off by a crash.

It carries out one SyncBatch at a time in the steps that the server's disk has. A crash may fall between any two; of
the entries written and not synced any prefix may be left (the first one that is missing or torn ends the log).
"""

from __future__ import annotations

from bisect import bisect_right
from random import Random

from raft.codec import entry_mark
from raft.log import LogStart
from raft.types import GENESIS, Entry, HardState, Mark, TermRun


class SimDisk:
    """One node's disk. `entries[:synced]` are durable."""

    __slots__ = ("ends", "entries", "hard_state", "random", "snapshot", "synced")

    def __init__(self, random: Random, first: Entry) -> None:
        self.random = random
        self.hard_state = HardState(first.term)
        self.entries = [first]
        self.ends = [first.index]
        self.synced = 1
        self.snapshot = GENESIS

    def cut(self, after: int) -> None:
        """Drop everything after that end, durably."""
        keep = bisect_right(self.ends, after)
        del self.entries[keep:]
        del self.ends[keep:]
        self.synced = min(self.synced, keep)

    def write(self, entry: Entry) -> None:
        """Append, not yet durable."""
        assert entry.before == (self.ends[-1] if self.ends else 0), (entry.before, self.ends[-1:])
        self.entries.append(entry)
        self.ends.append(entry.index)

    def sync(self) -> None:
        """Make what was written durable."""
        self.synced = len(self.entries)

    def crash(self) -> None:
        """Lose what a power cut could lose: of the unsynced entries, a random prefix stays."""
        keep = self.random.randint(self.synced, len(self.entries))
        del self.entries[keep:]
        del self.ends[keep:]
        self.synced = keep  # recovery writes what it found anew and syncs it before the node speaks

    def has(self, index: int, term: int) -> bool:
        """Whether the entry (index, term) is durable."""
        position = bisect_right(self.ends, index) - 1
        return 0 <= position < self.synced and self.ends[position] == index and self.entries[position].term == term

    def between(self, after: int, to: int) -> list[Entry]:
        """The entries after the end `after`, up to the end `to`."""
        return self.entries[bisect_right(self.ends, after) : bisect_right(self.ends, to)]

    def read(self, after: int, to: int, bytes_max: int) -> tuple[Entry, ...]:
        """Consecutive entries from the one that holds the record `after + 1`, at least one, about `bytes_max`."""
        start = bisect_right(self.ends, after)
        stop, size = start, 0
        while stop < len(self.ends) and self.ends[stop] <= to and (stop == start or size < bytes_max):
            size += self.entries[stop].size
            stop += 1
        return tuple(self.entries[start:stop])

    def log_start(self, tail_kept: int) -> LogStart:
        """What a starting node finds."""
        runs: list[TermRun] = []
        for entry in self.entries:
            if not runs or runs[-1].term != entry.term:
                runs.append(TermRun(entry.first, entry.term))
        last: Mark = entry_mark(self.entries[-1])
        tail = tuple(self.entries[len(self.entries) - tail_kept :]) if tail_kept else ()
        if tail_kept >= len(self.entries):
            tail = tuple(self.entries)
        return LogStart(1, tuple(runs), last, tail, self.snapshot)
