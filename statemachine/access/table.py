"""Keeps users, roles and tokens, carries out the commands that change them, and decides what a principal may do.

The state machine holds one table and applies ACCESS records to it. Each command that changes something makes a new
revision of permissions. A user remembers the revision at which it was made, or since which older admissions no longer
count (`User.since`): deleting a token or blocking a user raises it. So a write that was admitted with a token that is
gone by the time of its place in the log is refused there. Names of roles that do not exist give no permission.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgpack
from xxhash import xxh64_intdigest

from raftlog.statemachine.access.admission import (
    EXTERNAL_PREFIX,
    NODE_ADMISSION,
    RESERVED_PREFIX,
    Admission,
    CorruptAdmission,
    decode_admission,
)
from raftlog.statemachine.access.commands import (
    HASH_BYTES,
    AccessAction,
    AccessCommand,
    Condition,
    decode_grant,
    encode_grant,
)
from raftlog.statemachine.access.grants import BUILT_IN, Grant, Resource, Verb, overlaps
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.answers import Reason
from raftlog.statemachine.commands import whole

USERS_MAX: Final = 10_000
ROLES_MAX: Final = 1_000
TOKENS_MAX: Final = 10_000
GRANTS_MAX: Final = 10_000
"""Of all roles together. It bounds the time of a digest point and of a change of permissions."""
ROLES_OF_USER_MAX: Final = 64
COMPILED_MAX: Final = 4_096
"""Principals whose permissions are kept compiled. Beyond that all are compiled again when they are needed."""
COMPILED_GRANTS_MAX: Final = 200_000
"""Grants in the compiled permissions of different sets of roles, in all: some 20 MB. As before beyond that."""

_ADMIN: Final = "admin"
_ACCESS: Final = Grant(Verb.ACCESS, Resource.CLUSTER)


class User(NamedTuple):
    """A user: the principal of a client certificate with its name, and of its tokens."""

    roles: tuple[str, ...]
    since: int  # admissions of an older revision do not count
    is_blocked: bool = False


class Token(NamedTuple):
    """A token of a user; its secret part is nowhere but with its holder."""

    user: str
    hash: bytes
    expires_ms: int  # Unix ms; 0: never
    created_ms: int
    label: str = ""


class AccessReason(StrEnum):
    """Why a decision allows or refuses."""

    OFF = "access control is off"
    GRANTED = "granted"
    NO_USER = "no such user"
    BLOCKED = "the user is blocked"
    OUTDATED = "admitted before a token of the user was revoked, or before the user was blocked or made"
    MISSING = "no role of the user has the grant"


class KnownPrincipal(NamedTuple):
    """A principal as the table knows it now: what it may do, or why it may do nothing."""

    name: str
    permissions: Permissions | None
    why: AccessReason = AccessReason.GRANTED


class AccessDecision(NamedTuple):
    """Whether a principal may do something; `missing` is the grant that it would need."""

    is_allowed: bool
    why: AccessReason
    missing: Grant | None = None
    revision: int = 0  # of permissions, under which it was decided


class AccessTable:
    """What each principal may do. `revision` 0: access control was never set up."""

    __slots__ = (
        "_admin_roles",
        "_by_roles",
        "_compiled",
        "_grants",
        "_hashed",
        "is_on",
        "revision",
        "roles",
        "tokens",
        "users",
    )

    def __init__(self) -> None:
        self.is_on = False
        self.revision = 0
        self.users: dict[str, User] = {}  # others only read these three
        self.roles: dict[str, tuple[Grant, ...]] = {}  # without the built-in ones
        self.tokens: dict[str, Token] = {}  # by their public part
        self._compiled: dict[bytes, KnownPrincipal] = {}  # of admissions, under this revision
        self._by_roles: dict[tuple[str, ...], Permissions] = {}  # under this revision; principals share them
        self._grants = 0  # in those
        self._admin_roles: dict[str, bool] = {_ADMIN: True}  # those that may change permissions
        self._hashed = (0, 0)  # a revision and the hash of the table then

    # -- decisions --------------------------------------------------------------------------------------------

    def admission(self, name: str, roles: tuple[str, ...] = ()) -> Admission:
        """The principal as of now: what its requests carry."""
        return Admission(name, self.revision, roles)

    def principal(self, admission: bytes) -> KnownPrincipal:
        """The principal of an admission's bytes."""
        found = self._compiled.get(admission)
        if found is None:
            if len(self._compiled) >= COMPILED_MAX or self._grants >= COMPILED_GRANTS_MAX:
                self._forget()
            found = self._compiled[admission] = self._compile(admission)
        return found

    def decide(self, admission: bytes, grant: Grant) -> AccessDecision:
        """Whether the principal of these bytes may do all that the grant names."""
        if not self.is_on:
            return AccessDecision(True, AccessReason.OFF, None, self.revision)
        _, permissions, why = self.principal(admission)
        if permissions is None:
            return AccessDecision(False, why, grant, self.revision)
        if permissions.allows(grant):
            return AccessDecision(True, AccessReason.GRANTED, None, self.revision)
        return AccessDecision(False, AccessReason.MISSING, grant, self.revision)

    def grants_of(self, role: str) -> tuple[Grant, ...]:
        """Those of a role; none where it does not exist."""
        return BUILT_IN.get(role) or self.roles.get(role, ())

    def _compile(self, data: bytes) -> KnownPrincipal:
        try:
            name, revision, roles = decode_admission(data)
        except CorruptAdmission:
            return KnownPrincipal("", None, AccessReason.NO_USER)
        if data == NODE_ADMISSION:
            return KnownPrincipal(name, _NODE)
        user = self.users.get(name)
        if user is None:
            if not name.startswith(EXTERNAL_PREFIX):
                return KnownPrincipal(name, None, AccessReason.NO_USER)
        elif user.is_blocked:
            return KnownPrincipal(name, None, AccessReason.BLOCKED)
        elif revision < user.since:
            return KnownPrincipal(name, None, AccessReason.OUTDATED)
        held = roles if user is None else (*user.roles, *roles)
        permissions = self._by_roles.get(held)
        if permissions is None:
            grants = [grant for role in held for grant in self.grants_of(role)]
            self._grants += len(grants)
            permissions = self._by_roles[held] = Permissions(grants)
        return KnownPrincipal(name, permissions)

    def _forget(self) -> None:
        """Nothing is compiled any more."""
        self._compiled.clear()
        self._by_roles.clear()
        self._grants = 0

    # -- commands ---------------------------------------------------------------------------------------------

    def execute(self, command: AccessCommand, time_ms: int) -> Reason | None:
        """Carries out a command, or says why not. A refused one changes nothing."""
        if not _is_well_formed(command):
            return Reason.MALFORMED
        if not self.revision and command.action != AccessAction.INIT:
            return Reason.ACCESS_NOT_SET_UP
        reason = self._ACTIONS[command.action](self, command, time_ms)
        if reason is None:
            self.revision += 1
            self._forget()
        return reason

    def _init(self, command: AccessCommand, time_ms: int) -> Reason | None:
        if self.revision:
            return Reason.ACCESS_SET_UP
        self.users[command.name] = User((_ADMIN,), 1)
        if command.token:
            self.tokens[command.token] = _token_of(command, time_ms)
        self.is_on = True
        return None

    def _enable(self, _: AccessCommand, __: int) -> Reason | None:
        self.is_on = True
        return None

    def _disable(self, _: AccessCommand, __: int) -> Reason | None:
        self.is_on = False
        return None

    def _set_user(self, command: AccessCommand, _: int) -> Reason | None:
        name, roles, is_blocked = command.name, command.roles, command.is_blocked
        before = self.users.get(name)
        if reason := _condition(command.condition, before is not None, Reason.USER_EXISTS, Reason.NO_USER):
            return reason
        if before is None and len(self.users) >= USERS_MAX:
            return Reason.ACCESS_FULL
        if not all(role in BUILT_IN or role in self.roles for role in roles):
            return Reason.NO_ROLE
        # Blocked or made now: an older admission does not count.
        since = self.revision + 1 if before is None or (is_blocked and not before.is_blocked) else before.since
        return self._with_user(name, User(roles, since, is_blocked))

    def _delete_user(self, command: AccessCommand, _: int) -> Reason | None:
        if command.name not in self.users:
            return Reason.NO_USER
        if reason := self._with_user(command.name, None):
            return reason
        for token in [token for token, each in self.tokens.items() if each.user == command.name]:
            del self.tokens[token]
        return None

    def _set_role(self, command: AccessCommand, _: int) -> Reason | None:
        name = command.name
        if name in BUILT_IN:
            return Reason.BUILT_IN_ROLE
        before = self.roles.get(name)
        if reason := _condition(command.condition, before is not None, Reason.ROLE_EXISTS, Reason.NO_ROLE):
            return reason
        return self._change_role(name, command.grants)

    def _change_grants(self, command: AccessCommand, _: int) -> Reason | None:
        """Adds grants to a role, or takes them from it."""
        before = self.roles.get(command.name)
        if before is None:
            return Reason.BUILT_IN_ROLE if command.name in BUILT_IN else Reason.NO_ROLE
        if command.action == AccessAction.GRANT_ROLE:
            return self._change_role(command.name, tuple(dict.fromkeys((*before, *command.grants))))
        if any(overlaps(grant, held) for grant in command.grants if grant not in before for held in before):
            return Reason.STILL_GRANTED
        return self._change_role(command.name, tuple(grant for grant in before if grant not in command.grants))

    def _change_role(self, name: str, grants: tuple[Grant, ...]) -> Reason | None:
        """Gives the role these grants, unless there are too many, or no user could change permissions then."""
        before = self.roles.get(name)
        others = sum(len(held) for role, held in self.roles.items() if role != name)
        if others + len(grants) > GRANTS_MAX or (before is None and len(self.roles) >= ROLES_MAX):
            return Reason.ACCESS_FULL
        self._put_role(name, grants)
        if not self._has_admin():
            assert before is not None, "a new role takes nothing away"
            self._put_role(name, before)
            return Reason.LAST_ADMIN
        return None

    def _put_role(self, name: str, grants: tuple[Grant, ...]) -> None:
        self.roles[name] = grants
        self._admin_roles.pop(name, None)
        if _ACCESS in grants:
            self._admin_roles[name] = True

    def _delete_role(self, command: AccessCommand, _: int) -> Reason | None:
        if command.name in BUILT_IN:
            return Reason.BUILT_IN_ROLE
        if command.name not in self.roles:
            return Reason.NO_ROLE
        if any(command.name in user.roles for user in self.users.values()):
            return Reason.ROLE_IN_USE
        del self.roles[command.name]
        self._admin_roles.pop(command.name, None)
        return None

    def _add_token(self, command: AccessCommand, time_ms: int) -> Reason | None:
        if command.name not in self.users:
            return Reason.NO_USER
        if command.token in self.tokens:
            return Reason.TOKEN_EXISTS
        if len(self.tokens) >= TOKENS_MAX:
            return Reason.ACCESS_FULL
        self.tokens[command.token] = _token_of(command, time_ms)
        return None

    def _delete_token(self, command: AccessCommand, _: int) -> Reason | None:
        token = self.tokens.pop(command.token, None)
        if token is None:
            return Reason.NO_TOKEN
        self.users[token.user] = self.users[token.user]._replace(since=self.revision + 1)
        return None

    def _with_user(self, name: str, user: User | None) -> Reason | None:
        """Puts the user in its place, or takes it away (None), unless no user could change permissions then."""
        before = self.users.pop(name, None)
        if user is not None:
            self.users[name] = user
        if self._has_admin():
            return None
        assert before is not None, "a new user takes nothing away"
        self.users[name] = before
        return Reason.LAST_ADMIN

    def _has_admin(self) -> bool:
        """Whether a user that is not blocked may change permissions. Without one they could never be changed again."""
        return any(
            not user.is_blocked and any(role in self._admin_roles for role in user.roles)
            for user in self.users.values()
        )

    _ACTIONS: Final[dict[int, Callable[[AccessTable, AccessCommand, int], Reason | None]]] = {
        AccessAction.INIT: _init,
        AccessAction.ENABLE: _enable,
        AccessAction.DISABLE: _disable,
        AccessAction.SET_USER: _set_user,
        AccessAction.DELETE_USER: _delete_user,
        AccessAction.SET_ROLE: _set_role,
        AccessAction.DELETE_ROLE: _delete_role,
        AccessAction.ADD_TOKEN: _add_token,
        AccessAction.DELETE_TOKEN: _delete_token,
        AccessAction.GRANT_ROLE: _change_grants,
        AccessAction.UNGRANT_ROLE: _change_grants,
    }

    # -- digests and snapshots --------------------------------------------------------------------------------

    def rows(self) -> list[list[Any]]:
        """The table as the items of a snapshot, in one order whatever its history; none if it was never set up."""
        if not self.revision:
            return []
        rows: list[list[Any]] = [[_ROW_HEAD, self.is_on, self.revision]]
        rows += [[_ROW_ROLE, name, [*map(encode_grant, grants)]] for name, grants in sorted(self.roles.items())]
        rows += [[_ROW_USER, name, *user] for name, user in sorted(self.users.items())]
        rows += [[_ROW_TOKEN, name, *token] for name, token in sorted(self.tokens.items())]
        return rows

    def load(self, row: Any) -> None:
        """Takes back an item of `rows`; they come in their order. Raises ValueError or TypeError."""
        kind, *fields = row
        if (kind == _ROW_HEAD) == bool(self.revision):
            raise ValueError("its head comes first, and once")
        match kind:
            case 0:
                if not whole(fields[1]):
                    raise ValueError("it was never set up")
                self.is_on, self.revision = bool(fields[0]), fields[1]
            case 1:
                name, grants = fields
                self._put_role(_name(name), tuple(decode_grant(grant) for grant in grants))
            case 2:
                name, roles, since, is_blocked = fields
                self.users[_name(name)] = User(tuple(map(_name, roles)), whole(since), bool(is_blocked))
            case 3:
                token, user, token_hash, expires_ms, created_ms, label = fields
                if type(token_hash) is not bytes or type(label) is not str or user not in self.users:
                    raise ValueError(f"token {token!r} of {user!r}")
                self.tokens[_name(token)] = Token(user, token_hash, whole(expires_ms), whole(created_ms), label)
            case _:
                raise ValueError(f"a row of kind {kind}")

    def digest(self, seed: int) -> int:
        """A hash of the table, for digest points; it goes on from `seed`. `seed` itself if it was never set up."""
        if not self.revision:
            return seed
        if self._hashed[0] != self.revision:
            self._hashed = (self.revision, xxh64_intdigest(msgpack.packb(self.rows(), use_bin_type=True)))
        return xxh64_intdigest(self._hashed[1].to_bytes(8, "little"), seed)


