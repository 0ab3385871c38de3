"""Says which bounds of a node follow a setting, and which are fixed.

`raftlog.cluster.config.settings` reads it. An operator says how much memory and how many connections a node may have;
the bounds that follow grow and shrink with them. The code reads every bound by its name, whatever it follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any, Final

import msgspec

from raftlog.raft.options import Options

MEMORY: Final = "limits.memory_bytes"
CONNECTIONS: Final = "limits.connections_max"
BODY: Final = "limits.body_bytes_max"

LEAST: Final = {MEMORY: 128 << 20, CONNECTIONS: 64}
"""With less, a share would be too small: one body in those of all requests, or one stream."""

DERIVED: Final[Mapping[str, tuple[str, Fraction]]] = {
    "limits.bodies_bytes_max": (MEMORY, Fraction(1, 8)),
    "limits.answers_bytes_max": (MEMORY, Fraction(1, 8)),
    "limits.inbox_bytes_max": (MEMORY, Fraction(1, 16)),
    "limits.ledger_queue_bytes_max": (MEMORY, Fraction(1, 16)),
    "limits.recent_bytes_max": (MEMORY, Fraction(1, 32)),
    "raft.tail_bytes_max": (MEMORY, Fraction(1, 32)),
    "limits.bulk_bytes_max": (MEMORY, Fraction(1, 32)),
    "limits.link_bytes_max": (MEMORY, Fraction(1, 64)),
    "limits.inflight_requests_max": (CONNECTIONS, Fraction(4)),
    "limits.waiters_max": (CONNECTIONS, Fraction(4)),
    "raft.reads_pending_max": (CONNECTIONS, Fraction(4)),
    "limits.inbox_requests_max": (CONNECTIONS, Fraction(1)),
    "limits.request_lines_max": (CONNECTIONS, Fraction(1)),
    "limits.open_requests_max": (CONNECTIONS, Fraction(1, 2)),
    "limits.principal_waiting_max": (CONNECTIONS, Fraction(1, 4)),
    "limits.keepalives_max": (CONNECTIONS, Fraction(1, 16)),
    "limits.watchers_max": (CONNECTIONS, Fraction(1, 16)),
    "limits.handshakes_max": (CONNECTIONS, Fraction(1, 64)),
    "limits.principal_streams_max": (CONNECTIONS, Fraction(1, 64)),
    "limits.address_handshakes_max": (CONNECTIONS, Fraction(1, 128)),
    "raft.entry_bytes_max": (BODY, Fraction(1)),
}
"""Each bound with the setting that it follows, and its share of that."""


class _FixedOfReplicas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fixed bounds of replicas and of their links."""

    batch_bytes_max: int = 1 << 20  # packed into one entry; a single larger request makes one by itself
    batch_records_max: int = 4_096  # so that applying one entry stays far below 50 ms
    batch_eager_bytes: int = 256 << 10  # this much is proposed even while a sync is under way
    apply_slice_ms: int = 8  # applying yields to the event loop after this long
    peer_connections_max: int = 64  # accepted peer connections
    hello_bytes_max: int = 4_096
    hello_timeout_ms: int = 2_000  # from the connection to its hello, and to the proof of the hello
    handshake_timeout_ms: int = 5_000  # of TLS, on an accepted connection
    disk_full_pause_ms: int = 3_000  # a leader whose disk is full hands over to one voter at most this often
    disk_slow_factor: int = 4  # a leader with a slow disk hands over if a majority's are so many times faster,
    disk_slow_pause_ms: int = 60_000  # and at most this often


class FixedLimits(_FixedOfReplicas, frozen=True, forbid_unknown_fields=True):
    """The bounds of section limits with one value for all nodes: no deployment has a reason for another one."""

    record_headers_bytes_max: int = 64 << 10  # of one record
    probe_connections_max: int = 32  # at http.probe_listen; one more ends the oldest
    head_bytes_max: int = 32 << 10  # request line, and each header field, of one HTTP request
    head_fields_max: int = 64  # headers of one HTTP request
    head_timeout_ms: int = 10_000  # from the first byte of a head to its last
    page_bytes_max: int = 8 << 20  # of one answer
    page_records_max: int = 10_000
    page_scan_max: int = 100_000  # records of the log looked at for one page; a reader may see few of them
    operator_requests_max: int = 64  # beyond open_requests_max, of those that operate the cluster
    fair_requests_max: int = 24  # requests in progress while several users send some: further ones take turns
    stream_gather_ms: int = 50  # records for many followers of the log wait at most this long, and go together
    digests_max: int = 2  # log digests being computed
    backups_max: int = 1  # backups being taken: each keeps changes meanwhile in memory
    traced_requests_max: int = 1_000  # sampled requests of a second; further ones have no spans
    consumers_shown_max: int = 100  # consumer groups in status and metrics: those that are the most records behind


_RAFT_SETTINGS: Final = frozenset(
    {
        "heartbeat_ms",
        "election_timeout_min_ms",
        "election_timeout_max_ms",
        "snapshot_chunk_bytes",
        "snapshot_window_bytes",
    }
)
FIXED: Final = {
    "peer.redial_max_ms",
    *(f"limits.{name}" for name in FixedLimits.__struct_fields__),
    *(f"raft.{each.name}" for each in fields(Options) if each.name not in _RAFT_SETTINGS),
} - DERIVED.keys()
"""The fixed bounds. A full disk's reserve (`raftlog.cluster.files.reserve`) has room for raft.uncommitted_bytes_max."""


def derive(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, int]:
    """The bounds that follow the given settings, or their defaults."""
    return {
        bound: max(1, int(values.get(source, defaults[source]) * share)) for bound, (source, share) in DERIVED.items()
    }


def rule_of(key: str) -> str:
    """Where the value of a bound comes from: `limits.memory_bytes / 8`, `fixed`; empty for a setting."""
    if key not in DERIVED:
        return "fixed" if key in FIXED else ""
    source, share = DERIVED[key]
    if share.denominator > 1:
        return f"{source} / {share.denominator}"
    return source if share == 1 else f"{source} * {share}"


def serves_instead(key: str, value: Any) -> str:
    """The advice for a file that sets that bound of `value`; empty if it is none."""
    if key in DERIVED:
        return f"it follows from {rule_of(key)}: set {DERIVED[key][0]}"
    return f"it is always {value}: delete it" if key in FIXED else ""
