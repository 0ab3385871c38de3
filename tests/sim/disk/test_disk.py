"""The simulated disk: promises survive a crash at every operation, and damage is refused or harmless."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from raftlog.chaos.sim.disk import faults, snapshots
from raftlog.chaos.sim.disk.disk import DiskRefused, SimDisk
from raftlog.chaos.sim.disk.faults import AREAS, flip_bit, stale_block
from raftlog.chaos.sim.disk.files import is_segment
from raftlog.chaos.sim.disk.reading import read_entries
from raftlog.chaos.sim.disk.view import SilentlyWrong
from raftlog.chaos.sim.mutants import plant
from raftlog.cluster.files.errors import DiskFenced, NoSpace
from raftlog.raft.codec.mark import MARK_SIZE
from raftlog.raft.configuration import Configuration
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import GENESIS, NEW_DISK, Entry, HardState, Mark
from raftlog.raft.wal import journal, opening as storage_open, storage
from raftlog.raft.wal.formats import HARD_STATE, LogIdentity, Slot, segment_name
from raftlog.raft.wal.opening import OpenedShard
from raftlog.raft.wal.operations import Sync
from raftlog.raft.wal.recovery import Damaged
from raftlog.raft.wal.snapshot_files import SnapshotPlan
from raftlog.raft.wal.storage import StepKind
from raftlog.statemachine.effects import Effects, encode_effects
from tests.raft.wal.journal_driver import CONFIGURATION, FIRST, make_entries
from tests.sim.world.property_lab import SECOND, Disk

SEGMENT_BYTES = 4_096
TORN_PERCENT = (80, 100)


def new_disk(seed: int = 1, torn_percent: int = 90) -> SimDisk:
    """A formatted disk with small segments."""
    log = LogIdentity(bytes(range(16)))
    return SimDisk(
        1,
        log,
        FIRST,
        incarnation="ab" * 16,
        random=Random(seed),
        segment_bytes=SEGMENT_BYTES,
        torn_percent=torn_percent,
    )


def twin_of(disk: SimDisk, seed: int) -> SimDisk:
    """The same disk once more, to be crashed in its stead: its page cache too, but another chance."""
    twin = new_disk(seed, TORN_PERCENT[seed % 2])
    twin.roll_back(disk.copy())
    twin.files.torn_percent = TORN_PERCENT[seed % 2]
    return twin


def frames_of(entries: Sequence[Entry]) -> list[tuple[int, bytes]]:
    """Effects of plain entries, as the state machine gives them."""
    return [(entry.index, encode_effects(Effects(entry.index, 1, (), True))) for entry in entries]


def save(
    disk: SimDisk, mark: Mark, chunks: Sequence[bytes], configuration: Configuration = CONFIGURATION
) -> Iterator[str]:
    """Keeps the state after the entry of `mark`, as `NodeDisk.save_snapshot` does, in one row of operations."""
    storage, plan = disk.running(), SnapshotPlan(disk.log, mark.index)
    yield from disk.steps(storage.flush())
    yield from disk.steps(storage.sync_ledgers())
    for operations in (plan.begin(), *map(plan.add, chunks)):
        yield from disk.execute(StepKind.SPARES, operations)
    disk.view.snapshots[mark.index] = mark
    yield from snapshots.name(disk, plan, mark, configuration, 1)


class Node:
    """What a node does with its disk, and what it has promised: the oracle, independent of the disk's own view."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.opened = disk.open()
        self.log = [FIRST]  # durable by promise
        self.coming: list[list[Entry]] = [self.log]  # what a restart may find
        self.states = [HardState(1)]
        self.applied = 0

    def carry_out(
        self, entries: Sequence[Entry] = (), state: HardState | None = None, cut: int | None = None
    ) -> Iterator[str]:
        """One batch in its steps, then what may follow it."""
        kept = self.log if cut is None else [entry for entry in self.log if entry.index <= cut]
        self.coming = [self.log, kept, *(kept + list(entries[:count]) for count in range(len(entries) + 1))]
        if state is not None:
            self.states = [self.states[-1], state]
        yield from self.disk.carry_out(SyncBatch(state, cut, tuple(entries), ()))
        self.log = kept + list(entries)
        self.coming, self.states = [self.log], self.states[-1:]
        yield from self.disk.finish(())

    def apply(self, count: int) -> Iterator[str]:
        """The effects of the next entries."""
        frames = frames_of(self.log[self.applied : self.applied + count])
        self.applied += len(frames)
        yield from self.disk.finish(frames)

    def story(self) -> Iterator[str]:
        """Appends, votes, rolls, cuts within a segment and over two, marks, effects and snapshots."""
        yield from self.carry_out(make_entries(FIRST.mark, 1, (200, 300)))
        yield from self.apply(2)
        yield from self.carry_out(self.more(1, 900, 30), HardState(2, 1))
        yield from self.carry_out((), HardState(3, 0))
        yield from self.carry_out(self.more(2, 1_500, 1_500, 1_500))  # rolls
        yield from self.disk.mark()
        yield from self.apply(3)
        yield from self.save_snapshot()
        yield from self.cut(2, 3, 100, 40)
        yield from self.carry_out(self.more(3, 4_000, 10, 4_000))  # rolls more than once
        yield from self.cut(3, 4, 500)
        yield from self.carry_out((), HardState(5, 2))
        yield from self.apply(2)
        yield from self.save_snapshot()
        yield from self.carry_out(self.more(5, 10, 20, 30), HardState(6, 3))

    def more(self, term: int, *sizes: int) -> list[Entry]:
        return make_entries(self.log[-1].mark, term, sizes)

    def cut(self, count: int, term: int, *sizes: int) -> Iterator[str]:
        """Drops the newest entries and goes on."""
        kept = self.log[-count - 1]
        yield from self.carry_out(make_entries(kept.mark, term, sizes), HardState(term, 1), kept.index)

    def save_snapshot(self) -> Iterator[str]:
        """Of all that was applied."""
        entry = self.log[self.applied - 1]
        yield from save(self.disk, entry.mark, [b"state", bytes(700)])


