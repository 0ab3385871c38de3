"""Snapshots on a simulated disk: saved, sent and received in pieces, installed; and the log that goes for them.

Each is a row of the production's operations (`raftlog.raft.wal.storage`, `raftlog.raft.wal.snapshot_files`); the name
of each is given before it is executed, so that a crash may come between.
"""

from __future__ import annotations

from collections.abc import Generator

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.cluster.files.errors import NoSpace
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import Mark
from raftlog.raft.wal.snapshot_files import (
    Pieces,
    SnapshotDamaged,
    SnapshotPlan,
    StoredSnapshot,
    drop_old,
    snapshot_folder,
)
from raftlog.raft.wal.storage import StepKind


def compact(disk: SimDisk, keep_after: int) -> Generator[str, None, None]:
    """Removes the segments that end at or before `keep_after`, which a durable snapshot must cover."""
    disk.check()
    while disk.process.is_busy:
        yield "wait"
    yield from disk.steps(disk.running().compact(keep_after))


def write_piece(disk: SimDisk, index: int, offset: int, data: bytes) -> Generator[str, None, None]:
    """Writes a piece that came aside: offset 0 begins again. Raises SnapshotDamaged, NoSpace or DiskFenced."""
    disk.check()
    if offset == 0:
        disk.process.received = Pieces(disk.log, index)
        yield from disk.execute(StepKind.SPARES, disk.process.received.begin())
    received = disk.process.received
    if received is None or received.folder != snapshot_folder(index) or received.size != offset:
        raise SnapshotDamaged(snapshot_folder(index), offset, "the bytes do not follow")
    try:
        yield from disk.execute(StepKind.SPARES, received.add(data))
    except NoSpace:
        _drop(disk, received)
        raise


def _drop(disk: SimDisk, received: Pieces) -> None:
    """Removes a snapshot that was written aside: the leader sends it again."""
    disk.files.execute(received.begin()[:1])
    disk.process.received = None


def install(disk: SimDisk, received: Pieces, mark: Mark) -> Generator[str, None, None]:
    """Makes a received snapshot that was checked the newest one, and begins the log again after it. Raises
    ImpossibleBatch, NoSpace or DiskFenced."""
    disk.check()
    while disk.process.is_busy:
        yield "wait"
    view = disk.view
    view.snapshots[mark.index] = view.installing = mark
    disk.process.is_busy = True
    try:
        for part, operations in disk.running().install(received):
            yield from disk.execute(part, operations)
            if part == StepKind.INSTALL and view.installing is not None:  # it has its name
                view.installed(mark)
        disk.process.received = None
    except NoSpace:
        _drop(disk, received)
        raise
    finally:
        disk.process.is_busy = False


def name(
    disk: SimDisk, plan: SnapshotPlan, mark: Mark, configuration: Configuration, configuration_index: int
) -> Generator[str, None, None]:
    """Gives a snapshot that was written aside its name, and removes older ones."""
    yield from disk.execute(StepKind.SPARES, plan.finish(mark, configuration, configuration_index))
    aside = disk.process.received.begin()[0] if disk.process.received is not None else None
    yield from disk.execute(StepKind.SPARES, [each for each in drop_old(disk.files) if each != aside])


def check_received(disk: SimDisk, index: int) -> tuple[Pieces, StoredSnapshot]:
    received = disk.process.received
    if received is None or received.folder != snapshot_folder(index):
        raise SnapshotDamaged(snapshot_folder(index), 0, "it was not begun")
    return received, received.check(disk.files)
