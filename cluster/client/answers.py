"""Defines the answers of the clients: keys and values as bytes, made from the JSON of the public API.

JSON carries bytes as text where they are valid UTF-8, else as base64 (`raftlog.cluster.api.encoding`); here they are
bytes again. Answers without bytes in them are the types of `raftlog.cluster.api` themselves.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from raftlog.cluster.api import records as wire_records
from raftlog.cluster.api.errors import Problem
from raftlog.cluster.api.kv import KeyAnswer, KeyValue, RangeAnswer, TxnAnswer
from raftlog.cluster.api.records import ChangeJson, LogRecord, WatchMessage, WatchProgress
from raftlog.cluster.client.http1 import ResponseHead

T = TypeVar("T")


class _WithValue(msgspec.Struct, frozen=True):
    def json(self, loads: Callable[[bytes], Any] = msgspec.json.decode) -> Any:
        """The value read as JSON, or by another function; None if there is no value. Raises what the function raises.

        A log may hold values of many kinds, so each record is read where it is used, not by the client.
        """
        value: bytes | None = getattr(self, "value")  # noqa: B009  # each class below has it
        return None if value is None else loads(value)


class Item(_WithValue, frozen=True):
    """A key of the store as of one revision."""

    key: bytes
    value: bytes  # b"" if only keys were requested
    create: int
    mod: int
    version: int


class Page(msgspec.Struct, frozen=True):
    """One page of a range; `continuation` leads to the next, None after the last. `count` keys are in the range."""

    items: tuple[Item, ...]
    count: int
    continuation: str | None
    revision: int
    index: int


class TxnResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of one step of a transaction's branch: `items` and `count` of a get, `deleted` of a delete."""

    operation: str
    items: tuple[Item, ...] = ()
    count: int = 0
    deleted: int = 0


class TxnResult(msgspec.Struct, frozen=True):
    """The result of a transaction. `succeeded` is False if its else branch ran, which is applied too."""

    succeeded: bool
    responses: tuple[TxnResponse, ...]
    result: str  # applied | repeated
    revision: int
    index: int
    term: int


class Change(_WithValue, frozen=True):
    """One key that a request changed; a deleted key has no value.

    `prior_index`: index of the version that it replaced.
    """

    key: bytes
    value: bytes | None
    deleted: bool
    create: int
    mod: int
    version: int
    prior_index: int | None = None


class Record(_WithValue, frozen=True):
    """A committed record of the log."""

    index: int
    term: int
    time_ms: int
    kind: str
    operation: str
    result: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] | None
    client_time_ms: int | None
    argument: int | None
    session: int | None
    sequence: int | None
    revision: int | None
    succeeded: bool | None
    prior_index: int | None
    create: int | None
    version: int | None
    changes: tuple[Change, ...] | None
    principal: str | None = None  # asked with `internal` and `operate on cluster`: the user that wrote it


class LogPage(msgspec.Struct, frozen=True):
    """One page of the log. Read on from `next`."""

    log: str
    records: tuple[Record, ...]
    next: int
    oldest: int
    committed: int
    last_user_index: int


class Progress(msgspec.Struct, frozen=True):
    """The position of a stream: all records below `next` were delivered. `problem`: why it ends here."""

    next: int
    oldest: int = 0
    committed: int = 0
    last_user_index: int = 0
    problem: Problem | None = None


class WatchEvent(msgspec.Struct, frozen=True):
    """All changes of the request at `index`."""

    index: int
    term: int
    time_ms: int
    revision: int
    changes: tuple[Change, ...]


# ---------------------------------------------------------------------------------------------------------------
# From JSON.

Decode = Callable[[ResponseHead, bytes], T]


def plain(kind: type[T]) -> Decode[T]:
    """A decoder of JSON bodies of that wire type. Modules call it at import, never later, because two threads must not
    use a msgspec Struct for the first time at once."""
    decoder = msgspec.json.Decoder(kind)
    return lambda _, body: decoder.decode(body)


def nothing(_: ResponseHead, __: bytes) -> None:
    """For answers whose body is not used."""