def read(disk: SimDisk, after: int, to: int, bytes_max: int) -> tuple[Entry, ...]:
    """Entries behind the rows that are not written yet; () where they cannot be delivered."""
    try:
        if to > disk.running().journal.indexed and not disk.process.is_busy and disk.process.failed is None:
            list(disk.flush())
        return read_entries(disk, after, to, bytes_max)
    except (DiskFenced, NoSpace, Damaged, OSError):
        return ()


def found(disk: SimDisk, opened: OpenedShard, after: int = 0) -> list[Entry]:
    """Every entry behind `after` that the opened disk serves."""
    entries: list[Entry] = []
    while piece := read(disk, entries[-1].index if entries else after, opened.log.last.index, 2_000):
        entries += piece
    return entries


def check(node: Node, disk: SimDisk, where: str) -> None:
    """A start finds all promised entries, and none that was not written."""
    opened = disk.open()
    assert found(disk, opened) in node.coming, where
    state = opened.hard_state
    assert (state.term, state.vote) in [(each.term, each.vote) for each in node.states], where
    assert state.boot > node.opened.hard_state.boot
    if opened.snapshot is not None:
        assert list(disk.chunks(opened.snapshot)) == [b"state", bytes(700)], where


@pytest.mark.parametrize("power", [False, True])
def test_what_is_promised_survives_a_crash_at_every_operation(power: bool) -> None:
    """Before every operation of a story the process is killed, or the power cut with 80 and 100 % torn writes: a start
    finds every finished batch, of the one under way a prefix, a hard state it may, and an intact snapshot or none."""
    node = Node(new_disk())
    steps = 0
    for name in node.story():
        for seed in range(4 if power else 1):
            twin = twin_of(node.disk, steps + seed)
            twin.crash(power)
            check(node, twin, f"before operation {steps} ({name}), seed {seed}")
        steps += 1
    assert steps > 150
    check(node, twin_of(node.disk, 0), "at the end")


