"""Defines operations, commands and results: the meaning of a record's bytes.

The numbers are in every log for ever. What etcd calls mod_revision is `mod` here, and so on: revisions are etcd's
(docs/promises.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgpack

KEY_BYTES_MAX: Final = 4_096
SESSION_WINDOW_MAX: Final = 1_024
"""Sequences a session may have open at once (docs/promises.md: sessions)."""


class Operation(IntEnum):
    """What a record does. 0 is invalid. User operations come first; internal ones from 32 on."""

    APPEND = 1  # key?, value, headers?; argument: the client's event time in Unix ms
    PUT = 2  # key, value, headers?; argument: the mod revision the key must have (0: must not exist)
    DELETE = 3  # key; argument: the mod revision the key must have
    DELETE_RANGE = 4  # key: start, value: end (exclusive; empty: to the last key)
    TXN = 5  # value: `raftlog.statemachine.txn.encode_txn`
    COMPACT = 32  # argument: history below this revision may go
    SESSION_OPEN = 33  # argument: time to live in ms of the cluster clock
    SESSION_KEEPALIVE = 34  # argument: the session
    SESSION_CLOSE = 35  # argument: the session
    VOID = 36  # argument: sequence of the session named by the block; makes "not seen" final
    TRIM = 40  # argument: records below this index may go
    DIGEST_POINT = 41  # every replica reports its digest as of here; changes nothing
    CONSUMER = 42  # key: a group's name, value: `raftlog.statemachine.consumers.encode_consumer`
    ACCESS = 43  # value: `raftlog.statemachine.access.commands.encode_access`


INTERNAL_FIRST: Final = 32
"""Operations from this number on are internal: read only with internal=true, never counted as user records."""


class Result(IntEnum):
    """What became of a request. Numbers are in every ledger for ever."""

    APPLIED = 1
    REPEATED = 2  # the session had applied this sequence already; the first answer was returned, nothing was done
    COMPARE_FAILED = 3  # an expected revision did not match; nothing changed
    REFUSED = 4  # malformed or over a limit of the state machine; nothing changed
    EXPIRED = 5  # the session is not known (any more); nothing changed
    VOIDED = 6  # the sequence had been made void; nothing changed, and never will


class Command(NamedTuple):
    """One record of a request, decoded by the composer (`raftlog.raft.codec.block.BlockRecord` has the same fields)."""

    operation: int
    key: bytes | None = None
    value: bytes | None = None
    headers: bytes | None = None
    argument: int | None = None


class RequestBlock(NamedTuple):
    """One request block of an entry.

    For a plain request (nothing but appends) `commands` is empty and `count` says how many records it has.
    `payload_hash` is xxh64 of the block's body where the request has a session, else 0: a repeated sequence with
    other bytes is refused by it.
    """

    count: int  # type: ignore[assignment]  # hides tuple.count, which no code calls on it
    commands: tuple[Command, ...]
    session: int = 0
    sequence: int = 0
    settled: int = 0
    payload_hash: int = 0
    namespace: int = 0
    admission: bytes = b""  # `raftlog.statemachine.access.admission`; b"": none
    time_ms: int | None = None


class LogEntry(NamedTuple):
    """An entry as the state machine sees it: `index` is that of its last record, `count` its records.

    `requests` is empty for kinds that carry none (no-op, clock, configuration).
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which no code calls on it
    term: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no code calls on it
    time_ms: int
    clock_ms: int
    requests: tuple[RequestBlock, ...] = ()
    # A configuration entry's parameters by name (fields of `Limits`); None for every other kind.
    parameters: tuple[tuple[str, int], ...] | None = None
    version: int = 0  # a configuration entry's cluster version; 0 for every other kind


class Version(NamedTuple):
    """A key's value at some revision. `index` is the log index of the request that wrote it."""

    value: bytes
    create: int
    mod: int
    version: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no code calls on it


class ConsumerGroup(NamedTuple):
    """A consumer group: the next index that it reads, and the generation of the owner that may move it."""

    next: int
    generation: int  # index of the record that gave it
    owner: bytes  # the owner's name, for people
    time_ms: int  # of the entry that changed it last
    clock_ms: int


class CompareTarget(IntEnum):
    """What of a key a comparison looks at. A missing key has version, create and mod 0; comparing its value
    fails, whatever the operator: there is nothing to compare (etcd's rules)."""

    VALUE = 1
    VERSION = 2
    CREATE = 3
    MOD = 4


class CompareOperator(IntEnum):
    """How it is compared."""

    EQUAL = 1
    NOT_EQUAL = 2
    LESS = 3
    GREATER = 4


