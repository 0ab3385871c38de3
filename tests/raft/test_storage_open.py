"""A folder whose parts do not fit together: a start says so, and does not make up what is missing."""

from __future__ import annotations

from random import Random

import pytest

from chaos.sim.files import MemoryFiles
from raft.codec import HEADER_SIZE
from raft.divergence import NOTE, CannotRebuild, Note
from raft.journal import make_log, segment_name
from raft.operations import DeleteFolder
from raft.storage_open import ShardDamaged, open_shard
from raft.types import GENESIS, HardState
from tests.raft.journal_driver import FIRST, LOG, SEGMENT_BYTES, make_entries
from tests.raft.storage_lab import Shard


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
    """The state before the log is in no file any more: applying the log to an empty state would make another one, and
    this node would vote for it. With the snapshot the same folder opens.

    Guard: `chosen` in `open_shard` of raft/storage_open.py.
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
    """Of sealed segments a start reads the footers only, but configurations are read whole: a node that does not know
    who votes must not start, and its operator is told which file to look at.

    Guard: `except Damaged` in `_configurations` of raft/storage_open.py.
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

    Guard: the end of `_configurations` of raft/storage_open.py.
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
    shard.run(shard.storage.diverged(Note(agreed, point)))
    return shard


def snapshots_of(files: MemoryFiles) -> list[str]:
    """The snapshots in the folder, finished or not."""
    return sorted({name.split("/")[1] for name in files.content() if name.startswith("snapshots/")})


@pytest.mark.parametrize(("agreed", "trusted"), [(4, 3), (5, 3), (3, 0), (0, 0)])
def test_a_state_that_was_wrong_is_built_anew_from_before_the_point_it_was_right_at(agreed: int, trusted: int) -> None:
    """The log is intact, what was made of it is not: the next start keeps no snapshot of that point or after it, takes
    no effects behind the newest one before it, so that replay makes them, and says so. The log and the promises stay,
    there is no floor. Then the note is gone, and the start after that finds nothing wrong.

    Guard: `divergence` in `_open` of raft/storage_open.py, `Storage.diverged`.
    """
    shard = diverged(agreed, 6)
    last = shard.journal.last
    assert shard.ledger.last == last.index
    found = shard.open()
    assert (found.snapshot.mark.index if found.snapshot is not None else 0) == trusted
    assert (found.ledger_last, found.log.last, found.floor) == (trusted, last, 0)
    said = f"the state differed from a majority's at point 6: it is built anew from {trusted}"
    assert said in found.notices
    assert snapshots_of(shard.files) == ([f"{trusted:020d}"] if trusted else [])
    assert shard.files.size(NOTE) == -1
    shard.apply([entry for entry in shard.entries if entry.index > trusted])
    again = shard.open()
    assert (again.snapshot.mark.index if again.snapshot is not None else 0) == trusted
    assert said not in again.notices


def test_a_crash_while_a_wrong_state_is_dropped_leaves_nothing_of_it() -> None:
    """Behind every operation of such a start, killed or without power: the next one begins at the same snapshot, and
    none that was wrong is there. The note goes last: without it a snapshot that is left would be trusted again.

    Guard: the order of `divergence.drop` and `divergence.done` in `_open` of raft/storage_open.py.
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


def test_a_wrong_state_that_cannot_be_built_anew_is_not_begun_with() -> None:
    """The log begins behind the point at which the state was right, and no snapshot from before reaches it: the start
    is refused, each time, and what is there stays for those who want to know why.

    Guard: `divergence.trusted` in `_open` of raft/storage_open.py.
    """
    shard = compacted()
    shard.run(shard.storage.diverged(Note(2, 6)))
    before = shard.files.content()
    for _ in range(2):
        with pytest.raises(CannotRebuild, match="no snapshot from before point 2 reaches it"):
            shard.open()
    assert shard.files.content() == before
