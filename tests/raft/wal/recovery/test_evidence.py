"""Tests which bytes prove that an entry had been synced, and that a cut leaves no proof of removed entries."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

import pytest

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.raft.codec.checks import crc32c
from raftlog.raft.codec.entry import HEADER_SIZE, seal_entry
from raftlog.raft.codec.mark import MARK_SIZE
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import Entry
from raftlog.raft.wal.evidence import ONE_BIT_BYTES_MAX, SECTOR, flipped_bit, newest_frame
from raftlog.raft.wal.formats import SIDE_HEADER_SIZE, index_name, ledger_name, segment_name
from raftlog.raft.wal.journal import Segment
from tests.raft.wal.journal_driver import PowerCut, make_entries, written_log
from tests.raft.wal.recovery.test_recovery import active_name, recovered, with_byte, without_newest_rows
from tests.raft.wal.recovery.test_repair import THREE, opened, written
from tests.raft.wal.storage_lab import Shard, frame_of

PROOFS = ("row", "effects", "mark")


def acknowledged(proof: str = "", sizes: Sequence[int] = (400,), seed: int = 0) -> tuple[Shard, list[Entry]]:
    """A shard of three voters after a power cut: its newest batch was synced, and of the bytes written after that sync
    only `proof` reached the disk. Also returns the entries of that batch.
    """
    shard = written(THREE)
    batch = make_entries(shard.entries[-1].mark, 1, sizes)
    shard.run(shard.storage.carry_out(SyncBatch(None, None, tuple(batch), ())))
    shard.entries += batch
    first = shard.journal.active.first
    rows, effects = index_name(first), ledger_name(first)
    before = {name: bytes(shard.files.nodes[name].seen) for name in (rows, effects)}
    shard.run(shard.storage.finish())
    shard.apply(shard.entries)
    if proof == "mark":
        shard.run(shard.storage.mark())
    for name, kind in ((rows, "row"), (effects, "effects")):
        if proof != kind:
            shard.files.nodes[name].seen[:] = before[name]
        shard.files.nodes[name].sync()
    shard.files.lose_power(Random(seed))
    return shard, batch


def places(shard: Shard, entry: Entry) -> dict[str, tuple[str, int]]:
    """A byte in each region of the newest write, by the region's name."""
    first = shard.journal.active.first
    segment, rows, effects = segment_name(first), index_name(first), ledger_name(first)
    nodes = shard.files.nodes
    position = bytes(nodes[segment].seen).index(entry.header)
    return {
        "header": (segment, position + 20),
        "data": (segment, position + HEADER_SIZE + 30),
        "row": (rows, len(nodes[rows].seen) - 14),
        "effects": (effects, len(nodes[effects].seen) - 30),
        "mark": (segment, position + HEADER_SIZE + len(entry.data) + 12),
    }


def changed(shard: Shard, place: tuple[str, int], mask: int) -> MemoryFiles:
    """Its files with those bits of one byte the other way round."""
    files = shard.files.copy()
    files.nodes[place[0]].seen[place[1]] ^= mask
    return files


@pytest.mark.parametrize("proof", ["", *PROOFS])
def test_a_changed_byte_of_the_newest_batch_is_damage_if_proved_synced(proof: str) -> None:
    """A changed byte in the entry itself is damage if a proof of its sync is left, or if one bit is wrong: then the
    node heals under a floor. A changed row, effects or mark removes no entry. Only one combination loses an entry
    silently, and docs/formats.md names it as undecidable: several bits, and no proof on the disk yet.

    Guard: `synced_until` of raft/wal/evidence.py.
    """
    shard, (entry,) = acknowledged(proof)
    for (region, place), mask in product(places(shard, entry).items(), (0x04, 0xFF)):
        if region == "mark" and proof != "mark":
            continue
        found, _ = opened(changed(shard, place, mask))
        has_entry, is_healing = found.log.last.index == entry.index, found.floor > 0
        if region not in ("header", "data"):
            assert (has_entry, is_healing) == (True, False), region
        elif proof or mask == 0x04:
            assert (has_entry, is_healing) == (False, True), region
        else:
            assert (has_entry, is_healing) == (False, False), region
            assert any("torn tail" in notice for notice in found.notices)


@pytest.mark.parametrize("sizes", [(400,), (90, 700, 200), (20, 20, 20, 20), (1_500, 3)])
def test_a_torn_write_is_never_damage(sizes: tuple[int, ...]) -> None:
    """The power goes before the sync: any sectors of the write are there, the later ones without the earlier ones too.
    The node promised nothing of it, and must not lose its vote: all nodes may have lost power in that very write.

    Guard: the room of a mark in `_behind_a_mark`, the rest of the sector in `_one_bit_off`.
    """
    shard = written(THREE)
    batch = make_entries(shard.entries[-1].mark, 1, sizes)
    known, kept = shard.entries[-1].mark.index, set()
    for _, operations in shard.storage.carry_out(SyncBatch(None, None, tuple(batch), ())):
        shard.files.execute(operations[:-1])  # all but the sync
        break
    for seed in range(150):
        files = shard.files.copy()
        files.lose_power(Random(seed))
        found, _ = opened(files)
        assert found.floor == 0, (seed, found.notices)
        kept.add(found.log.last.index)
    assert {known, batch[-1].index} <= kept, "no write was torn, or none was whole"


