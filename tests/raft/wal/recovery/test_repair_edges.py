"""A repair that meets more than one damage, a disk that goes on failing, or more bytes than are kept."""

from __future__ import annotations

import pytest

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import HEADER_SIZE, seal_entry
from raftlog.raft.configuration import Configuration
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import Entry, EntryKind, HardState
from raftlog.raft.wal import repair
from raftlog.raft.wal.formats import LOG_FOLDER, SEGMENT_HEADER_SIZE, index_name, ledger_name, segment_name
from raftlog.raft.wal.opening import ShardDamaged, make_log, open_shard
from raftlog.raft.wal.recovery import recover_hard_state
from raftlog.raft.wal.repair import QUARANTINE
from tests.raft.wal.journal_driver import LOG, SEGMENT_BYTES
from tests.raft.wal.recovery.test_repair import (
    TERM,
    THREE,
    after_every_crash,
    first_of,
    flipped,
    members,
    newest_name,
    opened,
    written,
)
from tests.raft.wal.storage_lab import Shard

FOUR = members(1, 2, 3, 4)
FIVE = members(1, 2, 3, 4, 5)


def started() -> Shard:
    """A new shard whose first entry says that three nodes vote."""
    files, first = MemoryFiles(), first_of(THREE)
    files.execute(make_log(LOG, first, HardState(TERM, 2), SEGMENT_BYTES))
    shard = Shard(files)
    shard.entries = [first]
    return shard


def configured(shard: Shard, configuration: Configuration) -> Entry:
    """Appends that configuration."""
    data, before = encode_configuration(configuration), shard.entries[-1].mark
    entry = seal_entry(before, term=1, kind=EntryKind.CONFIGURATION, count=1, time_ms=0, clock_ms=0, data=data)
    shard.run(shard.storage.carry_out(SyncBatch(None, None, (entry,), ())))
    shard.entries.append(entry)
    shard.apply(shard.entries)
    return entry


def stopped(shard: Shard) -> Shard:
    """It was stopped, long ago: all that it wrote is durable."""
    shard.run(shard.storage.mark())
    for inode in shard.files.nodes.values():
        inode.sync()
    return shard


def grown() -> tuple[Shard, Entry, Entry]:
    """Three segments; four nodes vote from the middle of the first on, five from the middle of the second: these two
    entries."""
    shard = started()
    shard.append(60)
    four = configured(shard, FOUR)
    shard.roll()
    shard.append(60)
    five = configured(shard, FIVE)
    shard.roll()
    shard.append(100, 20, 30)
    return stopped(shard), four, five


def spoiled(shard: Shard, files: MemoryFiles, entry: Entry) -> None:
    """One bit of an entry's data is another one."""
    name = segment_name(next(one.first for one in reversed(shard.journal.segments) if one.first <= entry.index))
    seen = files.nodes[name].seen
    seen[bytes(seen).index(entry.header) + HEADER_SIZE + 3] ^= 4


def segments_of(files: MemoryFiles, folder: str) -> list[int]:
    """Which segments a folder holds."""
    return [int(name[:-4]) for name in files.names(folder) if name.endswith(".seg")]


def test_the_newest_configuration_up_to_the_cut_counts() -> None:
    """The kept part decides which nodes could heal this one: the configuration in the middle of a segment that is kept
    whole counts. The configuration in the first entry is old, and does not count.

    Guard: `intact == wanted` in `_newest_configuration` of raft/wal/repair.py.
    """
    shard = started()
    shard.append(60)
    configured(shard, members(1, 2))
    shard.roll()
    shard = stopped(shard)
    files = flipped(shard, newest_name(shard), SEGMENT_HEADER_SIZE + 10)
    with pytest.raises(ShardDamaged, match=r"of the voters \[1, 2\] no majority can go on"):
        opened(files)
    shard, _, _ = grown()
    files = flipped(shard, newest_name(shard), SEGMENT_HEADER_SIZE + 10)
    found, _ = opened(files)
    assert (found.log.last.index, found.configuration) == (shard.journal.active.first - 1, FIVE)


def test_a_cut_goes_down_to_where_a_configuration_can_be_read() -> None:
    """The newest segment is damaged, and so is the newest configuration, in a sealed segment before it, which a start
    reads only for that. A cut at the first of the two places would leave a log without known members. One cut goes
    below both, under one floor, and the configuration before is in force again.

    Guard: `_newest_configuration` of raft/wal/repair.py gives the damage, and `_intact_until` goes below it.
    """
    shard, _, five = grown()
    files = shard.files.copy()
    spoiled(shard, files, shard.entries[-1])
    spoiled(shard, files, five)
    found, _ = opened(files)
    assert (found.log.last.index, found.configuration, found.floor) == (five.index - 1, FOUR, TERM + 1)
    assert sum("kept up to index" in notice for notice in found.notices) == 1
    assert len(segments_of(files, f"{QUARANTINE}/log-{TERM + 1:020d}")) == 2
    again, _ = opened(files)
    assert (again.log.last.index, again.configuration, again.floor) == (five.index - 1, FOUR, TERM + 1)


