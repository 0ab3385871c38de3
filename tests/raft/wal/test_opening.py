"""Tests folders whose parts do not fit together: a start reports that, and does not invent the missing part."""

from __future__ import annotations

from random import Random

import pytest

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import HEADER_SIZE, seal_entry
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import GENESIS, EntryKind, HardState
from raftlog.raft.wal.divergence import NOTE, CannotRebuild, DivergenceNote
from raftlog.raft.wal.formats import segment_name
from raftlog.raft.wal.opening import ShardDamaged, make_log, open_shard
from raftlog.raft.wal.operations import DeleteFolder
from tests.raft.wal.journal_driver import FIRST, LOG, SEGMENT_BYTES, make_entries
from tests.raft.wal.storage_lab import Shard


def compacted() -> Shard:
    """A shard whose log begins in its second segment, behind a snapshot."""
    shard = Shard()
    shard.append(60, 60)
    shard.roll()
    shard.save_snapshot(shard.entries[-2])
    shard.run(shard.storage.compact(shard.segment.last.index))
    assert shard.journal.first > 3
    return shard


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_log_that_begins_late_needs_its_snapshot(how: str) -> None:
    """The state before the log is in no file any more. Applying the log to an empty state would give another one, and
    this node would vote for it. With the snapshot the same folder opens.

    Guard: `chosen` in `open_shard` of raft/wal/opening.py.
    """
    shard = compacted()
    first = shard.journal.first
    opened = Shard(shard.files.copy()).opened
    assert (opened.log.first, opened.snapshot is not None) == (first, True)
    (folder,) = {name.rpartition("/")[0] for name in shard.files.content() if name.endswith("/meta")}
    if how == "gone":
        shard.files.execute([DeleteFolder(folder)])
    else:
        shard.damage(f"{folder}/chunks", 9)
    for _ in range(2):  # the second time too
        with pytest.raises(ShardDamaged, match=f"the log begins at {first} and no snapshot reaches that far"):
            shard.open()


def test_a_configuration_that_cannot_be_read_is_damage_with_its_place() -> None:
    """Of sealed segments a start reads only the footers, but configurations are read whole. A node that does not know
    the voters must not start, and its error names the damaged file.

    Guard: `except Damaged` in `_configurations` of raft/wal/opening.py.
    """
    shard = Shard()
    shard.append(60, 60)
    shard.roll()
    assert shard.open().configuration_index == 1
    shard.damage(segment_name(1), shard.position_of(FIRST) + HEADER_SIZE + 5)
    with pytest.raises(ShardDamaged, match="it is a configuration") as damaged:
        shard.open()
    assert damaged.value.damage is not None
    assert (damaged.value.damage.file, damaged.value.damage.index) == (segment_name(1), 0)


def test_damage_of_other_entries_of_a_sealed_segment_does_not_keep_a_node_from_starting() -> None:
    """They are asked for when somebody needs them: the start does not read them, and says nothing wrong about them."""
    shard = Shard()
    shard.append(60, 60)
    shard.roll()
    shard.damage(segment_name(1), shard.position_of(shard.entries[1]) + HEADER_SIZE + 5)
    assert shard.open().configuration_index == 1


def test_a_log_without_any_configuration_is_not_opened() -> None:
    """A format begins with one, and a snapshot has one: a folder that has neither was not made by this program.

    Guard: the end of `_configurations` of raft/wal/opening.py.
    """
    files = MemoryFiles()
    files.execute(make_log(LOG, make_entries(GENESIS, 1, (60,))[0], HardState(term=1), SEGMENT_BYTES))
    with pytest.raises(ShardDamaged, match="neither the log nor a snapshot has a configuration"):
        Shard(files)


def diverged(agreed: int, point: int) -> Shard:
    """A shard whose process noted that its state was wrong: of two snapshots the later one, and the effects since."""
    shard = Shard()
    shard.append(60, 60, 60)
    shard.save_snapshot(shard.entries[2])
    shard.append(60, 60)
    shard.save_snapshot(shard.entries[4])
    shard.append(60)
    shard.run(shard.storage.mark())
    for inode in shard.files.nodes.values():  # a snapshot's effects are durable before it is there
        inode.sync()
    shard.run(shard.storage.diverged(DivergenceNote(agreed, point)))
    return shard


def snapshots_of(files: MemoryFiles) -> list[str]:
    """The snapshots in the folder, finished or not."""
    return sorted({name.split("/")[1] for name in files.content() if name.startswith("snapshots/")})


