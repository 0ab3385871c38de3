"""Older segments put in front of a log that begins behind a snapshot: only its own history fits, and only whole."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.disk.older_segments import (
    ASIDE,
    Backfill,
    LogMoved,
    PieceWrong,
    SegmentFill,
    last_mark,
    name_segment,
)
from raftlog.cluster.files.errors import DiskFenced, NoSpace
from raftlog.cluster.files.folder import IDENTITY as IDENTITY_FILE, make_folder as make_any
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.cluster.files.snapshot_files import SnapshotWriter
from raftlog.cluster.offline.check import check_folder
from raftlog.raft.types import GENESIS, Entry, HardState, Mark
from raftlog.raft.wal.formats import (
    FRAME_HEADER_SIZE,
    HARD_STATE,
    HARD_STATE_BYTES,
    LogIdentity,
    Slot,
    index_name,
    ledger_name,
    segment_name,
)
from raftlog.raft.wal.journal import Journal, Segment, begin_after, keep_slot
from raftlog.raft.wal.operations import Allocate, FileOperation, Rename, Sync
from raftlog.raft.wal.reading import RawSlice
from raftlog.statemachine.commands import Result
from raftlog.statemachine.effects import Effects, RequestEffect, encode_effects
from tests.cluster.files.disk_lab import IDENTITY, SEGMENT_BYTES, batch, make_folder, open_disk, read_all
from tests.raft.wal.journal_driver import CONFIGURATION, FIRST, make_entries
from tests.support import wait_until_async

AT = 40
"""The entry that the late log follows: in the middle of a segment of the whole one."""

HISTORY = [FIRST, *make_entries(FIRST.mark, 1, [700] * 50)]
LATER = make_entries(HISTORY[AT - 1].mark, 1, [300] * 5)
BEFORE = HISTORY[AT - 1].mark


EFFECTS = [encode_effects(Effects(entry.index, 1, (RequestEffect(Result.APPLIED, 1),))) for entry in HISTORY]
FRAME = len(EFFECTS[-1])


async def whole(tmp_path: Path) -> Disk:
    """A disk with all of the history."""
    disk, _ = open_disk(make_folder(tmp_path / "whole"))
    for entry in HISTORY[1:]:
        await disk.carry_out(batch(entry))
    await disk.write_effects(EFFECTS)
    await disk.write_mark()
    return disk


async def late(tmp_path: Path) -> tuple[Disk, Path]:
    """A disk whose log begins behind a snapshot at AT, with entries of its own behind that; and its folder."""
    folder = tmp_path / "late"

    def fill(files: ShardFiles, log: LogIdentity) -> None:
        promise, again = keep_slot(log, Slot(0, HardState(term=1)))
        files.execute([Allocate(HARD_STATE, HARD_STATE_BYTES), *promise, *again])
        writer = SnapshotWriter(files, log, AT)
        writer.begin()
        writer.add(b"state")
        writer.finish(BEFORE, CONFIGURATION, 1, keep="")
        files.execute(begin_after(log, BEFORE, SEGMENT_BYTES))

    make_any(folder, IDENTITY, fill)
    disk, _ = open_disk(folder)
    await disk.carry_out(batch(*LATER))
    return disk, folder


async def check_all(fill: Backfill, filling: SegmentFill) -> None:
    """Everything that was taken."""
    while not await fill.run(filling.step):
        pass


async def filled(source: Disk, disk: Disk, spoil: Callable[[RawSlice], RawSlice] = lambda raw: raw) -> SegmentFill:
    """The segment of `source` in which the log of `disk` begins, up to there, taken in small slices; not ended yet."""
    fill = disk.backfill
    filling = fill.filling()
    piece = source.backfill.piece(filling.top.index)
    assert piece is not None
    first, before = piece
    await fill.begin(filling, before)
    position = first
    while position <= filling.top.index:
        raw = spoil(await source.read_raw(position, filling.top.index, 2_000))
        filling.take(raw)
        await check_all(fill, filling)
        position = filling.next
    return filling


async def test_segment_by_segment_until_the_beginning(tmp_path: Path) -> None:
    """After each, the log reads without a gap from its beginning, here and after a restart. At the end it is all there
    with its effects, and `raftlog disk check` finds nothing wrong.
    """
    source, (disk, folder) = await whole(tmp_path), await late(tmp_path)
    while disk.backfill.top != GENESIS:
        begins = disk.oldest
        filling = await filled(source, disk)
        await disk.backfill.adopt(await disk.backfill.run(filling.finish))
        assert disk.oldest < begins
        entries = await disk.read_entries(disk.oldest - 1, AT, 1 << 20)
        assert entries[0].first == disk.oldest
        assert (await disk.read_raw(disk.oldest, AT, 1 << 20)).first == disk.oldest
        await disk.close()
        disk, recovered = open_disk(folder)
        assert (recovered.first, recovered.notices) == (disk.oldest, ())
        assert recovered.base == disk.backfill.top
    assert await read_all(disk, AT + len(LATER)) == [*HISTORY[:AT], *LATER]
    assert await disk.find_time(HISTORY[3].time_ms) == HISTORY[3].first
    position = 1
    while position <= AT:
        raw, theirs = await disk.read_raw(position, AT, 3_000), await source.read_raw(position, AT, 3_000)
        assert raw.ledger[: len(theirs.ledger)] == theirs.ledger[: len(raw.ledger)]
        position = raw.next
    await disk.close()
    report = check_folder(folder)
    troubles = [each for each in report.findings if each.is_trouble and each.file != IDENTITY_FILE]
    assert not troubles, troubles


async def test_a_cut_is_decided_before_a_segment_can_come_in_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All behind the snapshot is cut while a fetched segment is put in front of it: decided before, done behind that,
    the cut would wipe the fetched one. Guard: the empty first step of `_cut` in raft/wal/storage.py."""
    disk, _ = await late(tmp_path)
    structure, check, held = disk._background.structure, Journal.check, []

    def checked(journal: Journal, entries: Sequence[Entry], after: Mark | None = None) -> None:
        if after is not None:
            held.append(structure.locked())
        check(journal, entries, after)

    monkeypatch.setattr(Journal, "check", checked)
    await disk.carry_out(batch(*HISTORY[AT:], cut_after=AT))
    assert held == [True]
    await wait_until_async(lambda: not structure.locked(), what="the batch, or the background work, lets it go")


