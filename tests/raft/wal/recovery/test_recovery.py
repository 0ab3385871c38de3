"""What recovery makes of damaged files: never a wrong entry, never one dropped silently that a mark covers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.entry import HEADER_SIZE, decode_header
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.codec.mark import MARK_SIZE, encode_mark
from raftlog.raft.types import Entry, HardState
from raftlog.raft.wal.formats import (
    HARD_STATE,
    HARD_STATE_SLOT,
    SEGMENT_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    SLOT_SIZE,
    ForeignFile,
    LogIdentity,
    index_name,
    ledger_name,
    segment_name,
    spare_name,
)
from raftlog.raft.wal.recovery import HardStateDamaged, recover_hard_state, recover_log
from tests.raft.wal.journal_driver import FIRST, LOG, Driver, after_kill, make_entries, new_files, written_log

Content = dict[str, bytes]


def with_byte(content: Content, name: str, position: int, mask: int = 0xFF) -> MemoryFiles:
    """The files with some bits of one byte flipped."""
    data = bytearray(content[name])
    data[position] ^= mask
    return MemoryFiles({**content, name: bytes(data)})


def recovered(files: MemoryFiles) -> tuple[list[Entry], bool]:
    """The entries that a restart can read, and whether it reported damage."""
    try:
        driver = Driver(files)
    except (ForeignFile, UnknownVersion, HardStateDamaged):
        return [], True
    if driver.recovery.damage is not None:
        return [], True
    return driver.entries(), driver.is_damage_seen


def active_name(driver: Driver) -> str:
    return segment_name(driver.journal.active.first)


def without_newest_rows(driver: Driver) -> Content:
    """The files, but for the rows of the entries behind the newest durable mark."""
    content, first = driver.files.content(), driver.journal.active.first
    rows = driver.journal.marked + 1 - first
    return {**content, index_name(first): content[index_name(first)][: SIDE_HEADER_SIZE + IDX_ROW.size * rows]}


def test_pitfall_64_nothing_is_dropped_behind_an_idle_mark() -> None:
    """After the mark of an idle time or a clean stop, no flip anywhere drops anything silently."""
    driver, entries = written_log()
    driver.execute(driver.journal.mark())
    content = driver.files.content()
    name = active_name(driver)
    end = driver.journal.active.end
    for position in range(end):
        found, is_told = recovered(with_byte(content, name, position))
        assert is_told or found == entries, f"byte {position}"
        # Only the last mark itself may be damaged without anybody noticing: it says nothing that is not true.
        assert is_told or position >= SEGMENT_HEADER_SIZE


def test_pitfall_64_flip_of_any_byte_of_a_sealed_segment() -> None:
    """A flip in a sealed segment is damage when its entries are read, and never another log."""
    driver, entries = written_log()
    content = driver.files.content()
    segment = driver.journal.segments[0]
    for position in range(0, segment.end, 3):
        found, is_told = recovered(with_byte(content, segment_name(segment.first), position))
        assert is_told or found == entries, f"byte {position}"


def test_pitfall_65_a_missing_segment_is_damage() -> None:
    """A hole between segments is damage that names the file, never a shorter log.

    Guard: each segment must end where the header of the next says (raftlog.raft.wal.recovery._recover_sealed).
    """
    driver, entries = written_log()
    driver.append(make_entries(entries[-1].mark, 2, (3_000, 3_000)))
    content = driver.files.content()
    firsts = [segment.first for segment in driver.journal.segments]
    assert len(firsts) >= 4
    del content[segment_name(firsts[1])]
    slot, _ = recover_hard_state(LOG, MemoryFiles(content))
    recovery = recover_log(LOG, MemoryFiles(content), slot)
    assert recovery.damage is not None
    assert recovery.damage.file == segment_name(firsts[0])
    assert recovery.damage.index == firsts[1] - 1
    assert not recovery.operations, "nothing is written where there is damage"


def without_newest(driver: Driver, *, is_index_left: bool = True, is_ledger_left: bool = True) -> Content:
    """The files without the newest segment, whose .idx and .ledger may be left."""
    content = driver.files.content()
    first = driver.journal.active.first
    del content[segment_name(first)]
    if not is_index_left:
        del content[index_name(first)]
    if not is_ledger_left:
        del content[ledger_name(first)]
    return content


def test_pitfall_65_a_missing_newest_segment_is_damage() -> None:
    """The newest segment is gone and its .idx shows that it was in use. That is damage, with the file and its indexes,
    never a shorter log. Several missing segments are reported as one range.

    Guard: raftlog.raft.wal.recovery._check_newest.
    """
    driver, entries = written_log()
    slot, _ = recover_hard_state(LOG, driver.files)
    first, last = driver.journal.active.first, entries[-1].index
    for is_ledger_left in (True, False):
        recovery = recover_log(LOG, MemoryFiles(without_newest(driver, is_ledger_left=is_ledger_left)), slot)
        assert recovery.damage is not None
        assert (recovery.damage.file, recovery.damage.index) == (segment_name(first), first - 1)
        assert f"index {first} to {last}" in recovery.damage.reason
        assert not recovery.operations, "nothing is written where there is damage"
    driver.append(make_entries(entries[-1].mark, 2, (3_000, 3_000)))
    content = without_newest(driver)
    for segment in driver.journal.segments:
        if segment.first >= first:
            content.pop(segment_name(segment.first), None)
    recovery = recover_log(LOG, MemoryFiles(content), slot)
    assert recovery.damage is not None
    assert recovery.damage.file == segment_name(first)
    assert f"index {first} to {last + 2}" in recovery.damage.reason


def test_pitfall_65_effects_prove_a_missing_newest_segment() -> None:
    """Without the .idx too: effects are written of entries that were applied, and the .ledger has some.

    Guard: raftlog.raft.wal.recovery._check_newest.
    """
    driver, _ = written_log()
    slot, _ = recover_hard_state(LOG, driver.files)
    first = driver.journal.active.first
    content = without_newest(driver, is_index_left=False)
    assert recover_log(LOG, MemoryFiles(content), slot).damage is None, "a header alone proves nothing"
    content[ledger_name(first)] += b"effects"
    recovery = recover_log(LOG, MemoryFiles(content), slot)
    assert recovery.damage is not None
    assert f"index {first} on" in recovery.damage.reason


def test_a_segment_that_a_cut_dropped_is_no_missing_one() -> None:
    """While a cut is under way, files behind its index without a segment come from the cut; those below do not.

    Guard: `cut` in raftlog.raft.wal.recovery._check_newest.
    """
    driver, entries = written_log()
    slot, _ = recover_hard_state(LOG, driver.files)
    first = driver.journal.active.first
    content = without_newest(driver)
    recovery = recover_log(LOG, MemoryFiles(content), replace(slot, cut=first - 1))
    assert recovery.damage is None
    assert recovery.segments[-1].last.index == first - 1
    recovery = recover_log(LOG, MemoryFiles(content), replace(slot, cut=entries[-2].index))
    assert recovery.damage is not None
    assert recovery.damage.file == segment_name(first)


def test_pitfall_66_damage_is_never_repaired_by_cutting() -> None:
    """A node whose newest segment lost a covered entry says so and changes nothing: it may not lead with a short log.

    Guard: recover_log gives no operations with damage, and the node does not start.
    """
    driver, _ = written_log()
    content = driver.files.content()
    name = active_name(driver)
    slot, _ = recover_hard_state(LOG, driver.files)
    files = with_byte(content, name, SEGMENT_HEADER_SIZE + 70)
    recovery = recover_log(LOG, files, slot)
    assert recovery.damage is not None
    assert recovery.damage.index == driver.journal.active.first - 1
    assert "a durable mark says that index" in str(recovery.damage)
    assert (recovery.operations, recovery.rebuild) == ([], [])
    assert files.content()[name] != content[name]


def test_damage_below_a_snapshot_is_damage() -> None:
    """The newest snapshot is a mark as well: a log that ends before it lost something."""
    driver, entries = written_log()
    slot, _ = recover_hard_state(LOG, driver.files)
    content = without_newest_rows(driver)
    position = driver.journal.active.end - 20
    files = with_byte(content, active_name(driver), position)
    assert recover_log(LOG, files, slot).damage is None
    assert recover_log(LOG, files, slot, durable=entries[-1].index).damage is not None


def test_pitfall_69_zeros_are_no_record() -> None:
    """Zero-filled preallocated space is the end of the log, also when the rest of the segment was never written.

    Guard: four of them, each enough: magic, header CRC, version and count, of which none is right for zeros.
    """
    with pytest.raises(Corrupt, match="no entry here"):
        decode_header(bytes(HEADER_SIZE))
    driver = Driver(new_files())
    assert driver.entries() == [FIRST]
    assert driver.recovery.notices == []
    assert driver.journal.last == FIRST.mark


def test_a_torn_tail_is_cut_and_reported() -> None:
    """Bytes behind the end that nothing proves to be synced are zeroed, synced, and reported; then the log goes on."""
    driver, entries = written_log()
    name = active_name(driver)
    content = without_newest_rows(driver)
    found, _ = recovered(with_byte(content, name, driver.journal.active.end - 1))
    assert found == entries[:-1]
    restarted = Driver(with_byte(content, name, driver.journal.active.end - 1))
    assert any("torn tail" in notice for notice in restarted.recovery.notices)
    more = make_entries(entries[-2].mark, 3, (333,))
    restarted.append(more)
    assert Driver(after_kill(restarted.files)).entries() == [*entries[:-1], *more]


def test_old_but_valid_blocks_are_noticed() -> None:
    """An intact entry of an older log at the right place is not taken: the chain of header CRCs does not lead to it.

    Guard: previous_crc in raftlog.raft.wal.recovery.scan.
    """
    driver = Driver(new_files())
    driver.append(make_entries(FIRST.mark, 1, (100,)))
    position = driver.journal.active.end
    old = make_entries(driver.journal.last, 1, (100,))[0]
    driver.append([old])
    kept = driver.entries()[1]
    driver.cut(FIRST)
    fresh = make_entries(FIRST.mark, 2, (100,))[0]
    driver.append([fresh])
    assert fresh.index == kept.index
    data = bytearray(driver.files.content()[segment_name(1)])
    end = driver.journal.active.end
    data[end : end + MARK_SIZE + old.size] = encode_mark(fresh.mark, end) + old.header + old.data
    assert position < end + MARK_SIZE + old.size
    restarted = Driver(MemoryFiles({**driver.files.content(), segment_name(1): bytes(data)}))
    assert restarted.entries() == [FIRST, fresh]
    assert any("belongs elsewhere" in notice for notice in restarted.recovery.notices)


def test_a_mark_inside_a_value_is_no_mark() -> None:
    """A value that holds a copy of a durable mark cannot turn a torn tail into damage: a mark names its position."""
    driver = Driver(new_files())
    forged = encode_mark(make_entries(FIRST.mark, 1, (10,) * 50)[-1].mark, 12_345)
    entry = make_entries(FIRST.mark, 1, (200,))[0]
    operations, _ = driver.journal.append([entry])
    driver.files.execute(operations)
    data = bytearray(driver.files.content()[segment_name(1)])
    at = driver.journal.active.end - 100
    data[at : at + MARK_SIZE] = forged
    restarted = Driver(MemoryFiles({**driver.files.content(), segment_name(1): bytes(data)}))
    assert restarted.entries() == [FIRST]


def test_a_damaged_mark_between_intact_entries_is_rewritten() -> None:
    """A flip in a mark costs nothing: the entries around it belong together, and the mark is repaired."""
    driver, entries = written_log()
    name = active_name(driver)
    content = driver.files.content()
    at = content[name].rfind(b"RLMK")
    restarted = Driver(with_byte(content, name, at + 10))
    assert restarted.entries() == entries
    assert any("made again" in notice for notice in restarted.recovery.notices)
    assert restarted.files.content()[name][at : at + MARK_SIZE] == content[name][at : at + MARK_SIZE]


@pytest.mark.parametrize("at", [0, 3, 10])
def test_a_damaged_mark_of_a_sealed_segment_is_rewritten_with_its_index(at: int) -> None:
    """A reader recognises a mark by its first bytes: a flip there hid all entries behind it for good (found by the
    simulator). A start reads such a segment once its .idx is gone, and then repairs its marks too.
    """
    driver, entries = written_log()
    content = driver.files.content()
    name = segment_name(driver.journal.segments[0].first)
    mark = content[name].find(b"RLMK")
    assert 0 < mark < driver.journal.segments[0].end
    damaged = with_byte(content, name, mark + at).content()
    del damaged[name.replace(".seg", ".idx")]
    restarted = Driver(MemoryFiles(damaged))
    assert restarted.entries() == entries
    assert f"{name}: the durable mark at byte {mark} was damaged: it is made again" in restarted.recovery.notices
    assert restarted.files.content()[name] == content[name]


def test_damaged_or_lost_index_is_rebuilt() -> None:
    """Any flip in the .idx of a sealed segment, or its loss, is noticed and repaired from the segment, byte for
    byte.
    """
    driver, _ = written_log()
    driver.append(make_entries(driver.journal.last, 2, (10, 20), records=2))
    first = driver.journal.segments[0].first
    name = index_name(first)
    whole = Driver(after_kill(driver.files)).files.content()  # the restart wrote the footers
    assert b"RLIF" in whole[name]
    for position in range(len(whole[name])):
        restarted = Driver(with_byte(whole, name, position))
        assert len(restarted.recovery.rebuild) == 1, f"byte {position}"
        assert restarted.files.content()[name] == whole[name]
    lost = {key: data for key, data in whole.items() if key != name}
    assert Driver(MemoryFiles(lost)).files.content()[name] == whole[name]
    assert Driver(MemoryFiles(whole)).recovery.rebuild == []


def test_sealed_segments_are_not_read_at_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its footer, nothing of a sealed segment but its header is read: restarts cost the same after any history."""
    driver, _ = written_log()
    files = Driver(after_kill(driver.files)).files
    sealed = segment_name(driver.journal.segments[0].first)
    reads: list[tuple[str, int, int]] = []
    read = MemoryFiles.read

    def spy(self: MemoryFiles, name: str, position: int, size: int) -> bytes:
        reads.append((name, position, size))
        return read(self, name, position, size)

    monkeypatch.setattr(MemoryFiles, "read", spy)
    Driver(files)
    assert [(position, size) for name, position, size in reads if name == sealed] == [(0, SEGMENT_HEADER_SIZE)]


