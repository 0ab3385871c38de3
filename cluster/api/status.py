"""Defines the answers of operation: the status of a node, digests, the fingerprint of a disk."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from raftlog.cluster.api.errors import Outcome
from raftlog.cluster.api.values import LeaderHint, Position


class SetDigestHex(msgspec.Struct, frozen=True):
    """Digest of a set of rows: count, xor and the two half sums of their 64-bit hashes, the last three as hex."""

    count: int
    xor: str  # 16 hex digits
    sum_low: str  # hex
    sum_high: str  # hex


DIGEST_FORMAT: Final = 2
"""Which columns and chains the digests are made of (raftlog.statemachine.digest)."""


class DigestAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """State digest at the end of entry `index`; where `log_from` was asked also the log digest of [log_from, index].

    With `log_from`, `state` is None where it is no longer remembered, or `index` lies inside an entry: digests of parts
    of the log are answered for any range.
    """

    log: str
    index: int
    term: int
    revision: int
    state: SetDigestHex | None
    format: int  # of both digests: DIGEST_FORMAT
    log_from: int | None = None
    log_digest: SetDigestHex | None = None


FINGERPRINT_CHARS: Final = 8
"""Length of a disk's fingerprint, in characters: enough to distinguish the disks of one cluster."""


def fingerprint(incarnation: str) -> str:
    """The name under which a disk is shown to operators. It distinguishes disks, and is too short to forge a hello."""
    return hashlib.sha256(incarnation.encode()).hexdigest()[:FINGERPRINT_CHARS]


class SnapshotAnswer(msgspec.Struct, frozen=True):
    """`POST /v1/snapshot`: this node's newest snapshot, which holds all that it had applied when it was asked."""

    node: int
    snapshot: int  # the index that it ends at
    index: int
    term: int
    outcome: Outcome = Outcome.APPLIED


class FollowerStatus(msgspec.Struct, frozen=True):
    """The leader's view of one follower."""

    node: int
    state: str  # probe | replicate | snapshot
    match: int
    lag: int | None  # entries' records behind the leader's last index; None: not known, for the leader refuses it
    lag_seconds: float | None  # age of the oldest record it lacks; None as above
    last_contact_ms: int  # since its last answer; -1: never
    snapshot_index: int = 0  # of the snapshot on its way there; 0: none is
    snapshot_bytes: int = 0  # of it that are written there
    snapshot_total: int = 0
    refused: str = ""  # why the leader refuses its connections; empty: it does not


class RefusingPeer(msgspec.Struct, frozen=True):
    """A member that refuses the connections of the node which says so."""

    node: int
    reason: str


class ConsumerStatus(msgspec.Struct, frozen=True):
    """One group, and how far behind it is."""

    name: str
    position: Position
    generation: int
    owner: str
    lag: int  # records from the position to the newest user record, internal ones among them; 0: there is none to read
    lag_seconds: float | None  # age of the oldest user record that it has not read; None: it could not be looked up
    updated_ms: int  # time of the entry that changed it last


class ReplicaDigest(msgspec.Struct, frozen=True):
    """The newest digest point that a member has reported, and its state there."""

    node: int
    point: int
    value: str  # hex
    is_same: bool | None  # as this node's state at that point; None: this node has not got it, or has forgotten it


class DigestStatus(msgspec.Struct, frozen=True):
    """What digest points say of this node's state."""

    points: int = 0  # applied since the start
    newest: int = 0  # index of the newest of them; 0: none
    agreed: int = 0  # of the newest at which this state was a majority's; 0: none since the start
    age_ms: int = -1  # since that was found; -1: never
    differ: int = 0  # of the newest at which no majority has one state: nothing is written; 0: there is none
    replicas: list[ReplicaDigest] = []  # this node's and what others reported to it since its start


class ScrubStatus(msgspec.Struct, frozen=True):
    """Progress of scrubbing on this node, and the damage that it found."""

    rounds: int = 0  # complete rounds through all files since the start
    bytes: int = 0  # read since the start
    file: str = ""  # the file that is being read; empty between two rounds
    age_ms: int = -1  # since the newest round ended; -1: no round has ended
    damage: str = ""  # the damaged file and place; a restart repairs it, once the other nodes are healthy


class BackfillStatus(msgspec.Struct, frozen=True):
    """How far a node that was built from a snapshot has fetched the log before it from the others."""

    missing: int = 0  # records that may be read and that only others have; 0: it has all
    segments: int = 0  # fetched since the start
    bytes: int = 0  # written for them
    waits: str = ""  # why it does not go on just now; empty: it does, or has all


class Status(msgspec.Struct, frozen=True):
    """`GET /v1/status`: one node's view."""

    log: str
    node: int
    disk: str  # fingerprint of its data folder's incarnation: no hello can be forged with it
    role: str  # leader | follower | candidate | pre_candidate | learner | joining | removed | healing | fenced
    term: int
    leader: LeaderHint | None
    last: int  # last index in this node's log
    persisted: int
    committed: int
    applied: int
    oldest: int
    last_user_index: int
    revision: int
    state: SetDigestHex
    followers: list[FollowerStatus]  # empty unless leader
    sessions: int
    uptime_ms: int
    version: str
    index: int
    voters: list[int] = []  # of the configuration in force here; while it is joint, the new majority
    outgoing: list[int] = []  # the old majority of a joint configuration; empty: it is not joint
    learners: list[int] = []
    consumers: list[ConsumerStatus] = []  # the groups that are the most records behind (limits.consumers_shown_max)
    digests: DigestStatus = DigestStatus()
    scrub: ScrubStatus = ScrubStatus()
    backfill: BackfillStatus = BackfillStatus()
    cluster_version: int = 1  # in force: what every member knew when the leader raised it
    known_version: int = 1  # the newest that this node's raftlog knows
    refused_by: list[RefusingPeer] = []  # members that refuse this node's connections
    is_insecure: bool = False  # it listens beyond loopback, without TLS or without access control (--insecure)
    clock_skews_ms: dict[int, int] = {}  # each known wall clock less a majority's, by node; {}: that is not known
    is_cut_off: bool = False  # they are the leader, or leave no majority: nothing that this node says counts
