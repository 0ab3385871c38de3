"""Snapshots on the simulated disk: one from a leader is installed whole or not at all, and the log goes for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.disk.snapshots import check_received, compact, install, write_piece
from raftlog.raft.types import Entry, HardState, Mark
from raftlog.raft.wal import opening
from raftlog.raft.wal.opening import OpenedShard
from raftlog.raft.wal.snapshot_files import SnapshotDamaged, read_piece
from tests.raft.wal.journal_driver import FIRST, make_entries
from tests.sim.disk.test_disk import Node, aged_disk, found, new_disk, twin_of


class Installer(Node):
    """A follower far behind takes a snapshot in place of its log, and later lets the start of its new log go."""

    leader: SimDisk
    mark: Mark

    def story(self) -> Iterator[str]:
        yield from self.carry_out(make_entries(FIRST.mark, 1, (200, 3_000, 3_000)))
        yield from self.apply(2)
        total = 0
        for lost in (True, False):  # the first time it is broken off
            offset = 0
            while offset < (total // 2 if lost else total) or not offset:
                total, piece = read_piece(
                    self.leader.files, self.leader.log, self.mark.index, self.mark.term, offset, 100
                )
                yield from write_piece(self.disk, self.mark.index, offset, piece)
                offset += len(piece)
        yield from self.carry_out((), HardState(self.mark.term))  # as a node does that follows the leader of that term
        self.coming = [self.log, []]
        yield from received_and_installed(self.disk, self.mark)
        self.log, self.coming, self.applied = [], [[]], 0
        yield from self.carry_out(make_entries(self.mark, 4, (100, 3_500, 200)), HardState(4, 2))
        # what a leader of an older term sent behind the snapshot goes again, down to it
        after = make_entries(self.mark, 5, (100, 3_500, 200, 3_500, 300))
        yield from self.carry_out(after, HardState(5, 2), self.mark.index)
        yield from self.apply(3)
        yield from self.save_snapshot()
        yield from compact(self.disk, self.log[2].index)
        yield from self.carry_out(self.more(5, 50))


def installer(seed: int = 1) -> Installer:
    """With a leader's disk to take the snapshot from."""
    leader, ahead = aged_disk(7)
    node = Installer(new_disk(seed))
    node.leader, index = leader, leader.snapshots()[0]
    node.mark = next(entry.mark for entry in ahead.log if entry.index == index)
    return node


def received_and_installed(disk: SimDisk, mark: Mark) -> Iterator[str]:
    """The snapshot that was written aside is checked, and takes the place of the log."""
    received, stored = check_received(disk, mark.index)
    assert stored.mark == mark
    yield from install(disk, received, stored.mark)


def served(disk: SimDisk, opened: OpenedShard) -> list[Entry]:
    """Every entry behind the snapshot that was opened, or behind the start of the log."""
    base = disk.view.base.index if opened.snapshot is not None else 0
    return found(disk, opened, max(base, opened.log.first - 1))


@pytest.mark.parametrize("power", [False, True])
def test_a_snapshot_is_installed_whole_or_not_at_all(power: bool) -> None:
    """A crash before any operation of receiving, installing and compacting: a start has the old log as it was, or the
    snapshot and nothing of the old log; what came behind it is kept, what a snapshot covers may be gone."""
    node = installer()
    steps = compacted = 0
    for name in node.story():
        for seed in range(4 if power else 1):
            twin = twin_of(node.disk, steps + seed)
            twin.crash(power)
            opened = twin.open()
            where = f"before operation {steps} ({name}), seed {seed}"
            found_log = served(twin, opened)
            compacted += opened.log.first > node.mark.index + 1
            assert any(found_log == log[len(log) - len(found_log) :] for log in node.coming), where
            if node.log and not opened.log.first > node.mark.index + 1:
                assert found_log in node.coming, where
            assert opened.log.first == 1 or opened.snapshot is not None, where
            assert opened.log.base is not None
            assert opened.log.base.index == opened.log.first - 1
        steps += 1
    assert steps > 90
    assert compacted
    assert node.disk.first_index == node.log[3].index == node.log[2].index + 1


def test_a_snapshot_that_came_damaged_is_not_installed() -> None:
    """Any damaged byte of what a leader sent is noticed before anything of the log goes."""
    node = installer()
    total, stream = read_piece(node.leader.files, node.leader.log, node.mark.index, node.mark.term, 0, 1 << 20)
    assert total == len(stream)
    assert read_piece(node.leader.files, node.leader.log, node.mark.index, node.mark.term + 1, 0, 1) == (0, b"")
    assert read_piece(node.leader.files, node.leader.log, 999, 1, 0, 1) == (0, b"")
    for position in range(0, total, 5):
        wrong = stream[:position] + bytes([stream[position] ^ 4]) + stream[position + 1 :]
        with pytest.raises(SnapshotDamaged):
            list(receive(node, wrong))
    assert node.disk.open().log.last == FIRST.mark


def receive(node: Installer, stream: bytes) -> Iterator[str]:
    """All of it in one piece, and the install."""
    yield from write_piece(node.disk, node.mark.index, 0, stream)
    yield from received_and_installed(node.disk, node.mark)


def test_an_install_that_is_not_finished_at_the_start_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the note in the snapshot's folder that the log is to be dropped is not looked at."""
    monkeypatch.setattr(opening, "is_installing", lambda *_: False)
    with pytest.raises(AssertionError):
        test_a_snapshot_is_installed_whole_or_not_at_all(power=False)
