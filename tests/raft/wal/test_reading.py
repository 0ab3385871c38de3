"""Reading the log by index while it is damaged, or cut and compacted meanwhile: refused or empty, never wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.entry import HEADER_SIZE
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.ready import SyncBatch
from raftlog.raft.wal.formats import index_name, ledger_name, segment_name
from raftlog.raft.wal.journal import ImpossibleBatch, row_position
from raftlog.raft.wal.reading import RawSlice
from raftlog.raft.wal.recovery import Damaged
from tests.raft.wal.storage_lab import Shard

SEGMENT, INDEX, LEDGER = segment_name(1), index_name(1), ledger_name(1)


def written() -> Shard:
    """A shard with entries 2, 3 and 4 of equal size in one segment, and an entry of records 5 to 7."""
    shard = Shard()
    shard.append(60, 60, 60)
    shard.append(60, records=3)
    return shard


def test_an_entry_in_the_place_of_another_is_not_served() -> None:
    """A block was written to the wrong place: entry 2 again where 3 was, intact by its CRC. The chain shows it.

    Guard: `before` in `entries` of raft/wal/reading.py.
    """
    shard = written()
    two, three = shard.entries[1], shard.entries[2]
    shard.damage(SEGMENT, shard.position_of(three), two.header + two.data)
    with pytest.raises(Damaged, match="entry 2 stands behind entry 2") as damaged:
        shard.reader.entries(1, 4, 1 << 20)
    assert (damaged.value.damage.file, damaged.value.damage.index) == (SEGMENT, 1)
    assert [entry.index for entry in shard.reader.entries(1, 2, 1)] == [2]


def test_a_row_that_leads_to_another_entry_is_not_believed() -> None:
    """The row of record 3 is that of record 2: a reader of 3 must not get 2 in its place.

    Guard: the bounds in `_header` of raft/wal/reading.py.
    """
    shard = written()
    row = shard.files.read(INDEX, row_position(shard.segment, 2), IDX_ROW.size)
    shard.damage(INDEX, row_position(shard.segment, 3), row)
    with pytest.raises(Damaged, match="the row of record 3 leads to entry 2 of 1 records"):
        shard.reader.entries(2, 4, 1)
    with pytest.raises(Damaged, match="the row of record 3"):
        shard.reader.raw(3, 4, 1 << 20)


def test_rows_that_are_missing_are_damage_and_not_the_end_of_the_log() -> None:
    """The .idx is cut short under a running node, before the record that is asked for and behind it.

    Guard: the lengths in `_position` and `_last_entry` of raft/wal/reading.py.
    """
    shard = written()
    shard.cut_short(INDEX, row_position(shard.segment, 4))
    with pytest.raises(Damaged, match="has no row of record 4"):
        shard.reader.raw(4, 7, 1 << 20)
    with pytest.raises(Damaged, match="ends before record 7"):
        shard.reader.raw(2, 7, 1 << 20)
    assert shard.reader.raw(2, 3, 1 << 20).next == 4


@pytest.mark.parametrize("name", [SEGMENT, INDEX, LEDGER])
def test_a_slice_is_whole_or_not_given(name: str) -> None:
    """Segment, rows and effects must all have their full length: a consumer cannot know the missing part.

    Guard: the three lengths in `raw` of raft/wal/reading.py.
    """
    shard = written()
    last = shard.entries[-1]
    end = {
        SEGMENT: shard.position_of(last) + HEADER_SIZE,  # the header can be read, its data not
        INDEX: row_position(shard.segment, 7),  # the first of its rows can
        LEDGER: shard.files.size(LEDGER) - 1,
    }[name]
    assert shard.reader.raw(5, 5, 1 << 20).next == 8
    shard.cut_short(name, end)
    with pytest.raises(Damaged, match="a file ends too early") as damaged:
        shard.reader.raw(5, 5, 1 << 20)
    assert isinstance(damaged.value.__cause__, Corrupt)
    assert shard.reader.raw(2, 4, 1 << 20).next == 5


def test_a_time_that_cannot_be_looked_up_is_damage() -> None:
    """A header on the way of the search is damaged: an index made up from it would skip records.

    Guard: `_damaged` in `find_time` of raft/wal/reading.py.
    """
    shard = written()
    assert shard.reader.find_time(shard.entries[2].time_ms) == 3
    for entry in shard.entries[1:]:
        shard.damage(SEGMENT, shard.position_of(entry) + 20)
    with pytest.raises(Damaged, match=SEGMENT):
        shard.reader.find_time(shard.entries[2].time_ms)


def test_a_cut_at_an_entry_that_cannot_be_read_changes_nothing() -> None:
    """The end of the kept part is read from disk: if it is damaged, the log stays as it is, to the last byte.

    Guard: `mark` of raft/wal/reading.py, before anything is written.
    """
    shard = written()
    unapplied = shard.append(60, 60, applied=False)
    shard.damage(SEGMENT, shard.position_of(unapplied[0]) + 20)
    before = shard.files.content()
    with pytest.raises(Damaged, match="after index 7"):
        shard.run(shard.storage.carry_out(SyncBatch(None, 8, (), ())))
    assert shard.files.content() == before


def test_a_cut_inside_an_entry_is_refused() -> None:
    """Entries are cut whole: an index inside one is a mistake of the caller, and nothing is written.

    Guard: `mark` of raft/wal/reading.py.
    """
    shard = written()
    shard.append(60, records=3, applied=False)
    before = shard.files.content()
    with pytest.raises(ImpossibleBatch, match="no entry ends at 9: the one that holds it ends at 10"):
        shard.run(shard.storage.carry_out(SyncBatch(None, 9, (), ())))
    assert shard.files.content() == before


@pytest.mark.parametrize(
    ("read", "wanted"),
    [
        (lambda shard: shard.reader.entries(7, 9, 1 << 20), ()),
        (lambda shard: shard.reader.find_time(shard.entries[-1].time_ms), 8),
    ],
    ids=["entries", "time"],
)
def test_a_cut_while_the_log_is_read_changes_the_answer(read: Callable[[Shard], object], wanted: object) -> None:
    """Entries go between the read of their header and that of their data: the answer is empty. A time is looked up
    once more, in the log that is there then.

    Guard: the size in `entries`, `cuts` in `find_time` of raft/wal/reading.py.
    """
    shard = written()
    shard.append(60, 60, applied=False)
    shard.watched.name = SEGMENT
    shard.watched.after = lambda: shard.run(shard.storage.carry_out(SyncBatch(None, 7, (), ())))
    assert read(shard) == wanted
    assert shard.journal.cuts == 1


def rolled() -> Shard:
    """A shard with two segments, of which a snapshot covers the oldest."""
    shard = written()
    shard.roll()
    shard.save_snapshot(shard.entries[-2])
    return shard


def test_a_read_of_compacted_records_is_empty() -> None:
    """The reader gets an empty answer, and goes to the beginning of the log."""
    shard = rolled()
    shard.run(shard.storage.compact(shard.segment.last.index))
    first = shard.journal.first
    assert first > 1
    assert shard.reader.raw(2, first, 1 << 20) == RawSlice(b"", b"", b"", 0, 2, 2)
    assert shard.reader.entries(1, 4, 1 << 20) == ()
    assert shard.reader.raw(first, first, 1).first == first


@pytest.mark.parametrize("name", [SEGMENT, INDEX, LEDGER])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_a_compaction_while_it_is_read_makes_the_answer_empty(name: str, when: str, skipped: int) -> None:
    """The segment goes between two reads of it, at any of its files. Bytes read before that are not served as a part of
    the log, and missing files are no damage. The next read closes the files that are gone.

    Guard: `cuts` in `raw` and `_damaged` of raft/wal/reading.py.
    """
    shard = rolled()
    assert shard.reader.raw(2, 4, 1 << 20).next == 5
    shard.watched.name, shard.watched.skipped = name, min(skipped, 1 if name == INDEX else 2)
    setattr(shard.watched, when, lambda: shard.run(shard.storage.compact(shard.segment.last.index)))
    assert shard.reader.raw(2, 4, 1 << 20) == RawSlice(b"", b"", b"", 0, 2, 2)
    assert shard.journal.first > 4
    assert shard.forgotten == 0
    assert shard.reader.raw(2, 4, 1 << 20) == RawSlice(b"", b"", b"", 0, 2, 2)
    assert shard.forgotten == 1
