"""The log against a deliberately naive twin: a plain list of entries, and a disk that does one write at a time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raftlog.raft.consensus.invariants import check_log
from raftlog.raft.consensus.log import Log
from raftlog.raft.options import Options
from raftlog.raft.types import GENESIS, Entry, LogStart, Mark
from tests.raft.lab import configuration, extend, log_of, log_start

Write = tuple[int | None, tuple[Entry, ...]]


class Twin:
    """Every entry, in order; a look-up walks them all."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries

    def term_at(self, index: int) -> int | None:
        if index == 0:
            return 0
        return next((entry.term for entry in self.entries if entry.first <= index <= entry.index), None)

    def ends(self) -> list[int]:
        return [0] + [entry.index for entry in self.entries]

    def last_end(self, index: int, term: int) -> int:
        ends = [entry.index for entry in self.entries if entry.index <= index and entry.term <= term]
        return max(ends, default=0)

    def mark(self, end: int) -> Mark:
        return next((entry.mark for entry in self.entries if entry.index == end), GENESIS)

    def after(self, index: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.index > index]


class Comparison(RuleBasedStateMachine):
    """Random appends, cuts, writes, commits, applies, trims and restarts: every look-up agrees with the list."""

    @initialize(tail_entries=st.integers(1, 6))
    def start(self, tail_entries: int) -> None:
        """The log as `raftlog format` leaves it."""
        self.options = Options(tail_entries_max=tail_entries)
        self.disk = log_of(configuration(3))
        self.twin = Twin(list(self.disk))
        self.log = Log(log_start(self.disk), committed=1, applied=1, now_ms=0)
        self.writes: list[Write] = []  # on their way to the disk, oldest first
        self.given: list[Entry] = []  # to the state machine, since the last start
        self.given_from = 1
        self.term = 1
        self.oldest = self.snapshot = 0  # two ends: of the last entry that is not kept, and of the snapshot

    @rule(counts=st.lists(st.integers(1, 3), min_size=1, max_size=4), newer=st.integers(0, 1), is_handed=st.booleans())
    def append(self, counts: list[int], newer: int, is_handed: bool) -> None:
        """New entries, of this term or of the next."""
        self.term += newer
        made = extend(self.log.last, *[(self.term, count) for count in counts])
        self.log.append(made, 0)
        self.twin.entries += made
        if is_handed:
            self.hand_to_disk()

    @rule(back=st.integers(1, 5), count=st.integers(1, 3), same=st.booleans(), handed=st.integers(0, 3))
    def conflict(self, back: int, count: int, same: bool, handed: int) -> None:
        """A newer leader replaces the last few entries; perhaps yet another leader has the replaced ones again."""
        position = max(len(self.twin.entries) - back, 1)
        while self.twin.entries[position - 1].index < self.log.committed:
            position += 1
        lost = self.twin.entries[position:]
        if not lost:
            return
        self.term += 1
        self._replace(position, extend(self.twin.entries[position - 1].mark, (self.term, count)))
        if handed & 1:
            self.hand_to_disk()
        if same:
            self.term += 1
            self._replace(position, lost)
        if handed & 2:
            self.hand_to_disk()

    def _replace(self, position: int, entries: list[Entry]) -> None:
        after = self.twin.entries[position - 1].index
        self.log.cut(after, entries[0], self.term)
        self.log.append(entries, 0)
        self.twin.entries = self.twin.entries[:position] + entries

    def hand_to_disk(self) -> None:
        """What a Ready carries goes into the queue of the disk."""
        write = self.log.take_unpersisted()
        if write != (None, ()):
            self.writes.append(write)

    @rule(count=st.integers(1, 3))
    def write(self, count: int) -> None:
        """The disk carries out the oldest writes, and their confirmations arrive."""
        if not self.writes:
            self.hand_to_disk()
        for cut_after, entries in self.writes[:count]:
            if cut_after is not None:
                self.disk = [entry for entry in self.disk if entry.index <= cut_after]
            self.disk += entries
            del self.writes[0]
            if entries:
                self.log.acknowledge(entries[-1].term, entries[-1].index)
            self.what_is_persisted_stays_on_disk()

    @rule(back=st.integers(0, 3), is_applied=st.booleans())
    def commit(self, back: int, is_applied: bool) -> None:
        """A majority has the entries, here durable or not. Durable ones go to the state machine, in order, from memory
        or from disk; entries that are no longer needed leave memory.
        """
        ends = [entry.index for entry in self.twin.entries if entry.index >= self.log.committed]
        self.log.committed = ends[max(0, len(ends) - 1 - back)]
        wanted = self.log.wants()
        if wanted is not None:
            after, to = wanted
            read = [entry for entry in self.disk if after < entry.index <= to]
            self.given += read
            self.log.give(to, sum(entry.size for entry in read))
        self.given += self.log.take_committed(self.options.apply_bytes_max)
        if is_applied:
            self.log.apply(self.log.given)
        self.log.trim(self.options)

    @rule(keep=st.integers(0, 3), back=st.integers(0, 2))
    def compact(self, keep: int, back: int) -> None:
        """A snapshot of the applied entries, perhaps without the newest; the log keeps what follows, or more."""
        ends = [end for end in self.twin.ends() if self.snapshot <= end <= self.log.applied]
        self.snapshot = ends[max(0, len(ends) - 1 - back)]
        kept = [end for end in self.twin.ends() if self.oldest <= end <= self.snapshot]
        self.oldest = kept[max(0, len(kept) - 1 - keep)]
        self.log.snapshot = self.twin.mark(self.snapshot)
        self.log.compact(self.oldest)

    @rule(tail=st.integers(0, 4), chance=st.integers(0, 3))
    def restart(self, tail: int, chance: int) -> None:
        """Restart now and then: only the disk's content remains, only its newest entries are in memory, and the applied
        entries are the committed ones.
        """
        if chance:
            return
        applied = self.log.applied
        self.twin.entries = list(self.disk)
        self.writes.clear()
        kept = [entry for entry in self.disk if entry.index > self.oldest]
        start = log_start(kept, tail) if kept else LogStart(1, (), self.twin.mark(self.oldest))
        snapshot, base = self.twin.mark(self.snapshot), self.twin.mark(self.oldest)
        start = replace(start, first=self.oldest + 1, snapshot=snapshot, base=base)
        self.log = Log(start, committed=applied, applied=applied, now_ms=0)
        self.given, self.given_from = [], applied

    @invariant()
    def looks_the_same(self) -> None:
        """Terms, ends, marks, slices and hints, at every index up to two above the last; not all below the oldest."""
        if not hasattr(self, "twin"):
            return
        log, twin = self.log, self.twin
        check_log(log)
        ends = twin.ends()
        top = twin.entries[-1].index + 2
        known = range(self.oldest, top)
        assert [log.term_at(index) for index in known] == [twin.term_at(index) for index in known]
        assert all(log.term_at(index) in (None, twin.term_at(index)) for index in range(self.oldest))
        marks = {entry.index: entry.mark for entry in twin.entries}
        for index in range(log.tail.start.index, top):
            assert log.is_end(index) == (index in ends)
            if index:
                assert log.mark_at(index) == marks.get(index)
        terms = {0, self.term, *(entry.term for entry in twin.entries[-4:])}
        for index in range(top):
            assert log.may_end(index) or index not in ends
            assert index in ends or not log.is_end(index)
            for term in terms:
                wanted = max(twin.last_end(index, term), self.oldest)
                end, is_end = log.last_end(index, term)
                assert end == wanted if is_end else end >= wanted
                sure = log.last_sure_end(index, term)
                assert sure in ends
                assert sure <= wanted
        for after in [end for end in ends if end >= log.tail.start.index]:
            assert list(log.tail.slice(after, 1 << 30, 1 << 30)) == twin.after(after)
            assert list(log.tail.slice(after, 1, 99)) == twin.after(after)[:1]
        last = twin.entries[-1]
        for index, term in ((last.index, last.term), (last.index + 9, last.term - 1), (last.index - 1, last.term)):
            assert log.is_up_to_date(index, term) == ((term, index) >= (last.term, last.index))

    @invariant()
    def what_is_persisted_stays_on_disk(self) -> None:
        """Up to `persisted` the disk holds the very entries of the log, and no waiting write takes one away.

        Only such entries were given to the state machine, without a gap.
        """
        if not hasattr(self, "twin"):
            return
        persisted = self.log.persisted
        assert [entry for entry in self.disk if entry.index <= persisted] == [
            entry for entry in self.twin.entries if entry.index <= persisted
        ]
        assert self.log.given <= persisted
        assert all(cut_after is None or cut_after >= persisted for cut_after, _ in self.writes)
        assert self.given == [entry for entry in self.twin.entries if self.given_from < entry.index <= self.log.given]


TestLogAgainstTwin = Comparison.TestCase
TestLogAgainstTwin.settings = settings(max_examples=40, stateful_step_count=30)
