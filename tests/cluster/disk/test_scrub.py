"""Tests scrubbing: it finds every damaged byte of sealed files, at a bounded rate, and nothing else."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.disk import scrubber
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.disk.scrubber import CountedFiles, Scrub
from raftlog.cluster.files import scrub as scrubbing
from raftlog.cluster.files.check_segment import looking_at_segment
from raftlog.cluster.files.findings import NOT_READ, REREAD, FileHealth, Finding, in_one_go
from raftlog.cluster.files.scrub import UNREADABLE, Looker, Waits, derived, mended_for_free, snapshots_among
from raftlog.cluster.offline.check import check_folder
from raftlog.cluster.runtime.clock import monotonic
from raftlog.raft.types import HardState
from raftlog.raft.wal.formats import SEGMENT_HEADER_SIZE, SIDE_HEADER_SIZE, index_name, ledger_name, segment_name
from raftlog.raft.wal.snapshot_files import snapshot_folder
from tests.cluster.files.disk_folder import LOG, SEGMENT_BYTES, flip, segment
from tests.cluster.files.disk_lab import batch, effects_of
from tests.raft.wal.journal_driver import make_entries
from tests.support import wait_until_async

FLIPS_EACH = 12
OWN_END = 4
"""The newest segment and what lies beside it: still written."""


@pytest.fixture
async def disk(folder: Path) -> AsyncIterator[Disk]:
    """That folder, open, after the replay of a start."""
    opened = await replayed(folder)
    yield opened
    await opened.close()


async def replayed(folder: Path) -> Disk:
    """Opens the folder and writes the effects behind the newest snapshot again, as a start does."""
    disk, recovered = Disk.open(folder, segment_bytes=SEGMENT_BYTES)
    after = recovered.ledger_last
    while entries := await disk.read_entries(after, recovered.last.index, 1 << 20):
        await disk.write_effects(effects_of(entries))
        after = entries[-1].index
    await disk.read_raw(after, after, 1)  # they are in their files
    return disk


def looker_of(disk: Disk) -> Looker:
    """What scrubbing looks with."""
    return Looker(CountedFiles(disk._opened.shard), disk._journal, disk._ledger)


def failed_never(error: Exception) -> None:
    """No round of that test fails."""
    raise error


def one_round(disk: Disk) -> list[Finding]:
    """All findings of a round, without its waits."""
    told: list[list[Finding]] = []
    in_one_go(looker_of(disk).round(told.append))
    return [finding for findings in told for finding in findings]


async def test_every_flip_in_a_sealed_file_is_found(disk: Disk, folder: Path) -> None:
    """Single flips over every sealed segment, .idx, .ledger and snapshot of a running node, first and last bytes among
    them. Each is reported with its file, and intact files are not reported.
    """
    chance = Random(5)
    assert one_round(disk) == []
    newest = segment(folder, -1).stem
    files = [path for path in (folder / LOG).iterdir() if path.suffix in (".seg", ".idx", ".ledger")]
    files = [path for path in files if path.stem != newest] + list((folder / "shard-0/snapshots").glob("*/*"))
    assert len(files) == OWN_END * 3 + 2 * 2
    for path in sorted(files):
        data = path.read_bytes()
        for position in sorted({0, len(data) - 1, *(chance.randrange(len(data)) for _ in range(FLIPS_EACH))}):
            flip(path, position, 1 << chance.randrange(8))
            name = str(path.relative_to(folder / "shard-0"))
            told = one_round(disk)
            assert told, (name, position)
            assert all(name.startswith(each.file) or path.stem in each.file for each in told), (name, position, told)
            path.write_bytes(data)
    assert one_round(disk) == []


async def test_a_missing_or_unreadable_file_is_reported(
    disk: Disk, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing .idx or .ledger; and a sector that the disk cannot read, which no start would repair."""
    segment(folder, 1, ".idx").unlink()
    segment(folder, 2, ".ledger").unlink()
    told = one_round(disk)
    assert [(each.file.rpartition(".")[2], each.state) for each in told] == [
        ("idx", FileHealth.MISSING),
        ("ledger", FileHealth.MISSING),
    ]
    assert [Path(name).name for name in derived(told)] == [
        f"{segment(folder, 1).stem}.idx",
        f"{segment(folder, 2).stem}.ledger",
    ]

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("raftlog.cluster.files.shard_files.os.pread", broken)
    told = one_round(disk)
    assert {each.mend for each in told} == {UNREADABLE}
    assert derived(told) == []


