"""Tests the calls of `Storage` that a driver must not make, and those that it may repeat."""

from __future__ import annotations

from random import Random

import pytest

from raftlog.chaos.sim.disk.files import DiskSpace
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import HardState, ReplacedEnd
from raftlog.raft.wal import storage
from raftlog.raft.wal.formats import FRAME_HEADER_SIZE, SIDE_HEADER_SIZE, index_name, ledger_name, segment_name
from raftlog.raft.wal.journal import ImpossibleBatch, row_position
from raftlog.raft.wal.opening import ShardDamaged
from raftlog.raft.wal.snapshot_files import Pieces, read_piece
from raftlog.raft.wal.storage import StepKind
from tests.raft.wal.journal_driver import LOG, SEGMENT_BYTES, after_kill, after_power_cut, make_entries
from tests.raft.wal.storage_lab import Shard, frame_of, noting


def test_a_snapshot_of_applied_entries_is_not_installed() -> None:
    """State never goes back: such a snapshot is refused before anything of it, or of the log, is touched.

    Guard: `ledger.last` in `install` of raft/wal/storage.py.
    """
    leader, shard = Shard(), Shard()
    for each in (leader, shard):
        each.append(60, 60)
    leader.save_snapshot(leader.entries[1])
    _, data = read_piece(leader.files, LOG, 2, 1, 0, 1 << 20)
    received = Pieces(LOG, 2)
    for operations in (received.begin(), received.add(data)):
        shard.files.execute(operations)
    before = shard.files.content()
    with pytest.raises(ImpossibleBatch, match="a snapshot of 2: entries up to 3 were applied"):
        shard.run(shard.storage.install(received))
    assert shard.files.content() == before
    assert [entry.index for entry in shard.reader.entries(1, 3, 1 << 20)] == [2, 3]


def test_effects_that_are_said_twice_while_they_wait_are_written_once() -> None:
    """Effects of entries that are applied before they are durable wait. A driver that repeats them, and some later
    ones, gets each frame once and in order.

    Guard: the index in `write_frames` of raft/wal/storage.py.
    """
    shard = Shard()
    shard.apply(shard.entries)
    new = make_entries(shard.entries[-1].mark, 1, (10, 20, 30))
    for said in (new[:2], new[:2], new):
        shard.apply(said)
        assert shard.storage.has_frames
    assert shard.ledger.last == 1
    shard.run(shard.storage.carry_out(SyncBatch(None, None, tuple(new), ())))
    shard.run(shard.storage.finish())
    assert not shard.storage.has_frames
    wanted = b"".join([frame_of(entry) for entry in (shard.entries[0], *new)])
    content = shard.files.content()[ledger_name(1)]
    assert content[SIDE_HEADER_SIZE:] == wanted
    assert len(wanted) > 4 * FRAME_HEADER_SIZE
    shard.save_snapshot(new[-1])
    assert shard.open().ledger_last == 4


@pytest.mark.parametrize("how", ["cut", "install"])
def test_the_disk_keeps_what_it_had_promised_when_a_leader_replaced_it(how: str) -> None:
    """The log ends at 4@3, and a leader of term 4 cuts it after 2, or sends a snapshot of 3@2. At each step the power
    goes: every start keeps the promises up to 4@3. Once the log ends before the place of the cut, it lost more than the
    leader had replaced, and the start knows of no such promise.

    Guard: `replaces` in `cut` of raft/wal/journal.py and `install` of raft/wal/storage.py.
    """
    shard = Shard()
    (two,) = make_entries(shard.entries[-1].mark, 1, (60,))
    three, four = make_entries(two.mark, 3, (60, 60))
    shard.run(shard.storage.carry_out(SyncBatch(HardState(3, 1), None, (two, three, four), ())))
    shard.run(shard.storage.finish())
    if how == "cut":
        steps = shard.storage.carry_out(SyncBatch(HardState(4), 2, (), ()))
    else:
        leader = Shard()
        (other,) = make_entries(two.mark, 2, (60,))
        leader.run(leader.storage.carry_out(SyncBatch(HardState(2), None, (two, other), ())))
        leader.save_snapshot(other)
        _, data = read_piece(leader.files, LOG, 3, 2, 0, 1 << 20)
        received = Pieces(LOG, 3)
        for operations in (received.begin(), received.add(data)):
            shard.files.execute(operations)
        steps = shard.storage.install(received)
    ends = set()
    for operation in [None, *(operation for _, each in steps for operation in each)]:
        if operation is not None:
            shard.files.execute([operation])
        for seed in range(4):
            opened = Shard(after_power_cut(shard.files, Random(seed))).opened
            assert opened.kept == (3, 4)
            ends.add((opened.log.last.term, opened.log.last.index))
    assert ends == {(3, 4), (1, 2) if how == "cut" else (2, 3)}
    assert ReplacedEnd(3, 4, 3).kept(two.mark) == (1, 2)


