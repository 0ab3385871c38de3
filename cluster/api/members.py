"""Defines the public requests and answers about members: changing them, handing leadership over.

JSON shapes; docs/http_api.md shows examples.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from raftlog.cluster.api.errors import Outcome
from raftlog.cluster.api.values import LeaderHint

NodeNumber = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
ChangeKind = Literal["add", "promote", "remove", "replace", "address"]


class ChangeIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/members`: one change. Leave out the fields that its kind does not need."""

    change: ChangeKind
    node: NodeNumber
    peer: str | None = None  # add; replace and address: unless it stays
    url: str | None = None
    incarnation: str | None = None  # add, replace: of the new disk, 32 hex digits; made here if it is not given
    by: NodeNumber | None = None  # replace: number of the new node; the same number if not given
    promote: bool = True  # add: becomes a voter once caught up; promote: false means now or not at all


class ChangeAnswer(msgspec.Struct, frozen=True):
    """The change has begun: its first configuration is committed at `index`. The rest follows by itself."""

    change: ChangeKind
    node: int  # the node of the change; of a replacement the new node
    is_changing: bool  # the change has further steps
    index: int
    term: int
    join: str | None = None  # add, replace: the join file, from which `raftlog format --join` makes the new data folder
    settings: str | None = None  # add, replace: the new node's settings file, but for the line that names the join file
    outcome: Outcome = Outcome.APPLIED


class TransferIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/leader/transfer`. An empty body asks for the voter with the longest log."""

    to: NodeNumber | None = None


class TransferAnswer(msgspec.Struct, frozen=True):
    old: int
    leader: LeaderHint
    elapsed_ms: float  # from the request to the first message of the new leader here
    index: int
    term: int
    outcome: Outcome = Outcome.APPLIED


class MemberAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    node: int
    disk: str  # fingerprint of the incarnation of its data folder
    peer: str
    url: str
    role: str  # voter | learner | leaving (a voter of the old majority alone)
    catching_up: bool = False  # becomes a voter when it has caught up; known at the leader alone, as what follows
    match: int | None = None  # the last index that it is proved to have
    lag: int | None = None
    given_up: str | None = None  # why the leader stopped a planned change of this member (promotion, removal)
    known_version: int | None = None  # the newest cluster version that it knows; absent: it is not connected here


class Members(msgspec.Struct, frozen=True):
    """`GET /v1/members`."""

    log: str
    members: list[MemberAnswer]
    leader: LeaderHint | None
    index: int
    term: int
    configuration: int = 0  # index of the configuration in force
    is_changing: bool = False  # a change is under way, as far as this node knows
    is_joint: bool = False


class DiskSeen(msgspec.Struct, frozen=True):
    """The disk of a member, as its newest report says; `age_ms`: how old that is."""

    free_bytes: int
    size_bytes: int | None  # when its process began; None: its program does not say it
    lacks_bytes: int | None  # if it is full: bytes that it needs to accept writes; None: it is not full
    sync_us: int  # recent time of one sync; 0: not known
    age_ms: int


class LinkState(msgspec.Struct, frozen=True):
    """The link of the node that answers to a member."""

    is_up: bool
    round_trip_us: int | None  # as the kernel measures it; None: the link is down, or it is not known
    dropped: int  # messages that were not sent since the start: the link was full or down
    trouble: str  # why it is down
    refuses: str  # why the member refuses this node's connections


class MemberSeen(msgspec.Struct, frozen=True):
    """One member, as the node that answers knows it. None: not known here, or not for this user."""

    node: int
    url: str
    member: str  # voter | learner | leaving
    role: str | None = None  # as in /v1/status
    term: int | None = None
    durable: int | None = None  # newest index that is proved to be on its disk
    applied: int | None = None  # a node knows its own alone
    lag: int | None = None  # records that it lacks of the leader's log,
    lag_seconds: float | None = None  # and the age of the oldest of them; known at the leader alone
    log_age_ms: int | None = None  # how old role, term, durable, applied and lag are
    disk: DiskSeen | None = None
    program: str | None = None  # version of its raftlog
    program_age_ms: int | None = None  # how long ago its connection closed; 0: it is open
    known_version: int | None = None  # the newest cluster version that it knows
    link: LinkState | None = None  # None: the node itself
    contact_ms: int | None = None  # since something came from it; -1: never
    clock_skew_ms: int | None = None  # how far its clock is ahead of a majority's


class ClusterView(msgspec.Struct, frozen=True):
    """`GET /v1/cluster`: one node's view of itself and of all members."""

    log: str
    node: int
    leader: LeaderHint | None
    is_cut_off: bool
    is_changing: bool
    last: int
    committed: int
    oldest: int
    last_user_index: int
    revision: int
    sessions: int
    uptime_ms: int
    members: list[MemberSeen]
    index: int
    term: int
