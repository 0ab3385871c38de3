"""Defines the public request and answer types of consumer groups: position, owner, lag.

JSON shapes; docs/http_api.md has examples.
"""

from __future__ import annotations

import msgspec

from raftlog.cluster.api.errors import Outcome
from raftlog.cluster.api.status import ConsumerStatus
from raftlog.cluster.api.values import Number, Position


class PositionIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position in a request, with checked numbers."""

    log: str
    next: dict[str, Number]


class ClaimIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/consumers/{name}/claim`. An empty body claims without naming the owner."""

    owner: str = ""  # name of the claiming owner, for people
    position: PositionIn | None = None  # start of a new group; an existing group stays at its position


class CommitIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`PUT /v1/consumers/{name}`: the owner's new position.

    `reset` allows any position, and any owner without a generation.
    """

    position: PositionIn
    generation: Number | None = None
    reset: bool = False
    owner: str = ""  # only for a reset without a generation


class ConsumerAnswer(ConsumerStatus, frozen=True):
    """`GET /v1/consumers/{name}`."""

    index: int
    term: int


class Consumers(msgspec.Struct, frozen=True):
    """`GET /v1/consumers`: all groups, by name."""

    log: str
    consumers: list[ConsumerStatus]
    last_user_index: int
    index: int
    term: int


class ConsumerMoved(msgspec.Struct, frozen=True):
    """The answer to a claim, a commit and a reset: the group after it."""

    outcome: Outcome
    result: str  # applied | repeated
    name: str
    position: Position
    generation: int
    owner: str
    index: int
    term: int


class ConsumerDeleted(msgspec.Struct, frozen=True):
    """The answer to a delete; `deleted` is 0 if there was no such group."""

    outcome: Outcome
    result: str
    name: str
    deleted: int
    index: int
    term: int