def test_a_power_cut_while_a_node_starts_loses_nothing() -> None:
    """A start is itself a row of operations: cut off before any of them, the next one finds the same."""
    node = Node(new_disk())
    for nth, _ in enumerate(node.story()):
        if nth % 9:
            continue
        twin = twin_of(node.disk, nth)
        twin.crash(power=True)
        for budget in range(60):
            second = twin_of(twin, budget)
            opening = second.opening()
            if [next(opening, None) for _ in range(budget)][-1:] == [None]:
                break
            second.crash(power=budget % 3 > 0)
            check(node, second, f"operation {nth}, start cut off at {budget}")


def aged_disk(seed: int) -> tuple[SimDisk, Node]:
    """A stopped disk with three segments, effects, two snapshots, and a mark behind its newest entry."""
    node = Node(new_disk(seed))
    for _ in node.story():
        pass
    for _ in node.disk.mark():
        pass
    node.disk.crash(power=False)
    return node.disk, node


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("kind", ["flip_bit", "misdirect", "stale_block"])
def test_damage_is_refused_or_harmless(kind: str, area: str) -> None:
    """Whatever is hit at rest: a start refuses and names the file, or has everything that was promised. What cannot be
    read is not served; nothing is served wrong (`read_entries` compares)."""
    aged, node = aged_disk(1)
    refused = hits = harmless = 0
    for seed in range(60):
        disk = twin_of(aged, seed)
        hit = disk.hit(getattr(faults, kind)(disk, area, Random(seed)))
        if not hit:
            continue
        hits += 1
        try:
            opened = disk.open()
        except DiskRefused:
            refused += 1
            assert area in ("log", "history"), hit
            assert ".seg: damaged at byte" in disk.refused
            continue
        harmless += area == "log" and "durable mark" in "".join(opened.notices)  # it says nothing its neighbours do not
        assert opened.log.last == node.log[-1].mark, hit
        served = found(disk, opened)
        assert served == node.log[: len(served)], hit
        if area != "history":
            assert len(served) == len(node.log), hit
    if area == "log":
        assert refused + harmless == hits > 20
    elif kind == "flip_bit":
        assert hits > 20


def test_a_mark_behind_the_last_entry_of_a_sealed_segment_is_not_damaged() -> None:
    """Nothing would notice its loss, and nothing is lost with it: the next segment names that entry."""
    aged, _ = aged_disk(1)
    ends = {name: faults.entries_at_rest(aged, name)[-1] for name in sorted(aged.files.nodes) if is_segment(name)}
    marked = {name: end for name, end in list(ends.items())[:-1] if end.from_mark + MARK_SIZE == end.position}
    assert marked
    for seed in range(200):
        disk = twin_of(aged, seed)
        if disk.hit(stale_block(disk, "history", Random(seed))):
            for name, end in marked.items():
                seen = [each.files.nodes[name].seen[end.from_mark : end.position] for each in (disk, aged)]
                assert seen[0] == seen[1]


def test_damage_under_a_running_node_is_never_served() -> None:
    """A bit flips while the node runs: what it reads is right or nothing; it goes on, or stops by itself."""
    for seed in range(30):
        node = Node(new_disk(seed))
        random = Random(seed)
        steps = node.story()
        for _ in range(random.randrange(80, 170)):
            next(steps, None)
        hit = node.disk.hit(flip_bit(node.disk, random.choice(AREAS), random))
        try:
            for _ in steps:
                pass
        except DiskFenced:
            assert hit  # a cut could not read what it keeps
        found(node.disk, node.opened)
        node.disk.crash(power=True)
        try:
            opened = node.disk.open()
        except DiskRefused:
            assert hit
        else:
            found(node.disk, opened)


def test_one_damaged_slot_is_harmless_two_are_refused() -> None:
    """The hard state is in two slots: with both gone, term and vote are lost, and the node never votes again."""
    aged, _ = aged_disk(1)
    disk = twin_of(aged, 1)
    assert disk.hit(flip_bit(disk, "hard_state", Random(1)))
    assert disk.hit(flip_bit(disk, "hard_state", Random(2))) == ""  # one at a time: two slots promise no more
    before = disk.view.hard_state
    state = disk.open().hard_state
    assert (state.term, state.vote) == (before.term, before.vote)
    disk = twin_of(aged, 1)
    disk.files.nodes[HARD_STATE].seen[:] = bytes(8_192)
    disk.damaged["both slots"] = "zeroed"
    with pytest.raises(DiskRefused, match="hard_state: slot 1"):
        disk.open()


