"""Defines the requests and answers of the log: records, pages, streams, watches, trims.

JSON and msgpack forms of one thing stand side by side. docs/http_api.md shows examples.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from raftlog.cluster.api.errors import Outcome, Problem
from raftlog.cluster.api.values import Number, Positive

Shown = TypeVar("Shown")


class RecordIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record to append. Text or base64, not both; all may be absent except that some value is usual."""

    value: str | None = None
    value_b64: str | None = None
    key: str | None = None
    key_b64: str | None = None
    headers: list[tuple[str, str]] | None = None  # values as text
    time_ms: Number | None = None  # the client's event time


class ValueIn(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record with nothing but text: five fields fewer to check."""

    value: str


class Appended(msgspec.Struct, frozen=True):
    """The answer to an append. The records have the indexes first..last. `index` = last."""

    outcome: Outcome
    result: str  # applied | repeated
    first: int
    last: int
    count: int
    index: int
    term: int


class ChangeJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key's change: in a log record, and in a message of a watch (which alone has `prior_index`)."""

    deleted: bool
    create: int
    mod: int
    version: int
    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    prior_index: int | None = None  # log index of the request that wrote the version replaced; 0: there was none


class ChangePacked(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key's change in msgpack."""

    deleted: bool
    create: int
    mod: int
    version: int
    key: bytes
    value: bytes | None = None


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A committed record as JSON. `headers` are text where every value is UTF-8, else `headers_b64`."""

    index: int
    term: int
    time_ms: int
    kind: str  # noop | configuration | clock | commands
    operation: str  # append | put | delete | delete_range | txn | ... ; "" where the kind has none
    result: str = "applied"
    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    headers: list[tuple[str, str]] | None = None
    headers_b64: list[tuple[str, str]] | None = None
    client_time_ms: int | None = None
    argument: int | None = (
        None  # if_revision of a put or delete, ttl of a session, …; see raftlog.statemachine.commands
    )
    session: int | None = None
    sequence: int | None = None
    revision: int | None = None
    succeeded: bool | None = None  # transactions
    prior_index: int | None = None  # a put or delete that applied: index of the version it replaced (0: none)
    create: int | None = None
    version: int | None = None
    changes: list[ChangeJson] | None = (
        None  # of transactions and range deletes: the command's own bytes do not name the keys
    )
    principal: str | None = None  # with internal=true and `operate on cluster`: the user that wrote it
    value_bytes: int | None = None  # of the whole value, where the parameter `value_bytes` cut it


class LogRecordPacked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The same as msgpack: bytes are bytes."""

    index: int
    term: int
    time_ms: int
    kind: str
    operation: str
    result: str = "applied"
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None
    client_time_ms: int | None = None
    argument: int | None = None
    session: int | None = None
    sequence: int | None = None
    revision: int | None = None
    succeeded: bool | None = None
    prior_index: int | None = None
    create: int | None = None
    version: int | None = None
    changes: list[ChangePacked] | None = None


class RecordsPage(msgspec.Struct, Generic[Shown], frozen=True):
    """One page of the log."""

    log: str
    records: list[Shown]
    next: int  # read on from here
    oldest: int
    committed: int
    last_user_index: int
    index: int  # applied index of the answering node
    term: int


LogPageJson = RecordsPage[LogRecord]
LogPagePacked = RecordsPage[LogRecordPacked]


class LogProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of an NDJSON stream that is no record (it has no `operation`): how far it is. The last line is one."""

    log: str
    next: int
    oldest: int
    committed: int
    last_user_index: int
    index: int
    term: int
    problem: Problem | None = None  # why the stream ends here: a slow reader, a stop, a compaction


class WatchMessage(msgspec.Struct, frozen=True):
    """All changes of one index, in order. Its event id is the index."""

    index: int
    term: int
    time_ms: int
    revision: int
    changes: list[ChangeJson]


class WatchProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every change up to this index was sent. The first message of a watch is one of these."""

    progress: int
    problem: Problem | None = None


class TrimIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records of the log below `before` may go."""

    before: Positive


class TrimAnswer(msgspec.Struct, frozen=True):
    """The answer to a trim of the log; `note` says when the disk space is freed."""

    outcome: Outcome
    oldest: int
    index: int
    term: int
    note: str = ""
