"""Defines the commands that change users, roles and tokens, and their bytes: the value of an ACCESS record.

They carry names and hashes, never a secret: the log holds them for ever.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgpack

from raftlog.statemachine.access.grants import Grant, Resource, Verb, check_grant
from raftlog.statemachine.commands import LIMIT_MAX, MalformedCommand, UnknownCommand, unpack_versioned

ACCESS_VERSION: Final = 1
HASH_BYTES: Final = 32
"""Of a token: SHA-256 of its text, which has 256 random bits."""


class AccessAction(IntEnum):
    """What an ACCESS record asks for. Numbers are in every log for ever."""

    INIT = 1  # once: makes the first admin `name`, with token `token` if it names one, and switches access control on
    ENABLE = 2
    DISABLE = 3  # everybody may do everything again; users, roles and tokens stay
    SET_USER = 4  # creates or alters user `name`: its roles, and whether it is blocked
    DELETE_USER = 5  # with its tokens and its sessions
    SET_ROLE = 6  # creates or alters role `name`: its grants
    DELETE_ROLE = 7  # refused while a user has it
    ADD_TOKEN = 8  # token `token` of user `name`
    DELETE_TOKEN = 9  # token `token`
    GRANT_ROLE = 10  # role `name` has these grants too; those that it has already change nothing
    UNGRANT_ROLE = 11  # role `name` has these grants no more; those that it has not change nothing


class Condition(IntEnum):
    """What SET_USER and SET_ROLE expect."""

    NONE = 0
    IS_NEW = 1
    EXISTS = 2


class AccessCommand(NamedTuple):
    """The value of an ACCESS record. Fields that its action does not name keep their defaults."""

    action: int
    name: str = ""
    roles: tuple[str, ...] = ()
    grants: tuple[Grant, ...] = ()
    is_blocked: bool = False
    condition: int = Condition.NONE
    token: str = ""  # its public part, by which it is found
    token_hash: bytes = b""
    expires_ms: int = 0  # Unix ms; 0: never
    label: str = ""  # for people: what the token is for


def encode_access(command: AccessCommand) -> bytes:
    """The value of an ACCESS record: a msgpack array, its format version first."""
    action, name, roles, grants, is_blocked, condition, *token = command
    rows = [encode_grant(grant) for grant in grants]
    data: bytes = msgpack.packb(
        [ACCESS_VERSION, int(action), name, roles, rows, is_blocked, int(condition), *token], use_bin_type=True
    )
    return data


def decode_access(data: bytes) -> AccessCommand:
    """Raises MalformedCommand or UnknownCommand."""
    fields = unpack_versioned(data, "access command", ACCESS_VERSION)
    try:
        action, name, roles, rows, is_blocked, condition, token, token_hash, expires_ms, label = fields
        numbers, texts = (action, condition, expires_ms), (name, token, label, *roles)
        if not all(type(number) is int and 0 <= number <= LIMIT_MAX for number in numbers):
            raise TypeError(f"action, condition and expiry are {numbers!r}")
        if not all(type(text) is str for text in texts) or type(token_hash) is not bytes:
            raise TypeError("names, roles and labels are text, and a hash is bytes")
        if type(is_blocked) is not bool:
            raise TypeError(f"{is_blocked!r} is neither true nor false")
        if action not in _ACTIONS or condition not in _CONDITIONS:
            raise UnknownCommand(f"access command with action {action}, condition {condition}: upgrade this code")
        grants = tuple(decode_grant(row) for row in rows)
    except UnknownCommand:
        raise
    except Exception as error:
        raise MalformedCommand(f"not an access command: {error}") from error
    return AccessCommand(
        action, name, tuple(roles), grants, is_blocked, condition, token, token_hash, expires_ms, label
    )


_ACTIONS: Final = frozenset(int(action) for action in AccessAction)
_CONDITIONS: Final = frozenset(int(condition) for condition in Condition)


def encode_grant(grant: Grant) -> list[Any]:
    """The row of a grant in commands and snapshots."""
    verb, resource, start, end = grant
    return [int(verb), int(resource), start, end]


def decode_grant(row: Any) -> Grant:
    """Raises UnknownCommand, or ValueError or TypeError for a row that is none."""
    verb, resource, start, end = row
    if type(verb) is not int or type(resource) is not int:
        raise TypeError("verbs and resources are numbers")
    if type(start) is not bytes or type(end) is not bytes:
        raise TypeError("a range is bytes")
    if verb not in _VERBS or resource not in _RESOURCES:
        raise UnknownCommand(f"a grant of verb {verb} on resource {resource}: upgrade this code")
    return check_grant(Grant(Verb(verb), Resource(resource), start, end))


_VERBS: Final = frozenset(int(verb) for verb in Verb)
_RESOURCES: Final = frozenset(int(resource) for resource in Resource)