def test_a_wiped_disk_is_refused_and_an_image_comes_back_whole() -> None:
    """A node never makes a folder at start; a copy that is put back is what it was when it was made."""
    aged, node = aged_disk(1)
    image = aged.copy()
    opened = aged.open()
    for _ in aged.carry_out(SyncBatch(HardState(9, 2), None, tuple(node.more(9, 10)), ())):
        pass
    aged.roll_back(image)
    again = aged.open()
    assert again.hard_state == opened.hard_state
    assert again.log.last == opened.log.last
    aged.wipe()
    with pytest.raises(DiskRefused, match="hard_state"):
        aged.open()
    aged.format("cd" * 16)
    assert aged.open().log.last == FIRST.mark


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_an_error_fences_the_disk(kind: str) -> None:
    """After EIO this process writes nothing more. A restart finds all promised entries, and a later power cut takes
    none of them (fsyncgate: the cache counts as clean)."""
    for skip in range(12):
        node = Node(new_disk(skip))
        steps = node.story()
        for _ in range(20 + skip):
            next(steps)
        node.disk.fail_next(kind)
        with pytest.raises(DiskFenced):
            list(steps)
        with pytest.raises(DiskFenced):
            next(node.disk.carry_out(SyncBatch(None, None, tuple(node.more(7, 10)), ())))
        node.disk.crash(power=False)
        check(node, node.disk, f"{kind} failed at {20 + skip}")
        before = node.disk.view.ends[:]
        for seed in range(5):
            twin = twin_of(node.disk, seed)
            twin.crash(power=True)
            twin.open()
            assert twin.view.ends == before


def test_a_full_disk_is_back_pressure() -> None:
    """Without room for the next segment not a byte of an entry is written; the same batch succeeds once there is."""
    node = Node(new_disk())
    batch = SyncBatch(HardState(2, 1), None, tuple(node.more(2, 3_000, 3_000)), ())
    node.disk.files.is_full = True
    for _ in range(2):
        with pytest.raises(NoSpace):
            list(node.disk.carry_out(batch))
    assert node.disk.view.durable_last == 1
    assert node.disk.view.hard_state.term == 2
    node.disk.files.is_full = False
    assert "Allocate" in list(node.disk.carry_out(batch))
    assert node.disk.view.durable_last == batch.entries[-1].index
    assert list(node.disk.finish(frames_of([FIRST, *batch.entries])))
    assert found(node.disk, node.disk.open()) == [FIRST, *batch.entries]


def test_a_read_that_fails_gives_nothing() -> None:
    """EIO while entries are fetched: the follower's turn comes again."""
    disk, _ = aged_disk(1)
    disk.open()
    disk.fail_next("read")
    assert read(disk, 0, 2, 1_000) == ()
    assert read(disk, 0, 2, 1_000)


# ---------------------------------------------------------------------------------------------------------------
# These show that the disk can find anything at all: each plants a mistake that others have made.


def crash_everywhere() -> None:
    """A power cut before every operation of the story, and once more after the start that follows a kill."""
    node = Node(new_disk())
    for nth, _ in enumerate(node.story()):
        twin = twin_of(node.disk, nth)
        twin.crash(power=True)
        check(node, twin, "")
        twin = twin_of(node.disk, nth)
        twin.crash(power=False)
        twin.open()
        promised = twin.view.durable_last
        twin.crash(power=True)
        assert twin.open().log.last.index >= promised
    damaged, _ = aged_disk(1)
    for seed in range(20):
        twin = twin_of(damaged, seed)
        assert twin.hit(flip_bit(twin, "log", Random(seed)))
        try:
            notices = twin.open().notices
        except DiskRefused:
            continue
        assert "durable mark" in "".join(notices)  # it says nothing that its neighbours do not


def test_the_right_code_passes() -> None:
    """What the planted mistakes break holds without them."""
    crash_everywhere()


def keep_without_sync(log: LogIdentity, slot: Slot) -> object:
    return [[each for each in half if not isinstance(each, Sync)] for half in REAL_KEEP(log, slot)]


