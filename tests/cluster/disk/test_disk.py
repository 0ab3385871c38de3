"""Tests the disk on real files: written data is read back, in this process and after a restart."""

from __future__ import annotations

import asyncio
import os
import threading
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.disk.segment_chores import SPARE_STEP_BYTES
from raftlog.cluster.files.shard_files import ZEROS, Allocation
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.entry import decode_entry
from raftlog.raft.codec.mark import MARK_MAGIC, MARK_SIZE
from raftlog.raft.types import GENESIS, Entry, HardState, TermRun
from raftlog.raft.wal.formats import FRAME_HEADER_SIZE, decode_frame_header, peek_frame
from raftlog.raft.wal.journal import ImpossibleBatch
from raftlog.raft.wal.reading import RawSlice
from raftlog.statemachine.commands import Result
from raftlog.statemachine.effects import Effects, RequestEffect, decode_effects_header, encode_effects
from tests.cluster.files.disk_lab import batch, effects_of, frames_of, make_folder, open_disk, read_all
from tests.raft.wal.journal_driver import CONFIGURATION, FIRST, make_entries
from tests.support import wait_until_async


def entries_of(raw: RawSlice) -> list[tuple[int, Entry]]:
    """The entries of a slice with their positions in the segment file."""
    found = []
    offset = 0
    while offset < len(raw.segment):
        if raw.segment[offset : offset + 4] == MARK_MAGIC:
            offset += MARK_SIZE
            continue
        entry = decode_entry(raw.segment, offset)
        found.append((raw.base + offset, entry))
        offset += entry.size
    return found


async def test_a_new_folder_holds_the_first_entry_only(tmp_path: Path) -> None:
    """A formatted folder opens with the configuration at index 1, term 1, no vote, and one more boot each time."""
    folder = make_folder(tmp_path)
    for boot in (1, 2, 3):
        disk, recovered = open_disk(folder)
        assert recovered.hard_state == HardState(1, 0, boot)
        assert recovered.last == FIRST.mark
        assert recovered.tail == (FIRST,)
        assert recovered.runs == (TermRun(1, 1),)
        assert (recovered.configuration, recovered.configuration_index) == (CONFIGURATION, 1)
        assert (recovered.first, recovered.ledger_last, recovered.snapshot) == (1, 0, None)
        assert recovered.notices == ()
        await disk.close()


async def test_any_history_is_read_back(tmp_path: Path) -> None:
    """Random batches, votes, cuts, rolls, effects and restarts: every read gives the written data."""
    for seed in range(4):
        random = Random(seed)
        folder = make_folder(tmp_path / str(seed))
        log, applied, term = [FIRST], 0, 1
        disk, _ = open_disk(folder)
        for step in range(40):
            match random.choice("aaaaaccrh"):
                case "a":
                    sizes = random.choices((20, 200, 2_000, 9_000), (6, 4, 2, 1), k=random.randint(1, 6))
                    new = make_entries(log[-1].mark, term, sizes, random.randint(1, 3))
                    await disk.carry_out(batch(*new))
                    log += new
                    until = random.randint(applied, len(log))
                    await disk.write_effects(effects_of(log[applied:until]))
                    applied = until
                case "c":
                    term += 1
                    kept = random.randint(max(1, applied), len(log))
                    new = make_entries(log[kept - 1].mark, term, (50, 60))
                    state = HardState(term, random.randint(0, 3))
                    await disk.carry_out(batch(*new, hard_state=state, cut_after=log[kept - 1].index))
                    log = log[:kept] + new
                case "h":
                    term += 1
                    await disk.carry_out(batch(hard_state=HardState(term, 2)))
                    await disk.write_mark()
                case "r":
                    await disk.close()
                    disk, recovered = open_disk(folder)
                    assert recovered.last == log[-1].mark
                    assert recovered.hard_state.term == term
                    assert recovered.ledger_last == 0  # no snapshot says that the effects are more than cached
                    await disk.write_effects(effects_of(log[:applied]))
                    assert recovered.tail == tuple(log[len(log) - len(recovered.tail) :])
                    assert recovered.runs == tuple(runs_of(log))
            if step % 8 == 7:
                assert await read_all(disk, log[-1].index) == log, f"seed {seed}, step {step}"
                await check_raw(disk, log[:applied], random)
        await disk.close()


def runs_of(log: list[Entry]) -> Iterator[TermRun]:
    term = 0
    for entry in log:
        if entry.term != term:
            term = entry.term
            yield TermRun(entry.first, term)


