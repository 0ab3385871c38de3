"""A folder whose parts do not fit together: a start says so, and does not make up what is missing."""

from __future__ import annotations

import pytest

from chaos.sim.files import MemoryFiles
from raft.codec import HEADER_SIZE
from raft.journal import make_log, segment_name
from raft.operations import DeleteFolder
from raft.storage_open import ShardDamaged
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