REAL_KEEP = journal.keep_slot


@pytest.mark.parametrize(
    "mistake",
    [
        plant("log_not_synced"),
        patch.object(journal, "keep_slot", keep_without_sync),  # a vote before it is durable
        plant("damage_taken_for_a_torn_tail"),
        patch.object(storage_open, "count_boot", lambda _, slot, _term: (slot, [])),
    ],
)
def test_a_planted_mistake_is_seen(mistake: AbstractContextManager[object]) -> None:
    """Recovery and writing are looked at closely enough to notice classical mistakes."""
    with mistake, pytest.raises((AssertionError, pytest.fail.Exception)):
        crash_everywhere()


def test_what_was_only_read_back_is_not_durable() -> None:
    """27: after a sync that failed, a start must write the entries behind the last mark again. Otherwise they do not
    count as durable, and a node that acknowledges them breaks a property."""
    node = Node(new_disk())
    node.disk.fail_next("sync")
    with pytest.raises(DiskFenced):
        list(node.disk.carry_out(SyncBatch(None, None, tuple(node.more(1, 100)), ())))
    node.disk.crash(power=False)
    wrong = twin_of(node.disk, 1)
    with plant("recovery_trusts_the_page_cache"):
        assert wrong.open().log.last.index == 2
    assert wrong.view.durable_last == 1
    right = twin_of(node.disk, 1)
    assert right.open().log.last.index == right.view.durable_last == 2
    assert right.files.nodes[segment_name(1)].is_durable


def test_going_on_after_a_failed_sync_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """8: a disk that calls a failed sync back-pressure cannot carry out the batch again unnoticed."""
    node = Node(new_disk())
    monkeypatch.setattr(storage.Storage, "is_final", lambda *_, **__: False)
    batch = SyncBatch(None, None, tuple(node.more(1, 100)), ())
    node.disk.fail_next("sync")
    with pytest.raises(NoSpace):
        list(node.disk.carry_out(batch))
    with pytest.raises(journal.ImpossibleBatch):
        list(node.disk.carry_out(batch))
    assert node.disk.view.durable_last == 1


def test_a_wrong_read_is_seen() -> None:
    """Entries that are not those that were written are an error of their own, whatever their CRC says."""
    disk, node = aged_disk(1)
    disk.open()
    disk.view.entries[1] = make_entries(FIRST.mark, 7, (1,))[0]
    with pytest.raises(SilentlyWrong, match="something else"):
        read(disk, 1, node.log[-1].index, 1_000)


@pytest.mark.parametrize("was_hit", [True, False])
def test_a_disk_under_the_highest_floor_loses_entries_to_damage_alone(was_hit: bool) -> None:
    """A folder that was formatted again is under a floor that cannot rise. Its repaired log lacks a synced entry, which
    is right where the disk was hit. (Seed 402551 of 30 November 2026.)"""
    view = Disk().view
    view.hard_state = HardState(2, 1, 1, NEW_DISK)
    view.floor, view.is_healing = NEW_DISK, True
    journal = SimpleNamespace(segments=[])
    found = HardState(2, 1, 2, NEW_DISK)
    log = SimpleNamespace(last=SECOND.mark, base=GENESIS)
    opened = SimpleNamespace(log=log, hard_state=found, floor=NEW_DISK, snapshot=None, notices=(), journal=journal)
    files = SimpleNamespace(nodes={HARD_STATE: SimpleNamespace(is_durable=True)})
    with nullcontext() if was_hit else pytest.raises(SilentlyWrong, match="durable is 6"):
        view.compare(cast(Any, opened), cast(Any, files), was_hit=was_hit)
        assert (view.durable_last, (6, 2) in view.forgotten) == (5, True)


def test_what_came_from_a_leader_of_a_later_term_was_not_counted() -> None:
    """A disk that goes back to a copy has lost no promise with it: its floor may be lifted without those entries."""
    view = Disk().view
    for term, is_counted in ((3, False), (2, True)):
        view.hard_state = HardState(term, 1, 1)
        view.entries_synced()
        assert ((6, 2) in view.counted) is is_counted