def test_one_wrong_bit_that_may_be_the_end_of_a_torn_sector_is_no_damage() -> None:
    """The last byte of a batch stands alone in its sector and has one bit. A disk that did not write that sector leaves
    the very same bytes. This is the one wrong bit that does not count.

    Guard: the rest of the sector in `_one_bit_off`.
    """
    shard = written(THREE)
    known = shard.entries[-1]
    start = shard.journal.active.end + (MARK_SIZE if shard.journal.marked != known.index else 0)
    for size in range(1, 2 * SECTOR):
        (entry,) = make_entries(known.mark, 1, (size,))
        if (start + entry.size) % SECTOR == 1:
            break
    data = bytes([*entry.data[:-1], 0x40])
    entry = seal_entry(
        known.mark, term=1, kind=entry.kind, count=1, time_ms=entry.time_ms, clock_ms=entry.clock_ms, data=data
    )
    shard.run(shard.storage.carry_out(SyncBatch(None, None, (entry,), ())))
    shard.files.lose_power(Random(0))
    name = segment_name(shard.journal.active.first)
    end = shard.journal.active.end
    assert (end % SECTOR, shard.files.nodes[name].seen[end - 1]) == (1, 0x40)
    assert opened(changed(shard, (name, end - 1), 0x40))[0].floor == 0
    assert opened(changed(shard, (name, end - 1), 0x20))[0].floor > 0
    assert opened(changed(shard, (name, end - 2), 0x40))[0].floor > 0


def test_one_wrong_bit_of_a_large_entry_is_not_looked_for() -> None:
    """By chance a torn write of that size looks like one too often. So this entry was perhaps never synced."""
    shard, (entry,) = acknowledged(sizes=(ONE_BIT_BYTES_MAX + 1,))
    found, _ = opened(changed(shard, places(shard, entry)["data"], 0x04))
    assert (found.log.last.index, found.floor) == (entry.before, 0)


def test_an_entry_behind_the_room_of_a_mark_proves_the_one_before_it() -> None:
    """The end of an entry and the mark behind it are damaged together, in two places of one sector. The entry that
    follows the mark was written after the sync of the entry before it.

    Guard: `_behind_a_mark` of raft/wal/evidence.py.
    """
    shard, (entry,) = acknowledged()
    (following,) = make_entries(entry.mark, 1, (100,))
    name = segment_name(shard.journal.active.first)
    position = bytes(shard.files.nodes[name].seen).index(entry.header)
    end = position + HEADER_SIZE + len(entry.data)
    shard.run(shard.storage.carry_out(SyncBatch(None, None, (following,), ())))
    first = shard.journal.active.first
    for side in (index_name(first), ledger_name(first)):  # neither rows nor effects reached the disk
        del shard.files.nodes[side].seen[SIDE_HEADER_SIZE:]
        shard.files.nodes[side].sync()
    files = shard.files.copy()
    files.nodes[name].seen[end - 4 : end + 8] = b"\xee" * 12
    found, _ = opened(files)
    assert (found.log.last.index, found.floor > 0) == (entry.before, True)