async def test_a_cut_back_to_the_snapshot_continues_in_a_fetched_segment(tmp_path: Path) -> None:
    """All that came behind the snapshot is cut for what another leader has: the newest fetched segment is the one that
    is appended to, and a restart reads it all."""
    source, (disk, folder) = await whole(tmp_path), await late(tmp_path)
    filling = await filled(source, disk)
    await disk.backfill.adopt(await disk.backfill.run(filling.finish))
    await disk.carry_out(batch(*HISTORY[AT:], cut_after=AT))
    begins = disk.oldest
    assert list(await disk.read_entries(begins - 1, AT, 1 << 20)) == HISTORY[begins - 1 : AT]
    await disk.close()
    disk, recovered = open_disk(folder)
    assert (recovered.first, recovered.last) == (begins, HISTORY[-1].mark)


def other(raw: RawSlice, **changes: object) -> RawSlice:
    """The slice with something else in it."""
    return replace(raw, **changes)  # type: ignore[arg-type]


def flipped(data: bytes, position: int) -> bytes:
    """One bit of it turned."""
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


SPOILT: dict[str, tuple[Callable[[RawSlice], RawSlice], str]] = {
    "a bit of a value": (lambda raw: other(raw, segment=flipped(raw.segment, 400)), "fails its CRC"),
    "a bit of a header": (lambda raw: other(raw, segment=flipped(raw.segment, 20)), "fails its CRC|not an entry"),
    "a bit of the effects": (lambda raw: other(raw, ledger=flipped(raw.ledger, FRAME_HEADER_SIZE)), "effects"),
    "a bit of their head": (lambda raw: other(raw, ledger=flipped(raw.ledger, 9)), "CRC"),
    "the effects of others": (lambda raw: other(raw, ledger=raw.ledger[FRAME:] + raw.ledger[:FRAME]), "effects"),
    "effects cut short": (lambda raw: other(raw, ledger=raw.ledger[:-1]), "effects"),
    "an entry left out": (lambda raw: other(raw, segment=raw.segment[len(raw.segment) // 2 :]), "follow|entry|magic"),
    "another history": (
        lambda raw: other(
            raw, segment=b"".join(e.header + e.data for e in make_entries(Mark(raw.first - 1, 1), 1, [700]))
        ),
        "does not follow",
    ),
}


@pytest.mark.parametrize("what", list(SPOILT))
async def test_a_fetched_segment_of_another_log_is_refused(tmp_path: Path, what: str) -> None:
    """Damaged, out of place or another one's: PieceWrong, and the log is as it was, now and after a restart."""
    spoil, words = SPOILT[what]
    source, (disk, folder) = await whole(tmp_path), await late(tmp_path)
    with pytest.raises(PieceWrong, match=words):
        await filled(source, disk, spoil)
    await disk.backfill.abandon()
    assert not [path for path in (folder / "shard-0" / "log").iterdir() if "fetched" in path.name]
    assert disk.oldest == AT + 1


async def test_another_end_than_the_one_that_this_log_follows_is_refused(tmp_path: Path) -> None:
    """A piece that ends too early, or goes on beyond, does not fit, whole as it may be in itself."""
    source, (disk, _) = await whole(tmp_path), await late(tmp_path)
    fill = disk.backfill
    filling = fill.filling()
    piece = source.backfill.piece(AT)
    assert piece is not None
    await fill.begin(filling, piece[1])
    filling.take(await source.read_raw(piece[0], AT - 1, 1 << 20))
    await check_all(fill, filling)
    with pytest.raises(PieceWrong, match="this log follows"):
        await fill.run(filling.finish)
    filling.take(await source.read_raw(AT, AT + 1, 1 << 20))
    with pytest.raises(PieceWrong, match=f"goes beyond {AT}"):
        await check_all(fill, filling)


async def test_every_file_of_a_fetched_segment_is_synced_behind_its_last_write(tmp_path: Path) -> None:
    """Only then may the segment get its name: after a power cut the name must not lead to half a file."""
    source, (disk, _) = await whole(tmp_path), await late(tmp_path)
    filling = await filled(source, disk)
    done: list[tuple[str, str]] = []
    real = filling._files

    class Noting:
        """The same files; notes writes and syncs."""

        def write(self, name: str, position: int, data: bytes) -> None:
            done.append(("write", name))
            real.write(name, position, data)

        def execute(self, operations: Sequence[FileOperation]) -> None:
            done.extend((type(each).__name__.lower(), each.name) for each in operations if isinstance(each, Sync))
            real.execute(operations)

    filling._files = cast(Any, Noting())
    await disk.backfill.run(filling.finish)
    last = {name: what for what, name in done}
    assert last == {f"{ASIDE}.{kind}": "sync" for kind in ("seg", "idx", "ledger")}


async def test_the_end_of_another_term_is_refused(tmp_path: Path) -> None:
    """A piece that ends with the right index and another term is of another history: no name, and nothing changes."""
    source, (disk, _) = await whole(tmp_path), await late(tmp_path)
    filling = await filled(source, disk)
    filling.top = replace(filling.top, term=filling.top.term + 1)
    with pytest.raises(PieceWrong, match="this log follows"):
        await disk.backfill.run(filling.finish)
    assert disk.oldest == AT + 1


async def test_a_second_copy_of_a_segment_is_refused(tmp_path: Path) -> None:
    """The log began elsewhere by the time a segment was ready: it is dropped, and nothing has changed."""
    source, (disk, _) = await whole(tmp_path), await late(tmp_path)
    first = await filled(source, disk)
    segment = await disk.backfill.run(first.finish)
    await disk.backfill.adopt(segment)
    begins = disk.oldest
    with pytest.raises(LogMoved):
        await disk.backfill.adopt(segment)
    assert disk.oldest == begins


@pytest.mark.parametrize("named", [0, 1, 2, 3])
async def test_a_crash_between_two_renames_leaves_a_log_without_gap(tmp_path: Path, named: int) -> None:
    """Of .idx, .ledger and .seg some have their names: without its .seg the start removes the others and the log begins
    where it began; with it the segment counts."""
    source, (disk, folder) = await whole(tmp_path), await late(tmp_path)
    filling = await filled(source, disk)
    segment: Segment = await disk.backfill.run(filling.finish)
    files = ShardFiles(folder / "shard-0")
    first = segment.first
    names = [(".idx", index_name(first)), (".ledger", ledger_name(first)), (".seg", segment_name(first))]
    files.execute([Rename(ASIDE + kind, name) for kind, name in names[:named]])
    files.close()
    shutil.copytree(folder, tmp_path / "crashed")
    await disk.close()
    disk, recovered = open_disk(tmp_path / "crashed")
    assert recovered.first == disk.oldest == (first if named == 3 else AT + 1)
    assert await read_all_from(disk, recovered.first, AT + len(LATER)) == [*HISTORY[recovered.first - 1 : AT], *LATER]
    left = [path.name for path in (tmp_path / "crashed" / "shard-0" / "log").iterdir()]
    assert not [name for name in left if "fetched" in name]


async def read_all_from(disk: Disk, first: int, last: int) -> list[Entry]:
    """Every entry from `first` to `last`."""
    entries: list[Entry] = []
    while (after := entries[-1].index if entries else first - 1) < last:
        entries += await disk.read_entries(after, last, 3_000)
    return entries


@pytest.mark.parametrize("failing", range(len(name_segment(1))))
async def test_a_segment_that_finds_no_space_in_any_step_of_its_naming_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """The disk is full when one of the files gets its name, or the folder is synced. The log reads as before, and the
    same segment comes in front once there is space."""
    source, (disk, _) = await whole(tmp_path), await late(tmp_path)
    carry_out, done = ShardFiles._carry_out, list[FileOperation]()

    def fail(files: ShardFiles, operation: FileOperation) -> None:
        if files is disk.backfill._reading:
            done.append(operation)
            if len(done) > failing:
                raise OSError(errno.ENOSPC, "no space, as asked for")
        carry_out(files, operation)

    for is_full in (True, False):
        segment = await disk.backfill.run((await filled(source, disk)).finish)
        with monkeypatch.context() as patch:
            if is_full:
                patch.setattr(ShardFiles, "_carry_out", fail)
                with pytest.raises(NoSpace):
                    await disk.backfill.adopt(segment)
            else:
                await disk.backfill.adopt(segment)
        assert disk.oldest == (AT + 1 if is_full else segment.first)
        assert await read_all_from(disk, disk.oldest, AT + len(LATER)) == [*HISTORY[disk.oldest - 1 : AT], *LATER]
        await disk.backfill.abandon()


async def test_a_disk_without_room_waits_and_one_that_fails_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older segments are no reason to fill a disk; an error of a write or a sync fences it, as any other does."""
    disk, _ = await late(tmp_path)
    fill = disk.backfill
    with monkeypatch.context() as patch:
        patch.setattr("raftlog.cluster.disk.older_segments.free_bytes", lambda files: 3 * SEGMENT_BYTES - 1)
        with pytest.raises(NoSpace, match="must be before older segments are fetched"):
            await fill.begin(fill.filling(), GENESIS)

    def fail(number: int) -> None:
        raise OSError(number, "as asked for")

    with pytest.raises(NoSpace, match="no room for older segments"):
        await fill.run(partial(fail, errno.ENOSPC))
    with pytest.raises(DiskFenced):
        await fill.run(partial(fail, errno.EIO))
    assert disk.is_fenced
    with pytest.raises(DiskFenced):
        await fill.adopt(disk._journal.segments[0])


async def test_the_end_of_a_slice(tmp_path: Path) -> None:
    """The mark of its last entry, durable marks passed over; a damaged one has none."""
    source = await whole(tmp_path)
    raw = await source.read_raw(3, 9, 1 << 20)
    assert last_mark(raw) == HISTORY[raw.next - 2].mark
    with pytest.raises(PieceWrong):
        last_mark(other(raw, segment=flipped(raw.segment, 20)))