_ROW_HEAD, _ROW_ROLE, _ROW_USER, _ROW_TOKEN = 0, 1, 2, 3
"""What an item of a snapshot is. Their numbers are for ever."""

_NODE: Final = Permissions([Grant(Verb.OPERATE, Resource.CLUSTER)])
"""A node trims by the retention rules."""


def is_name(text: str) -> bool:
    """Whether it can name a user, a role or a token. Names stand on terminals and in the log of a node, so they are
    printable ASCII: what else is printable, each version of Python decides for itself."""
    return bool(_NAME.fullmatch(text))


_NAME: Final = re.compile(r"(?! )[ -~]{1,255}(?<! )")


def _is_well_formed(command: AccessCommand) -> bool:
    """Whether the command has the fields that its action needs, within their limits."""
    action, name, roles, _, _, _, token, token_hash, _, label = command
    if label and not is_name(label):
        return False
    if action in (AccessAction.ENABLE, AccessAction.DISABLE):
        return True
    if action != AccessAction.DELETE_TOKEN and (not is_name(name) or name.startswith(RESERVED_PREFIX)):
        return False
    is_token = action in (AccessAction.ADD_TOKEN, AccessAction.DELETE_TOKEN) or (
        action == AccessAction.INIT and bool(token)
    )
    if is_token and not is_name(token):
        return False
    if is_token and action != AccessAction.DELETE_TOKEN and len(token_hash) != HASH_BYTES:
        return False
    return len(roles) <= ROLES_OF_USER_MAX and len(dict.fromkeys(roles)) == len(roles)


def _condition(condition: int, is_there: bool, exists: Reason, missing: Reason) -> Reason | None:
    if condition == Condition.IS_NEW and is_there:
        return exists
    return missing if condition == Condition.EXISTS and not is_there else None


def _token_of(command: AccessCommand, time_ms: int) -> Token:
    return Token(command.name, command.token_hash, command.expires_ms, time_ms, command.label)


def _name(text: Any) -> str:
    if type(text) is not str or not is_name(text):
        raise TypeError(f"{text!r} is no name")
    return text
