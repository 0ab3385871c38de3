"""Registers the gauges of one replica: numbers that are read when a client requests `/metrics`."""

from __future__ import annotations

from functools import partial

from raftlog.cluster.replica.parts import disk_exchange
from raftlog.cluster.replica.readiness import is_cut_off
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import backfill as node_backfill, damage as node_damage
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.metrics import Metrics, ShardMetrics


def register(replica: ReplicaState, metrics: Metrics) -> None:
    """Registers all gauges. The host calls it once for each replica."""
    shard = ShardMetrics(metrics, replica.identity.shard)
    _consensus(replica, shard)
    _machine(replica, shard)
    _requests(replica, shard)
    _files(replica, shard)
    _upkeep(replica, shard)


def _consensus(replica: ReplicaState, metrics: ShardMetrics) -> None:
    gauge, core, state = metrics.gauge, replica.core, replica.core.state
    gauge("raftlog_term", "Current term", lambda: state.term)
    gauge("raftlog_is_leader", "1 on the leader", lambda: replica.is_leader)
    gauge("raftlog_is_member", "1 while the configuration in force names this node", lambda: replica.members.is_member)
    gauge("raftlog_cut_off", "1 while the leader or a majority refuses this node", lambda: is_cut_off(replica))
    gauge("raftlog_healing", "1 while damage keeps this node from voting", lambda: state.floor > 0)
    skew = partial(disk_exchange.skew_ms, replica)
    gauge("raftlog_clock_skew_seconds", "This node's clock less that of a majority", lambda: (skew() or 0) / 1_000)
    gauge("raftlog_voters", "Voters of the configuration in force", lambda: len(state.configuration.voters))
    gauge("raftlog_learners", "Learners in it", lambda: len(state.configuration.learners))
    gauge("raftlog_cluster_version", "In force", lambda: state.configuration.version)
    gauge("raftlog_cluster_version_known", "Newest that this node knows", lambda: state.knows)
    gauge("raftlog_joint", "1 while it is joint", lambda: bool(state.configuration.outgoing))
    gauge("raftlog_members_changing", "1 while a change is under way", lambda: core.status().is_changing)
    metrics.gauges("raftlog_follower_lag", "Records it lacks, as its leader knows", "peer", lambda: _lags(replica))
    gauge("raftlog_last_index", "Last index in this node's log", lambda: state.log.last.index)
    gauge("raftlog_persisted_index", "Durable here", lambda: state.log.persisted)
    gauge("raftlog_committed_index", "Committed as known here", lambda: state.log.committed)


def _lags(replica: ReplicaState) -> dict[str, float]:
    status = replica.core.status()
    return {str(each.node): float(status.last.index - each.match) for each in status.followers}


def _machine(replica: ReplicaState, metrics: ShardMetrics) -> None:
    gauge, applier, watch = metrics.gauge, replica.applier, replica.watch
    gauge("raftlog_applied_index", "Applied here", lambda: applier.applied)
    gauge("raftlog_ledger_index", "Effects written here", lambda: applier.written)
    gauge("raftlog_oldest_index", "Oldest index that can be read", lambda: replica.machine.oldest)
    gauge("raftlog_revision", "Revision of the key-value store", lambda: replica.machine.revision)
    gauge("raftlog_sessions", "Live sessions", lambda: replica.machine.session_count)
    gauge("raftlog_consumers", "Consumer groups", lambda: len(replica.machine.consumers))
    gauge("raftlog_digest_points", "Digest points applied since the start", lambda: watch.points.count)
    gauge("raftlog_digest_point_index", "Newest of them", lambda: watch.points.newest)
    gauge("raftlog_digest_agreed_index", "Newest at which this state is a majority's", lambda: watch.points.agreed)
    gauge(
        "raftlog_digest_agreed_age_seconds",
        "Since that was found; -1: never",
        lambda: -1.0 if watch.agreed_at is None else clock.monotonic() - watch.agreed_at,
    )
    gauge("raftlog_digests_differ", "1 while no majority has one state: no writes", lambda: bool(watch.points.differ))