async def check_raw(disk: Disk, log: list[Entry], random: Random) -> None:
    """Raw slices of any range are whole entries of one segment, with exactly their rows and effects."""
    if not log:
        return
    for _ in range(10):
        start = random.randint(1, log[-1].index)
        to = random.randint(start, log[-1].index + 3)
        raw = await disk.read_raw(start, to, random.choice((1, 500, 5_000, 100_000)))
        found = entries_of(raw)
        entries = [entry for _, entry in found]
        assert entries == [entry for entry in log if raw.first <= entry.index < raw.next]
        assert raw.first <= start < raw.next
        assert entries[-1].first <= max(to, start)
        assert frames_of(raw.ledger) == [entry.index for entry in entries]
        rows = array("I", raw.rows)
        assert list(rows[0::4]) == [position for position, entry in found for _ in range(entry.count)]


async def test_effects_may_come_before_their_entries_are_durable(tmp_path: Path) -> None:
    """Effects of an entry that is not in the log yet wait in memory; those that are there already are dropped."""
    folder = make_folder(tmp_path)
    disk, _ = open_disk(folder)
    entries = make_entries(FIRST.mark, 1, (10, 20))
    await disk.write_effects(effects_of([FIRST, *entries]))
    assert (await disk.read_raw(1, 99, 1 << 20)).next == 2
    await disk.carry_out(batch(*entries))
    assert frames_of((await disk.read_raw(1, 99, 1 << 20)).ledger) == [1, 2, 3]
    await disk.close()
    disk, recovered = open_disk(folder)
    assert recovered.ledger_last == 0
    await disk.write_effects(effects_of([FIRST, *entries]))  # replay
    await disk.write_effects(effects_of(entries))
    await disk.write_mark()
    assert frames_of((await disk.read_raw(1, 99, 1 << 20)).ledger) == [1, 2, 3]
    assert (await disk.read_raw(4, 99, 1 << 20)).rows == b""


async def test_reads_at_the_edges(tmp_path: Path) -> None:
    """Reading from inside an entry, from behind the end, or nothing: an empty answer, never another entry."""
    disk, _ = open_disk(make_folder(tmp_path))
    (entry,) = make_entries(FIRST.mark, 1, (60,), records=3)
    await disk.carry_out(batch(entry))
    assert await disk.read_entries(1, 99, 1) == (entry,)
    assert await disk.read_entries(2, 99, 1) == ()  # no entry ends there
    assert await disk.read_entries(4, 99, 1) == ()
    assert await disk.read_entries(1, 1, 1) == ()
    assert await disk.read_entries(0, 1, 1) == (FIRST,)
    assert disk.oldest == 1


async def test_the_first_index_of_a_time_is_found(tmp_path: Path) -> None:
    """A time leads to the first record of the first entry at or after it, over all segments."""
    disk, _ = open_disk(make_folder(tmp_path))
    log = [FIRST, *make_entries(FIRST.mark, 1, (900,) * 30, records=2)]
    for start in range(1, len(log), 5):
        await disk.carry_out(batch(*log[start : start + 5]))
    assert disk.statistics().segments > 3
    for time_ms in range(log[0].time_ms - 2, log[-1].time_ms + 3):
        wanted = next((entry.first for entry in log if entry.time_ms >= time_ms), log[-1].index + 1)
        assert await disk.find_time(time_ms) == wanted, time_ms


async def test_snapshots_are_saved_read_and_dropped(tmp_path: Path) -> None:
    """The newest snapshot is found at a restart with its chunks; two are kept; its ledger was synced before."""
    folder = make_folder(tmp_path)
    disk, _ = open_disk(folder)
    log = [FIRST, *make_entries(FIRST.mark, 1, (10,) * 4)]
    await disk.carry_out(batch(*log[1:]))
    await disk.write_effects(effects_of(log))
    pulled = []

    def chunks(number: int) -> Iterator[bytes]:
        for i in range(3):
            pulled.append((number, i))
            yield bytes([number, i]) * 1_000

    for number in (2, 3, 4):
        await disk.save_snapshot(log[number].mark, CONFIGURATION, chunks(number), 1)
    assert pulled == [(number, i) for number in (2, 3, 4) for i in range(3)]
    names = sorted(path.name for path in (folder / "shard-0" / "snapshots").iterdir())
    assert names == ["00000000000000000004", "00000000000000000005"]
    await disk.close()
    disk, recovered = open_disk(folder)
    assert recovered.snapshot is not None
    assert recovered.snapshot.mark == log[4].mark
    assert (recovered.snapshot.configuration, recovered.snapshot.configuration_index) == (CONFIGURATION, 1)
    assert list(recovered.snapshot.chunks()) == [bytes([4, i]) * 1_000 for i in range(3)]
    # a snapshot trims nothing (pitfall 57: a log deleted beyond its snapshot): compaction is not retention
    assert disk.oldest == 1