def item(kv: KeyValue) -> Item:
    """A key of the store, in bytes."""
    key = given(kv.key, kv.key_b64)
    if key is None:
        raise ValueError("a key of the store without its key")
    return Item(key, given(kv.value, kv.value_b64) or b"", kv.create, kv.mod, kv.version)


_got = msgspec.json.Decoder(KeyAnswer)
_ranged = msgspec.json.Decoder(RangeAnswer)
_txn = msgspec.json.Decoder(TxnAnswer)
_log_page = msgspec.json.Decoder(wire_records.LogPageJson)
_log_record = msgspec.json.Decoder(LogRecord)
_log_progress = msgspec.json.Decoder(Progress)  # the fields of LogProgress that a reader needs
_watch_message = msgspec.json.Decoder(WatchMessage)
_watch_progress = msgspec.json.Decoder(WatchProgress)


def got(_: ResponseHead, body: bytes) -> Item:
    """The answer to a get."""
    return item(_got.decode(body).kv)


def page(_: ResponseHead, body: bytes) -> Page:
    """The answer to a range."""
    ranged = _ranged.decode(body)
    return Page(tuple(map(item, ranged.kvs)), ranged.count, ranged.continuation, ranged.revision, ranged.index)


def txn_result(_: ResponseHead, body: bytes) -> TxnResult:
    """The answer to a transaction."""
    answer = _txn.decode(body)
    responses = tuple(
        TxnResponse(each.operation, tuple(map(item, each.kvs or ())), each.count or 0, each.deleted or 0)
        for each in answer.responses
    )
    return TxnResult(answer.succeeded, responses, answer.result, answer.revision, answer.index, answer.term)


def log_page(_: ResponseHead, body: bytes) -> LogPage:
    """One page of the log."""
    answer = _log_page.decode(body)
    return LogPage(
        answer.log,
        tuple(map(record, answer.records)),
        answer.next,
        answer.oldest,
        answer.committed,
        answer.last_user_index,
    )


def log_line(line: bytes) -> Record | Progress:
    """One line of an NDJSON stream of the log: a record, or (without `operation`) the position of the stream."""
    try:
        return record(_log_record.decode(line))
    except msgspec.ValidationError:
        return _log_progress.decode(line)


def watch_line(line: bytes) -> WatchEvent | Progress:
    """One line of an NDJSON watch."""
    try:
        message = _watch_message.decode(line)
    except msgspec.ValidationError:
        progress = _watch_progress.decode(line)
        return Progress(progress.progress + 1, problem=progress.problem)
    return WatchEvent(
        message.index, message.term, message.time_ms, message.revision, tuple(map(change, message.changes))
    )


def record(answer: LogRecord) -> Record:
    """A record of the log, in bytes."""
    headers: tuple[tuple[str, bytes], ...] | None = None
    if answer.headers is not None:
        headers = tuple((name, value.encode()) for name, value in answer.headers)
    elif answer.headers_b64 is not None:
        headers = tuple((name, base64.b64decode(value)) for name, value in answer.headers_b64)
    return Record(
        answer.index,
        answer.term,
        answer.time_ms,
        answer.kind,
        answer.operation,
        answer.result,
        given(answer.key, answer.key_b64),
        given(answer.value, answer.value_b64),
        headers,
        answer.client_time_ms,
        answer.argument,
        answer.session,
        answer.sequence,
        answer.revision,
        answer.succeeded,
        answer.prior_index,
        answer.create,
        answer.version,
        None if answer.changes is None else tuple(map(change, answer.changes)),
        answer.principal,
    )


def change(answer: ChangeJson) -> Change:
    """One change, in bytes."""
    key = given(answer.key, answer.key_b64)
    if key is None:
        raise ValueError("a change without its key")
    value = given(answer.value, answer.value_b64)
    return Change(key, value, answer.deleted, answer.create, answer.mod, answer.version, answer.prior_index)


def given(text: str | None, b64: str | None) -> bytes | None:
    """The bytes of a text field or its base64 twin; None if neither is given."""
    if text is not None:
        return text.encode("utf-8")
    return None if b64 is None else base64.b64decode(b64)
