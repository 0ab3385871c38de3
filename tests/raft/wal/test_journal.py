"""Tests the operations that the journal decides on: appends, rolls, marks, cuts, and its refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.codec.mark import MARK_SIZE, decode_mark
from raftlog.raft.types import GENESIS, EntryKind, HardState, TermRun
from raftlog.raft.wal.formats import (
    SEGMENT_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    Slot,
    index_name,
    ledger_name,
    segment_name,
    spare_name,
)
from raftlog.raft.wal.journal import SEGMENT_BYTES_MIN, ImpossibleBatch, Journal, Segment, check_segment_bytes
from raftlog.raft.wal.operations import (
    Allocate,
    Create,
    Delete,
    Rename,
    Sync,
    SyncFolder,
    Write,
    Zero,
    end_of_bytes,
)
from tests.raft.wal.journal_driver import FIRST, LOG, SEGMENT_BYTES, Driver, after_kill, make_entries, new_files


def test_an_append_is_one_write_and_one_sync() -> None:
    """A batch is the mark of the batch before and all its entries joined: one write, then one sync."""
    driver = Driver(new_files())
    one, two, three = make_entries(FIRST.mark, 1, (10, 20, 30))
    driver.append([one])
    start = driver.journal.active.end
    operations, placed = driver.journal.append([two, three])
    match operations:
        case [Write(name, position, data), Sync(synced)]:
            assert (name, position, synced) == (segment_name(1), start, segment_name(1))
        case _:
            pytest.fail(f"not one write and one sync: {operations}")
    assert decode_mark(data, 0, start).index == one.index
    assert data[MARK_SIZE:] == two.header + two.data + three.header + three.data
    assert [each.position for each in placed] == [start + MARK_SIZE, start + MARK_SIZE + two.size]


def test_rows_go_where_their_index_says() -> None:
    """The row of record i is at 64 + 16 * (i - first): any index is found at once."""
    driver = Driver(new_files())
    (entry,) = make_entries(FIRST.mark, 1, (50,), records=5)
    operations, placed = driver.journal.append([entry])
    driver.execute(operations)
    (write,) = driver.journal.index_writes(placed)
    assert isinstance(write, Write)
    assert (write.name, write.position) == (index_name(1), SIDE_HEADER_SIZE + IDX_ROW.size)
    assert len(write.data) == 5 * IDX_ROW.size


def test_a_roll_runs_its_operations_in_order() -> None:
    """Old segment synced, header of the new one synced, its name given, its folder synced; then entries."""
    driver = Driver(new_files())
    entries = make_entries(FIRST.mark, 1, (2_000, 3_000))
    spares = driver.journal.spares(entries)
    assert spares[0] == Allocate(spare_name(0), SEGMENT_BYTES)
    assert [type(operation) for operation in spares] == [Allocate, Create, Create]
    operations, _ = driver.journal.append(entries)
    new = entries[1].first
    assert [type(operation) for operation in operations] == [
        Write,
        Sync,
        Write,
        Sync,
        Rename,
        Rename,
        Rename,
        SyncFolder,
        Write,
        Sync,
    ]
    assert operations[1] == Sync(segment_name(1))
    assert operations[3] == Sync(spare_name(0))
    assert operations[6] == Rename(spare_name(0), segment_name(new))
    assert driver.journal.active.first == new
    assert driver.journal.spares([]) == []


def test_an_entry_larger_than_a_segment_gets_one_of_its_size() -> None:
    """Entries are never split."""
    driver = Driver(new_files())
    entries = make_entries(FIRST.mark, 1, (10_000,))
    allocate, *_ = driver.journal.spares(entries)
    assert allocate == Allocate(spare_name(0), SEGMENT_HEADER_SIZE + entries[0].size + MARK_SIZE)
    driver.append(entries)
    driver.append(make_entries(driver.journal.last, 1, (10,)))
    assert [segment.first for segment in driver.journal.segments] == [1, 2, 3]
    assert driver.journal.active.size == SEGMENT_BYTES


def test_there_is_always_room_for_a_mark() -> None:
    """However full a segment is, an idle mark still fits behind its last entry."""
    for size in range(3_500, 3_800):
        driver = Driver(new_files())
        driver.append(make_entries(FIRST.mark, 1, (size,)))
        operations = driver.journal.mark()
        assert len(operations) == 2
        assert driver.journal.active.end <= SEGMENT_BYTES
        assert driver.journal.mark() == []


def test_pitfall_70_positions_stay_below_4_gib() -> None:
    """Positions in .idx are 32 bits wide: a segment that could pass them is refused before it is made.

    Guard: check_segment_bytes, also for a segment made for one huge entry.
    """
    check_segment_bytes((1 << 32) - 1)
    for size in (1 << 32, SEGMENT_BYTES_MIN - 1, 0):
        with pytest.raises(ValueError, match="32 bits"):
            check_segment_bytes(size)
        with pytest.raises(ValueError, match="32 bits"):
            Journal(LOG, [Segment(GENESIS, SEGMENT_BYTES, GENESIS)], Slot(1, HardState()), size)

    driver = Driver(new_files())
    entry = make_entries(FIRST.mark, 1, (10,))[0]
    with pytest.raises(ValueError, match="32 bits"):
        driver.journal.spares([replace(entry, size=1 << 32)])


def test_entries_that_do_not_follow_are_refused() -> None:
    """A gap, an overlap, an entry that names another header before it: refused before anything is written."""
    driver = Driver(new_files())
    one, two, three = make_entries(FIRST.mark, 1, (10, 20, 30))
    other = make_entries(one.mark, 2, (20,))[0]
    driver.journal.check([one, two, three])
    for batch in ([two], [one, three], [one, one], [FIRST], [one, other, three]):
        with pytest.raises(ImpossibleBatch, match="does not follow"):
            driver.journal.check(batch)
    driver.journal.check([two], after=one.mark)


def test_a_cut_runs_its_operations_in_order() -> None:
    """The hard state says that a cut begins; later segments go, highest first; the rest is zeroed and synced. Then the
    hard state says that it is over.
    """
    driver = Driver(new_files())
    entries = make_entries(FIRST.mark, 1, (100, 200, 3_500, 3_500))
    driver.append(entries)
    firsts = [segment.first for segment in driver.journal.segments]
    assert len(firsts) == 3
    end = SEGMENT_HEADER_SIZE + FIRST.size + MARK_SIZE + entries[0].size
    groups = list(driver.journal.cut(entries[0].mark, end))
    flat = [operation for group in groups for operation in group]
    deleted = [operation.name for operation in flat if isinstance(operation, Delete)]
    assert deleted == [name(first) for first in firsts[:0:-1] for name in (segment_name, index_name, ledger_name)]
    zero = flat.index(Zero(segment_name(1), end, end + entries[1].size))
    assert flat[zero + 1] == Sync(segment_name(1))
    assert [type(operation) for operation in groups[0] + groups[-1]] == [Write, Sync] * 4
    assert driver.journal.slot.cut == 0
    assert driver.journal.last == entries[0].mark
    assert driver.journal.active.runs == [TermRun(1, 1)]


def test_a_cut_back_into_a_segment_leaves_no_bytes_behind_its_end() -> None:
    """A sealed segment ends with a mark, a start rebuilds its .idx, and a leader cuts its last entry.

    The simulator found it. A stale mark behind the new end would be found as damage, and would prove the sync of an
    entry that is gone.
    """
    driver = Driver(new_files())
    entries = make_entries(FIRST.mark, 1, (100, 3_000, 2_000))
    driver.append(entries[:2])
    driver.execute(driver.journal.mark())
    sealed_end = driver.journal.active.end
    driver.append(entries[2:])
    assert len(driver.journal.segments) == 2
    driver.files.execute([Delete(index_name(1))])
    restarted = Driver(after_kill(driver.files))
    sealed = restarted.recovery.rebuild[0]
    assert sealed.end == sealed_end
    restarted.cut(entries[0])
    name = segment_name(1)
    end = restarted.journal.active.end
    assert end_of_bytes(restarted.files, name, end, SEGMENT_BYTES) == end


def test_a_cut_outside_the_log_is_refused() -> None:
    """Nothing before the first entry is left to keep, and nothing behind the last to drop."""
    driver = Driver(new_files())
    beyond = make_entries(FIRST.mark, 1, (1,))[0].mark
    for kept in (GENESIS, beyond):
        with pytest.raises(ImpossibleBatch, match="the log holds 1 to 1"):
            list(driver.journal.cut(kept, 0))


def test_segments_remember_terms_and_configurations() -> None:
    """What the footer of .idx says is kept while entries come and go."""
    driver = Driver(new_files())
    driver.append(make_entries(FIRST.mark, 1, (10, 10)))
    driver.append(make_entries(driver.journal.last, 3, (10,)))
    segment = driver.journal.active
    assert segment.runs == [TermRun(1, 1), TermRun(4, 3)]
    assert segment.configurations == [1]
    assert segment.time_first_ms == FIRST.time_ms
    assert FIRST.kind is EntryKind.CONFIGURATION
    driver.cut(driver.entries()[2])
    assert segment.runs == [TermRun(1, 1)]
    assert segment.summary.last == driver.journal.last
    assert driver.journal.segment_of(3) is segment
    with pytest.raises(IndexError, match="holds 1 to 3"):
        driver.journal.segment_of(4)


def test_hard_state_goes_to_both_slots_in_turn() -> None:
    """The slot that does not hold the older copy is written last: at no moment are both at risk."""
    driver = Driver(new_files())
    places = []
    for term in (2, 3):
        promise, repeat = driver.journal.set_hard_state(HardState(term))
        assert [type(operation) for operation in promise + repeat] == [Write, Sync, Write, Sync]
        first, second = promise[0], repeat[0]
        assert isinstance(first, Write)
        assert isinstance(second, Write)
        assert first.data == second.data
        places.append((first.position, second.position))
    assert sorted(places) == [(0, 4_096), (4_096, 0)]