def test_a_damaged_log_without_a_configuration_is_dropped_for_the_snapshot() -> None:
    """Its configurations were compacted away, and the newest snapshot has the one in force. The log is damaged behind
    the snapshot, and begins again there.

    Guard: the end of `_newest_configuration` of raft/wal/repair.py.
    """
    shard = written(snapshots=2)
    shard.run(shard.storage.compact(shard.journal.segments[0].last.index))
    stopped(shard)
    assert all(not segment.configurations for segment in shard.journal.segments)
    files = flipped(shard, newest_name(shard), SEGMENT_HEADER_SIZE + 10)
    found, _ = opened(files)
    assert found.snapshot is not None
    assert found.log.last == found.log.base == found.snapshot.mark
    assert (found.configuration, found.floor) == (THREE, TERM + 1)


def test_the_snapshot_says_whether_others_can_heal_a_node_that_lost_its_term() -> None:
    """The log has no configuration any more, and the entry of a newer term names no member.

    Guard: `snapshots` in `lost_term` of raft/wal/repair.py.
    """
    shard = written(snapshots=2)
    shard.run(shard.storage.compact(shard.journal.segments[0].last.index))
    newest = shard.entries[-1].mark
    newer = seal_entry(newest, term=TERM + 1, kind=EntryKind.NOOP, count=1, time_ms=0, clock_ms=0, data=b"")
    shard.run(shard.storage.carry_out(SyncBatch(None, None, (newer,), ())))
    found, _ = opened(stopped(shard).files)
    assert (found.log.last, found.hard_state.term, found.floor) == (newer.mark, TERM + 1, TERM + 2)


@pytest.mark.parametrize("where", ["the oldest header", "an entry of the newest segment"])
@pytest.mark.parametrize("older", [True, False])
def test_a_compacted_log_with_a_damaged_snapshot_is_dropped_for_an_older_one(where: str, older: bool) -> None:
    """The log begins late, and the snapshot before it fails its check. The intact part of the log follows a state that
    is in no file any more, so none of it stays, wherever the damage is. The node begins with an older snapshot; without
    one it refuses, and changes nothing.

    Guard: `base < first - 1` and `damage.index >= cut` in `_intact_until` of raft/wal/repair.py.
    """
    shard = written(snapshots=2)
    before = shard.journal.segments[1].last.index
    shard.run(shard.storage.compact(shard.journal.segments[0].last.index))
    configured(shard, FOUR)
    shard.append(50)
    stopped(shard)
    first = shard.journal.first
    if older:
        shard.save_snapshot(shard.entries[2], configuration=THREE)
    files = shard.files.copy()
    newest, *rest = sorted((name for name in files.nodes if name.endswith("/chunks")), reverse=True)
    files.nodes[newest].seen[9] ^= 1
    assert first <= before
    if where == "the oldest header":
        files.nodes[segment_name(first)].seen[20] ^= 4
    else:
        spoiled(shard, files, shard.entries[-1])
    if not older:
        for name in rest:
            del files.nodes[name], files.nodes[name.replace("chunks", "meta")]
        content = files.content()
        with pytest.raises(ShardDamaged, match="nothing before it is intact, so the members are unknown"):
            opened(files)
        assert files.content() == content
        return
    found, _ = opened(files)
    assert found.snapshot is not None
    assert found.snapshot.mark.index == shard.entries[2].index
    assert found.log.last == found.log.base == found.snapshot.mark
    assert (found.configuration, found.floor) == (THREE, TERM + 1)


def damaged_twice() -> tuple[Shard, MemoryFiles]:
    """An entry of the newest segment, and effects below the newest snapshot of a log that begins late."""
    shard = written(snapshots=2)
    shard.run(shard.storage.compact(shard.journal.segments[0].last.index))
    configured(shard, FOUR)
    shard.append(50)
    stopped(shard)
    files = shard.files.copy()
    spoiled(shard, files, shard.entries[-1])
    files.nodes[ledger_name(shard.journal.first)].seen[10] ^= 1
    return shard, files


