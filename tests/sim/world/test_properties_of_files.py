"""The properties of a disk's files raise at the breach that they are there for, and at nothing less."""

from collections.abc import Callable

import pytest

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.chaos.sim.invariants.durability import files_stay, made_snapshots
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import Mark
from raftlog.raft.wal.formats import LogIdentity
from raftlog.raft.wal.snapshot_files import SnapshotPlan
from raftlog.raft.wal.storage import StepKind
from tests.sim.world.property_lab import FIRST, SECOND, THREE, configuration, known, of_configuration, sealed, sees

LOG = LogIdentity(b"l" * 16)


def written(files: MemoryFiles, mark: Mark, index: int, value: Configuration = THREE) -> MemoryFiles:
    """The files with a snapshot of that mark under its name."""
    plan = SnapshotPlan(LOG, mark.index)
    for operation in (*plan.begin(), *plan.finish(mark, value, index)):
        files.carry_out(operation)
    return files


def snapshot_of_another_log() -> tuple[Callable[[], object], Callable[[], object]]:
    seen, forged = known(committed=2), sealed(FIRST.mark, 1, 4, data=b"forged").mark
    good, bad = written(MemoryFiles(), SECOND.mark, 1), written(MemoryFiles(), forged, 1)
    return (
        lambda: made_snapshots.named(seen, 1, LOG, good, 5),
        lambda: made_snapshots.named(seen, 1, LOG, bad, 5),
    )


def snapshot_with_an_older_configuration() -> tuple[Callable[[], object], Callable[[], object]]:
    changed = of_configuration(SECOND.mark, 1, configuration(1, 2))
    seen = known(committed=2)
    seen.add_configuration(changed)
    seen.chain[changed.index, 1] = changed.mark.header_crc
    seen.committed.append((changed.index, 1))
    good = written(MemoryFiles(), changed.mark, changed.index, configuration(1, 2))
    bad = written(MemoryFiles(), changed.mark, 1)
    return (
        lambda: made_snapshots.named(seen, 1, LOG, good, changed.index),
        lambda: made_snapshots.named(seen, 1, LOG, bad, changed.index),
    )


def newest_snapshot_removed() -> tuple[Callable[[], object], Callable[[], object]]:
    files = written(MemoryFiles(), SECOND.mark, 1)
    return lambda: made_snapshots.removed(1, files, 1), lambda: made_snapshots.removed(1, files, 6)


def gone(
    part: int, last: int, *, core_first: int = 11, oldest: int = 11, snapshots: tuple[int, ...] = (30, 20)
) -> object:
    """The segment from 1 to `last` goes, at a node that has applied up to 15."""
    files_stay.deleted(1, part, 1, last, oldest=oldest, core_first=core_first, applied=15, snapshots=snapshots)
    return None


def needed_by_the_core() -> tuple[Callable[[], object], Callable[[], object]]:
    return lambda: gone(StepKind.COMPACT, 10), lambda: gone(StepKind.COMPACT, 10, core_first=10)


def covered_once() -> tuple[Callable[[], object], Callable[[], object]]:
    return lambda: gone(StepKind.COMPACT, 10), lambda: gone(StepKind.COMPACT, 10, snapshots=(30,))


def applied_and_gone() -> tuple[Callable[[], object], Callable[[], object]]:
    return lambda: gone(StepKind.CUT, 20), lambda: gone(StepKind.INSTALL, 20)


CASES = {
    case.__name__: case
    for case in (
        snapshot_of_another_log,
        snapshot_with_an_older_configuration,
        newest_snapshot_removed,
        needed_by_the_core,
        covered_once,
        applied_and_gone,
    )
}


@pytest.mark.parametrize("name", CASES)
def test_a_property_sees_its_breach_and_nothing_less(name: str) -> None:
    """What the rule allows passes; the smallest breach of it raises InvariantBroken with its section."""
    sees(*CASES[name]())
