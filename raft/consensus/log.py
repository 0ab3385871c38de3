"""Keeps the core's view of the log: the newest entries in memory, the terms of earlier ones, and the marks.

Every position is the end of an entry or `first - 1`. "Out of bounds" is an answer (None), never an exception (pitfall
52: the term of a compacted entry). When the tail in memory exceeds its bounds, durable entries leave it, applied or
not. The driver reads them back from disk, for a follower or to apply them. Raft paper section 5.3 (Log Matching),
thesis 3.5.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.options import Options
from raftlog.raft.types import Entry, EntryKind, LogStart, Mark, Now


class NewestEntries:
    """The entries in memory: they follow each other from the end `start` on."""

    __slots__ = ("bytes", "ends", "entries", "start")

    def __init__(self, start: Mark, entries: Sequence[Entry] = ()) -> None:
        self.start = start
        self.entries = list(entries)
        self.ends = [entry.index for entry in entries]
        self.bytes = sum([entry.size for entry in entries])

    def mark_at(self, index: int) -> Mark | None:
        """See `Log.mark_at`."""
        if index == self.start.index:
            return self.start
        position = bisect_left(self.ends, index)
        if position < len(self.ends) and self.ends[position] == index:
            return self.entries[position].mark
        return None

    def slice(self, after: int, bytes_max: int, entries_max: int) -> tuple[Entry, ...]:
        """Consecutive entries after the end `after`: at least one if there is one, else within limits."""
        entries = self.entries
        position = bisect_right(self.ends, after)
        assert after == self.start.index if position == 0 else self.ends[position - 1] == after, after
        stop = min(len(entries), position + entries_max)
        size = 0
        for end in range(position, stop):
            size += entries[end].size
            if size > bytes_max and end > position:
                return tuple(entries[position:end])
        return tuple(entries[position:stop])

    def cut(self, after: int) -> None:
        """Drop the entries after the end `after`."""
        position = bisect_right(self.ends, after)
        self.bytes -= sum([entry.size for entry in self.entries[position:]])
        del self.entries[position:]
        del self.ends[position:]

    def drop(self, count: int) -> None:
        """Drop the oldest `count` entries, one at least."""
        self.start = self.entries[count - 1].mark
        self.bytes -= sum([entry.size for entry in self.entries[:count]])
        del self.entries[:count]
        del self.ends[:count]


class Log:
    """The log of one node: plain data with look-ups; other modules decide about appends and cuts."""

    __slots__ = (
        "appended_ms",
        "applied",
        "base",
        "committed",
        "cut_after",
        "doubtful_index",
        "doubtful_term",
        "first",
        "given",
        "handed",
        "last",
        "persisted",
        "run_firsts",
        "run_terms",
        "snapshot",
        "tail",
        "times",
        "unapplied",
        "unapplied_bytes",
        "uncommitted_freed",
    )

    def __init__(self, start: LogStart, *, committed: int, applied: int, now_ms: int) -> None:
        self.first = start.first  # oldest record on disk
        self.snapshot = start.snapshot
        self.base = start.base  # the end before `first`, where known
        if self.base is None and start.snapshot.index == start.first - 1:
            self.base = start.snapshot
        self.run_firsts = [run.first for run in start.runs]
        self.run_terms = [run.term for run in start.runs]
        self.last = start.last
        self.appended_ms = now_ms  # monotonic time at which the last entry came: the cluster clock goes on from it
        self.persisted = start.last.index
        self.handed = start.last.index  # up to here a Ready carried the entries to the disk
        self.committed = committed
        self.given = applied  # up to here a Ready carried the entries to the state machine
        self.applied = applied
        self.unapplied: deque[tuple[int, int]] = deque()  # (last index, bytes) of entries given out and not applied
        self.unapplied_bytes = 0  # of all of them
        # (index, bytes) of entries that left memory before they were committed: a leader counts uncommitted bytes.
        self.uncommitted_freed: deque[tuple[int, int]] = deque()
        # At that monotonic time the earliest and latest wall clock time that this node stamps; None: its clock's.
        self.times: tuple[int, int, int] | None = None
        self.cut_after: int | None = None  # what the next Ready must cut from disk
        # A write that was under way when its entries were cut may still be acknowledged: see `acknowledge`.
        self.doubtful_index = 0
        self.doubtful_term = 0
        before = start.last
        if start.tail:
            head = start.tail[0]
            assert start.tail[-1].mark == start.last, "the tail must end at the last mark"
            before = Mark(head.before, self.term_at(head.before) or 0, head.previous_crc)
        self.tail = NewestEntries(before, start.tail)
        assert applied <= committed <= start.last.index, (applied, committed, start.last.index)

    # -- questions ---------------------------------------------------------------------------------------------

    def term_at(self, index: int) -> int | None:
        """The term of the record at `index`; None where this log does not know (above last, or compacted away)."""
        firsts = self.run_firsts
        if firsts and firsts[-1] <= index <= self.last.index:
            return self.run_terms[-1]
        if index > self.last.index:
            return None
        run = bisect_right(firsts, index) - 1
        if run >= 0:
            return self.run_terms[run]
        if index == self.snapshot.index:
            return self.snapshot.term
        if self.base is not None and index == self.base.index:
            return self.base.term
        return 0 if index == 0 else None

    def is_end(self, index: int) -> bool:
        """Whether an entry surely ends at `index`: below the tail only run boundaries and known marks are sure."""
        start, ends = self.tail.start.index, self.tail.ends
        if index > start:
            position = bisect_left(ends, index)
            return position < len(ends) and ends[position] == index
        if index in {start, self.snapshot.index, self.committed, self.applied, self.first - 1}:
            return True
        run = bisect_left(self.run_firsts, index + 1)
        return run < len(self.run_firsts) and self.run_firsts[run] == index + 1

    def may_end(self, index: int) -> bool:
        """Whether an entry may end at `index`, as far as memory knows: below the tail only the disk knows."""
        return index == self.last.index or index < self.tail.start.index or self.is_end(index)

    def mark_at(self, index: int) -> Mark | None:
        """The mark of the entry that ends at `index`, with its header CRC; None where it is not in memory."""
        return self.last if index == self.last.index else self.tail.mark_at(index)

    def last_end(self, index: int, term: int) -> tuple[int, bool]:
        """The last place at or below `index` whose term is not above `term`, rounded down to an entry's end.

        The flag is False where it lies below the tail, so that only the disk knows whether an entry ends there.
        """
        index = min(index, self.last.index)
        run = bisect_right(self.run_terms, term)  # the first run with a higher term
        if run < len(self.run_firsts):
            index = min(index, self.run_firsts[run] - 1)
        if index < self.first:
            return self.first - 1, True
        tail = self.tail
        if index > tail.start.index:
            position = bisect_right(tail.ends, index)
            return (tail.ends[position - 1] if position else tail.start.index), True
        return index, self.is_end(index)

    def last_sure_end(self, index: int, term: int) -> int:
        """As `last_end`, but rounded down to a place that is an end for sure: what a follower may offer as a hint."""
        index, is_end = self.last_end(index, term)
        if is_end:
            return index
        boundary = self.run_firsts[bisect_right(self.run_firsts, index) - 1] - 1
        return max([boundary, *(mark for mark in (self.committed, self.snapshot.index) if mark <= index)])

    def bytes_between(self, after: int, to: int) -> int:
        """Bytes of the entries after the end `after`, up to the end `to`, none of them committed before; those that
        left memory since count too."""
        total = 0
        for index, size in self.uncommitted_freed:
            if after < index <= to:
                total += size
        tail = self.tail
        for entry in tail.entries[bisect_right(tail.ends, after) : bisect_right(tail.ends, to)]:
            total += entry.size
        return total

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends so is at least as up to date as this one.

        The term decides first, then the index (pitfall 5: term and index compared one by one).
        """
        return (last_term, last_index) >= (self.last.term, self.last.index)

    # -- changes -----------------------------------------------------------------------------------------------

    def append_own(self, term: int, kind: EntryKind, count: int, data: bytes, now: Now) -> Entry:
        """Seal and append one entry of the leader of `term`. The cluster clock goes on by its monotonic time since the
        last entry."""
        last = self.last
        clock_ms = last.clock_ms + max(0, now.monotonic_ms - self.appended_ms)
        time_ms = now.wall_ms
        if self.times is not None:
            at_ms, first_ms, last_ms = self.times
            since_ms = now.monotonic_ms - at_ms
            time_ms = min(max(time_ms, first_ms + since_ms), last_ms + since_ms)
        entry = seal_entry(last, term=term, kind=kind, count=count, time_ms=time_ms, clock_ms=clock_ms, data=data)
        self.append((entry,), now.monotonic_ms)
        return entry

    def append(self, entries: Sequence[Entry], now_ms: int) -> None:
        """Put `entries` at the end; each must follow the one before."""
        index, term, tail = self.last.index, self.last.term, self.tail
        for entry in entries:
            assert entry.before == index, (entry.index, entry.count, index)
            assert entry.term >= term, (entry.index, entry.term, term)
            if entry.term != term or not self.run_firsts:
                self.run_firsts.append(entry.first)
                self.run_terms.append(entry.term)
            index, term = entry.index, entry.term
            tail.entries.append(entry)
            tail.ends.append(index)
            tail.bytes += entry.size
        self.last = entries[-1].mark
        self.appended_ms = now_ms

    def cut(self, after: int, replacement: Entry, term: int) -> None:
        """Drop everything after the end `after`: the leader of `term` has `replacement` there, appended next.

        Raises AssertionError if that would touch a committed entry: the node must halt (pitfall 19: a cut below the
        commit index).
        """
        assert after >= self.committed, f"cut after {after} would drop committed entries (commit {self.committed})"
        assert after < self.last.index, (after, self.last.index)
        assert replacement.before == after, (after, replacement.index)
        if after < self.handed:
            if self.persisted < self.handed:  # a write is under way, of entries that are now void
                self.doubtful_index = max(self.handed, self.doubtful_index)
                self.doubtful_term = term
            self.cut_after = after if self.cut_after is None else min(self.cut_after, after)
            self.handed = after
        self.persisted = min(self.persisted, after)
        self.tail.cut(after)
        # Below the tail only the disk knows the mark; the entry that follows it names its CRC.
        self.last = self.tail.mark_at(after) or Mark(after, self.term_at(after) or 0, replacement.previous_crc)
        if not self.tail.entries:
            self.tail.start = self.last
        while self.uncommitted_freed and self.uncommitted_freed[-1][0] > after:
            self.uncommitted_freed.pop()
        runs = bisect_right(self.run_firsts, after)
        del self.run_firsts[runs:]
        del self.run_terms[runs:]

    def acknowledge(self, term: int, index: int) -> bool:
        """A write whose last entry is (term, index) is durable; whether `persisted` rose by it.

        Pitfall 21: entries may have been cut and written again at the same index while that write was under way. Even
        the very same entry may be back (A, B, A). If the entry is no newer than those cut, the acknowledgement may be
        that of the old write. It then proves nothing, because the cut that follows on disk may still remove the entry.
        """
        if index <= self.persisted or self.term_at(index) != term:
            return False
        if index <= self.doubtful_index and term < self.doubtful_term:
            return False
        assert index <= self.handed, (index, self.handed)
        self.persisted = index
        self.doubtful_index = self.doubtful_term = 0
        return True

    def take_unpersisted(self) -> tuple[int | None, tuple[Entry, ...]]:
        """What the next Ready brings to the disk: the cut, if any, and the entries after it."""
        cut_after, self.cut_after = self.cut_after, None
        if self.handed == self.last.index:
            return cut_after, ()
        tail = self.tail
        entries = tuple(tail.entries[bisect_right(tail.ends, self.handed) :])
        self.handed = self.last.index
        return cut_after, entries

    def take_committed(self, bytes_max: int) -> tuple[Entry, ...]:
        """Entries to apply that are in memory: at least one, otherwise as many as `bytes_max` unapplied bytes allow.

        Only entries that are durable here are given out, so every applied entry can be read from this node's disk.
        Entries below the tail come from the disk (see `wants`).
        """
        to, tail = min(self.committed, self.persisted), self.tail
        if self.given >= to or self.given < tail.start.index or self.unapplied_bytes >= bytes_max:
            return ()
        entries, size, count = tail.entries[bisect_right(tail.ends, self.given) : bisect_right(tail.ends, to)], 0, 0
        for entry in entries:
            size += entry.size
            count += 1
            if self.unapplied_bytes + size >= bytes_max:
                break
        self.give(entries[count - 1].index, size)
        return tuple(entries[:count])

    def give(self, index: int, size: int) -> None:
        """Entries of `size` bytes, up to `index`, go to the state machine."""
        self.given = index
        self.unapplied.append((index, size))
        self.unapplied_bytes += size

    def apply(self, index: int) -> None:
        """The state machine has applied everything up to the end `index`."""
        assert self.applied <= index <= self.given, (self.applied, index, self.given)
        self.applied = index
        while self.unapplied and self.unapplied[0][0] <= index:
            self.unapplied_bytes -= self.unapplied.popleft()[1]

    def wants(self) -> tuple[int, int] | None:
        """The range to read from disk for apply, as (after, to), when what comes next is below the tail."""
        to = min(self.committed, self.persisted, self.tail.start.index)
        return (self.given, to) if self.given < to else None

    def compact(self, keep_after: int) -> None:
        """What ends at or before the end `keep_after` is not to be had from this log any more, but from a snapshot."""
        if keep_after < self.first:
            return
        assert keep_after <= self.snapshot.index, f"no snapshot covers the log up to {keep_after}"
        assert self.may_end(keep_after), f"{keep_after} is not the end of an entry"
        self.base = self.tail.mark_at(keep_after) or Mark(keep_after, self.term_at(keep_after) or 0)
        self.first = keep_after + 1
        run = max(0, bisect_right(self.run_firsts, self.first) - 1)
        del self.run_firsts[:run]
        del self.run_terms[:run]
        if self.last.index == keep_after:
            self.run_firsts.clear()
            self.run_terms.clear()
        else:
            self.run_firsts[0] = max(self.run_firsts[0], self.first)
        drop = bisect_right(self.tail.ends, keep_after)
        if drop:
            self.tail.drop(drop)

    def restart(self, mark: Mark, now_ms: int) -> None:
        """A snapshot up to `mark` replaced the whole log; no entry follows it yet.

        Dropped entries beyond `mark` conflict with the snapshot and never come back. A late acknowledgement of them
        names no entry of this log.
        """
        assert mark.index > self.committed, (mark.index, self.committed)
        self.first = mark.index + 1
        self.snapshot = self.base = self.last = mark
        self.tail = NewestEntries(mark)
        self.persisted = self.handed = self.committed = self.given = self.applied = mark.index
        self.cut_after = None
        self.appended_ms = now_ms
        self.run_firsts.clear()
        self.run_terms.clear()
        self.unapplied_bytes = 0
        self.unapplied.clear()
        self.uncommitted_freed.clear()

    def trim(self, options: Options) -> None:
        """Drop durable entries from memory when the tail is over its bounds, down to 7/8 of them.

        Dropping one by one would move the rest of the list each time. Entries that are not applied yet are read back
        from the disk (see `wants`). Otherwise a node with a slow state machine would hold the whole log since then.
        """
        tail = self.tail
        if tail.bytes <= options.tail_bytes_max and len(tail.entries) <= options.tail_entries_max:
            return
        free = bisect_right(tail.ends, self.persisted)
        bytes_left = options.tail_bytes_max * 7 // 8
        entries_left = options.tail_entries_max * 7 // 8
        freed = self.uncommitted_freed
        while freed and freed[0][0] <= self.committed:
            freed.popleft()
        drop, size = 0, tail.bytes
        while drop < free and (size > bytes_left or len(tail.entries) - drop > entries_left):
            entry = tail.entries[drop]
            size -= entry.size
            if entry.index > self.committed:
                freed.append((entry.index, entry.size))
            drop += 1
        if drop:
            tail.drop(drop)
