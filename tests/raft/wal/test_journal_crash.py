"""Cuts the power at every operation of the journal and of recovery: promised entries are there, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.raft.types import Entry, HardState
from raftlog.raft.wal.formats import segment_name
from raftlog.raft.wal.recovery import recover_hard_state
from tests.raft.wal.journal_driver import (
    FIRST,
    LOG,
    Driver,
    PowerCut,
    after_kill,
    after_power_cut,
    make_entries,
    new_files,
)

Outcomes = list[list[Entry]]


class Story:
    """A run of a node's storage, and at each moment which logs and hard states a restart may find."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.log = [FIRST]
        self.logs: Outcomes = [self.log]
        self.states = [HardState(1)]

    def append(self, term: int, *sizes: int, records: int = 1) -> None:
        entries = make_entries(self.log[-1].mark, term, sizes, records)
        self.logs = [self.log + entries[:count] for count in range(len(entries) + 1)]
        self.driver.append(entries)
        self.log = self.log + entries
        self.logs = [self.log]

    def cut(self, count: int) -> None:
        self.logs = [self.log, self.log[:count]]
        self.driver.cut(self.log[count - 1])
        self.log = self.log[:count]
        self.logs = [self.log]

    def keep(self, term: int, vote: int) -> None:
        self.states.append(HardState(term, vote))
        self.driver.keep(HardState(term, vote))
        del self.states[0]


def appends(story: Story) -> None:
    story.append(1, 200, 300)
    story.append(1, 50)
    story.append(1, 900, 900, 900)  # rolls
    story.append(1, 10, records=5)
    story.append(1, 9_000)  # larger than a segment
    story.append(1, 30, 3_000, 3_000, 3_000)  # rolls more than once


def cuts(story: Story) -> None:
    story.append(1, 200, 300, 400)
    story.append(1, 100)
    story.cut(3)
    story.append(2, 500, 20)
    story.append(2, 3_000, 3_000, 3_000)
    story.cut(6)  # in the middle of older segments
    story.append(3, 70)
    story.append(3, 3_000, 3_000)
    story.cut(len(story.log) - 1)  # a whole segment
    story.append(4, 1_000)


def elections(story: Story) -> None:
    story.keep(2, 1)
    story.append(2, 100)
    story.keep(3, 0)
    story.append(2, 100)
    story.cut(2)
    story.keep(3, 2)
    story.append(3, 3_900)


def crash_points(play: Callable[[Story], None], step: int = 1) -> Iterator[tuple[int, Story]]:
    """The story, broken off before its first operation, its second, …; and at last not at all."""
    budget = 0
    while True:
        driver = Driver(new_files())
        driver.budget = driver.executed + budget
        story = Story(driver)
        try:
            play(story)
        except PowerCut:
            yield budget, story
        else:
            yield budget, story
            return
        budget += step


def check(story: Story, files: MemoryFiles, where: str) -> Driver:
    """A restart finds one of the logs and states that it may."""
    slot, _ = recover_hard_state(LOG, files)
    assert HardState(slot.state.term, slot.state.vote) in story.states, where
    driver = Driver(files)
    assert driver.recovery.damage is None, f"{where}: {driver.recovery.damage}"
    assert driver.entries() in story.logs, f"{where}: found up to {driver.journal.last.index}"
    return driver


@pytest.mark.parametrize("play", [appends, cuts, elections])
def test_pitfall_67_power_cut_at_every_operation(play: Callable[[Story], None]) -> None:
    """After a power cut before any operation, a restart has every completed batch and cut, of one under way a prefix.

    Guard: the order of operations in raftlog.raft.wal.journal (the mark, the sync before a roll, the intent before a
    cut). No power cut is ever taken for damage, and what one restart found, every later one finds.
    """
    for point, story in crash_points(play):
        for seed in range(4):
            files = after_power_cut(story.driver.files, Random(seed * 10_007 + point))
            restarted = check(story, files, f"operation {point}, seed {seed}")
            story_after = Story(restarted)
            story_after.logs, story_after.states = [restarted.entries()], story.states
            check(
                story_after,
                after_power_cut(restarted.files, Random(seed)),
                f"operation {point}, seed {seed}, once more",
            )


@pytest.mark.parametrize("play", [appends, cuts])
def test_a_power_cut_during_recovery_loses_nothing(play: Callable[[Story], None]) -> None:
    """A power cut before any operation of a recovery leaves what the next recovery brings to the same end."""
    for point, story in crash_points(play, step=7):
        files = after_power_cut(story.driver.files, Random(point))
        budget = 0
        while True:
            where = f"operation {point}, recovery cut at {budget}"
            second = files.copy()
            try:
                Driver(second, budget)
            except PowerCut:
                check(story, after_power_cut(second, Random(budget)), where)
                budget += 1
            else:
                break


@pytest.mark.parametrize("play", [appends, cuts, elections])
def test_a_kill_at_every_operation_loses_nothing(play: Callable[[Story], None]) -> None:
    """A killed process leaves everything that it wrote, synced or not: a restart finds one of the logs it may."""
    for point, story in crash_points(play):
        check(story, after_kill(story.driver.files), f"operation {point}")


def test_entries_read_after_a_crash_are_synced_before_the_first_vote() -> None:
    """After a kill before the sync, or after a failed sync, recovery writes the log from the last mark again and syncs
    it. So a power cut right after the restart loses no entry that the restart found.

    Guard: the Write and Sync at the end of raftlog.raft.wal.recovery (planted bug 27: recovery trusts the page cache).
    """
    driver = Driver(new_files())
    entries = make_entries(FIRST.mark, 1, (200, 300))
    operations, _ = driver.journal.append(entries)
    driver.files.execute(operations[:1])  # written, not synced, and the process is killed: the page cache stays
    failed = driver.files.copy()
    failed.fail_sync(segment_name(1))
    for files in (driver.files, failed):
        restarted = Driver(files)
        assert restarted.entries() == [FIRST, *entries]
        for seed in range(20):
            assert Driver(after_power_cut(restarted.files, Random(seed))).entries() == [FIRST, *entries]


def test_pitfall_69_roll_syncs_the_old_segment_first() -> None:
    """When a segment has its name, everything before it is durable: the old one was synced, and the new header too.

    Guard: Sync of the old segment in Journal.append, Sync of the spare before its Rename in make_segment.
    """
    driver = Driver(new_files())
    driver.append(make_entries(FIRST.mark, 1, (900, 900)))
    story = Story(driver)
    story.log = driver.entries()
    driver.budget = driver.executed
    for extra in range(20):
        other = driver.files.copy()
        again = Driver(other)
        again.budget = again.executed + extra
        try:
            again.append(make_entries(again.journal.last, 1, (900, 900, 900, 900)))
        except PowerCut:
            pass
        for seed in range(5):
            found = Driver(after_power_cut(again.files, Random(seed)))
            assert found.recovery.damage is None
            assert found.entries()[: len(story.log)] == story.log