@pytest.mark.parametrize("has_rows", [True, False])
def test_pitfall_64_flip_of_any_byte_of_the_newest_segment(has_rows: bool) -> None:
    """Whichever byte of the newest segment is flipped: all up to the newest mark is there, or damage is reported.

    Guard: the search for marks and rows behind a bad record (raftlog.raft.wal.evidence). Only entries without rows in
    the last batch, and without a mark, may go, and the rest is the log as it was. Even then a flip of one bit costs
    nothing, unless only zeros follow it to the end of its sector.
    """
    driver, entries = written_log()
    content = driver.files.content()
    name = active_name(driver)
    if not has_rows:
        content = without_newest_rows(driver)
    covered = entries.index(next(e for e in entries if e.index == driver.journal.marked)) + 1
    assert len(entries) - 2 <= covered < len(entries)
    kept = set()
    for position in range(driver.journal.active.end + 40):
        for mask in (0x01, 0xFF):
            found, is_told = recovered(with_byte(content, name, position, mask))
            if is_told:
                continue
            assert found == entries[: len(found)], f"byte {position}: other entries"
            assert len(found) >= covered, f"byte {position}: {len(entries) - len(found)} entries dropped silently"
            if len(found) < len(entries) and mask == 0x01:
                assert content[name][position] == mask, f"byte {position}: one wrong bit taken for a torn write"
                sector_end = (position // SECTOR + 1) * SECTOR
                assert not any(content[name][position + 1 : sector_end]), f"byte {position}: as above"
            kept.add(len(found))
    # A flip in the last batch, and one in a mark or in zeros.
    assert kept == ({len(entries)} if has_rows else {covered, len(entries)})


def crashed(files: MemoryFiles, operations: list[object], count: int, seed: int | None) -> MemoryFiles:
    """The files after that many of the operations; `seed`: then the power goes."""
    left = files.copy()
    left.execute(operations[:count])  # type: ignore[arg-type]
    if seed is not None:
        left.lose_power(Random(seed))
    return left


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_cut_leaves_no_proof_of_removed_entries(is_applied: bool) -> None:
    """A follower drops uncommitted entries and takes others in their place. After a kill or power cut behind each
    operation, the next start finds no damage. Rows of dropped entries would be a false proof.

    Guard: the syncs of the .idx in `Journal.cut` of raft/wal/journal.py and in `_recover_active` of
    raft/wal/recovery.py.
    """
    shard = written(THREE)
    if is_applied:
        shard.apply(shard.entries)
    kept = shard.entries[-1]
    shard.append(60, 60, 60, applied=False)
    (other,) = make_entries(kept.mark, 2, (30,))
    for inode in shard.files.nodes.values():
        inode.sync()
    before = shard.files.copy()
    operations: list[object] = []
    for _, step in shard.storage.carry_out(SyncBatch(None, kept.index, (other,), ())):
        operations += step
        shard.files.execute(step)
    for count in range(len(operations) + 1):
        for seed in (None, *range(6)):
            left = crashed(before, operations, count, seed)
            found, steps = opened(left)
            assert found.floor == 0, (count, seed, found.notices)
            for again in range(steps if seed is None else 0):  # what the next start does, cut off as well
                twice = crashed(before, operations, count, seed)
                with pytest.raises(PowerCut):
                    opened(twice, again)
                twice.lose_power(Random(again))
                assert opened(twice)[0].floor == 0, (count, seed, again)


def test_a_repair_leaves_no_proof_of_removed_entries() -> None:
    """A damaged log is cut under a floor. After a kill or power cut behind each operation of that start, the next one
    continues with the same floor. No start finds damage again: rows and effects of cut entries are durably removed
    before the hard state says that the cut is over.

    Guard: the order of `_open` of raft/wal/opening.py, and the sync of the .idx in `_recover_active`.
    """
    shard = written(THREE)
    shard.append(60, 200, 60)
    shard.run(shard.storage.mark())
    for inode in shard.files.nodes.values():
        inode.sync()
    name = segment_name(shard.journal.active.first)
    position = bytes(shard.files.nodes[name].seen).index(shard.entries[-2].header)
    damaged = changed(shard, (name, position + 70), 0xFF)
    found, steps = opened(damaged.copy())
    floor, last = found.floor, found.log.last.index
    assert (floor > 0, last) == (True, shard.entries[-3].index)
    for count in range(steps + 1):
        for seed in (None, *range(4)):
            left = damaged.copy()
            if count == steps:
                opened(left)
            else:
                with pytest.raises(PowerCut):
                    opened(left, count)
            if seed is not None:
                left.lose_power(Random(seed))
            again, more = opened(left.copy())
            assert (again.floor, again.log.last.index) == (floor, last), (count, seed, again.notices)
            for once_more in range(more if count < 12 else 0):
                twice = left.copy()
                with pytest.raises(PowerCut):
                    opened(twice, once_more)
                twice.lose_power(Random(once_more))
                again, _ = opened(twice)
                assert (again.floor, again.log.last.index) == (floor, last), (count, seed, once_more, again.notices)


def test_a_value_that_looks_like_effects_is_no_proof() -> None:
    """Frames are followed from the first one on, each intact entry's own frame must be there, and frames inside a frame
    are ignored. So a client cannot make a node believe that it lost an entry, and neither can a misplaced block.

    Guard: `newest_frame` of raft/wal/evidence.py.
    """
    shard = written(THREE)
    shard.append(60, 60)
    active = shard.journal.active
    name = ledger_name(active.first)
    segment = Segment(active.previous, active.size, active.last, active.end)
    stranger, *_ = make_entries(shard.entries[-1].mark, 1, (10,))
    forged = frame_of(stranger)
    ends = [entry for entry in shard.entries if entry.index >= active.first]
    applied = ends[-1].index
    assert newest_frame(shard.files, segment) == applied
    content = bytes(shard.files.nodes[name].seen)
    inside = content[: -len(forged) // 2] + forged
    for what in (inside, content[:SIDE_HEADER_SIZE] + forged, content[: -len(frame_of(ends[-1]))] + forged):
        assert newest_frame(MemoryFiles({name: what}), segment) <= applied
    assert newest_frame(MemoryFiles({name: content + forged}), segment) == stranger.index


@pytest.mark.parametrize("size", [1, 3, 64, 700])
def test_one_wrong_bit_is_found_by_the_crc(size: int) -> None:
    """Each single bit is found where it is; two wrong bits are never taken for one, nor are intact bytes.

    Guard: `flipped_bit` of raft/wal/evidence.py.
    """
    random = Random(size)
    data = random.randbytes(size)
    for bit in range(8 * size):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        assert flipped_bit(size, crc32c(bytes(wrong)) ^ crc32c(data)) == bit
        other = random.randrange(8 * size)
        wrong[other // 8] ^= 1 << other % 8
        assert flipped_bit(size, crc32c(bytes(wrong)) ^ crc32c(data)) is None
