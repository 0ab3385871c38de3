"""Proposes the trims of the retention policy as the leader, and deletes the files of trimmed entries on every node.

The housekeeping calls `look_if_due`. `raftlog.raft.wal.retention` decides both (docs/promises.md: one oldest index).
Only a record in the log moves the oldest index, so it is equal on all nodes. A node deletes a file once its snapshots
cover it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from raftlog.cluster.api.errors import ApiError
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import snapshots
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.wal.retention import SegmentFiles, trim_before
from raftlog.statemachine.access.admission import NODE_ADMISSION
from raftlog.statemachine.commands import Operation

LOOK_S: Final = 0.5  # seconds between two looks; in this time a leader proposes at most one trim
DEADLINE_S: Final = 10.0  # seconds until a proposed trim must be applied


def look_if_due(replica: ReplicaState, mono: float) -> None:
    """Begins a look for deletable files and due trims; one look at a time."""
    retention = replica.retention
    if retention.task is None and mono >= retention.look_at:
        retention.look_at = mono + LOOK_S
        retention.task = replica.driver.spawn(_look(replica))


async def _look(replica: ReplicaState) -> None:
    """Looks once, then allows the next look."""
    retention = replica.retention
    try:
        await _delete_and_trim(replica)
    finally:
        retention.task = None
        retention.looks += 1


async def _delete_and_trim(replica: ReplicaState) -> None:
    retention = replica.retention
    if not replica.syncer.has_space:
        await snapshots.make_room(replica)
    deleted = await replica.disk.compact(replica.machine.oldest, replica.core.state.log.first)
    if deleted:
        retention.deleted += deleted
        replica.logger.info("log_deleted", segments=deleted, first=replica.disk.oldest)
    if not retention.policy.is_on or replica.life.is_stopping:
        return
    pieces = await replica.disk.pieces()
    if _needs_snapshot(replica, pieces):
        snapshots.save(replica)
    if replica.is_leader:
        machine, coming = replica.machine, replica.settings.disk.segment_bytes
        lowest = machine.consumers.lowest()
        # A wrong clock may have made the newest times: a majority's must be as far.
        time_ms = min(machine.time_ms, replica.disks.majority_ms)
        before = trim_before(retention.policy, pieces, machine.oldest, time_ms, coming, lowest)
        if before is not None:
            await _trim(replica, before)


def _needs_snapshot(replica: ReplicaState, pieces: Sequence[SegmentFiles]) -> bool:
    """Whether the files exceed the policy, and another snapshot would allow the oldest of them to be deleted.

    Two snapshots must cover a segment before it is deleted (`may_go`). If clients write much of the log between two
    looks, the first snapshot is late, and the next one is due only after more writes. Without this rule the files would
    stay over the policy if the clients stopped now.
    """
    saved, size = replica.snapshots, sum([piece.size for piece in pieces]) + replica.settings.disk.segment_bytes
    end = pieces[0].last if len(pieces) > 1 else sys.maxsize
    is_trimmed = end < min(replica.machine.oldest, replica.core.state.log.first)
    is_over = 0 < replica.retention.policy.bytes < size
    return is_over and is_trimmed and saved.older < end and saved.index < replica.applier.applied


async def _trim(replica: ReplicaState, before: int) -> None:
    admission = NODE_ADMISSION if replica.machine.access.is_on else b""
    block = encode_block([BlockRecord(int(Operation.TRIM), argument=before)], admission=admission)
    try:
        done = await replica.driver.submit(block, 1, deadline=clock.monotonic() + DEADLINE_S)
    except ApiError as error:  # the next look asks again
        replica.logger.info("log_not_trimmed", before=before, reason=error.message)
    else:
        replica.logger.info("log_trimmed", oldest=replica.machine.oldest, index=done.last)
