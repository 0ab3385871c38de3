"""Registers the numbers of one replica: numbers that are read when a client requests `/metrics`."""

from __future__ import annotations

from functools import partial

from raftlog.cluster.replica.parts import disk_exchange
from raftlog.cluster.replica.readiness import is_cut_off
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import backfill as node_backfill, damage as node_damage
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.metrics import Metrics, ShardMetrics


def register(replica: ReplicaState, metrics: Metrics) -> None:
    """Registers all of them. The host calls it once for each replica."""
    shard = ShardMetrics(metrics, replica.identity.shard)
    _consensus(replica, shard)
    _machine(replica, shard)
    _requests(replica, shard)
    _files(replica, shard)
    _upkeep(replica, shard)


def _consensus(replica: ReplicaState, metrics: ShardMetrics) -> None:
    number, core, state = metrics.number, replica.core, replica.core.state
    number("raftlog_term", lambda: state.term)
    number("raftlog_is_leader", lambda: replica.is_leader)
    number("raftlog_is_member", lambda: replica.members.is_member)
    number("raftlog_cut_off", lambda: is_cut_off(replica))
    number("raftlog_healing", lambda: state.recall.floor > 0)
    skew = partial(disk_exchange.skew_ms, replica)
    number("raftlog_clock_skew_seconds", lambda: (skew() or 0) / 1_000)
    number("raftlog_voters", lambda: len(state.configuration.voters))
    number("raftlog_learners", lambda: len(state.configuration.learners))
    number("raftlog_cluster_version", lambda: state.configuration.version)
    number("raftlog_cluster_version_known", lambda: state.knows)
    number("raftlog_joint", lambda: bool(state.configuration.outgoing))
    number("raftlog_members_changing", lambda: core.status().is_changing)
    metrics.numbers("raftlog_follower_lag", lambda: _lags(replica))
    number("raftlog_last_index", lambda: state.log.last.index)
    number("raftlog_persisted_index", lambda: state.log.persisted)
    number("raftlog_committed_index", lambda: state.log.committed)


def _lags(replica: ReplicaState) -> dict[str, float]:
    status = replica.core.status()
    return {str(each.node): float(status.last.index - each.match) for each in status.followers}


def _machine(replica: ReplicaState, metrics: ShardMetrics) -> None:
    number, applier, watch = metrics.number, replica.applier, replica.watch
    number("raftlog_applied_index", lambda: applier.applied)
    number("raftlog_ledger_index", lambda: applier.ledger.written)
    number("raftlog_oldest_index", lambda: replica.machine.oldest)
    number("raftlog_revision", lambda: replica.machine.revision)
    number("raftlog_sessions", lambda: replica.machine.session_count)
    number("raftlog_consumers", lambda: len(replica.machine.consumers))
    number("raftlog_digest_points_total", lambda: watch.points.count)
    number("raftlog_digest_point_index", lambda: watch.points.newest)
    number("raftlog_digest_agreed_index", lambda: watch.points.agreed)
    number(
        "raftlog_digest_agreed_age_seconds",
        lambda: -1.0 if watch.agreed_at is None else clock.monotonic() - watch.agreed_at,
    )
    number("raftlog_digests_differ", lambda: bool(watch.points.differ))


def _requests(replica: ReplicaState, metrics: ShardMetrics) -> None:
    number, applier, pending = metrics.number, replica.applier, replica.writes.pending
    number("raftlog_queued_requests", lambda: len(pending.queue))
    number("raftlog_inflight_requests", lambda: pending.inflight)
    number("raftlog_waiters", lambda: len(applier.waiters))
    number("raftlog_recent_bytes", lambda: applier.recent.bytes)
    number("raftlog_reads_passed_on_total", lambda: replica.peer_log.passed_on)


def _files(replica: ReplicaState, metrics: ShardMetrics) -> None:
    number, disk, snapshots = metrics.number, replica.disk, replica.snapshots
    number("raftlog_disk_stalled_seconds", lambda: disk.stalled_ms() / 1_000)
    number("raftlog_disk_syncs_total", lambda: disk.statistics().syncs)
    number("raftlog_disk_sync_seconds_total", lambda: disk.statistics().sync_seconds)
    number("raftlog_log_bytes", lambda: disk.segment_bytes)
    number("raftlog_segments_deleted_total", lambda: replica.retention.deleted)
    number("raftlog_disk_free_bytes", lambda: disk.reserve.free_bytes)
    number("raftlog_disk_reserve_bytes", lambda: disk.reserve.bytes)
    metrics.numbers(
        "raftlog_disk_full",
        lambda: {str(each): float(report.is_full) for each, report in disk_exchange.reports(replica).items()},
    )
    number("raftlog_disk_lacks_bytes", lambda: disk_exchange.own(replica).lacks_bytes)
    number("raftlog_followers_held", lambda: len(replica.disks.holds))
    number("raftlog_snapshot_index", lambda: snapshots.index)
    number("raftlog_snapshot_bytes", lambda: disk.snapshot_bytes)
    number("raftlog_snapshot_received_bytes_total", lambda: snapshots.received_bytes)


def _upkeep(replica: ReplicaState, metrics: ShardMetrics) -> None:
    number, damage, backfill = metrics.number, replica.damage, replica.backfill
    number("raftlog_damaged_places", lambda: len(damage.findings))
    number("raftlog_scrub_rounds_total", lambda: node_damage.status(replica).rounds)
    number("raftlog_scrub_failures_total", lambda: damage.scrub_failures)
    number("raftlog_scrub_bytes_total", lambda: node_damage.status(replica).bytes)
    number("raftlog_disk_oldest_index", lambda: replica.disk.oldest)
    number("raftlog_backfill_missing", lambda: node_backfill.missing(replica))
    number("raftlog_backfill_segments_total", lambda: backfill.segments)
    number("raftlog_backfill_bytes_total", lambda: backfill.bytes)
    number("raftlog_backfill_wrong_total", lambda: backfill.wrong)
