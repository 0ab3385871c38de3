"""The log in memory: terms, ends, cuts, marks and bounds (test_log_twin.py has the naive twin)."""

import itertools
from dataclasses import replace

import pytest

from raftlog.raft.consensus.invariants import InvariantBroken, check_log
from raftlog.raft.consensus.log import Log
from raftlog.raft.options import Options
from raftlog.raft.types import GENESIS, LogStart, Mark, TermRun
from tests.raft.lab import configuration, extend, log_of, log_start


def log_from(*entries: int | tuple[int, int], tail: int | None = None, committed: int = 1) -> Log:
    """A log whose first entry is the configuration; see `extend` for the others."""
    made = log_of(configuration(3), *entries)
    return Log(log_start(made, tail), committed=committed, applied=committed, now_ms=0)


@pytest.mark.parametrize("index", [-5, 10, 1 << 60])
def test_terms_out_of_bounds_are_none_and_no_error(index: int) -> None:
    """Term look-ups of anything at all are safe (pitfall 52: the term of a compacted entry)."""
    log = log_from((1, 3), (2, 4), 2)
    assert log.term_at(index) is None
    assert log.mark_at(index) is None
    assert not log.is_end(index)


def test_terms_below_the_oldest_entry_are_known_only_at_the_snapshot() -> None:
    """A log that was trimmed knows the term where the snapshot ends, and nothing before."""
    entries = log_of(configuration(3), *[1] * 4, 2, 2)
    start = LogStart(6, (TermRun(6, 2),), entries[-1].mark, tuple(entries[5:]), entries[4].mark)
    log = Log(start, committed=5, applied=5, now_ms=0)
    assert [log.term_at(index) for index in range(9)] == [0, None, None, None, None, 1, 2, 2, None]
    assert log.is_end(5)
    assert log.last_end(5, 1) == (5, True)
    assert log.last_end(3, 0) == (5, True)


@pytest.mark.parametrize("counts", [(1, 1, 1, 1), (1, 3), (2, 2), (3, 1), (2, 1, 2), (4,)])
def test_no_place_within_an_entry_is_taken_for_its_end(counts: tuple[int, ...]) -> None:
    """For each end from which the log is kept, and each number of entries in memory."""
    entries = log_of(configuration(3), *[(1, count) for count in counts])
    ends = [0, *(entry.index for entry in entries)]
    for oldest, tail in itertools.product(range(len(entries)), range(len(entries) + 1)):
        kept = entries[oldest:]
        base = entries[oldest - 1].mark if oldest else GENESIS
        start = replace(log_start(kept, min(tail, len(kept))), first=base.index + 1, snapshot=base, base=base)
        log = Log(start, committed=base.index, applied=base.index, now_ms=0)
        for index in range(entries[-1].index + 2):
            assert index in ends or not log.is_end(index), (oldest, tail, index)


def test_pitfall_21_acknowledgements_name_term_and_index() -> None:
    """An unknown, older or cut position changes nothing; a true one moves the mark once.

    Guard: the first check of `Log.acknowledge` in raft/consensus/log.py.
    """
    log = log_from()
    log.append(extend(log.last, 1, 1), 0)
    log.take_unpersisted()
    assert not log.acknowledge(7, 3)
    assert not log.acknowledge(1, 9)
    assert log.acknowledge(1, 2)
    assert not log.acknowledge(1, 2)
    assert log.persisted == 2