async def test_a_finding_that_a_second_read_misses_is_dropped(disk: Disk, folder: Path) -> None:
    """A file that changed while it was read is no damage: a finding was seen twice, some time apart."""
    path = segment(folder, 0)
    data = path.read_bytes()
    told: list[list[Finding]] = []
    flip(path, 150)
    waited = 0
    for seconds in looker_of(disk).round(told.append):
        if seconds:
            assert seconds == scrubbing.AGAIN_S
            waited += 1
            path.write_bytes(data)
    assert (waited, told) == (1, [])


async def test_a_segment_dropped_or_cut_while_read_is_no_damage(disk: Disk) -> None:
    """A segment that went while it was read is not reported; the round goes on with the remaining files."""
    looker = looker_of(disk)
    (first, following), *_ = looker.sealed()
    look = looker.segment(first, following)
    next(look)
    assert await disk.compact(30, 30) >= 1
    assert in_one_go(look) == []
    assert in_one_go(looker.snapshot(12_345)) == []
    assert one_round(disk) == []


async def test_a_segment_that_was_cut_and_sealed_again_is_intact(disk: Disk) -> None:
    """Uncommitted entries give way to another leader's. A read that began before expects another end of their segment.
    It reports nothing, nor does a later round (found by the simulator).
    """
    entries = make_entries(disk._journal.last, 2, [700] * 12)
    await disk.carry_out(batch(*entries))
    await disk.read_entries(0, entries[-1].index, 1)  # the rows are written too
    looker = looker_of(disk)
    segment, following = looker.sealed()[-1]
    kept = next(each for each in entries if segment.first <= each.index < segment.last.index)
    others = make_entries(kept.mark, 3, [1_100] * 8)
    await disk.carry_out(batch(*others, hard_state=HardState(3, 1), cut_after=kept.index))
    await disk.read_entries(0, others[-1].index, 1)
    assert any(one is segment and other is not following for one, other in looker.sealed())
    assert in_one_go(looker.segment(segment, following)) == []
    assert one_round(disk) == []


async def test_the_newest_segment_is_left_to_a_start(disk: Disk, folder: Path) -> None:
    """It is written while one would read it. Once another follows it, it is read too."""
    newest = segment(folder, -1)
    flip(newest, 150)
    assert one_round(disk) == []
    last = disk._journal.last
    while disk._journal.active.first - 1 < last.index:
        (entry,) = make_entries(disk._journal.last, 2, (900,))
        await disk.carry_out(batch(entry))
        await disk.write_effects(effects_of([entry]))
    await disk.read_entries(0, last.index, 1)  # what follows the answer is done too
    await disk.write_mark()
    assert {each.file for each in one_round(disk)} >= {f"log/{newest.name}"}


async def test_damage_for_a_reader_names_file_byte_and_index(disk: Disk, folder: Path) -> None:
    """A reader knows the segment only: the closer look says which file, byte and index; of the newest segment, which
    is written, it says what the reader met."""
    flip(segment(folder, 0), 150)
    assert await place(disk, segment(folder, 0)) == ("seg", SEGMENT_HEADER_SIZE, 0)
    flip(segment(folder, 1, ".idx"), SIDE_HEADER_SIZE + 20)
    first = int(segment(folder, 1).stem)
    assert await place(disk, segment(folder, 1)) == ("idx", SIDE_HEADER_SIZE + 16, first)
    newest = segment(folder, -1)
    flip(newest, 150)
    assert await place(disk, newest) == ("seg", None, int(newest.stem) - 1)


async def place(disk: Disk, path: Path) -> tuple[str, int | None, int | None]:
    """What a closer look says of a segment whose first entry a reader could not read."""
    error = disk.damaged_at(int(path.stem), ValueError("what it met"))
    found, *_ = await disk.look_closer(error.damage)
    return found.file.rpartition(".")[2], found.position, found.index


