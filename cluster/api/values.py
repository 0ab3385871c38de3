"""Defines the values that many requests and answers share: numbers, positions, where the leader is."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

NUMBER_MAX: Final = 2**53 - 1
"""index, term, revision, session and sequence are JSON numbers up to here."""
Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""A number in a request body: refused by name when it is negative or not exact in JSON."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]  # an index or revision: the first is 1


class LeaderHint(msgspec.Struct, frozen=True):
    node: int
    url: str


SHARD: Final = "0"
"""As positions name it: one Raft group today; more, later, need no other format."""


class Position(msgspec.Struct, frozen=True):
    """Position of a consumer, checkpoint or manifest: {"log": id, "next": {"0": index}}; the 0 is the shard."""

    log: str
    next: dict[str, int]
