"""No file of the log goes whose entries may be read, or that the core may still ask for (docs/promises.md).

It is checked at each deletion, so that a world need not meet the follower, the start or the reader that wants them.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId
from raftlog.raft.wal.storage import StepKind

PROPERTY = "no file goes that is needed"
SECTION = "promises.md: compaction is not retention"


def deleted(
    node: NodeId,
    part: int,
    first: int,
    last: int,
    *,
    oldest: int,
    core_first: int,
    applied: int,
    snapshots: Sequence[int],
) -> None:
    """The segment with the records `first` to `last` is deleted in that part of the disk's work.

    `oldest` is the first readable index, `core_first` the first index that the core may ask for, `snapshots` are those
    on the disk, newest first. Raises InvariantBroken.
    """
    if part == StepKind.INSTALL and first <= applied:
        evidence = f"an install deletes the records from {first} on, which were applied up to {applied}"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)
    if part != StepKind.COMPACT:
        return  # a cut: what it may take is a matter of committed entries
    covered = snapshots[1] if len(snapshots) > 1 else 0
    if last >= min(oldest, core_first) or last > covered:
        evidence = (
            f"records up to {last} are deleted: the oldest index is {oldest}, the core's log begins at {core_first}, "
            f"snapshots are of {list(snapshots)}"
        )
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)