@pytest.mark.parametrize(("agreed", "trusted"), [(4, 3), (5, 3), (3, 0), (0, 0)])
def test_a_wrong_state_is_rebuilt_from_before_its_last_right_point(agreed: int, trusted: int) -> None:
    """The log is intact, but the state is wrong. The next start keeps no snapshot of that point or after it, and no
    effects behind the newest snapshot before it, so that replay makes them; it reports that. The log and the promises
    stay, without a floor. Then the note is gone, and the start after that finds nothing wrong.

    Guard: `divergence` in `_open` of raft/wal/opening.py, `Storage.diverged`.
    """
    shard = diverged(agreed, 6)
    last = shard.journal.last
    assert shard.ledger.last == last.index
    found = shard.open()
    assert (found.snapshot.mark.index if found.snapshot is not None else 0) == trusted
    assert (found.ledger_last, found.log.last, found.floor) == (trusted, last, 0)
    said = f"the state differed from a majority's at point 6: it is rebuilt from index {trusted}"
    assert said in found.notices
    assert snapshots_of(shard.files) == ([f"{trusted:020d}"] if trusted else [])
    assert shard.files.size(NOTE) == -1
    shard.apply([entry for entry in shard.entries if entry.index > trusted])
    again = shard.open()
    assert (again.snapshot.mark.index if again.snapshot is not None else 0) == trusted
    assert said not in again.notices


def test_a_crash_while_a_wrong_state_is_dropped_leaves_nothing_of_it() -> None:
    """Behind every operation of such a start, killed or without power, the next one begins at the same snapshot, and no
    wrong one is there. The note goes last: without it a remaining wrong snapshot would be trusted again.

    Guard: the order of `divergence.drop` and `divergence.done` in `_open` of raft/wal/opening.py.
    """
    shard = diverged(4, 6)
    count = 0
    while True:
        for power in (False, True):
            left = shard.files.copy()
            is_over = _opened_up_to(left, count)
            if power:
                left.lose_power(Random(count))
            found = Shard(left).opened
            assert found.snapshot is not None
            assert (found.snapshot.mark.index, found.ledger_last, found.log.last) == (3, 3, shard.journal.last), count
            assert snapshots_of(left) == [f"{3:020d}"], count
            assert left.size(NOTE) == -1
        if is_over:
            break
        count += 1
    assert count > 10


def _opened_up_to(files: MemoryFiles, budget: int) -> bool:
    """Carries out that many operations of a start; whether these were all."""
    for operations in open_shard(LOG, files, lambda: None, 1, segment_bytes=SEGMENT_BYTES):
        for operation in operations:
            if budget == 0:
                return False
            budget -= 1
            files.execute([operation])
    return True


def test_a_start_with_a_wrong_state_that_cannot_be_rebuilt_fails() -> None:
    """The log begins behind the point at which the state was right, and no earlier snapshot reaches it. The start is
    refused, each time, and all files stay for an investigation.

    Guard: `divergence.trusted` in `_open` of raft/wal/opening.py.
    """
    shard = compacted()
    shard.run(shard.storage.diverged(DivergenceNote(2, 6)))
    before = shard.files.content()
    for _ in range(2):
        with pytest.raises(CannotRebuild, match="no snapshot from before point 2 reaches it"):
            shard.open()
    assert shard.files.content() == before


@pytest.mark.parametrize("voters", [(1, 2, 3), (1, 2), (1,)])
def test_a_log_of_a_newer_term_than_the_hard_state_shows_that_promises_were_lost(voters: tuple[int, ...]) -> None:
    """A disk answered a sync of the hard state without doing it, and the power failed. So the log has entries of a term
    that the hard state does not know. The node begins in that term, votes for no other node in it, and stays under a
    floor where others can heal it.

    Guard: `repair.lost_term` of raft/wal/repair.py. Found by the simulator: a lying sync, seeds 4 and 9.
    """
    floor = 8 if len(voters) > 2 else 0
    configuration = Configuration(tuple(Member(n, f"{n:032x}", f"n-{n}:1", f"http://n-{n}:2") for n in voters), voters)
    shard = Shard()
    data = encode_configuration(configuration)
    newer = seal_entry(FIRST.mark, term=7, kind=EntryKind.CONFIGURATION, count=1, time_ms=1_000, clock_ms=0, data=data)
    shard.run(shard.storage.carry_out(SyncBatch(None, None, (newer,), ())))
    opened = shard.open()
    boot = opened.hard_state.boot
    assert opened.hard_state == HardState(7, 1, boot, floor)
    assert opened.floor == floor
    assert any("the hard state is of term 1, and the log has entries of term 7" in each for each in opened.notices)
    assert shard.open().hard_state == HardState(7, 1, boot + 1, floor)