@pytest.mark.parametrize("how", ["flush", "next batch"])
def test_rows_without_a_finish_call_are_written_later(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch became durable, but `finish` was never called. Its rows come with a later batch, once PLACED_MAX entries
    wait for theirs, or at a clean stop. Only from then on its entries are served.

    Guard: `write_rows` in `carry_out` and `flush` of raft/wal/storage.py.
    """
    monkeypatch.setattr(storage, "PLACED_MAX", 1)
    shard = Shard()
    two, three = make_entries(shard.entries[-1].mark, 1, (10, 20))
    shard.run(shard.storage.carry_out(SyncBatch(None, None, (two,), ())))
    assert (shard.journal.indexed, shard.reader.entries(1, 9, 1 << 20)) == (1, ())
    if how == "flush":
        shard.run(shard.storage.flush())
    else:
        shard.run(shard.storage.carry_out(SyncBatch(None, None, (three,), ())))
    assert (shard.journal.indexed, shard.reader.entries(1, 9, 1 << 20)) == (2, (two,))


def test_rows_that_find_no_space_hold_back_no_entry_until_a_new_segment_is_needed() -> None:
    """Entries and hard states go on in the space that is there. A new segment waits for the rows, so that the rows of
    one segment at most wait in memory. With space all of it is written.

    Guard: `_are_rows_owed` in `carry_out` of raft/wal/storage.py.
    """
    shard = Shard()
    shard.files.is_full = True
    new = make_entries(shard.entries[-1].mark, 1, (900, 900, 900, 900, 900))
    for entry in new[:3]:
        shard.run(shard.storage.carry_out(SyncBatch(None, None, (entry,), ())))
        with pytest.raises(OSError, match="no space"):
            shard.run(shard.storage.finish())
    assert (shard.journal.last, shard.journal.indexed) == (new[2].mark, 1)
    parts: list[int] = []
    batch = SyncBatch(HardState(2), None, tuple(new[3:]), ())
    with pytest.raises(OSError, match="no space"):
        shard.run(noting(shard.storage.carry_out(batch), parts))
    assert parts == [StepKind.HARD_STATE, StepKind.ROWS]
    assert shard.journal.slot.state.term == 2
    shard.files.is_full = False
    shard.run(shard.storage.carry_out(batch))
    shard.run(shard.storage.finish())
    assert shard.reader.entries(1, 9, 1 << 20) == tuple(new[:3])
    assert (shard.open().log.last, shard.opened.hard_state.term) == (new[-1].mark, 2)


def test_a_full_disk_stops_a_roll_before_it_can_no_longer_be_undone() -> None:
    """However many bytes are free: the three files of the new segment are made before a byte of an entry is written.
    The hard state is durable all the same, and the batch may be carried out again.

    Guard: `prepare_segment` in `spares` of raft/wal/journal.py.
    """
    free, has_fitted = 0, False
    while not has_fitted:
        shard = Shard()
        space = DiskSpace(shard.files.used + free, [shard.files])
        new = make_entries(shard.entries[-1].mark, 1, (2_000, 2_000, 3_000))
        batch, parts = SyncBatch(HardState(2, 3), None, tuple(new), ()), list[int]()
        try:
            shard.run(noting(shard.storage.carry_out(batch), parts))
            has_fitted = True
        except OSError:
            assert not shard.storage.is_final(parts[-1], is_full=True), f"{free} bytes are free"
            again = Shard(after_kill(shard.files)).opened
            assert (again.log.last, again.hard_state.vote) == (shard.entries[-1].mark, 3)
            space.size += 3 * SEGMENT_BYTES
            shard.run(shard.storage.carry_out(batch))
        shard.files.space = None  # a start gives rows to entries that have none
        assert shard.open().log.last == new[-1].mark
        free += 40
    assert 2 * SEGMENT_BYTES < free < 3 * SEGMENT_BYTES


def test_rows_are_written_before_a_cut_that_may_take_their_entries() -> None:
    """Entries wait for their rows while others are appended, and none of them is left waiting behind a cut.

    Guard: `cut_after` beside `is_late` in `carry_out` of raft/wal/storage.py.
    """
    shard = Shard()
    two, three = make_entries(shard.entries[-1].mark, 1, (10, 20))
    shard.run(shard.storage.carry_out(SyncBatch(None, None, (two,), ())))
    shard.run(shard.storage.carry_out(SyncBatch(None, None, (three,), ())))
    assert shard.journal.indexed == 1, "no promise waits for them"
    (other,) = make_entries(two.mark, 2, (30,))
    shard.run(shard.storage.carry_out(SyncBatch(None, 2, (other,), ())))
    shard.run(shard.storage.finish())
    assert shard.reader.entries(1, 9, 1 << 20) == (two, other)


def test_a_power_cut_around_a_cut_that_drops_a_segment_is_no_damage() -> None:
    """The newest segment is dropped at its border, and the power goes before any operation or behind the last. A start
    has the log with the cut entries or without them. It never takes files without their segment for loss.

    Guard: SyncFolder in `_cut` of raft/wal/storage.py, before the hard state says that the cut is over.
    """
    shard = Shard()
    while len(shard.journal.segments) < 3:
        shard.append(900, applied=False)
    whole, kept = shard.journal.last.index, shard.journal.active.first - 1
    steps = shard.storage.carry_out(SyncBatch(None, kept, (), ()))
    operations = (operation for _, each in steps for operation in each)
    found = set()
    is_over = False
    while not is_over:
        for seed in range(10):
            left = after_power_cut(shard.files, Random(seed))
            found.add(Shard(left).journal.last.index)
        operation = next(operations, None)
        is_over = operation is None
        if operation is not None:
            shard.files.execute([operation])
    assert found == {whole, kept}


def sealed_index(shard: Shard) -> bytes:
    """Its oldest segment gets its footers; then what its .idx holds."""
    shard.run(shard.storage.finish_sealed(shard.files))
    return shard.files.content()[index_name(1)]


def unfinished() -> Shard:
    """A shard whose oldest segment is sealed and has no footers yet."""
    shard = Shard()
    while len(shard.journal.segments) < 2:
        shard.append(900, records=2)
    return shard


def test_a_row_flipped_before_its_seal_is_rewritten() -> None:
    """The footer's CRC is of the rows as they were written, not as they are read back. Otherwise it would make a
    flipped row a right one for ever. The rows and the header are written once more from the segment.

    Guard: `_rows_crc` in `finish_sealed` of raft/wal/storage.py.
    """
    right = sealed_index(unfinished())
    assert b"RLIF" in right
    for position in (9, row_position(unfinished().segment, 2), row_position(unfinished().segment, 4) + 5):
        shard = unfinished()
        shard.damage(index_name(1), position)
        if position > SIDE_HEADER_SIZE:
            assert sealed_index(shard) == right, position
        shard.open()
        assert shard.files.content()[index_name(1)] == right


def test_a_segment_whose_rows_are_right_is_not_read_for_its_footer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing costs one read of the rows: those of before a restart count, too.

    Guard: `_rows_crc` of raft/wal/storage.py.
    """
    shard = Shard()
    shard.append(60, 60, records=2)
    shard.open()
    while len(shard.journal.segments) < 3:
        shard.append(900)
    monkeypatch.setattr(storage, "sealed_rows", None)
    assert b"RLIF" in sealed_index(shard)
    assert not shard.storage.is_finish_due


@pytest.mark.parametrize("what", ["row", "nothing"])
def test_rows_that_a_cut_left_are_checked_against_the_segment(what: str) -> None:
    """After a cut the CRC of the remaining rows is unknown: they are compared with the segment when it is sealed.

    Guard: `sealed_rows` in `finish_sealed` of raft/wal/storage.py.
    """
    shard = Shard()
    shard.append(60, records=2, applied=False)
    shard.append(60, applied=False)
    shard.run(shard.storage.carry_out(SyncBatch(None, 3, (), ())))
    del shard.entries[-1]
    while len(shard.journal.segments) < 2:
        shard.append(900)
    end = row_position(shard.segment, shard.segment.last.index + 1)
    rows = shard.files.content()[index_name(1)][:end]
    if what == "row":
        shard.damage(index_name(1), row_position(shard.segment, 2))
    sealed = sealed_index(shard)
    assert sealed[:end] == rows
    assert sealed[end : end + 4] == b"RLIF"
    assert shard.open().notices == ()


def test_a_segment_that_cannot_be_read_gets_no_footer() -> None:
    """Its rows are damaged and so is the segment: nothing proves the rows, and the next start reports it.

    Guard: the end of the scan in `sealed_rows` of raft/wal/recovery.py.
    """
    shard = unfinished()
    shard.damage(index_name(1), row_position(shard.segment, 2))
    shard.damage(segment_name(1), shard.position_of(shard.entries[1]) + 20)
    before = shard.files.content()[index_name(1)]
    assert sealed_index(shard) == before
    with pytest.raises(ShardDamaged, match=segment_name(1)):
        shard.open()


def test_a_segment_whose_rows_are_not_all_written_waits_for_its_footer() -> None:
    """It was sealed by a batch whose rows are still to come: they are not taken for damage, and the footer comes later.

    Guard: `indexed` in `finish_sealed` of raft/wal/storage.py.
    """
    shard = Shard()
    entries = make_entries(shard.entries[-1].mark, 1, (900,) * 5)
    shard.run(shard.storage.carry_out(SyncBatch(None, None, tuple(entries), ())))
    assert len(shard.journal.segments) == 2
    assert list(shard.storage.finish_sealed(shard.files)) == []
    shard.run(shard.storage.finish())
    assert b"RLIF" in sealed_index(shard)
