"""Proposes clock entries, which advance the cluster clock while no client writes."""

from __future__ import annotations

from raftlog.cluster.replica.state import ReplicaState
from raftlog.raft.refusals import ProposalRefused
from raftlog.raft.types import EntryKind, Now


def propose_if_due(replica: ReplicaState, now: Now) -> None:
    """On the leader: proposes a clock entry if a key or a session expires and the log does not grow."""
    due_ms = replica.machine.next_expiry_ms
    if due_ms is not None and replica.applier.clock_ms >= due_ms:
        propose(replica, now)


def propose(replica: ReplicaState, now: Now) -> None:
    """On the leader: proposes a clock entry, unless the newest clock entry is not applied yet."""
    if replica.clock.proposed <= replica.applier.applied:
        try:
            replica.clock.proposed = replica.core.propose(EntryKind.CLOCK, 1, b"", now).last
        except ProposalRefused:
            pass  # busy, or leadership is being handed over: other entries move the log
