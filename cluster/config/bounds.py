"""Says which bounds of a node follow a setting, and which are fixed.

`raftlog.cluster.config.settings` reads it. An operator says how much memory and how many connections a node may have;
the bounds that follow grow and shrink with them. The code reads every bound by its name, whatever it follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

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

FIXED: Final = frozenset(
    {
        "limits.apply_slice_ms",
        "limits.backups_max",
        "limits.batch_bytes_max",
        "limits.batch_eager_bytes",
        "limits.batch_records_max",
        "limits.consumers_shown_max",
        "limits.digests_max",
        "limits.disk_full_pause_ms",
        "limits.disk_slow_factor",
        "limits.disk_slow_pause_ms",
        "limits.fair_requests_max",
        "limits.handshake_timeout_ms",
        "limits.head_bytes_max",
        "limits.head_fields_max",
        "limits.head_timeout_ms",
        "limits.hello_bytes_max",
        "limits.hello_timeout_ms",
        "limits.operator_requests_max",
        "limits.page_bytes_max",
        "limits.page_records_max",
        "limits.page_scan_max",
        "limits.peer_connections_max",
        "limits.record_headers_bytes_max",
        "limits.stream_gather_ms",
        "peer.redial_max_ms",
        "raft.append_bytes_max",
        "raft.append_entries_max",
        "raft.apply_bytes_max",
        "raft.catch_up_bytes_max",
        "raft.catch_up_rounds_max",
        "raft.catch_up_silence_ms",
        "raft.inflight_bytes_max",
        "raft.inflight_messages_max",
        "raft.link_closed_delay_max_ms",
        "raft.link_closed_delay_min_ms",
        "raft.link_refused_delay_max_ms",
        "raft.link_refused_delay_min_ms",
        "raft.snapshot_queue_ms",
        "raft.snapshot_retry_ms",
        "raft.tail_entries_max",
        "raft.transfer_timeout_ms",
        "raft.uncommitted_bytes_max",  # a full disk's reserve (`raftlog.cluster.files.reserve`) has room for it
    }
)
"""Bounds with one value for all nodes: no deployment has a reason for another one."""


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