@pytest.mark.parametrize(("number", "ending", "position"), [(0, ".idx", 40), (3, ".ledger", 60), (1, ".idx", -1)])
async def test_a_start_rebuilds_the_removed_derived_files(
    folder: Path, number: int, ending: str, position: int
) -> None:
    """Files derived from the segments are removed before the process ends, and the next start builds them again: then
    every byte is right. Without that a start would believe the footer.
    """
    disk = await replayed(folder)
    path = segment(folder, number, ending)
    size = path.stat().st_size
    flip(path, position % size)
    found = one_round(disk)
    assert [each.file.rpartition("/")[2] for each in found] == [path.name]
    await disk.leave_to_start(found)
    assert not path.exists()
    await disk.close()
    disk = await replayed(folder)
    await disk.close()
    assert [each for each in check_folder(folder).troubles if each.file.endswith(ending)] == []
    assert path.exists()


async def test_damage_above_the_newest_mark_does_not_pass_for_a_torn_tail(folder: Path) -> None:
    """The node writes a mark before it ends. So the next start knows that the damaged entry was synced. It neither cuts
    the entry off silently nor votes as if it had never been there.
    """
    disk, _ = Disk.open(folder, segment_bytes=SEGMENT_BYTES)
    (entry,) = make_entries(disk._journal.last, 2, (300,))
    await disk.carry_out(batch(entry))
    start = disk._journal.active.end - entry.size
    path = segment(folder, -1)
    flip(path, start + 200)
    found = await disk.look_closer(disk.damaged_at(entry.index, ValueError("data")).damage)
    await disk.leave_to_start(found)
    disk._writer.fence = RuntimeError("killed")  # type: ignore[assignment]  # no clean stop: that would mark it too
    await disk.close()
    report = check_folder(folder)
    assert "a durable mark says" in str([each.what for each in report.troubles])
    assert entry.mark.index > report.last


def test_only_files_that_a_start_rebuilds_are_removed() -> None:
    """Not for bytes that no reader uses, nor for a disk that cannot read; a snapshot is saved again instead."""
    seg, idx, ledger = segment_name(7), index_name(7), ledger_name(7)
    assert derived([Finding(seg, FileHealth.DAMAGED, "x")]) == [idx]
    assert derived([Finding(idx, FileHealth.DAMAGED, "x"), Finding(seg, FileHealth.DAMAGED, "x")]) == [idx]
    assert derived([Finding(ledger, FileHealth.MISSING, "x")]) == [ledger]
    assert derived([Finding(seg, FileHealth.DAMAGED, "x", mend=mend) for mend in (NOT_READ, UNREADABLE)]) == []
    snapshot = Finding(f"{snapshot_folder(9)}/chunks", FileHealth.DAMAGED, "x")
    assert derived([snapshot]) == []
    assert snapshots_among([snapshot], [9, 10]) == [9]


def test_a_repair_that_costs_older_history_is_not_free() -> None:
    """A cut at or before the newest snapshot drops the log below it. A ledger is built again by replay, from the start
    of the log or from a snapshot that reaches its segment. Beside damage that is not free nothing of that segment is
    free.
    """
    entry = Finding(segment_name(50), FileHealth.DAMAGED, "x", 90, 60)
    mark = Finding(segment_name(50), FileHealth.DAMAGED, "x", 90, 60, REREAD)
    rows, effects = Finding(index_name(50), FileHealth.DAMAGED, "x"), Finding(ledger_name(50), FileHealth.DAMAGED, "x")
    assert mended_for_free([entry], 1, []) == [entry]
    assert mended_for_free([entry], 1, [40, 59]) == [entry]
    assert mended_for_free([entry], 1, [40, 60]) == []
    assert mended_for_free([rows, mark], 1, [40, 60]) == [rows, mark]
    assert mended_for_free([rows, entry], 1, [40, 60]) == []
    assert mended_for_free([effects], 1, [80]) == [effects]
    assert mended_for_free([effects], 20, [80]) == []
    assert mended_for_free([effects], 20, [49, 80]) == [effects]
    assert mended_for_free([effects], 20, [50, 80]) == []
    assert mended_for_free([Finding(segment_name(50), FileHealth.DAMAGED, "x", 90, 60, NOT_READ)], 1, []) == []