class Compare(NamedTuple):
    """One comparison; with `end` it must hold for every key of [key, end) (b"" for end: to the last key)."""

    key: bytes
    target: CompareTarget
    operator: CompareOperator
    operand: bytes | int
    end: bytes | None = None


class TxnOperation(NamedTuple):
    """One step of a branch: PUT, DELETE, DELETE_RANGE, or a read (`GET_OPERATION`, with `end` a range)."""

    operation: int
    key: bytes
    value: bytes | None = None
    end: bytes | None = None
    limit: int = 0


GET_OPERATION: Final = 0
"""A read inside a transaction; it has no number in `Operation` because it is never a record."""


class Txn(NamedTuple):
    """Compare, then one of two branches; atomic. All its changes share one revision."""

    compare: tuple[Compare, ...]
    then: tuple[TxnOperation, ...]
    orelse: tuple[TxnOperation, ...]


class MalformedCommand(ValueError):
    """Bytes that are no transaction, consumer command or change of permissions of any version: they are refused."""


class UnknownCommand(ValueError):
    """An operation, or a version or part of its value, that this code does not know: a node stops at it, and does not
    skip it. Upgrade before going on."""


def unpack_versioned(data: bytes, what: str, known: int) -> list[Any]:
    """The fields of a command (`what`, for the message) behind its format version, which must be `known`.

    Raises MalformedCommand for bytes that are no such array, UnknownCommand for another version.
    """
    try:
        fields: list[Any]
        version, *fields = msgpack.unpackb(data, raw=False, use_list=False)
    except Exception as error:
        raise MalformedCommand(f"it is no array that begins with a version: {error}") from error
    if type(version) is not int:
        raise MalformedCommand(f"its version is {version!r}")
    if version != known:
        raise UnknownCommand(f"{what} of version {version}: this code knows {known}, upgrade it")
    return fields


def whole(number: Any) -> int:
    """A field that must be a whole number from 0 on; TypeError for any other."""
    if type(number) is not int or number < 0:
        raise TypeError(f"{number!r} is not a whole number from 0 on")
    return number


LIMIT_MAX: Final = 2**53 - 1

SHARE_PARTS: Final = 8
"""While access control is on, one user that is no admin may have this part of the sessions, of their kept answers and
of the consumer groups: an eighth of the limit. Seven others find room beside a user that takes all that it gets."""


def share_of(limit: int, parts: int) -> int:
    """What one user may have of a limit that is cut into so many parts; one of anything in any case."""
    return max(1, limit // parts)


class BadParameter(ValueError):
    """A limit that is unknown or out of its range."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the state machine. They are part of the state, equal on every node: the configuration entry at index 1
    carries them as its parameters."""

    history_revisions_max: int = 100_000  # older revisions of the store than the newest this many may go
    history_bytes_max: int = 256 << 20  # keys and values of replaced versions that are kept
    sessions_max: int = 10_000
    session_window_max: int = SESSION_WINDOW_MAX
    session_ttl_min_ms: int = 1_000
    session_ttl_max_ms: int = 7 * 24 * 3_600_000
    session_answers_bytes_max: int = 256 << 20  # kept answers of all sessions together
    txn_operations_max: int = 128  # comparisons, and operations of either branch (etcd's default)
    request_keys_max: int = 5_000  # keys that one request's ranges may compare or delete: bounds the time of an apply
    answer_bytes_max: int = 1 << 20  # what the reads of one transaction may answer
    digests_kept: int = 10_000
    consumers_max: int = 1_000
    consumer_name_bytes_max: int = 255
    consumer_owner_bytes_max: int = 255

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            _check_limit(name, getattr(self, name))
        if self.session_ttl_min_ms > self.session_ttl_max_ms:
            raise BadParameter("session_ttl_min_ms is above session_ttl_max_ms: lower the one or raise the other")

    def named(self) -> list[tuple[str, int]]:
        """Each limit with its name, in the order of the names."""
        return [(name, getattr(self, name)) for name in sorted(self.__dataclass_fields__)]

    def with_parameters(self, parameters: tuple[tuple[str, object], ...]) -> Limits:
        """These limits with the named ones replaced: as a configuration entry asks. Raises BadParameter; the node that
        proposes a configuration calls this first, because a node stops at an entry that it cannot apply."""
        known = self.__dataclass_fields__
        if unknown := [name for name, _ in parameters if name not in known]:
            raise BadParameter(f"no such limit: {', '.join(unknown)}; there are {', '.join(known)}")
        checked = {name: _check_limit(name, value) for name, value in parameters}
        return replace(self, **checked)


def _check_limit(name: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= LIMIT_MAX:
        raise BadParameter(f"{name} is {value!r}: it must be a whole number from 1 to {LIMIT_MAX}")
    return value