def _requests(replica: ReplicaState, metrics: ShardMetrics) -> None:
    gauge, applier, pending = metrics.gauge, replica.applier, replica.writes.pending
    gauge("raftlog_queued_requests", "Writes that wait to be proposed", lambda: len(pending.queue))
    gauge("raftlog_inflight_requests", "Writes whose outcome is not known", lambda: pending.inflight)
    gauge("raftlog_waiters", "Reads and long polls that wait", lambda: len(applier.waiters))
    gauge("raftlog_recent_bytes", "Applied entries kept in memory", lambda: applier.recent.bytes)
    gauge(
        "raftlog_reads_passed_on",
        "Slices of the log that peers gave for a reader",
        lambda: replica.peer_log.passed_on,
    )


def _files(replica: ReplicaState, metrics: ShardMetrics) -> None:
    gauge, disk, snapshots = metrics.gauge, replica.disk, replica.snapshots
    gauge("raftlog_disk_stalled_ms", "How long the current disk operation takes", disk.stalled_ms)
    gauge("raftlog_disk_syncs", "fdatasync calls since the start", lambda: disk.statistics().syncs)
    gauge("raftlog_disk_sync_seconds", "Time spent in them", lambda: disk.statistics().sync_seconds)
    gauge("raftlog_log_bytes", "Segment files of the log on this disk", lambda: disk.segment_bytes)
    gauge("raftlog_segments_deleted", "Segments deleted since the start", lambda: replica.retention.deleted)
    gauge(
        "raftlog_disk_reserve_bytes",
        "Kept on this disk for when it is full; less than two segments: it is full, and uses this",
        lambda: disk.reserve.bytes,
    )
    metrics.gauges(
        "raftlog_disk_full",
        "1: that node's disk is full, as this node knows",
        "node",
        lambda: {str(each): float(report.is_full) for each, report in disk_exchange.reports(replica).items()},
    )
    gauge(
        "raftlog_disk_lacks_bytes",
        "Room that this disk lacks to take writes",
        lambda: disk_exchange.own(replica).lacks_bytes,
    )
    gauge("raftlog_followers_held", "Full followers that are sent no entries", lambda: len(replica.disks.holds))
    gauge("raftlog_snapshot_index", "Newest snapshot on this disk ends here; 0: there is none", lambda: snapshots.index)
    gauge("raftlog_snapshot_bytes", "Size of its state", lambda: disk.snapshot_bytes)
    gauge("raftlog_snapshot_received_bytes", "Pieces of snapshots from leaders", lambda: snapshots.received_bytes)


def _upkeep(replica: ReplicaState, metrics: ShardMetrics) -> None:
    gauge, damage, backfill = metrics.gauge, replica.damage, replica.backfill
    gauge("raftlog_damaged_places", "Places in this node's files known to be damaged", lambda: len(damage.findings))
    gauge(
        "raftlog_scrub_rounds",
        "Rounds through all files that scrubbing finished",
        lambda: node_damage.status(replica).rounds,
    )
    gauge("raftlog_scrub_failures", "Rounds that ended early: the log says why", lambda: damage.scrub_failures)
    gauge("raftlog_scrub_bytes", "Bytes that scrubbing has read", lambda: node_damage.status(replica).bytes)
    gauge("raftlog_disk_oldest_index", "Oldest index on this node's disk", lambda: replica.disk.oldest)
    gauge(
        "raftlog_backfill_missing",
        "Records that may be read, and only peers have",
        lambda: node_backfill.missing(replica),
    )
    gauge("raftlog_backfill_segments", "Older segments fetched from peers", lambda: backfill.segments)
    gauge("raftlog_backfill_bytes", "Bytes written for them", lambda: backfill.bytes)
    gauge("raftlog_backfill_wrong", "Pieces of peers that failed their check", lambda: backfill.wrong)
