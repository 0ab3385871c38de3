"""Decides whether the waiting requests go now: one batch and one read round are under way at a time.

Each turn of the replica asks once. `raftlog.cluster.protocol.batching` decides when the next batch is complete.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from raftlog.cluster.replica.state import ReplicaState

PATIENCE_S: Final = 0.01
"""Longest wait for the commit of a batch, in seconds; then the next batch goes too. On a slow network several batches
under way are faster."""


class BatchDecision(Enum):
    """Whether the waiting writes, or the waiting reads, go now."""

    GO = auto()
    AGAIN = auto()  # look again in the next turn of the loop: more requests will come
    LATER = auto()  # no request waits, or the batch under way ends with a turn


class Batches(NamedTuple):
    """The decisions for writes and for reads."""

    writes: BatchDecision
    reads: BatchDecision

    @property
    def are_due(self) -> bool:
        """Whether a turn would begin a batch or a round."""
        return self.writes is BatchDecision.GO or self.reads is BatchDecision.GO

    @property
    def are_waiting(self) -> bool:
        """Whether to look again in the next turn of the loop."""
        return self.writes is BatchDecision.AGAIN or self.reads is BatchDecision.AGAIN


def decide(replica: ReplicaState, mono: float) -> Batches:
    """Decides for the requests that wait now."""
    writes = _look_at_writes(replica, mono) if replica.writes.pending.queued else BatchDecision.LATER
    reads = _look_at_reads(replica, mono) if replica.reads.rounds.waiting else BatchDecision.LATER
    return Batches(writes, reads)


def _look_at_writes(replica: ReplicaState, mono: float) -> BatchDecision:
    """A leader waits until the batch is complete, but not if it is late or large. A follower forwards at once."""
    pending, appended = replica.writes.pending, replica.writes.appended
    if not replica.is_leader or pending.queued_bytes >= replica.settings.limits.batch_eager_bytes:
        return BatchDecision.GO
    if appended and appended[-1][0] > replica.applier.applied:
        return BatchDecision.GO if mono - appended[-1][1] >= PATIENCE_S else BatchDecision.LATER
    return BatchDecision.GO if replica.writes.batching.is_whole(pending.queued, mono) else BatchDecision.AGAIN


def _look_at_reads(replica: ReplicaState, mono: float) -> BatchDecision:
    """A round begins once all expected readers have asked."""
    reads = replica.reads
    if mono < reads.not_before or not reads.rounds.may_start(mono, replica.options.heartbeat_ms / 1_000):
        return BatchDecision.LATER
    return BatchDecision.GO if reads.batching.is_whole(len(reads.rounds.waiting), mono) else BatchDecision.AGAIN
