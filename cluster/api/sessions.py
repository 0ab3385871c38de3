"""Defines the requests and answers of sessions, and receipts."""

from __future__ import annotations

import msgspec

from raftlog.cluster.api.errors import Outcome
from raftlog.cluster.api.values import Number


class SessionIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ttl_ms: Number = 600_000


class SessionAnswer(msgspec.Struct, frozen=True):
    """A session; its id is the index of its registration."""

    session: int
    ttl_ms: int
    index: int
    term: int
    outcome: Outcome = Outcome.APPLIED


class SessionDone(msgspec.Struct, frozen=True):
    """The answer to keepalive and close."""

    session: int
    index: int
    term: int
    outcome: Outcome = Outcome.APPLIED


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a sequence. `state`: applied | not_seen | voided | settled (below the client's settled mark)."""

    session: int
    sequence: int
    state: str
    index: int  # state as of here
    term: int
    first: int | None = None  # applied: indexes of its records
    last: int | None = None
    revision: int | None = None
    result: str | None = None  # applied | compare_failed | refused