@pytest.mark.parametrize(
    "options", [Options(tail_entries_max=16), Options(tail_bytes_max=2_000), Options(tail_entries_max=1)]
)
def test_durable_entries_leave_the_tail_applied_or_not(options: Options) -> None:
    """Durable entries leave when it is over its bounds; terms stay known; entries that are not durable stay in memory.
    What left and is not applied yet is wanted from the disk."""
    log = log_from()
    log.append(extend(log.last, *[1 + index // 50 for index in range(200)]), 0)
    log.take_unpersisted()
    log.trim(options)
    assert log.tail.entries[0].index == 2
    log.acknowledge(4, 201)
    log.trim(options)
    assert len(log.tail.entries) <= options.tail_entries_max
    assert log.tail.bytes <= options.tail_bytes_max
    check_log(log)
    assert [log.term_at(index) for index in (2, 51, 52, 201)] == [1, 1, 2, 4]
    log.committed = 201
    assert log.take_committed(1 << 20) == ()
    assert log.wants() == (1, log.tail.start.index)


def test_uncommitted_bytes_are_counted_after_their_entries_left_memory() -> None:
    """A leader counts its uncommitted entries: those that left memory count until they are committed or cut."""
    log = log_from()
    entries = extend(log.last, *[2] * 20)
    log.append(entries, 0)
    log.take_unpersisted()
    whole = log.bytes_between(1, 21)
    log.acknowledge(2, 21)
    log.trim(Options(tail_entries_max=1))
    assert log.tail.entries == []
    assert log.bytes_between(1, 21) == whole == sum(entry.size for entry in entries)
    log.committed = 11
    assert log.bytes_between(11, 21) == sum(entry.size for entry in entries[10:])
    log.cut(16, extend(entries[14].mark, 3)[0], 3)
    assert log.bytes_between(11, 16) == sum(entry.size for entry in entries[10:15])
    assert log.bytes_between(11, 21) == log.bytes_between(11, 16)


def test_unapplied_entries_given_out_are_bounded() -> None:
    """At least one entry is given out, then none until the given ones are applied."""
    log = log_from()
    entries = extend(log.last, *[1] * 10)
    log.append(entries, 0)
    log.take_unpersisted()
    log.acknowledge(1, 11)
    log.committed = 11
    size = entries[0].size
    assert log.take_committed(1) == tuple(entries[:1])
    assert log.take_committed(1) == ()
    log.apply(2)
    assert log.take_committed(3 * size) == tuple(entries[1:4])
    log.apply(4)
    assert log.take_committed(3 * size) == ()
    log.apply(5)
    assert log.unapplied_bytes == 0
    assert log.take_committed(1 << 20) == tuple(entries[4:])


def test_a_tail_that_is_not_the_end_of_the_log_is_refused() -> None:
    """What a starting node hands over must fit together."""
    entries = log_of(configuration(3), 1, 1)
    start = log_start(entries)
    with pytest.raises(AssertionError, match="last mark"):
        Log(replace(start, tail=tuple(entries[:2])), committed=1, applied=1, now_ms=0)
    with pytest.raises(AssertionError):
        Log(start, committed=1, applied=2, now_ms=0)


def test_appending_a_gap_or_an_older_term_is_a_fault() -> None:
    """The log asserts what its callers have checked."""
    log = log_from(2)
    made = extend(log.last, 2, 2)
    with pytest.raises(AssertionError):
        log.append(made[1:], 0)
    with pytest.raises(AssertionError):
        log.append(extend(log.last, 1), 0)


def test_a_broken_tail_is_found_by_its_invariant() -> None:
    """`check_log` sees a missing entry, a wrong chain and a wrong count of bytes."""
    log = log_from(1, 1, 1)
    check_log(log)
    log.tail.bytes += 1
    with pytest.raises(InvariantBroken, match="bytes"):
        check_log(log)
    log = log_from(1, 1, 1)
    del log.tail.entries[2], log.tail.ends[2]
    with pytest.raises(InvariantBroken, match="follow"):
        check_log(log)
    log = log_from(1, 1)
    stranger = extend(Mark(2, 1, 12345), 1)[0]
    log.tail.entries[2] = stranger
    with pytest.raises(InvariantBroken, match="names the one before"):
        check_log(log)
    log = log_from(1, 1)
    log.last = replace(log.last, index=7)
    with pytest.raises(InvariantBroken, match="the tail ends at last"):
        check_log(log)
    log = log_from(1, 2)
    log.run_firsts, log.run_terms = [1, 1, 3], [1, 1, 2]
    with pytest.raises(InvariantBroken, match="terms only rise"):
        check_log(log)


def trimmed(first: int, snapshot: int, base: Mark | None = None) -> Log:
    """A log of ten entries on disk from `first` on, five of them in memory, with a snapshot up to there."""
    entries = log_of(configuration(3), *[1] * 4, *[2] * 5)
    runs = tuple([TermRun(max(first, run), term) for run, term in ((1, 1), (6, 2)) if run > 1 or first < 6])
    start = LogStart(first, runs, entries[-1].mark, tuple(entries[5:]), entries[snapshot - 1].mark, base)
    return Log(start, committed=10, applied=10, now_ms=0)


def test_the_end_before_the_log_stays_known_when_a_newer_snapshot_is_taken() -> None:
    """A log begins right behind the snapshot it started from. Newer snapshots cover more, and the log still begins
    there. A follower with exactly the entries before must be streamed to, so that place and its term are not forgotten.

    Guard: `base` in `Log.__init__` of raft/consensus/log.py.
    """
    log = trimmed(first=6, snapshot=5)
    log.snapshot = log.last
    assert (log.term_at(5), log.is_end(5)) == (1, True)
    assert [log.term_at(index) for index in (4, 6)] == [None, 2]


def test_the_end_before_the_log_comes_from_the_disk_or_is_unknown() -> None:
    """A snapshot that covers part of the log does not show the end before the log. If it were taken for that end, a
    follower that is exactly there would be asked about an entry of another place.
    """
    assert trimmed(first=4, snapshot=7).base is None
    assert trimmed(first=4, snapshot=7).term_at(3) is None
    told = Mark(3, 1, 99)
    log = trimmed(first=4, snapshot=7, base=told)
    assert (log.base, log.term_at(3), log.term_at(7)) == (told, 1, 2)
    assert trimmed(first=6, snapshot=5, base=Mark(5, 1, 99)).base == Mark(5, 1, 99)


def test_a_compaction_below_the_tail_keeps_the_tail() -> None:
    """Segments older than the tail are deleted. The entries in memory stay, the log begins where it began, and the
    entries between are still read from disk.

    Guard: `drop` in `compact` of raft/consensus/log.py.
    """
    log = trimmed(first=1, snapshot=7)
    entries, size, start = list(log.tail.entries), log.tail.bytes, log.tail.start
    log.compact(3)
    assert (log.first, log.tail.entries, log.tail.bytes, log.tail.start) == (4, entries, size, start)
    assert [entry.index for entry in log.tail.slice(5, 1 << 20, 99)] == [6, 7, 8, 9, 10]
    assert [log.term_at(index) for index in (2, 3, 4, 6)] == [None, 1, 1, 2]
    check_log(log)
    log.compact(7)
    assert [entry.index for entry in log.tail.entries] == [8, 9, 10]
    assert log.tail.start.index == 7
    check_log(log)
