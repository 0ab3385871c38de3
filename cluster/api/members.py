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