def test_further_damage_during_a_repair_moves_the_cut_under_the_same_floor() -> None:
    """The log is cut at the damaged entry. Then the rest turns out to need damaged effects, and the log goes for the
    snapshot. It is one repair: the node promised nothing between the two, so the floor is raised once. That also holds
    after a kill or a power cut behind any operation of it.

    Guard: `slot.is_mending` in `begin` of raft/wal/repair.py.
    """
    shard, files = damaged_twice()
    whole = files.copy()
    found, operations = opened(whole)
    assert found.snapshot is not None
    assert found.log.last == found.log.base == found.snapshot.mark
    assert (found.floor, found.hard_state.term, found.configuration) == (TERM + 1, TERM, THREE)
    cuts = [notice for notice in found.notices if "it is kept up to index" in notice]
    assert [f"index {index}," in cut for cut, index in zip(cuts, _cuts(shard), strict=True)] == [True, True]
    for where, again, _ in after_every_crash(files, operations):
        assert (again.log.first, again.log.last, again.floor) == (found.log.first, found.log.last, TERM + 1), where


def _cuts(shard: Shard) -> list[int]:
    """Where the log of `damaged_twice` is cut: before its last entry, and at its newest snapshot."""
    assert shard.opened.snapshot is None  # it was saved after this start
    newest = max(name for name in shard.files.nodes if name.endswith("/chunks"))
    return [shard.entries[-2].index, int(newest.split("/")[1])]


def test_a_repair_that_comes_to_the_same_cut_again_gives_up() -> None:
    """A disk also spoils new writes: the log that begins again behind the snapshot is damaged when it is read. Repeated
    cuts would go on for ever. So the start fails with the place, and so does the next one on that disk. On a good disk
    the shard heals all the same, under the same floor: the node promised nothing.

    Guard: `slot.cut in cuts` in `open_shard` of raft/wal/opening.py.
    """
    shard = written(snapshots=2)
    files = flipped(shard, segment_name(1), 10)
    newest = int(max(name for name in files.nodes if name.endswith("/chunks")).split("/")[1])
    made = segment_name(newest + 1)
    for _ in range(2):
        with pytest.raises(ShardDamaged, match=f"{made}: damaged at byte 0"):
            _open_spoiling(files, made)
        slot, _ = recover_hard_state(LOG, files)
        assert (slot.cut, slot.floor, slot.is_mending) == (newest, TERM + 1, True)
    found, _ = opened(files)
    assert found.log.base is not None
    assert (found.log.base.index, found.floor) == (newest, TERM + 1)


def _open_spoiling(files: MemoryFiles, name: str) -> None:
    """A start on a disk that changes a byte of that file whenever something was written."""
    for operations in open_shard(LOG, files, lambda: None, 1, segment_bytes=SEGMENT_BYTES):
        files.execute(operations)
        if name in files.nodes:
            files.nodes[name].seen[20] = 0xFF


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_the_quarantine_of_a_cut_log_is_bounded_in_bytes(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The damaged segment is kept whatever the limit, because no peer has it. Of the intact ones behind it the first
    that fit are kept. The others are deleted, and named to the operator.

    Guard: `QUARANTINE_BYTES_MAX`, `room` and `is_kept` in `set_aside` of raft/wal/repair.py.
    """
    shard, _, _ = grown()
    shard.roll()
    stopped(shard)
    cut_through, *behind = [segment.first for segment in shard.journal.segments]
    files = shard.files.copy()
    del files.nodes[index_name(cut_through)]  # so that the start reads the sealed segment
    spoiled(shard, files, shard.entries[1])
    limit = sum(files.size(segment_name(first)) for first in behind[:kept])
    monkeypatch.setattr(repair, "QUARANTINE_BYTES_MAX", limit)
    found, _ = opened(files)
    folder = f"{QUARANTINE}/log-{TERM + 1:020d}"
    assert segments_of(files, folder) == [cut_through, *behind[:kept]]
    assert segments_of(files, LOG_FOLDER) == [cut_through]
    dropped = ", ".join(f"{first:020d}" for first in behind[kept:])
    assert f"the segments {dropped} are not kept: {limit} bytes are the limit there" in found.notices


def test_of_a_log_that_goes_for_a_snapshot_its_oldest_segment_is_kept_whatever_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No segment is cut through then, and something to look at has to be left.

    Guard: `stem == stems[0] and not kept` in `set_aside` of raft/wal/repair.py.
    """
    shard = written(snapshots=2)
    firsts = [segment.first for segment in shard.journal.segments]
    files = flipped(shard, segment_name(1), 10)
    monkeypatch.setattr(repair, "QUARANTINE_BYTES_MAX", 0)
    found, _ = opened(files)
    assert segments_of(files, f"{QUARANTINE}/log-{TERM + 1:020d}") == firsts[:1]
    assert any("are not kept: 0 bytes are the limit there" in notice for notice in found.notices)
