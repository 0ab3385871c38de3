"""Defines the public answers of the routes that explain a missing leader, missing progress, or a record.

JSON shapes; docs/http_api.md shows examples.
"""

from __future__ import annotations

import msgspec

from raftlog.cluster.api.records import LogRecord

NEVER_MS = -1


class PeerView(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node's knowledge of another member."""

    node: int
    role: str  # voter | learner | leaving
    url: str
    is_up: bool  # this node's link to it is connected, or dialled again at this moment after a connection that held
    heard_ms: int  # milliseconds since something came from it; -1: never
    trouble: str = ""  # why the link is down
    refuses: str = ""  # why that node refuses this one's hello
    vote: bool | None = None  # its answer in this node's election; None: no answer
    match: int | None = None  # on the leader: newest index that it is proved to have,
    contact_ms: int | None = None  # and milliseconds since its last answer; -1: never,
    lag_ms: int | None = None  # and the age of the oldest record that it lacks; None: not known
    known_version: int | None = None  # newest cluster version that it knows; None: not connected here
    disk_lacks_bytes: int | None = None  # bytes that its full disk lacks; None: it has space, or sent no report
    is_held: bool = False  # on the leader: it gets no entries, because its disk is full


class RefusedView(msgspec.Struct, frozen=True):
    """A connection that this node refused: of a peer, of a process that claims to be one, or of a client."""

    who: str
    reason: str
    ago_ms: int


class NodeView(msgspec.Struct, frozen=True):
    """One node's knowledge of itself and of the others."""

    log: str
    node: int
    role: str  # as in /v1/status
    term: int
    vote: int  # the candidate that got its vote in that term; 0: none
    leader: int  # the leader that it follows; 0: none
    voters: list[int]
    outgoing: list[int]
    configuration_index: int
    last: int
    last_term: int
    persisted: int
    committed: int
    applied: int
    is_fenced: bool
    is_disk_full: bool
    disk_stalled_ms: int  # how long the disk operation under way takes
    disk_stall_ms: int  # limits.disk_stall_ms: longer is a hanging disk
    silent_ms: int  # a peer not heard for this long is silent
    is_changing: bool  # a change of the members is under way
    peers: list[PeerView]
    refused: list[RefusedView]  # newest last
    oldest: int = 1  # the oldest index that may be read,
    disk_oldest: int = 1  # and the oldest on this node's disk; if higher, it fetches the records between
    cluster_version: int = 1  # in force,
    known_version: int = 1  # and the newest that this node knows: a leader raises it once every member knows it
    disk_lacks_bytes: int = 0  # if its disk is full: bytes it needs to accept writes
    disk_sync_us: int = 0  # how long its syncs take: median of the newest five seconds; 0: unknown
    takes_writes: bool = True  # false: this node leads, and no majority of the voters has disk space
    handed_over: str = ""  # why and to which node this process handed over for its disk; empty: it did not,
    handed_over_ms: int = 0  # and how long ago
    floor: int = 0  # if not 0: it lost acknowledged entries, and has no vote until it has them again
    only_here: str = ""  # which committed entries its leader lacks: it takes no entry of that leader
    clock_skew_ms: int = 0  # how far its wall clock is ahead of a majority's; below 0: behind; 0 if not known
    clock_bound_ms: int = 0  # limits.clock_skew_ms: with more it does not lead
    clock_unknown_ms: int = 0  # for how long this leader has not known the clock of a majority; 0: it does,
    has_waiting_writes: bool = False  # and it has not known it since its start: writes wait
    held_by: str = ""  # the leader's: the consumer group that is farthest behind, if retention waits for groups;
    held_next: int = 0  # its position,
    held_ms: int = 0  # and for how long it has stood there
    is_cut_off: bool = False  # the leader, or a majority, refuses its connections
    tls_files: str = ""  # why changed files of its TLS do not fit: it uses those before
    refused_client: RefusedView | None = None  # the newest client with which no TLS connection came about


class Cause(msgspec.Struct, frozen=True):
    """One reason for a missing leader or missing progress: node `node` has it, towards `peer` (0: none)."""

    code: str
    words: str
    node: int
    peer: int = 0


class UnreachedMember(msgspec.Struct, frozen=True):
    node: int
    reason: str


class Leaderless(msgspec.Struct, frozen=True):
    """`GET /v1/explain/leaderless`: one node's view, or (made by `raftlog explain`) the views of all reached nodes."""

    summary: str
    leader: int  # 0: none
    causes: list[Cause]  # the weightiest first
    nodes: list[NodeView]
    unreachable: list[UnreachedMember]
    index: int
    term: int


class ReplicaView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts about one member's copy. None: not known on this node."""

    node: int
    role: str
    match: int | None = None  # durable there up to this index
    is_durable: bool | None = None
    is_applied: bool | None = None


class EntryView(msgspec.Struct, frozen=True, omit_defaults=True):
    """`GET /v1/explain/{index}`: what happened to a record, as one node knows it."""

    node: int
    role: str
    at: int  # the index that was asked for
    state: str  # applied | committed | uncommitted
    words: list[str]
    replicas: list[ReplicaView]
    index: int
    term: int
    record: LogRecord | None = None  # as `GET /v1/log` has it; only once it is applied
    entry_first: int | None = None  # of the entry that holds it
    entry_last: int | None = None
    entry_bytes: int | None = None
    entry_crc: str | None = None  # CRC32C of its header in hex,
    previous_crc: str | None = None  # and that of the entry before, which its own header names
    clock_ms: int | None = None
    groups_past: list[str] = []  # consumer groups whose position is after it
    groups_before: list[str] = []