async def test_the_rate_is_bounded_and_rounds_follow_each_other(disk: Disk) -> None:
    """So many bytes a second at most, from the first on; after a pause the next round begins; a close ends it."""
    rate = 50_000
    began = monotonic()
    scrub = disk.scrub(lambda _: None, failed_never, bytes_per_second=rate, pause_s=0.001)
    await wait_until_async(lambda: scrub.rounds >= 1, 30, what="a round")
    read = scrub.bytes - 2 * SEGMENT_BYTES  # the slice of now has its pause before it
    assert read > 10_000
    assert monotonic() - began >= 0.9 * read / rate
    assert scrub.ended_at is not None
    await wait_until_async(lambda: scrub.rounds >= 2, 30, what="another")
    await disk.close()
    assert not scrub._thread.is_alive()


async def test_an_error_outside_the_files_ends_only_its_round(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can be opened, and then a folder cannot be listed. No file is reported, the thread lives, and the next
    rounds are whole. Errors of the disk itself are reported.
    """
    told: list[list[Finding]] = []
    trouble = [OSError(errno.EMFILE, "too many open files"), OSError(errno.EMFILE, "too many open files")]
    read, names = CountedFiles.read, CountedFiles.names

    def reads(self: CountedFiles, name: str, position: int, size: int) -> bytes:
        if trouble:
            raise trouble.pop()
        return read(self, name, position, size)

    unlisted = [OSError(errno.EIO, "cannot be listed")]

    def lists(self: CountedFiles, folder: str) -> list[str]:
        if unlisted and not trouble:
            raise unlisted.pop()
        return names(self, folder)

    monkeypatch.setattr(CountedFiles, "read", reads)
    monkeypatch.setattr(CountedFiles, "names", lists)
    failures: list[Exception] = []
    scrub = disk.scrub(told.append, failures.append, bytes_per_second=1 << 30, pause_s=0.001)
    await wait_until_async(lambda: scrub.rounds >= 2, 30, what="whole rounds")
    assert (trouble, unlisted, told) == ([], [], [])
    assert [str(each) for each in failures][0::2] == ["[Errno 24] too many open files", "[Errno 5] cannot be listed"]
    trouble += [OSError(errno.EIO, "gone") for _ in range(2)]
    await wait_until_async(lambda: bool(told), 30, what="a finding")
    assert told[0][0].mend == UNREADABLE


async def test_a_defect_ends_a_round_of_scrubbing_and_the_next_round_is_whole(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected exception ended the thread with a stack trace, and nothing was read any more. Now it is reported
    with its round, and scrubbing goes on.
    """
    failures: list[Exception] = []
    defects = [RuntimeError("a defect in one look")]
    look = looking_at_segment

    def looks(*arguments: Any) -> Any:
        if defects:
            raise defects.pop()
        return look(*arguments)

    monkeypatch.setattr(scrubbing, "looking_at_segment", looks)
    scrub = disk.scrub(lambda _: None, failures.append, bytes_per_second=1 << 30, pause_s=0.001)
    await wait_until_async(lambda: scrub.rounds >= 1, 30, what="a whole round")
    assert [str(each) for each in failures] == ["a defect in one look"]


def test_the_pause_follows_from_the_time_on_a_processor() -> None:
    """A thread that waits for a processor, or for the interpreter, takes nothing from the event loop. A pause of twenty
    times that wait made a round take minutes on a busy machine."""
    looker: Any = SimpleNamespace(files=SimpleNamespace(bytes=0), file="")
    scrub = Scrub(looker, lambda _: None, lambda: False, failed_never, bytes_per_second=0, pause_s=1)
    never = threading.Event()

    def steps() -> Waits:
        for _ in range(3):
            never.wait(0.05)  # not on a processor
            yield 0.0

    assert sum(scrub._sliced(steps())) < 0.05

    def work() -> Waits:
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass
        yield 0.0

    assert sum(scrub._sliced(work())) >= scrubber.SHARE * 0.01


async def test_a_writing_thread_goes_first_but_not_for_ever(disk: Disk) -> None:
    """A slice waits while there is something to write, and comes all the same once it has waited for BUSY_S."""
    scrub = Scrub(looker_of(disk), lambda _: None, lambda: True, failed_never, bytes_per_second=0, pause_s=1)
    waits = list(scrub._sliced(each for each in (0.0,)))
    *before, after = waits
    assert set(before) == {scrubber.BUSY_LOOK_S}
    assert scrubber.BUSY_S <= sum(before) < 2 * scrubber.BUSY_S
    assert after < scrubber.BUSY_S
    assert scrub.stop(1), "it was never begun: nothing is to be read"
