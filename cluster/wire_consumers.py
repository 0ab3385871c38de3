"""Public request and answer types about consumer groups: where each stands, who owns it, how far behind it is.

JSON shapes as those of `cluster.wire`, which has the position and a group as it is told; docs/http_api.md has examples.
"""

from __future__ import annotations

import msgspec

from cluster.wire import ConsumerStatus, Number, Outcome, Position


class PositionIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position in a request: that of `cluster.wire`, its numbers checked."""

    log: str
    next: dict[str, Number]


class ClaimIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/consumers/{name}/claim`: an empty body claims without a word about the owner."""

    owner: str = ""  # for people: who claims
    position: PositionIn | None = None  # where a new group begins; one that is there stays where it is


class CommitIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`PUT /v1/consumers/{name}`: the owner's new position; with `reset` any, and without a generation anybody's."""

    position: PositionIn
    generation: Number | None = None
    reset: bool = False
    owner: str = ""  # of a reset without a generation


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
    """The answer to a claim, a commit and a reset: the group as they left it."""

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
