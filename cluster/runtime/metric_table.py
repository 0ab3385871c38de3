"""Lists every metric of a node: its type, its meaning, and when an operator should look closer.

`raftlog.cluster.runtime.metrics` serves them. `make fix` writes the table of docs/operations/watch.md from this one.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from raftlog.cluster.api.errors import Code, Outcome
from raftlog.raft.events import Event

HTTP_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SYNC_BUCKETS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


class MetricRow(NamedTuple):
    """One metric. The buckets of a histogram are in its unit; infinity is added."""

    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    worry: str = ""
    label: str = ""
    values: tuple[str, ...] = ()  # of the label, from the start on
    buckets: tuple[float, ...] = ()


def _gauge(meaning: str, worry: str = "", label: str = "") -> MetricRow:
    return MetricRow("gauge", meaning, worry, label)


def _counter(meaning: str, worry: str = "", label: str = "", values: tuple[str, ...] = ()) -> MetricRow:
    return MetricRow("counter", meaning, worry, label, values)


def _histogram(meaning: str, buckets: tuple[float, ...], worry: str = "", label: str = "") -> MetricRow:
    return MetricRow("histogram", meaning, worry, label, (), buckets)


METRICS: Final[dict[str, MetricRow]] = {
    # The program and its process.
    "raftlog_build_info": _gauge(
        "1; its labels have the version, the modules (compiled or interpreted) and the Python",
        "the nodes differ for long",
        "version, modules, python",
    ),
    "raftlog_loop_lag_seconds": _histogram(
        "How late the event loop ran its tick",
        _LAG_BUCKETS,
        "a tenth of a second again and again: the processor is full",
    ),
    "raftlog_log_lines_lost_total": _counter(
        "Lines of this node's own log that could not be written", "it rises: the disk of the log is full"
    ),
    "raftlog_certificate_expires_seconds": _gauge(
        "Until this node's certificate expires", "below 30 days: `raftlog cert renew`"
    ),
    # The consensus.
    "raftlog_is_leader": _gauge("1 on the leader", "0 on all nodes for 30 s: nothing is written (`raftlog explain`)"),
    "raftlog_term": _gauge("Current term", "it rises again and again: elections repeat"),
    "raftlog_is_member": _gauge("1 while the configuration in force names this node"),
    "raftlog_cut_off": _gauge(
        "1 while the leader or a majority refuses this node", "1 for a minute: the node has no vote (`raftlog explain`)"
    ),
    "raftlog_healing": _gauge("1 while damage keeps this node from voting", "1 for a minute: `raftlog explain`"),
    "raftlog_clock_skew_seconds": _gauge(
        "This node's clock less that of a majority",
        "beyond 1 s: look at its time server; beyond limits.clock_skew_ms it does not lead",
    ),
    "raftlog_voters": _gauge("Voters of the configuration in force"),
    "raftlog_learners": _gauge("Learners in it"),
    "raftlog_cluster_version": _gauge("Cluster version in force"),
    "raftlog_cluster_version_known": _gauge(
        "Newest cluster version that this node knows", "it differs from the one in force for long: end the upgrade"
    ),
    "raftlog_joint": _gauge("1 while the configuration is joint"),
    "raftlog_members_changing": _gauge(
        "1 while a change of members is under way", "1 for long: `raftlog members list`"
    ),
    "raftlog_follower_lag": _gauge(
        "Records that a follower lacks, as its leader knows", "it grows: the follower cannot keep up", "peer"
    ),
    "raftlog_last_index": _gauge("Last index in this node's log"),
    "raftlog_persisted_index": _gauge("Last index that is durable on this node's disk"),
    "raftlog_committed_index": _gauge("Last committed index that this node knows"),
    "raftlog_raft_events_total": _counter(
        "Events of the consensus core",
        "`BecameLeader` rises often",
        "event",
        tuple(each.__name__ for each in get_args(Event)),
    ),
    "raftlog_messages_refused_total": _counter(
        "Messages and frames that this node does not believe, by sender (`others`: no member)",
        "many of one peer: look at the lines `message_ignored`, and whether its key was stolen; "
        "some around a change of members are normal",
        "peer",
        ("others",),
    ),
    "raftlog_link_up": _gauge("1: this outgoing link is up", "0 for a minute", "link"),
    "raftlog_link_dropped_total": _counter(
        "Messages to a peer that were not sent: the link was full or down", "it rises while the link is up", "peer"
    ),
    "raftlog_link_closed_total": _counter(
        "Accepted connections of peers that this node closed",
        "it rises: look at the lines `peer_refused`",
        "reason",
        ("refused",),
    ),
    # The state machine.
    "raftlog_applied_index": _gauge("Last applied index", "it stays behind raftlog_committed_index"),
    "raftlog_ledger_index": _gauge("Last index whose effects are written"),
    "raftlog_oldest_index": _gauge("Oldest index that can be read"),
    "raftlog_revision": _gauge("Revision of the key-value store"),
    "raftlog_sessions": _gauge("Live sessions"),
    "raftlog_consumers": _gauge("Consumer groups"),
    "raftlog_consumer_lag_records": _gauge("Records that a consumer group has not read", "it grows", "consumer"),
    "raftlog_consumer_lag_seconds": _gauge(
        "Age of the oldest of them",
        "beyond what the reader may lag; retention.held_bytes keeps the log for it",
        "consumer",
    ),
    "raftlog_digest_points_total": _counter("Digest points applied"),
    "raftlog_digest_point_index": _gauge("Index of the newest digest point"),
    "raftlog_digest_agreed_index": _gauge("Newest digest point at which this state was a majority's"),
    "raftlog_digest_agreed_age_seconds": _gauge(
        "Time since that was found; -1: never", "minutes under load: a node does not answer"
    ),
    "raftlog_digests_differ": _gauge(
        "1 while no majority has one state: nothing is written", "1: [A wrong state](causes.md#a-wrong-state)"
    ),
    # Requests.
    "raftlog_submits_total": _counter("Writes that this node settled", "`unknown` rises", "outcome", tuple(Outcome)),
    "raftlog_forwards_total": _counter(
        "Writes passed on to the leader, and taken from others", "", "way", ("sent", "taken")
    ),
    "raftlog_queued_requests": _gauge("Writes that wait to be proposed", "it grows"),
    "raftlog_inflight_requests": _gauge("Writes whose outcome is not known yet"),
    "raftlog_batch_requests": _histogram("Requests packed into one entry", _BATCH_BUCKETS),
    "raftlog_waiters": _gauge("Reads and long polls that wait"),
    "raftlog_recent_bytes": _gauge("Applied entries kept in memory"),
    "raftlog_reads_passed_on_total": _counter("Slices of the log that peers gave for a reader"),
    "raftlog_http_requests_total": _counter(
        "Answered requests, by route and class of status", "`5xx` rises", "route, status"
    ),
    "raftlog_http_problems_total": _counter(
        "Problems that this node answered, by code",
        "`busy`, `no_leader`, `timeout` or `disk_full` rises",
        "code",
        tuple(Code),
    ),
    "raftlog_http_request_seconds": _histogram(
        "From the head of a request to the end of its answer, by route; long polls and streams wait as asked",
        HTTP_BUCKETS,
        "the 99th percentile of a route that does not wait grows",
        "route",
    ),
    # The disk.
    "raftlog_sync_seconds": _histogram(
        "One trip to the disk: write, fdatasync, thread hops",
        _SYNC_BUCKETS,
        "the median is beyond 50 ms: [A slow disk](disks.md#a-slow-disk)",
    ),
    "raftlog_disk_stalled_seconds": _gauge("Age of the current disk operation", "beyond 2 s: the disk hangs"),
    "raftlog_disk_syncs_total": _counter("Calls of fdatasync"),
    "raftlog_disk_sync_seconds_total": _counter("Time spent in them"),
    "raftlog_disk_handovers_total": _counter(
        "Leaderships given up for this node's disk or clock", "it rises", "why", ("disk_full", "disk_slow", "clock")
    ),
    "raftlog_disk_full": _gauge(
        "1: that node's disk is full, as this node knows", "1: free disk space, or `raftlog log trim`", "node"
    ),
    "raftlog_disk_lacks_bytes": _gauge(
        "Disk space that this node lacks to take writes", "more than 0: [A full disk](disks.md#a-full-disk)"
    ),
    "raftlog_disk_free_bytes": _gauge("Free bytes beside the reserve, as last measured", "it falls towards 0"),
    "raftlog_disk_reserve_bytes": _gauge(
        "Disk space kept for when the disk is full", "it falls: the disk is full, and the node uses it"
    ),
    "raftlog_followers_held": _gauge("Followers with a full disk, which get no entries", "more than 0"),
    "raftlog_log_bytes": _gauge(
        "Size of the log on this disk",
        "it grows towards the size of the disk: [Retention and trim](log.md#retention-and-trim)",
    ),
    "raftlog_segments_deleted_total": _counter("Segments that retention and trims deleted"),
    "raftlog_disk_oldest_index": _gauge("Oldest index on this node's disk"),
    "raftlog_snapshot_index": _gauge("Last index of the newest snapshot on this disk; 0: there is none"),
    "raftlog_snapshot_bytes": _gauge("Size of its state"),
    "raftlog_snapshot_received_bytes_total": _counter(
        "Pieces of snapshots from leaders", "it rises again and again: the node cannot keep up"
    ),
    # Background jobs.
    "raftlog_damaged_places": _gauge(
        "Places in this node's files that are known to be damaged",
        "more than 0: [A damaged file](disks.md#a-damaged-file)",
    ),
    "raftlog_scrub_rounds_total": _counter("Rounds through all files that scrubbing finished"),
    "raftlog_scrub_failures_total": _counter("Rounds that ended early", "it rises: the node's log has the reason"),
    "raftlog_scrub_bytes_total": _counter("Bytes that scrubbing has read"),
    "raftlog_backfill_missing": _gauge(
        "Records that may be read, and that only peers have",
        "it does not fall: [Older log that a node is missing](log.md#older-log-that-a-node-is-missing)",
    ),
    "raftlog_backfill_segments_total": _counter("Older segments fetched from peers"),
    "raftlog_backfill_bytes_total": _counter("Bytes written for them"),
    "raftlog_backfill_wrong_total": _counter("Pieces of peers that failed their check", "it rises: that peer's disk"),
}