def test_hard_state_survives_a_flip_of_any_byte() -> None:
    """Damage in one slot never takes a node back to an older vote: both slots hold the newest state."""
    driver = Driver(new_files())
    driver.keep(HardState(7, 3, 1))
    content = driver.files.content()
    for slot in range(2):
        for position in range(SLOT_SIZE):
            files = with_byte(content, HARD_STATE, slot * HARD_STATE_SLOT + position)
            found, reasons = recover_hard_state(LOG, files)
            assert found.state == HardState(7, 3, 1)
            assert len(reasons) == 1


def test_a_start_with_both_hard_state_slots_damaged_is_refused() -> None:
    """A node that lost its vote refuses to start: it never counts as one that has not voted (planted bug 4: term and
    vote reset at a restart)."""
    content = new_files().content()
    for name in (0, HARD_STATE_SLOT):
        content = with_byte(content, HARD_STATE, name + 5).content()
    with pytest.raises(HardStateDamaged, match=r"slot 0.*slot 1"):
        recover_hard_state(LOG, MemoryFiles(content))
    with pytest.raises(HardStateDamaged, match="cut short"):
        recover_hard_state(LOG, MemoryFiles({}))


def test_files_of_another_log_are_refused() -> None:
    """Hard state and segments of another log id or shard, and a segment under another name, are refused, not cut."""
    driver, _ = written_log()
    slot, _ = recover_hard_state(LOG, driver.files)
    for other in (LogIdentity(bytes(16)), LogIdentity(LOG.log_id, 1)):
        with pytest.raises(ForeignFile, match="belongs to log"):
            recover_hard_state(other, driver.files)
        with pytest.raises(ForeignFile, match="belongs to log"):
            recover_log(other, driver.files, slot)
    content = driver.files.content()
    content[segment_name(99)] = content[segment_name(driver.journal.active.first)]
    with pytest.raises(ForeignFile, match="starts at"):
        recover_log(LOG, MemoryFiles(content), slot)


