"""Tests how a damaged log heals: kept and quarantined parts, crashes at any point, and nodes that refuse to repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import HEADER_SIZE, seal_entry
from raftlog.raft.codec.mark import MARK_SIZE
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.types import GENESIS, NOBODY, Entry, EntryKind, HardState
from raftlog.raft.wal.formats import LOG_FOLDER, SEGMENT_HEADER_SIZE, index_name, ledger_name, segment_name
from raftlog.raft.wal.opening import OpenedShard, ShardDamaged, make_log, open_shard
from raftlog.raft.wal.recovery import recover_hard_state
from raftlog.raft.wal.repair import QUARANTINE, QUARANTINES_KEPT
from tests.raft.wal.journal_driver import LOG, SEGMENT_BYTES, PowerCut
from tests.raft.wal.storage_lab import Shard

TERM = 7
"""Of the hard state: newer than any entry, as after an election that no candidate won."""


def members(*nodes: int, outgoing: tuple[int, ...] = ()) -> Configuration:
    """Those nodes vote."""
    named = tuple(Member(node, f"{node:032x}", "", "") for node in sorted({*nodes, *outgoing}))
    return Configuration(named, nodes, outgoing)


THREE = members(1, 2, 3)


def first_of(configuration: Configuration) -> Entry:
    """The first entry of a log."""
    data = encode_configuration(configuration)
    return seal_entry(GENESIS, term=1, kind=EntryKind.CONFIGURATION, count=1, time_ms=0, clock_ms=0, data=data)


def written(configuration: Configuration = THREE, snapshots: int = 0) -> Shard:
    """A shard of three segments, stopped cleanly; `snapshots` of them in the middle of the first and second segment."""
    files, first = MemoryFiles(), first_of(configuration)
    files.execute(make_log(LOG, first, HardState(TERM, 2), SEGMENT_BYTES))
    shard = Shard(files)
    shard.entries = [first]
    shard.append(60, 200, 60)
    shard.roll()
    shard.append(60, 60, 300)
    for number in range(snapshots):
        shard.save_snapshot(shard.entries[2 if number == 0 else -2], configuration=configuration)
    shard.roll()
    shard.append(100, 20, 30)
    shard.run(shard.storage.mark())
    for inode in shard.files.nodes.values():  # rows and effects reached the disk long ago
        inode.sync()
    return shard


def opened(files: MemoryFiles, budget: int = 1 << 30) -> tuple[OpenedShard, int]:
    """Opens it, and how many operations that took. Raises PowerCut after `budget` of them."""
    steps, count = open_shard(LOG, files, lambda: None, 1, segment_bytes=SEGMENT_BYTES), 0
    while True:
        try:
            operations = next(steps)
        except StopIteration as stop:
            result: OpenedShard = stop.value
            return result, count
        for operation in operations:
            if count == budget:
                raise PowerCut
            count += 1
            files.execute([operation])


def after_every_crash(files: MemoryFiles, operations: int) -> Iterator[tuple[str, OpenedShard, MemoryFiles]]:
    """Killed, or without power, after each of that many operations of a start, and then started again: where that was,
    what the second start found, and its files."""
    for budget in range(operations):
        for power in (False, True):
            left = files.copy()
            with pytest.raises(PowerCut):
                opened(left, budget)
            if power:
                left.lose_power(Random(budget))
            yield f"after {budget} operations, {power=}", opened(left)[0], left


def flipped(shard: Shard, name: str, position: int) -> MemoryFiles:
    """Its files with one bit of that byte another one."""
    files = shard.files.copy()
    files.nodes[name].seen[position] ^= 4
    return files


def ends_of(shard: Shard) -> list[int]:
    """Where its entries end."""
    return [0, *(entry.index for entry in shard.entries)]


def newest_name(shard: Shard) -> str:
    """The newest segment."""
    return segment_name(shard.journal.active.first)


def test_a_damaged_entry_is_cut_away_under_a_floor() -> None:
    """The good prefix stays. The node has no vote until it holds an entry of a newer term, and its own term and vote
    stay: a healthy leader goes on. A second start finds the same, and heals the floor only with such an entry.

    Guard: `begin` of raft/wal/repair.py.
    """
    shard = written()
    name = newest_name(shard)
    files = flipped(shard, name, SEGMENT_HEADER_SIZE + 10)
    found, _ = opened(files)
    kept = shard.journal.active.previous.index
    assert (found.log.last.index, found.floor) == (kept, TERM + 1)
    before, _ = recover_hard_state(LOG, shard.files)
    assert (found.hard_state.term, found.hard_state.vote) == (before.state.term, before.state.vote) != (TERM, NOBODY)
    assert any("damaged at byte" in notice and f"kept up to index {kept}" in notice for notice in found.notices)
    again, _ = opened(files)
    assert (again.log.last.index, again.floor, again.hard_state.term) == (kept, TERM + 1, TERM)
    slot, _ = recover_hard_state(LOG, files)
    assert (slot.floor, slot.is_mending, slot.cut) == (TERM + 1, False, 0)


def test_removed_files_are_quarantined_unchanged() -> None:
    """Someone may want to see it: the segment that the cut goes through as a copy, those behind it as they are."""
    shard = written()
    first = shard.journal.segments[1].first
    name = segment_name(first)
    files = flipped(shard, name, SEGMENT_HEADER_SIZE + HEADER_SIZE + 3)
    del files.nodes[index_name(first)]  # so that the start reads the sealed segment
    before = files.content()
    found, _ = opened(files)
    assert found.log.last.index == first - 1
    folder = f"{QUARANTINE}/log-{TERM + 1:020d}"
    for old in (name, newest_name(shard)):
        assert files.content()[f"{folder}/{old.partition('/')[2]}"] == before[old]
    assert [name for name in files.names(LOG_FOLDER) if name.endswith(".seg")] == [f"{1:020d}.seg"]


CASES: dict[str, Callable[[], tuple[Shard, MemoryFiles]]] = {}


def _case(name: str) -> Callable[[Callable[[], tuple[Shard, MemoryFiles]]], Callable[[], tuple[Shard, MemoryFiles]]]:
    return lambda make: CASES.setdefault(name, make)


@_case("an entry of the newest segment")
def _entry() -> tuple[Shard, MemoryFiles]:
    shard = written()
    return shard, flipped(shard, newest_name(shard), shard.journal.active.end - 2 * MARK_SIZE - 9)


@_case("the header of the newest segment")
def _header() -> tuple[Shard, MemoryFiles]:
    shard = written()
    return shard, flipped(shard, newest_name(shard), 20)


@_case("the newest segment is gone")
def _gone() -> tuple[Shard, MemoryFiles]:
    shard = written()
    files = shard.files.copy()
    del files.nodes[newest_name(shard)]
    return shard, files


@_case("the newest segment is cut short")
def _short() -> tuple[Shard, MemoryFiles]:
    shard = written()
    files = shard.files.copy()
    del files.nodes[newest_name(shard)].seen[300:]
    return shard, files


@_case("sealed segments, found one after the other")
def _two() -> tuple[Shard, MemoryFiles]:
    shard = written()
    files = flipped(shard, newest_name(shard), SEGMENT_HEADER_SIZE + 10)
    second = shard.journal.segments[1].first
    files.nodes[segment_name(second)].seen[SEGMENT_HEADER_SIZE + 400] ^= 1
    return shard, files


@_case("below the newest snapshot")
def _below() -> tuple[Shard, MemoryFiles]:
    shard = written(snapshots=2)
    files = flipped(shard, segment_name(1), SEGMENT_HEADER_SIZE + 500)
    del files.nodes[index_name(1)]
    return shard, files


@_case("an entry, and the newest snapshot")
def _both() -> tuple[Shard, MemoryFiles]:
    shard = written(snapshots=2)
    files = flipped(shard, newest_name(shard), SEGMENT_HEADER_SIZE + 10)
    newest = max(name for name in files.nodes if name.endswith("/chunks"))
    files.nodes[newest].seen[9] ^= 1
    return shard, files


@pytest.mark.parametrize("case", CASES)
def test_a_crash_at_any_point_of_a_repair_ends_in_the_same_place(case: str) -> None:
    """After a kill or power cut behind every operation of the repair and of the next start, the following start finds
    the same log, the same floor, and the same files in the quarantine. A folder without its floor would be a node that
    votes with too short a log.

    Guard: `promise + repeat` in `open_shard`, `slot.is_mending` in `_open` of raft/wal/opening.py.
    """
    shard, files = CASES[case]()
    whole = files.copy()
    result, operations = opened(whole)
    wanted = (result.log.first, result.log.last, result.floor, result.hard_state.term)
    assert result.floor == TERM + 1
    assert result.log.last.index in ends_of(shard)
    evidence = {name for name in whole.nodes if name.startswith(QUARANTINE)}
    assert evidence
    for where, found, left in after_every_crash(files, operations):
        assert (found.log.first, found.log.last, found.floor, found.hard_state.term) == wanted, where
        assert evidence <= set(left.nodes), where


def test_a_damaged_log_below_a_snapshot_is_dropped() -> None:
    """The state is in the snapshot, so the log begins again behind it; later entries are fetched again."""
    _, files = _below()
    found, _ = opened(files)
    assert found.snapshot is not None
    assert found.log.last == found.snapshot.mark == found.log.base
    assert found.floor == TERM + 1
    assert found.configuration == THREE


def test_a_log_whose_effects_cannot_be_rebuilt_is_dropped_for_the_snapshot() -> None:
    """The log begins late, and its ledger is damaged below the newest snapshot. Replay has no place to begin, so later
    effects could have no place either. The log begins again behind the snapshot.
    """
    shard = written(snapshots=2)
    shard.run(shard.storage.compact(shard.journal.segments[0].last.index))
    files = shard.files.copy()
    assert opened(files.copy())[0].floor == 0
    files.nodes[ledger_name(shard.journal.segments[0].first)].seen[10] ^= 1
    found, _ = opened(files)
    assert found.snapshot is not None
    assert (found.log.last, found.floor) == (found.snapshot.mark, TERM + 1)


@pytest.mark.parametrize(
    ("configuration", "why"),
    [
        (members(1), r"of the voters \[1\]"),
        (members(1, 2), r"of the voters \[1, 2\]"),
        (members(1, 2, 3, outgoing=(1, 4)), r"of the voters \[1, 4\]"),
    ],
)
def test_a_node_that_the_others_cannot_heal_refuses(configuration: Configuration, why: str) -> None:
    """Alone, or of two, it is needed for every majority. Without its vote no node leads; with it acknowledged entries
    may be lost. It reports that, and changes nothing.

    Guard: `len(side) < 3` in `begin` of raft/wal/repair.py.
    """
    shard = written(configuration)
    files = flipped(shard, newest_name(shard), SEGMENT_HEADER_SIZE + 10)
    before = files.content()
    with pytest.raises(
        ShardDamaged, match=f"{why} no majority can go on without this node and heal it.*nothing was changed"
    ):
        opened(files)
    assert files.content() == before


def test_a_log_without_its_beginning_refuses() -> None:
    """No file names the members any more."""
    shard = written()
    files = flipped(shard, segment_name(1), 10)
    before = files.content()
    with pytest.raises(ShardDamaged, match="nothing before it is intact"):
        opened(files)
    assert files.content() == before


def test_damage_while_it_heals_raises_the_floor_again() -> None:
    """Its later acknowledgements count too; only a limited number of quarantines is kept, and removed ones are
    reported.

    Guard: `is_mending` in `begin`; `prune` of raft/wal/repair.py.
    """
    _, files = CASES["an entry of the newest segment"]()
    for number in range(1, QUARANTINES_KEPT + 2):
        found, _ = opened(files)
        assert found.floor == TERM + number
        active = found.journal.active
        files.nodes[segment_name(active.first)].seen[active.end - 2 * MARK_SIZE - 9] ^= 1
    kept = [name for name in files.names(QUARANTINE) if name.startswith("log-")]
    assert kept == [f"log-{TERM + number:020d}" for number in range(2, QUARANTINES_KEPT + 2)]
    assert any("was removed" in notice for notice in found.notices)


def test_a_damaged_snapshot_is_set_aside_and_an_older_one_is_used() -> None:
    """With the log behind the older one nothing is missing, so nothing is promised away: no floor."""
    shard = written(snapshots=2)
    files = shard.files.copy()
    newest = max(name for name in files.nodes if name.endswith("/chunks"))
    files.nodes[newest].seen[9] ^= 1
    before = files.content()[newest]
    found, _ = opened(files)
    assert found.snapshot is not None
    assert (found.floor, found.snapshot.mark.index, found.log.last) == (0, shard.entries[2].index, shard.journal.last)
    index = newest.split("/")[1]
    assert files.content()[f"{QUARANTINE}/snapshot-{index}/chunks"] == before


def places(shard: Shard) -> list[tuple[str, int]]:
    """More than 500 bytes, spread over every region of every file of the shard."""
    found: list[tuple[str, int]] = []
    for name, content in sorted(shard.files.content().items()):
        used = len(content.rstrip(b"\0"))
        step = max(1, used // 60)
        found += [(name, position) for position in range(0, used, step)]
    return found


@pytest.mark.parametrize("snapshots", [0, 2])
def test_bytes_that_flip_anywhere_are_seen_or_do_no_harm(snapshots: int) -> None:
    """Whatever byte of a file changes, the start finds the log as it was, or a prefix of it (or of a snapshot) under a
    floor, or it refuses with the reason. Every entry that it serves is one that was written.

    Refused is only damage of the very beginning of a log that no snapshot covers.
    """
    shard = written(snapshots=snapshots)
    by_index = {entry.index: entry for entry in shard.entries}
    all_places = places(shard)
    assert len(all_places) >= 500
    fates = {"whole": 0, "heals": 0, "refused": 0}
    for name, position in all_places:
        files = flipped(shard, name, position)
        try:
            found, _ = opened(files)
        except ShardDamaged:
            fates["refused"] += 1
            assert name == segment_name(1), (name, position)
            assert position < SEGMENT_HEADER_SIZE + shard.entries[0].size, position
            continue
        last = found.log.last
        assert last.index in by_index, (name, position)
        assert all(by_index[entry.index] == entry for entry in found.log.tail), (name, position)
        assert found.hard_state.term == TERM
        if found.floor:
            fates["heals"] += 1
        else:
            fates["whole"] += 1
            assert last == shard.journal.last, (name, position)
    assert min(fates["whole"], fates["heals"]) > 0, fates
    assert (fates["refused"] > 0) == (snapshots == 0), fates