async def test_a_snapshot_needs_its_log_and_ledger(tmp_path: Path) -> None:
    """A snapshot of entries that are not durable here, or without its effects, is refused; a failed walk leaves
    nothing.
    """
    folder = make_folder(tmp_path)
    disk, _ = open_disk(folder)
    (entry,) = make_entries(FIRST.mark, 1, (10,))
    with pytest.raises(ImpossibleBatch, match="the log reaches 1, the ledger 0"):
        await disk.save_snapshot(entry.mark, CONFIGURATION, [b"x"])
    await disk.write_effects(effects_of([FIRST]))

    def broken() -> Iterator[bytes]:
        yield b"one"
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        await disk.save_snapshot(FIRST.mark, CONFIGURATION, broken())
    assert list((folder / "shard-0" / "snapshots").iterdir()) == []


async def test_impossible_calls_of_the_core_are_refused(tmp_path: Path) -> None:
    """A falling term, a changed vote, a gap, a cut of applied entries: refused before anything is written."""
    disk, _ = open_disk(make_folder(tmp_path))
    entries = make_entries(FIRST.mark, 1, (10, 20))
    await disk.carry_out(batch(*entries, hard_state=HardState(5, 2)))
    await disk.write_effects(effects_of([FIRST, *entries]))
    await disk.write_mark()
    other = make_entries(GENESIS, 6, (1,))
    for refused in (
        batch(hard_state=HardState(4)),
        batch(hard_state=HardState(5, 3)),
        batch(hard_state=HardState(5, 0)),
        batch(*entries),
        batch(*other),
        batch(cut_after=2),
    ):
        with pytest.raises(ImpossibleBatch):
            await disk.carry_out(refused)
    assert not disk.is_fenced
    assert await read_all(disk, 3) == [FIRST, *entries]


def has_footer(path: Path, magic: bytes) -> bool:
    return magic in path.read_bytes()


async def test_a_segment_is_made_ahead(tmp_path: Path) -> None:
    """Half-way through a segment the next one is made; sealed segments get their footers, and are read by them."""
    folder = make_folder(tmp_path)
    disk, _ = open_disk(folder)
    log = [FIRST]
    for _ in range(30):
        new = make_entries(log[-1].mark, 1, (700,))
        await disk.carry_out(batch(*new))
        log += new
    await disk.write_effects(effects_of(log))
    await disk.write_mark()
    assert disk.statistics().rolls >= 3
    for path in sorted((folder / "shard-0" / "log").glob("*.seg"))[:-1]:
        for suffix, magic in ((".idx", b"RLIF"), (".ledger", b"RLLF")):
            await wait_until_async(partial(has_footer, path.with_suffix(suffix), magic), what=f"the footer of {path}")
    await disk.close()
    disk, recovered = open_disk(folder)
    assert recovered.notices == ()
    await disk.write_effects(effects_of(log))
    await disk.carry_out(batch(hard_state=HardState(2, 1)))
    for path in sorted((folder / "shard-0" / "log").glob("*.seg"))[:-1]:
        await wait_until_async(partial(has_footer, path.with_suffix(".ledger"), b"RLLF"), what=f"the footer of {path}")
    assert await read_all(disk, log[-1].index) == log
    await check_raw(disk, log, Random(1))


def test_a_new_file_has_its_space_at_once_and_may_be_finished_after_any_step(tmp_path: Path) -> None:
    """Zeros that are written only make later syncs cheaper: a file without them reads the same."""
    size = 3 * len(ZEROS)
    for steps in range(4):
        path = tmp_path / f"spare-{steps}"
        allocation = Allocation(path, size)
        assert path.stat().st_blocks * 512 >= size
        for _ in range(steps):
            allocation.step(len(ZEROS))
        allocation.finish()
        assert allocation.position == steps * len(ZEROS)
        assert path.read_bytes() == bytes(size)
    with pytest.raises(OSError, match=r"File too large|No space left|Invalid argument"):
        Allocation(tmp_path / "huge", 1 << 62)
    assert not (tmp_path / "huge").exists()