@pytest.mark.parametrize("name", [segment_name(1), HARD_STATE])
def test_pitfall_71_newer_formats_are_refused(name: str) -> None:
    """An intact header of a version that this code does not know is refused by name, never read as damage or as empty.

    Guard: the version checks of raftlog.raft.wal.formats and raftlog.raft.codec, made after the CRC.
    """
    content = new_files().content()
    data = bytearray(content[name])
    size = SEGMENT_HEADER_SIZE if name != HARD_STATE else SLOT_SIZE
    for start in (0, HARD_STATE_SLOT) if name == HARD_STATE else (0,):
        data[start + 4] = 3
        data[start + size - 4 : start + size] = crc32c(bytes(data[start : start + size - 4])).to_bytes(4, "little")
    with pytest.raises(UnknownVersion, match="version 3"):
        Driver(MemoryFiles({**content, name: bytes(data)}))


def test_pitfall_71_entry_of_a_newer_version_is_refused() -> None:
    """An intact entry of an unknown version stops the node, also as the last one: it is no torn tail."""
    driver, _ = written_log()
    content = driver.files.content()
    name = active_name(driver)
    data = bytearray(content[name])
    start = data.rfind(b"RLEN")
    data[start + 4] = 9
    data[start + 60 : start + 64] = crc32c(bytes(data[start : start + 60])).to_bytes(4, "little")
    with pytest.raises(UnknownVersion, match="version 9"):
        Driver(MemoryFiles({**content, name: bytes(data)}))


