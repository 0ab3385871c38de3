"""Frees space on a full disk: saves snapshots so that trimmed files can be deleted, and admits only freeing requests.

The housekeeping calls `look_if_due`, and the admission of requests calls `frees_disk_space`. Files of the log are
deleted when two snapshots cover them (`raftlog.raft.wal.retention.may_go`). On a full disk few records come that would
make a snapshot due. So snapshots are saved for this purpose alone, and the leader extends the log with clock entries.
"""

from __future__ import annotations

from typing import Final

from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import clock_entries, snapshots
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.block import decode_blocks, decode_records
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.consumers import ConsumerAction, decode_consumer

LOOK_S: Final = 0.25
SAVE_PAUSE_S: Final = 2.0  # seconds between two snapshots that are saved to free space
SAVE_PAUSE_MAX_S: Final = 60.0
"""The pause doubles up to this while snapshots find no room: each attempt fills the disk, and wears it."""
_ALONE: Final = (int(Operation.TRIM), int(Operation.COMPACT))


def frees_disk_space(block: bytes) -> bool:
    """Whether a request only frees space: it trims the log, compacts the history of keys, or deletes a consumer group
    that holds the log back."""
    try:
        ((record,),) = [list(decode_records(each)) for each in decode_blocks(block)]
        if record.operation == Operation.CONSUMER and record.value is not None:
            return decode_consumer(record.value).action == ConsumerAction.DELETE
    except ValueError:  # corrupt, unknown, or more than one record
        return False
    return record.operation in _ALONE


def look_if_due(replica: ReplicaState, mono: float) -> None:
    """Looks for free disk space, and begins the work that frees some."""
    disk_space = replica.disk_space
    if mono < disk_space.look_at:
        return
    disk_space.look_at = mono + LOOK_S
    let_go = (replica.machine.oldest, replica.machine.compacted_revision)
    if let_go != disk_space.let_go:
        disk_space.let_go, disk_space.trim_index = let_go, replica.applier.applied
        disk_space.save_at = disk_space.save_pause_s = 0.0
    # what a used reserve has given is for a waiting batch and a snapshot
    needs_space = replica.disk.reserve.is_used and snapshots.is_under_way(replica)
    may_fill = not replica.syncer.is_waiting and not needs_space
    replica.disk.keep_reserve(replica.applier.grown_bytes, may_fill=may_fill)
    replica.syncer.look_for_disk_space()
    is_making_room = not replica.syncer.has_space and replica.disk.has_trimmed(replica.machine.oldest)
    applied = replica.applier.applied
    needs_entry = is_making_room and applied <= replica.snapshots.index  # a second snapshot needs a later index
    disk_space.takes_to = applied + 1 if needs_entry and not replica.is_leader else 0
    if is_making_room and mono >= disk_space.save_at:
        if applied > replica.snapshots.index:
            if snapshots.save(replica):
                has_failed = disk_space.saved_over == replica.snapshots.index
                pause_s = 2 * disk_space.save_pause_s if has_failed else 0.0
                disk_space.save_pause_s = min(max(pause_s, SAVE_PAUSE_S), SAVE_PAUSE_MAX_S)
                disk_space.saved_over = replica.snapshots.index
                disk_space.save_at = mono + disk_space.save_pause_s
        elif replica.is_leader:
            clock_entries.propose(replica, clock.read())
