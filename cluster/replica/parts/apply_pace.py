"""Decides when a replica applies committed entries: at once if a client waits for them, else after the current sync.

The replica calls `apply_due` in its turns. On a follower, applying a batch takes as long as making the next batch
durable, and both need the interpreter. If the follower applied first, it would acknowledge every batch that much later.
"""

from __future__ import annotations

from typing import Final

from raftlog.cluster.replica.parts import fetches
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.runtime import clock

DELAY_S: Final = 0.005
"""Longest delay of applying, in seconds. If a sync takes longer, the replica applies without waiting for its end."""


def apply_due(replica: ReplicaState) -> bool:
    """Applies for a slice of time, unless the end of the current sync will bring another turn for it.

    Returns whether the core has something new to do: it got entries that were read from the disk meanwhile.
    """
    return _is_due(replica) and _run(replica)


def _is_due(replica: ReplicaState) -> bool:
    return (
        not replica.syncer.is_busy
        or replica.is_leader
        or replica.writes.pending.inflight > 0
        or len(replica.applier.waiters) > 0
        or clock.monotonic() - replica.syncer.started >= DELAY_S
    )


def _run(replica: ReplicaState) -> bool:
    inflight = replica.writes.pending.inflight
    if not replica.applier.run():
        return False
    replica.core.applied(replica.applier.applied)
    replica.writes.batching.answered(inflight - replica.writes.pending.inflight, replica.writes.pending.queued)
    replica.driver.look_soon()  # after the answers: the answered clients usually send again
    log = replica.core.state.log
    return fetches.release(replica) or log.given < min(log.committed, log.persisted)
