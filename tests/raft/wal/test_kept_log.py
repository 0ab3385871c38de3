"""The log that a snapshot replaces: every applied entry stays on the disk with its effects, whatever crash comes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from raftlog.chaos.sim.disk.files import DiskSpace, MemoryFiles
from raftlog.raft.types import GENESIS, Entry, Mark
from raftlog.raft.wal import kept_log
from raftlog.raft.wal.divergence import DivergenceNote, keep
from raftlog.raft.wal.formats import FRAME_HEADER_SIZE, SIDE_HEADER_SIZE, index_name, ledger_name, segment_name
from raftlog.raft.wal.kept_log import KEPT
from raftlog.raft.wal.operations import Create, FileOperation, Rename
from raftlog.raft.wal.snapshot_files import Pieces, read_piece
from raftlog.raft.wal.storage import WorkStep
from tests.raft.wal.journal_driver import LOG, SEGMENT_BYTES, after_kill, after_power_cut
from tests.raft.wal.storage_lab import Shard, frame_of, noting


def coming(applied: int = 5, entries: int = 7, size: int = 1_200) -> tuple[Shard, Pieces]:
    """A follower with that many entries, of which some are applied, and a leader's later snapshot, written aside."""
    leader = Shard()
    leader.append(*[1_200] * 12)
    leader.save_snapshot(leader.entries[-1])
    follower = Shard()
    follower.append(*[size] * (applied - 1))
    follower.run(follower.storage.finish_sealed(follower.files))
    follower.append(*[size] * (entries - applied), applied=False)
    received = Pieces(LOG, leader.entries[-1].index)
    follower.files.execute(received.begin())
    _, data = read_piece(leader.files, LOG, leader.entries[-1].index, 1, 0, 1 << 20)
    follower.files.execute(received.add(data))
    return follower, received


def replaced(applied: int = 5, entries: int = 7) -> Shard:
    """A follower whose log the snapshot has replaced."""
    shard, received = coming(applied, entries)
    shard.run(shard.storage.install(received))
    return shard


def found(files: MemoryFiles) -> list[tuple[int, bytes]]:
    """Index and effects of each applied entry in the kept segments, in order."""
    rows: list[tuple[int, bytes]] = []
    for first in kept_log.kept_firsts(files):
        header = kept_log.read_header(LOG, files, first)
        if header is None:
            continue  # without an applied entry: nothing of it was synced beside the entries
        for raw, last in kept_log.pieces(files, header, 1 << 40):
            frame = len(raw.ledger) // (raw.next - raw.first)
            rows += [
                (index, raw.ledger[frame * nth : frame * (nth + 1)])
                for nth, index in enumerate(range(raw.first, raw.next))
            ]
            assert last.index == raw.next - 1
    return rows


def frames(entries: list[Entry]) -> list[tuple[int, bytes]]:
    """What `found` gives for these."""
    return [(entry.index, frame_of(entry)) for entry in entries]


def one_by_one(steps: Iterator[WorkStep]) -> Iterator[FileOperation]:
    for _, operations in steps:
        yield from operations


def test_a_segment_that_begins_with_the_last_applied_entry_is_kept() -> None:
    """The snapshot ends with that entry: it is a record that may be read. The segment after it goes."""
    files = MemoryFiles()
    for first in (1, 5, 6):
        files.execute([Create(segment_name(first), bytes(64))])
    kept = [each.name for each in kept_log.keep_log(files, Mark(5, 1)) if isinstance(each, Rename)]
    assert kept == [segment_name(1), segment_name(5)]


def test_applied_entries_are_kept_and_others_go() -> None:
    """Segments of entries that were never applied are deleted: perhaps they were never committed."""
    shard = replaced(applied=4, entries=9)
    assert found(shard.files)[1:] == frames(shard.entries[1:4])
    assert all(first <= 4 for first in kept_log.kept_firsts(shard.files))
    assert [name for name in shard.files.names("log") if name.endswith(".seg")] == [segment_name(14)[4:]]
    assert shard.open().log.first == 14


@pytest.mark.parametrize("how", ["power", "kill"])
def test_a_crash_while_a_snapshot_replaces_the_log_loses_no_applied_entry(how: str) -> None:
    """Before each operation, and after the last: the next start has the old log, or all of it kept and the new one.

    Guard: `keep_log` of raft/wal/kept_log.py.
    """
    shard, received = coming()
    wanted = frames(shard.entries[1:5])
    operations = one_by_one(shard.storage.install(received))
    seen = set()
    while True:
        for seed in range(8 if how == "power" else 1):
            left = Shard(after_power_cut(shard.files, Random(seed)) if how == "power" else after_kill(shard.files))
            seen.add(left.opened.log.first)
            if left.opened.log.first == 1:
                assert left.opened.log.last.index == 7, "a replay makes the effects again"
            else:
                assert found(left.files)[1:5] == wanted
                assert not any("installing" in name for name in left.files.content())
        operation = next(operations, None)
        if operation is None:
            break
        shard.files.execute([operation])
    assert seen == {1, 14}


def test_a_full_disk_stops_an_install_before_anything_is_changed() -> None:
    """However many bytes are free: the old log stays, so it frees no space for the new one. All that the install needs
    is made before the snapshot has its name. With space it may be tried again.

    Guard: `StepKind.SPARES` in `install` of raft/wal/storage.py.
    """
    free, has_fitted = 0, False
    while not has_fitted:
        shard, received = coming()
        space = DiskSpace(shard.files.used + free, [shard.files])
        parts: list[int] = []
        try:
            shard.run(noting(shard.storage.install(received), parts))
            has_fitted = True
        except OSError:
            assert not shard.storage.is_final(parts[-1], is_full=True), f"{free} bytes are free"
            assert shard.reader.entries(4, 7, 1 << 20)[0].index == 5
            assert Shard(after_kill(shard.files)).opened.log.first == 1
            space.size += 2 * SEGMENT_BYTES
            shard.run(shard.storage.install(received))
        assert shard.open().log.first == 14
        free += 48
    assert SEGMENT_BYTES < free < 2 * SEGMENT_BYTES


