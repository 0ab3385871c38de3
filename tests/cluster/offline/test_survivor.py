"""Tests `raftlog recover` on a folder that a start would repair first: it begins with the same state as a start."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from raftlog.cluster.files.errors import FolderDamaged, FormatUnknown
from raftlog.cluster.offline.check import check_folder
from raftlog.cluster.offline.survivor import Survivor, best_of, describe, look, seed_of
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.types import EntryKind, HardState, Mark
from raftlog.raft.wal.divergence import NOTE, DivergenceNote, encode_note
from raftlog.raft.wal.formats import HARD_STATE_SLOT, LogIdentity, Slot, encode_slot
from raftlog.raft.wal.snapshot_files import SNAPSHOTS
from raftlog.statemachine.versions import CLUSTER_VERSION
from tests.cluster.files.disk_folder import CONFIGURATION, IDENTITY, segment
from tests.cluster.files.disk_lab import batch, open_disk

OWN = LogIdentity(bytes.fromhex(IDENTITY.log_id))
OLDER, NEWER, LAST = 21, 57, 81
"""The indexes of the two snapshots in the folder, and of its newest record."""


def begins_with(folder: Path) -> int:
    """The index of the snapshot that a survivor's state begins with; 0: the beginning of the log."""
    found = look(folder)
    assert found.last.index == LAST
    return found.snapshot.mark.index if found.snapshot is not None else 0


def note(folder: Path, agreed: int) -> None:
    """The process before left one: right at `agreed`, wrong at the next point."""
    (folder / "shard-0" / NOTE).write_bytes(encode_note(OWN, DivergenceNote(agreed, agreed + 10)))


def mending(folder: Path, cut: int, *, is_mending: bool = True) -> None:
    """A start found damage, wrote its hard state, and was killed."""
    slot = encode_slot(OWN, Slot(99, HardState(3, 0, 7, 3), cut, is_mending))
    with (folder / "shard-0" / "hard_state").open("r+b") as file:
        for start in (0, HARD_STATE_SLOT):
            file.seek(start)
            file.write(slot)


@pytest.mark.parametrize(
    ("agreed", "begins"), [(NEWER + 1, NEWER), (NEWER, OLDER), (OLDER + 1, OLDER), (OLDER, 0), (0, 0)]
)
def test_recover_ignores_snapshots_of_a_wrong_state(folder: Path, agreed: int, begins: int) -> None:
    """The log is intact, but the state is wrong: snapshots from the newest agreed point on are ignored, as a start
    does, and the command reports that.
    """
    assert begins_with(folder) == NEWER
    note(folder, agreed)
    assert begins_with(folder) == begins
    found = look(folder)
    assert any(f"differed from a majority's at point {agreed + 10}" in line for line in describe(found, [found]))


def test_recover_refuses_a_wrong_state_that_cannot_be_rebuilt(folder: Path) -> None:
    """The log begins behind every snapshot that may be trusted: neither `recover` nor a start makes a state of it, and
    `disk check` says so before."""
    first = segment(folder, 0)
    for ending in (".seg", ".idx", ".ledger"):
        first.with_suffix(ending).unlink()
    assert begins_with(folder) == NEWER
    assert check_folder(folder).refusal == ""
    note(folder, OLDER)
    with pytest.raises(FolderDamaged, match="cannot be rebuilt"):
        look(folder)
    assert "cannot be rebuilt" in check_folder(folder).refusal
    assert "members replace" in check_folder(folder).refusal


def test_recover_finishes_an_interrupted_repair(folder: Path) -> None:
    """A log that is cut is taken up to the cut; one that goes for a snapshot is not taken at all, whatever lies there:
    it is what failed its check. What may be missing is said."""
    mending(folder, NEWER + 4)
    found = look(folder)
    assert (found.last.index, found.hard_state.term) == (NEWER + 4, 3)
    assert any("what it had acknowledged behind is not here" in notice for notice in found.notices)
    mending(folder, NEWER)
    found = look(folder)
    assert found.snapshot is not None
    assert (found.snapshot.mark.index, found.last.index, found.segments) == (NEWER, NEWER, ())
    note(folder, NEWER)
    with pytest.raises(FolderDamaged, match="cannot be rebuilt"):
        look(folder)


def test_recover_reports_a_node_that_had_not_healed(folder: Path) -> None:
    """Its log is whole, and may lack what it once acknowledged: another folder may be the better one."""
    mending(folder, 0, is_mending=False)
    found = look(folder)
    assert found.last.index == LAST
    assert any("had not healed" in notice for notice in found.notices)


async def test_a_newer_cluster_is_left_to_newer_code(folder: Path) -> None:
    """The log ends with a configuration of a cluster version that this code does not know. The command reports that
    with the fix, instead of applying entries it does not know.
    """
    shutil.rmtree(folder / "shard-0" / SNAPSHOTS)  # they are of no state machine
    disk, recovered = open_disk(folder)
    data = encode_configuration(replace(CONFIGURATION, version=CLUSTER_VERSION + 1))
    entry = seal_entry(
        recovered.last,
        term=recovered.last.term,
        kind=EntryKind.CONFIGURATION,
        count=1,
        time_ms=recovered.last.time_ms,
        clock_ms=recovered.last.clock_ms,
        data=data,
    )
    await disk.carry_out(batch(entry))
    await disk.close()
    with pytest.raises(FormatUnknown, match=rf"version {CLUSTER_VERSION + 1}.*use a version of raftlog that knows it"):
        seed_of(look(folder))


def test_of_several_folders_the_one_is_taken_that_would_win_the_election() -> None:
    """A longer log of an older term may lack entries that were committed in the newer one (thesis 3.6.1)."""
    marks = [Mark(90, 3), Mark(70, 4), Mark(80, 4), Mark(75, 4)]
    found = [
        Survivor(Path(f"node-{number}"), IDENTITY, HardState(5), None, (), mark, 0, ())
        for number, mark in enumerate(marks)
    ]
    assert best_of(found).last == Mark(80, 4)
    assert best_of(found[::-1]).last == Mark(80, 4)