def test_spare_and_orphaned_files_are_removed_by_a_start() -> None:
    """Spare files, and .idx and .ledger without their segment, go at the start; unknown files stay and are reported."""
    content = new_files().content()
    content |= {spare_name(0): b"x", index_name(77): b"y", "log/readme.seg": b"z"}
    driver = Driver(MemoryFiles(content))
    assert sorted(driver.files.names("log")) == [
        "00000000000000000001.idx",
        "00000000000000000001.ledger",
        "00000000000000000001.seg",
        "readme.seg",
    ]
    assert any("readme.seg" in notice for notice in driver.recovery.notices)


def test_a_short_segment_file_is_damage() -> None:
    """A segment file shorter than it was made has lost bytes, and no check can know which."""
    driver, _ = written_log()
    content = driver.files.content()
    name = active_name(driver)
    content[name] = content[name][:-1]
    slot, _ = recover_hard_state(LOG, driver.files)
    recovery = recover_log(LOG, MemoryFiles(content), slot)
    assert recovery.damage is not None
    assert "shorter" in recovery.damage.reason


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8_000), st.binary(min_size=1, max_size=60)), min_size=1, max_size=4))
def test_overwritten_bytes_are_reported_or_harmless(overwritten: list[tuple[int, bytes]]) -> None:
    """With any bytes anywhere in the segments, the entries found are the ones written, in order, or damage is
    reported.
    """
    driver, entries = written_log()
    content = driver.files.content()
    for position, data in overwritten:
        name = segment_name(driver.journal.segments[position % 2 - 1].first)
        old = bytearray(content[name])
        start = position // 2 % (len(old) - len(data))
        old[start : start + len(data)] = data
        content[name] = bytes(old)
    found, is_told = recovered(MemoryFiles(content))
    assert is_told or found == entries[: len(found)]
