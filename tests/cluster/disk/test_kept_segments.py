"""Which kept segment continues the log towards its beginning, and how far."""

from __future__ import annotations

from pathlib import Path

from raftlog.cluster.disk.kept_segments import KeptSegment, KeptSegments, Search
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.raft.types import Entry, Mark
from raftlog.raft.wal.kept_log import KEPT
from raftlog.raft.wal.operations import MakeFolder, Write
from tests.raft.wal.journal_driver import LOG
from tests.raft.wal.test_kept_log import replaced


def kept_on_disk(tmp_path: Path, applied: int = 5) -> tuple[KeptSegments, ShardFiles, list[Entry]]:
    """The kept log of a follower that had applied so many of its 7 entries, and its entries."""
    shard, files = replaced(applied), ShardFiles(tmp_path)
    files.execute([MakeFolder(KEPT)])
    for name, data in shard.files.content().items():
        if name.startswith(f"{KEPT}/"):
            (tmp_path / name).write_bytes(data)
    return KeptSegments(files, LOG), files, shard.entries


def search(kept: KeptSegments, top: Mark, oldest: int = 1) -> KeptSegment | None:
    """The whole search."""
    found = Search(kept.find(top, oldest))
    while not found.step():
        pass
    return found.found


LATER = Mark(99, 1, 7)
"""Far behind the kept entries: where the log begins after the snapshot."""


def test_from_the_newest_applied_entry_down_to_the_beginning(tmp_path: Path) -> None:
    """Behind a gap it says where the kept log ends. Once the log reaches that, it gives one segment after the other:
    the newest as entries, older ones whole. Then nothing is left."""
    kept, files, entries = kept_on_disk(tmp_path)
    assert files.names(KEPT)
    gap = search(kept, LATER)
    assert gap is not None
    assert (gap.last, gap.segment) == (entries[4].mark, None)
    assert search(kept, LATER) == gap, "the end is known now"
    newest = search(kept, entries[4].mark)
    assert newest == gap
    assert [raw.next - 1 for raw in kept.pieces(gap)] == [5]
    kept.delete(gap)
    oldest = search(kept, gap.before)
    assert oldest is not None
    assert oldest.segment is not None
    assert (oldest.first, oldest.last) == (1, gap.before)
    kept.delete(oldest)
    assert search(kept, gap.before) is None
    kept.delete_all()
    assert files.size(KEPT) < 0
    assert [each.may_exist for each in (kept, KeptSegments(files, LOG))] == [False, False]


def test_another_end_at_the_same_index_is_passed_over(tmp_path: Path) -> None:
    """The entry before the log is another one than the kept one: an older segment may still fit."""
    kept, _, entries = kept_on_disk(tmp_path)
    other = Mark(5, 9, 1234)
    found = search(kept, other)
    assert found is not None
    assert found.last.index < 4
    assert search(kept, Mark(0)) is None
    assert search(kept, entries[4].mark) is not None, "nothing was deleted"


def test_a_part_that_was_trimmed_is_deleted(tmp_path: Path) -> None:
    """Records below the oldest index need no disk space while the rest waits for a peer."""
    kept, files, _ = kept_on_disk(tmp_path)
    names = files.names(KEPT)
    found = search(kept, LATER, 4)
    assert found is not None
    assert found.first == 4
    assert [name for name in names if name not in files.names(KEPT)] == [
        f"{1:020d}.idx",
        f"{1:020d}.ledger",
        f"{1:020d}.seg",
    ]


def test_damage_that_comes_later_ends_the_segment_earlier(tmp_path: Path) -> None:
    """The end was known, and the entries before it cannot be read any more: the next search finds where they end."""
    kept, files, entries = kept_on_disk(tmp_path, applied=6)
    gap = search(kept, LATER)
    assert gap is not None
    assert gap.last.index == 6
    name = f"{KEPT}/{gap.first:020d}.seg"
    data = files.read(name, 0, files.size(name))
    files.execute([Write(name, data.index(entries[5].data) + 9, b"damage")])
    assert [raw.next - 1 for raw in kept.pieces(gap)] in ([5], [])
    again = search(kept, LATER)
    assert again is not None
    assert again.last.index == 5
