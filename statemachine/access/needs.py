"""Says which grants a request needs: the node that takes it, and every replica that applies it, ask the same.

A transaction needs the grants of all that it names, in its compares and in both branches, whichever of them runs: so
the answer does not depend on the store, and says nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from raftlog.statemachine.access.grants import Grant, Resource, Verb
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.access.table import KnownPrincipal
from raftlog.statemachine.commands import GET_OPERATION, Command, MalformedCommand, Operation
from raftlog.statemachine.store import next_key
from raftlog.statemachine.txn import decode_txn

APPEND_LOG: Final = Grant(Verb.APPEND, Resource.LOG)
READ_LOG: Final = Grant(Verb.READ, Resource.LOG)
WATCH: Final = Grant(Verb.WATCH, Resource.CLUSTER)
OPERATE: Final = Grant(Verb.OPERATE, Resource.CLUSTER)
MEMBERS: Final = Grant(Verb.MEMBERS, Resource.CLUSTER)
ACCESS: Final = Grant(Verb.ACCESS, Resource.CLUSTER)


_NEED_NOTHING: Final = (
    Operation.SESSION_KEEPALIVE,
    Operation.SESSION_CLOSE,
    Operation.VOID,  # of the session's owner
    Operation.DIGEST_POINT,  # changes nothing
)


def is_permitted(principal: KnownPrincipal, commands: Sequence[Command]) -> bool:
    """Whether the principal may have these commands carried out. A digest point needs no principal: each leader
    proposes them."""
    permissions = principal.permissions
    if permissions is None:
        return len(commands) == 1 and commands[0].operation == Operation.DIGEST_POINT
    return missing(permissions, commands) is None


def key_grant(verb: Verb, key: bytes) -> Grant:
    """The grant for one key."""
    return Grant(verb, Resource.KEYS, key, next_key(key))


def group_grant(verb: Verb, name: bytes) -> Grant:
    """The grant for one consumer group."""
    return Grant(verb, Resource.GROUPS, name, next_key(name))


def missing(permissions: Permissions, commands: Sequence[Command]) -> Grant | None:
    """The first grant that a request of these commands needs and the principal lacks; None if it may be carried out.

    No commands: records that are nothing but appends, whose keys were not decoded. Sessions are kept alive, closed
    and asked by their owner alone; that needs no grant.
    """
    if not commands:
        return None if permissions.allows(APPEND_LOG) else APPEND_LOG
    for command in commands:
        operation, key = command[0], command[1]
        if operation == Operation.PUT or operation == Operation.DELETE:  # most
            if not permissions.allows_key(Verb.WRITE, Resource.KEYS, key or b""):
                return key_grant(Verb.WRITE, key or b"")
        elif operation == Operation.APPEND:
            if not permissions.allows(APPEND_LOG):
                if key is None:
                    return APPEND_LOG
                if not permissions.allows_key(Verb.APPEND, Resource.KEYS, key):
                    return key_grant(Verb.APPEND, key)
        elif operation == Operation.SESSION_OPEN:
            if not permissions.may_write:
                return APPEND_LOG
        elif operation not in _NEED_NOTHING:
            for grant in _needs(command):
                if not permissions.allows(grant):
                    return grant
    return None


def _needs(command: Command) -> Iterator[Grant]:
    operation, key, value = command[0], command[1] or b"", command[2] or b""
    match operation:
        case Operation.DELETE_RANGE:
            yield Grant(Verb.WRITE, Resource.KEYS, key, value)
        case Operation.TXN:
            yield from _needs_of_txn(value)
        case Operation.CONSUMER:
            yield group_grant(Verb.WRITE, key)
        case Operation.ACCESS:
            yield ACCESS
        case _:  # COMPACT, TRIM
            yield OPERATE


def _needs_of_txn(value: bytes) -> Iterator[Grant]:
    try:
        txn = decode_txn(value)
    except MalformedCommand:
        return  # it is refused for that
    for compare in txn.compare:
        yield _range_grant(Verb.READ, compare.key, compare.end)
    for branch in (txn.then, txn.orelse):
        for step in branch:
            verb = Verb.READ if step.operation == GET_OPERATION else Verb.WRITE
            yield _range_grant(verb, step.key, step.end)


def _range_grant(verb: Verb, start: bytes, end: bytes | None) -> Grant:
    return Grant(verb, Resource.KEYS, start, next_key(start) if end is None else end)


# ---------------------------------------------------------------------------------------------------------------
# What a reader may see, whichever way it asks: pages, streams and segments of the log, explanations, groups, status.


def hidden(permissions: Permissions, command: Command) -> Grant | None:
    """The grant that a principal lacks to see this record of the log; None if it may. The log itself needs READ_LOG.

    A record holds the keys and values that it writes. So a principal that sees it needs the permission to read all
    keys, or the consumer group, that it names. Records of permissions need that to change permissions.
    """
    operation, key, value = command[0], command[1], command[2]
    if operation in (Operation.APPEND, Operation.PUT, Operation.DELETE):
        if key is None or permissions.allows_key(Verb.READ, Resource.KEYS, key):
            return None
        return key_grant(Verb.READ, key)
    if operation == Operation.CONSUMER:
        return None if sees_group(permissions, key or b"") else group_grant(Verb.READ, key or b"")
    if operation == Operation.DELETE_RANGE:
        grants = iter((Grant(Verb.READ, Resource.KEYS, key or b"", value or b""),))
    elif operation == Operation.TXN:
        grants = _reads_of_txn(value or b"")
    else:
        grants = iter((ACCESS,) if operation == Operation.ACCESS else ())
    return next((grant for grant in grants if not permissions.allows(grant)), None)


def sees_group(permissions: Permissions, name: bytes) -> bool:
    """Whether a principal may see a consumer group: it may read the group, or watches the cluster."""
    return permissions.allows_key(Verb.READ, Resource.GROUPS, name) or permissions.allows(WATCH)


def sees_members(permissions: Permissions) -> bool:
    """Whether a principal may see the contents of configurations, and which user wrote a record."""
    return permissions.allows(OPERATE)


def sees_segments(permissions: Permissions) -> bool:
    """Whether a principal may see all that entries hold, given that it may read the log and all keys and groups."""
    return sees_members(permissions) and permissions.allows(ACCESS)


def _reads_of_txn(value: bytes) -> Iterator[Grant]:
    try:
        decode_txn(value)
    except MalformedCommand:  # its bytes may name any key
        return iter((Grant(Verb.READ, Resource.KEYS),))
    return (grant._replace(verb=Verb.READ) for grant in _needs_of_txn(value))
