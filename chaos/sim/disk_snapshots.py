"""Snapshots on a simulated disk: saved, sent and received in pieces, installed; and the log that goes for them.

Each is a row of the production's operations (`raft.storage`, `raft.storage_snapshots`); the name of each is given
before it is executed, so that a crash may come between.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from chaos.sim.disk_errors import DiskFull
from raft.configuration import Configuration
from raft.journal import ImpossibleBatch
from raft.storage import Part
from raft.storage_snapshots import Received, SnapshotPlan, StoredSnapshot, drop_old, open_snapshot, snapshot_folder
from raft.types import Mark

if TYPE_CHECKING:
    from chaos.sim.disk import SimDisk


def save(
    disk: SimDisk, mark: Mark, configuration: Configuration, configuration_index: int, chunks: Iterable[bytes]
) -> Iterator[str]:
    """Keeps the state after the entry of `mark`, as the server does. Raises ImpossibleBatch where log or ledger do
    not reach it yet, DiskFull (nothing is left behind) or DiskFailed."""
    disk.check()
    storage = disk.running()
    while disk.is_busy:
        yield "wait"
    yield from disk.steps(storage.flush())
    reached = min(storage.journal.indexed, storage.ledger.last)
    if reached < mark.index:
        raise ImpossibleBatch(f"a snapshot of {mark.index}: log and ledger reach {reached}")
    yield from disk.steps(storage.sync_ledgers())
    plan = SnapshotPlan(disk.log, mark.index)
    try:
        yield from disk.execute(Part.SPARES, plan.begin())
        for chunk in chunks:
            yield from disk.execute(Part.SPARES, plan.add(chunk))
        disk.view.snapshots[mark.index] = mark
        yield from disk.execute(Part.SPARES, plan.finish(mark, configuration, configuration_index))
    except DiskFull:
        disk.files.execute(plan.abandon())
        raise
    yield from disk.execute(Part.SPARES, drop_old(disk.files))


def compact(disk: SimDisk, keep_after: int) -> Iterator[str]:
    """Removes the segments that end at or before `keep_after`, which a durable snapshot must cover."""
    disk.check()
    while disk.is_busy:
        yield "wait"
    yield from disk.steps(disk.running().compact(keep_after))


def write_piece(disk: SimDisk, index: int, offset: int, data: bytes) -> Iterator[str]:
    """A piece that came, written aside: offset 0 begins anew. Raises SnapshotDamaged, DiskFull or DiskFailed."""
    disk.check()
    if offset == 0:
        disk.received = Received(disk.log, index)
        yield from disk.execute(Part.SPARES, disk.received.begin())
    received = disk.received
    assert received is not None, "a snapshot that was not begun"
    assert offset == received.size, "a piece that does not follow"
    yield from disk.execute(Part.SPARES, received.add(data))


def install(disk: SimDisk, index: int) -> Generator[str, None, StoredSnapshot]:
    """Makes what was written aside the newest snapshot, and drops the whole log for it. Raises SnapshotDamaged,
    ImpossibleBatch or DiskFailed. `chunks` reads it afterwards."""
    disk.check()
    while disk.is_busy:
        yield "wait"
    received, view, disk.received = disk.received, disk.view, None
    assert received is not None, "no snapshot was written aside"
    assert received.folder == snapshot_folder(index), (received.folder, index)
    mark = received.check(disk.files).mark
    view.snapshots[mark.index] = view.installing = mark
    disk.is_busy = True
    try:
        for nth, (part, operations) in enumerate(disk.running().install(received)):
            yield from disk.execute(part, operations)
            if nth == 0:
                view.installed(mark)
    finally:
        disk.is_busy = False
    return open_snapshot(disk.files, disk.log, index)