@pytest.mark.parametrize("how", ["power", "kill"])
def test_a_crash_while_a_segment_moves_back_loses_no_file_of_it(how: str) -> None:
    """The log does not reach the kept segment here, so a start may only leave it where it is. It has all its files at
    one place after each start.

    Guard: `keep_again` in `_open` of raft/wal/opening.py.
    """
    for cut in range(len(kept_log.give_back(1)) - 3):  # from then on the segment is in the log, which would have a gap
        for seed in range(8 if how == "power" else 1):
            shard = replaced()
            names, wanted = shard.files.names(KEPT), found(shard.files)
            shard.files.execute(kept_log.give_back(1)[:cut])
            left = Shard(after_power_cut(shard.files, Random(seed)) if how == "power" else after_kill(shard.files))
            assert (left.files.names(KEPT), found(left.files)) == (names, wanted)


def test_only_a_segment_with_footers_that_ends_there_moves_back_whole() -> None:
    """The newest one of the old log was still written: it has no footers, and is copied up to its applied entry."""
    shard = replaced()
    marks = {entry.index: entry.mark for entry in shard.entries}
    firsts = kept_log.kept_firsts(shard.files)
    whole = []
    for first, following in zip(firsts, [*firsts[1:], 99], strict=True):
        header = kept_log.read_header(LOG, shard.files, first)
        assert header is not None
        end = marks.get(following - 1, shard.entries[4].mark)
        segment = kept_log.whole_segment(LOG, shard.files, header, end)
        whole.append(segment is not None)
        if segment is not None:
            assert (segment.first, segment.last) == (first, end)
        assert kept_log.whole_segment(LOG, shard.files, header, marks[1] if end != marks[1] else marks[2]) is None
    assert whole == [True] * (len(whole) - 1) + [False]
    assert len(whole) >= 2


@pytest.mark.parametrize("file", [segment_name, index_name, ledger_name])
def test_a_damaged_header_or_effect_ends_what_is_found(file: object) -> None:
    """Only intact entries with intact effects are given: what follows a damaged one has to come from a peer."""
    shard = replaced()
    assert callable(file)
    name = f"{KEPT}{file(1)[3:]}"
    header = kept_log.read_header(LOG, shard.files, 1)
    assert header is not None
    last = [last for _, last in kept_log.pieces(shard.files, header, 1 << 40)][-1]
    assert last.index >= 3
    seen = shard.files.nodes[name].seen
    seen[5] ^= 1
    assert (kept_log.read_header(LOG, shard.files, 1) is None) == (file is not index_name)
    assert (kept_log.whole_segment(LOG, shard.files, header, last) is None) == (file is index_name)
    seen[5] ^= 1
    if file is ledger_name:
        first = len(frame_of(shard.entries[0]))
        seen[SIDE_HEADER_SIZE + first + FRAME_HEADER_SIZE + 1] ^= 1  # of the effects of entry 2
        ends = [last for _, last in kept_log.pieces(shard.files, header, 1 << 40)]
        assert ends in ([], [shard.entries[0].mark])


def test_a_segment_of_another_place_or_log_is_not_taken() -> None:
    """A file under another one's name, and one that is shorter than it says."""
    shard = replaced()
    name = f"{KEPT}{segment_name(1)[3:]}"
    content = bytes(shard.files.nodes[name].seen)
    for spoiled in (content[:-1], bytes(shard.files.nodes[f"{KEPT}{segment_name(4)[3:]}"].seen)):
        shard.files.nodes[name].seen[:] = spoiled
        assert kept_log.read_header(LOG, shard.files, 1) is None


def test_pieces_end_where_they_are_asked_to() -> None:
    """Up to the entry before the log's beginning; a piece has some entries, and is bounded."""
    shard = replaced()
    header = kept_log.read_header(LOG, shard.files, 1)
    assert header is not None
    assert [last.index for _, last in kept_log.pieces(shard.files, header, 2)] == [2]
    assert header.previous == GENESIS


def test_a_large_entry_is_a_piece_by_itself() -> None:
    """No piece has more than one beyond the bound, and none is empty."""
    shard, received = coming(size=kept_log.PIECE_BYTES)
    shard.run(shard.storage.install(received))
    assert found(shard.files)[1:] == frames(shard.entries[1:5])


def test_a_wrong_state_takes_its_kept_effects_with_it() -> None:
    """A node that was found to have a wrong state trusts no effects that it kept either.

    Guard: `DeleteFolder(KEPT)` of raft/wal/opening.py.
    """
    shard = replaced()
    shard.files.execute(keep(LOG, DivergenceNote(agreed=14, point=14)))
    assert kept_log.kept_firsts(shard.files)
    opened = shard.open()
    assert kept_log.kept_firsts(shard.files) == []
    assert any("kept/ were deleted" in notice for notice in opened.notices)


def test_kept_segments_below_the_oldest_index_may_go() -> None:
    """Where the last one ends is not known: it stays until the log reaches back far enough."""
    assert kept_log.trimmed([1, 4, 9], 9) == [1, 4]
    assert kept_log.trimmed([1, 4, 9], 8) == [1]
    assert kept_log.trimmed([], 8) == []
