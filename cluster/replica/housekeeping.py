"""Does the periodic work of one replica: deadlines, digest points, a hanging disk, background jobs that are due.

The replica's tick calls `housekeeping`. This work needs no exact time, so it does not run in every turn.
"""

from __future__ import annotations

from raftlog.cluster.replica.parts import digest_exchange, disk_exchange, reads, writes
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import backfill, clock_entries, disk_space, retention, snapshots
from raftlog.raft.types import NOBODY, Now


def housekeeping(replica: ReplicaState, now: Now, mono: float) -> None:
    """Runs each periodic job once. Called every `raftlog.cluster.replica.replica.HOUSEKEEPING_S` seconds."""
    leader = replica.core.state.leader
    replica.writes.pending.expire(mono, leader=leader)
    writes.send_again(replica)
    if not replica.reads.rounds.is_empty:
        reads.ask_again(replica, mono)
        reason = "the leader did not confirm the read" if leader else "no leader was found"
        message = f"{replica.name}: {reason} within its deadline"
        replica.reads.rounds.expire(mono, message, has_leader=leader != NOBODY)
    replica.applier.waiters.expire(mono, replica.name)
    digest_exchange.housekeeping(replica, now, mono)
    disk_exchange.watch_stall(replica, now)
    if replica.is_leader:
        clock_entries.propose_if_due(replica, now)
    snapshots.save_if_due(replica)
    disk_space.look_if_due(replica, mono)
    disk_exchange.look(replica, now, mono)
    retention.look_if_due(replica, mono)
    backfill.look_if_due(replica, mono)
