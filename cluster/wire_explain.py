"""Public answer types of the routes that explain: why there is no leader or no progress, what became of an entry.

JSON shapes as those of `cluster.wire`; docs/http_api.md shows examples.
"""

from __future__ import annotations

import msgspec

from cluster.wire import LogRecord

NEVER_MS = -1


class PeerView(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one node knows of another member."""

    node: int
    role: str  # voter | learner | leaving
    url: str
    is_up: bool  # this node's link to it is connected
    heard_ms: int  # since something came from it; -1: nothing ever did
    trouble: str = ""  # why the link is down
    refuses: str = ""  # why that node refuses this one's hello
    vote: bool | None = None  # what it answered in the election that this node asks for; None: nothing
    match: int | None = None  # at the leader: what it is proved to have,
    contact_ms: int | None = None  # and for how long it has not answered; -1: it never did
    known_version: int | None = None  # the newest cluster version that it knows; None: it is not connected here
    disk_lacks_bytes: int | None = None  # what its full disk lacks, as it said; None: it has room, or did not say
    is_held: bool = False  # at the leader: it is sent no entries, because its disk is full


class RefusedView(msgspec.Struct, frozen=True):
    """A connection of a peer, or of somebody who says so, that this node refused."""

    who: str
    reason: str
    ago_ms: int


class NodeView(msgspec.Struct, frozen=True):
    """What one node knows of itself and of the others."""

    log: str
    node: int
    role: str  # as in /v1/status
    term: int
    vote: int  # whom it gave its vote in that term; 0: nobody
    leader: int  # whom it follows; 0: nobody
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
    silent_ms: int  # who is not heard for so long is silent
    is_changing: bool  # a change of the members is under way
    peers: list[PeerView]
    refused: list[RefusedView]  # newest last
    oldest: int = 1  # the oldest index that may be read,
    disk_oldest: int = 1  # and the oldest on this node's disk: a higher one, and it fetches what is between from others
    cluster_version: int = 1  # in force,
    known_version: int = 1  # and the newest that this node knows: a leader raises it once every member knows it
    disk_lacks_bytes: int = 0  # of a full disk: how much more room it needs to take writes
    disk_sync_us: int = 0  # how long its syncs take: median of the newest five seconds; 0: unknown
    takes_writes: bool = True  # false: this node leads, and no majority of the voters has room
    handed_over: str = ""  # why this process gave up leadership for its disk, and to whom; empty: it did not,
    handed_over_ms: int = 0  # and how long ago
    floor: int = 0  # not 0: it lost entries that it had acknowledged, and has no vote until it has them again
    is_cut_off: bool = False  # the leader, or a majority, refuses its connections


class Cause(msgspec.Struct, frozen=True):
    """One thing that keeps a leader, or progress, away: `node` is whom it is about, `peer` towards whom (0: nobody)."""

    code: str
    words: str
    node: int
    peer: int = 0


class Unreached(msgspec.Struct, frozen=True):
    """A member that gave no view."""

    node: int
    reason: str


class Leaderless(msgspec.Struct, frozen=True):
    """`GET /v1/explain/leaderless`: one node's view, or (made by `raftlog explain`) those of all that were reached."""

    summary: str
    leader: int  # 0: none
    causes: list[Cause]  # the weightiest first
    nodes: list[NodeView]
    unreachable: list[Unreached]
    index: int
    term: int


class ReplicaView(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one member's copy; None: not known here."""

    node: int
    role: str
    match: int | None = None  # durable there up to this index
    is_durable: bool | None = None
    is_applied: bool | None = None


class EntryView(msgspec.Struct, frozen=True, omit_defaults=True):
    """`GET /v1/explain/{index}`: what happened to a record, by the account of one node."""

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
    clock_ms: int | None = None
    groups_past: list[str] = []  # consumer groups whose position is behind it
    groups_before: list[str] = []
