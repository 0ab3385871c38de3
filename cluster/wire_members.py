"""Public request and answer types about members: changing them, handing leadership over.

JSON shapes as those of `cluster.wire`, which has the answer of `GET /v1/members`; docs/http_api.md shows examples.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from cluster.wire import LeaderHint, Outcome

NodeNumber = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
ChangeKind = Literal["add", "promote", "remove", "replace", "address"]


class ChangeIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/members`: one change. What a kind does not need must be left out."""

    change: ChangeKind
    node: NodeNumber
    peer: str | None = None  # add; replace and address: unless it stays
    url: str | None = None
    incarnation: str | None = None  # add, replace: of the new disk, 32 hex digits; made here if it is not given
    by: NodeNumber | None = None  # replace: the number of who takes the place; the same number if it is not given
    promote: bool = True  # add: to a voter as soon as it has caught up; promote: false asks for it now or not at all


class ChangeAnswer(msgspec.Struct, frozen=True):
    """The change has begun: its first configuration is committed at `index`. The rest follows by itself."""

    change: ChangeKind
    node: int  # whom it is about; of a replacement who takes the place
    is_changing: bool  # something is still to be done
    index: int
    term: int
    join: str | None = None  # add, replace: the join file, from which `raftlog format --join` makes the new data folder
    outcome: Outcome = Outcome.APPLIED


class TransferIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/leader/transfer`: an empty body asks for the voter that has most."""

    to: NodeNumber | None = None


class TransferAnswer(msgspec.Struct, frozen=True):
    """Leadership was handed over."""

    old: int
    leader: LeaderHint
    elapsed_ms: float  # from the request to the first word of the new leader here
    index: int
    term: int
    outcome: Outcome = Outcome.APPLIED