async def test_the_next_segment_is_made_at_the_pace_at_which_the_active_one_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No zeros before an eighth of it, all of them at three quarters: written all at once they held up every sync for
    0.3 s. A log that stands still has no zeros written."""
    monkeypatch.setattr("raftlog.cluster.disk.segment_chores.SPARE_STEP_S", 0)
    size, last = 4 << 20, FIRST
    disk, _ = open_disk(make_folder(tmp_path, segment_bytes=size), size)
    background = disk._background
    made: dict[int, float] = {}
    while not disk.statistics().rolls:
        *_, last = new = make_entries(last.mark, 1, (60_000,))
        await disk.carry_out(batch(*new))
        await wait_until_async(lambda: not disk._read_worker.is_busy, what="an idle reading thread")
        made[disk._storage.journal.active.end * 16 // size] = background.made_bytes / size
    assert all(not made[sixteenth] for sixteenth in (0, 1))
    for sixteenth in range(2, 12):
        assert -0.03 <= made[sixteenth] - (sixteenth - 1) / 10 <= 0.07, made
    assert made[12] == made[15] == 1


async def test_a_roll_takes_the_next_segment_as_far_as_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bulk appends fill a segment faster than zeros are written. No batch waits for the rest of them."""
    monkeypatch.setattr("raftlog.cluster.disk.segment_chores.SPARE_STEP_S", 3_600)
    size, log, made = 4 << 20, [FIRST], 0
    folder = make_folder(tmp_path, segment_bytes=size)
    disk, _ = open_disk(folder, size)
    while disk.statistics().rolls < 2:
        new = make_entries(log[-1].mark, 1, (60_000,))
        await disk.carry_out(batch(*new))
        log += new
        made = max(made, disk._background.made_bytes)
    assert made == SPARE_STEP_BYTES
    assert all(path.stat().st_size == size for path in folder.rglob("*.seg"))
    assert await read_all(disk, log[-1].index) == log


async def test_a_late_reading_thread_never_touches_a_segment(tmp_path: Path) -> None:
    """Spare files that were asked for while the reading thread was busy are made late, once, and never out of a file
    that has become a segment; nothing stays open."""
    disk, _ = open_disk(make_folder(tmp_path))
    release = threading.Event()
    busy = disk._read_worker.run(partial(release.wait, 10))
    log = [FIRST]
    while disk.statistics().rolls < 4:
        new = make_entries(log[-1].mark, 1, (1_500,))
        await disk.carry_out(batch(*new))
        log += new
    release.set()
    await busy
    assert await read_all(disk, log[-1].index) == log
    await disk.close()
    held = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert [path for path in held if path.startswith(str(tmp_path))] == []


async def test_batches_and_reads_at_the_same_time(tmp_path: Path) -> None:
    """Reads beside writes see whole entries in order, whatever the other thread is doing."""
    disk, _ = open_disk(make_folder(tmp_path))
    log = [FIRST]

    async def read() -> None:
        while len(log) < 150:
            entries = await disk.read_entries(0, log[-1].index, 1 << 20)
            assert list(entries) == log[: len(entries)]
            await asyncio.sleep(0)

    reader = asyncio.ensure_future(read())
    while len(log) < 150:
        new = make_entries(log[-1].mark, 1, (400, 30))
        await disk.carry_out(batch(*new))
        log += new
    await reader
    assert disk.statistics().syncs >= 75


@pytest.mark.parametrize("requests", [0, 3])
def test_the_log_reads_the_head_of_effects_as_they_were_encoded(requests: int) -> None:
    """What raftlog.raft.wal.formats knows of a ledger's frame is what raftlog.statemachine.effects writes; one damaged
    byte is noticed."""
    rows = tuple(RequestEffect(Result.APPLIED, 7) for _ in range(requests))
    frame = encode_effects(Effects(42, 7, rows, not requests))
    head = decode_effects_header(frame)
    assert decode_frame_header(b"xx" + frame, 2) == (42, head.payload_bytes, head.payload_crc)
    assert peek_frame(frame, 0) == (42, len(frame))
    assert peek_frame(bytes(64), 0) == (0, 0)
    for position in range(FRAME_HEADER_SIZE):
        with pytest.raises(Corrupt):
            decode_frame_header(frame[:position] + bytes([frame[position] ^ 1]) + frame[position + 1 :])
