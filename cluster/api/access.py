"""Defines the public request and answer types of access control: users, roles, tokens, decisions.

JSON shapes; docs/http_api.md has examples. No answer holds a token or its hash.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from raftlog.cluster.api.errors import Outcome
from raftlog.cluster.api.values import Number

Action = Literal[
    "init",
    "enable",
    "disable",
    "set_user",
    "delete_user",
    "set_role",
    "delete_role",
    "add_token",
    "delete_token",
    "grant_role",
    "ungrant_role",
]


class AccessIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`POST /v1/access`: one change. docs/http_api.md says which fields each action takes."""

    action: Action
    name: str = ""  # of the user or role; of a token its user
    roles: list[str] = []
    grants: list[str] = []  # as in `read on keys:orders/*`
    blocked: bool = False
    condition: Literal["none", "new", "exists"] = "none"
    token: str = ""  # its id
    token_hash: str = ""  # SHA-256 of the whole token, 64 hex digits
    expires_ms: Number = 0  # Unix ms; 0: never
    label: str = ""


class AccessChanged(msgspec.Struct, frozen=True):
    """The answer: the change is in force from `index` on."""

    outcome: Outcome
    result: str  # applied | repeated
    permissions: int  # the revision of permissions
    index: int
    term: int


class UserView(msgspec.Struct, frozen=True):
    name: str
    roles: list[str]
    blocked: bool


class RoleView(msgspec.Struct, frozen=True):
    name: str
    grants: list[str]
    built_in: bool


class TokenView(msgspec.Struct, frozen=True):
    """A token, without its secret."""

    id: str
    user: str
    label: str
    created_ms: int
    expires_ms: int  # 0: never


class AccessAnswer(msgspec.Struct, frozen=True):
    """`GET /v1/access`: everything."""

    is_on: bool
    permissions: int
    users: list[UserView]
    roles: list[RoleView]
    tokens: list[TokenView]
    index: int
    term: int


class LoginIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/login`."""

    token: str


class LoggedIn(msgspec.Struct, frozen=True):
    """The answer, beside the cookie: the user, and when its token ends."""

    user: str  # empty after a log-out
    expires_ms: int  # Unix ms; 0: never
    index: int
    term: int


class OwnAccess(msgspec.Struct, frozen=True):
    """`GET /v1/access/me`: the sender, and what it may do."""

    is_on: bool  # false: access control is off, and everybody may do everything
    user: str  # empty while it is off
    named_by: str  # token | certificate | node: it passes the user's request on; empty while access control is off
    roles: list[str]
    grants: list[str]  # of all its roles, each once
    expires_ms: int  # when its token ends, in Unix ms; 0: never
    permissions: int
    index: int
    term: int


class CanAnswer(msgspec.Struct, frozen=True):
    """`GET /v1/access/can`: one decision, and its reason."""

    user: str
    grant: str
    allowed: bool
    why: str
    roles: list[str]  # of the user, that give the grant
    permissions: int
    index: int
    term: int
