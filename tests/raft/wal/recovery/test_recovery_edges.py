"""Recovery of files whose every CRC is right, and that do not fit together."""

from __future__ import annotations

from dataclasses import replace

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.codec.mark import MARK_SIZE, encode_mark
from raftlog.raft.types import EntryKind, Mark
from raftlog.raft.wal.formats import (
    INDEX_MAGIC,
    SIDE_HEADER_SIZE,
    SegmentHeader,
    encode_segment_header,
    encode_side_header,
    index_name,
    segment_name,
)
from raftlog.raft.wal.recovery import recover_hard_state, recover_log
from tests.raft.wal.journal_driver import LOG, Driver, after_kill, written_log

Content = dict[str, bytes]


def patched(content: Content, name: str, position: int, data: bytes) -> MemoryFiles:
    """The files with other bytes at one place."""
    whole = content[name]
    return MemoryFiles({**content, name: whole[:position] + data + whole[position + len(data) :]})


def reason(files: MemoryFiles) -> str:
    """Why the log cannot be used; empty where it can."""
    damage = Driver(files).recovery.damage
    return "" if damage is None else damage.reason


def test_a_folder_without_a_segment_is_damage() -> None:
    """Formatting makes the first segment, so one is always there."""
    driver, _ = written_log()
    kept = {name: data for name, data in driver.files.content().items() if not name.endswith(".seg")}
    names = [segment_name(segment.first) for segment in driver.journal.segments]
    kept = {name: data for name, data in kept.items() if name not in names}
    assert reason(MemoryFiles(kept)) == "there is no segment"


def test_a_first_segment_with_a_predecessor_is_damage() -> None:
    """Before index 1 there is nothing."""
    driver, _ = written_log()
    header = SegmentHeader(Mark(0, 1, 0xABCD, 0, 0), driver.journal.segments[0].size)
    files = patched(driver.files.content(), segment_name(1), 0, encode_segment_header(LOG, header))
    assert "names an entry before it" in reason(files)


def test_a_mark_of_another_entry_is_rewritten() -> None:
    """The mark is intact and stands in its place, but names another entry than the one before it. The entries around it
    belong together, so the mark is wrong, and no entry is lost.
    """
    driver, entries = written_log()
    content = driver.files.content()
    name = segment_name(driver.journal.active.first)
    place = content[name].find(b"RLMK")
    restarted = Driver(patched(content, name, place, encode_mark(entries[1].mark, place)))
    assert restarted.entries() == entries
    assert any("made again" in notice for notice in restarted.recovery.notices)
    assert restarted.files.content()[name][place : place + MARK_SIZE] == content[name][place : place + MARK_SIZE]


def test_an_index_of_another_log_is_rebuilt() -> None:
    """It can be had from the segment, so nothing is lost."""
    driver, _ = written_log()
    whole = Driver(after_kill(driver.files)).files.content()
    first = driver.journal.segments[0]
    foreign = encode_side_header(replace(LOG, log_id=b"x" * 16), INDEX_MAGIC, first.previous)
    assert len(foreign) == SIDE_HEADER_SIZE
    restarted = Driver(patched(whole, index_name(first.first), 0, foreign))
    assert [segment.first for segment in restarted.recovery.rebuild] == [first.first]
    assert restarted.files.content()[index_name(first.first)] == whole[index_name(first.first)]


def test_an_entry_whose_blocks_do_not_add_up_is_damage() -> None:
    """Its CRCs are right, and it says that it has two records where it has none that can be read."""
    driver, entries = written_log()
    wrong = seal_entry(
        entries[-1].mark,
        term=2,
        kind=EntryKind.COMMANDS,
        count=2,
        time_ms=0,
        clock_ms=0,
        data=b"no block",
    )
    content = driver.files.content()
    active = driver.journal.active
    files = patched(content, segment_name(active.first), active.end, wrong.header + wrong.data)
    assert reason(files)


def test_the_tail_that_stays_in_memory_is_bounded() -> None:
    """At least the newest entry, and no more bytes than asked for otherwise."""
    driver, entries = written_log()
    slot, _ = recover_hard_state(LOG, driver.files)
    sizes = {bound: recover_log(LOG, driver.files, slot, tail_bytes_max=bound).tail for bound in (1, 500, 1 << 20)}
    assert [entry.index for entry in sizes[1]] == [entries[-1].index]
    assert sum(entry.size for entry in sizes[500]) <= 500
    assert len(sizes[1 << 20]) > len(sizes[500]) >= 1
    assert all(tail[-1] == entries[-1] for tail in sizes.values())
