"""What a driver must not ask of `Storage`, and what it may say twice."""

from __future__ import annotations

from random import Random

import pytest

from raft.codec import entry_mark
from raft.formats import FRAME_HEADER_SIZE, SIDE_HEADER_SIZE
from raft.journal import ImpossibleBatch, ledger_name
from raft.ready import SyncBatch
from raft.storage_snapshots import Received, read_piece
from tests.raft.journal_driver import LOG, after_power_cut, make_entries
from tests.raft.storage_lab import Shard, frame_of


def test_a_snapshot_of_what_is_applied_here_is_not_installed() -> None:
    """State never goes back: such a snapshot is refused before anything of it, or of the log, is touched.

    Guard: `ledger.last` in `install` of raft/storage.py.
    """
    leader, shard = Shard(), Shard()
    for each in (leader, shard):
        each.append(60, 60)
    leader.save_snapshot(leader.entries[1])
    _, data = read_piece(leader.files, LOG, 2, 1, 0, 1 << 20)
    received = Received(LOG, 2)
    for operations in (received.begin(), received.add(data)):
        shard.files.execute(operations)
    before = shard.files.content()
    with pytest.raises(ImpossibleBatch, match="a snapshot of 2: entries up to 3 were applied"):
        shard.run(shard.storage.install(received))
    assert shard.files.content() == before
    assert [entry.index for entry in shard.reader.entries(1, 3, 1 << 20)] == [2, 3]


def test_effects_that_are_said_twice_while_they_wait_are_written_once() -> None:
    """Entries that are applied before they are durable here have effects that wait; a driver that says them again, and
    some that follow, gets each frame once and in order.

    Guard: the index in `write_frames` of raft/storage.py.
    """
    shard = Shard()
    shard.apply(shard.entries)
    new = make_entries(entry_mark(shard.entries[-1]), 1, (10, 20, 30))
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


@pytest.mark.parametrize("how", ["flush", "next batch"])
def test_rows_that_a_driver_did_not_come_to_are_written_before_anything_follows(how: str) -> None:
    """A batch was made durable and `finish` never asked for: its rows come with the next batch, or at a clean stop,
    and only from then on its entries are served.

    Guard: `write_rows` in `carry_out` and `flush` of raft/storage.py.
    """
    shard = Shard()
    two, three = make_entries(entry_mark(shard.entries[-1]), 1, (10, 20))
    shard.run(shard.storage.carry_out(SyncBatch(None, None, (two,), ())))
    assert (shard.journal.indexed, shard.reader.entries(1, 9, 1 << 20)) == (1, ())
    if how == "flush":
        shard.run(shard.storage.flush())
    else:
        shard.run(shard.storage.carry_out(SyncBatch(None, None, (three,), ())))
    assert (shard.journal.indexed, shard.reader.entries(1, 9, 1 << 20)) == (2, (two,))


def test_a_power_cut_around_a_cut_that_drops_a_segment_is_no_damage() -> None:
    """The newest segment is dropped at its border, and the power goes before any operation of that or behind the last:
    a start has the log with what was cut or without it, and never takes what lies there without its segment for loss.

    Guard: SyncFolder in `_cut` of raft/storage.py, before the hard state says that the cut is over.
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
