"""Handles `/v1/kv`: keys, ranges of keys, and the compaction of their history."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Final, NamedTuple

import google_crc32c
import msgpack
import msgspec

from raftlog.cluster.api.encoding import Encoding
from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.api.kv import CompactIn, CompactionAnswer, KeyAnswer, KeyValue, RangeAnswer, Written
from raftlog.cluster.http.exchange.answer import HttpAnswer, StreamedAnswer, encode_json
from raftlog.cluster.http.exchange.body import decode, read_body, with_body
from raftlog.cluster.http.exchange.call import (
    NO_SESSION,
    READ_PARAMETERS,
    Call,
    Handled,
    SessionHeaders,
    checked_value,
    finished,
    read_index,
    wait_applied,
)
from raftlog.cluster.http.exchange.outcomes import AppliedRequest, commit, done_of, send_record, submit
from raftlog.cluster.http.exchange.query import NO_PARAMETERS, Query, check_key, unescape
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes.kv_versions import read_versions
from raftlog.cluster.http.routes.log import ENCODINGS, SLICE_RECORDS
from raftlog.cluster.protocol.request import RequestResult
from raftlog.cluster.records.rows import key_value
from raftlog.raft.codec.block import BlockRecord
from raftlog.statemachine import store
from raftlog.statemachine.access.grants import Grant, Resource, Verb
from raftlog.statemachine.commands import KEY_BYTES_MAX, Operation

_PUT: Final = int(Operation.PUT)
_DELETE: Final = int(Operation.DELETE)
_KEY: Final = frozenset({"key", "key_b64"})
_GET: Final = READ_PARAMETERS | _KEY | {"at", "encoding", "versions", "from", "value_bytes"}
_WRITE: Final = _KEY | {"if_revision"}
_BOUNDS: Final = frozenset({"prefix", "prefix_b64", "start", "start_b64", "end", "end_b64"})
_RANGE: Final = (
    READ_PARAMETERS | _BOUNDS | _KEY | {"limit", "page_bytes", "continuation", "at", "keys_only", "encoding"}
)
_RANGE_OR_GET: Final = _RANGE | _GET
_OCTETS: Final = "application/octet-stream"
_COMPACT_BODY: Final = msgspec.json.Decoder(CompactIn)
_TOKEN_VERSION: Final = 1
_PATH_KEY: Final = "the key in the path"
_AUTO: Final[Encoding] = "auto"
_What = tuple[bytes, int | None, Encoding]
"""The key that is read, the revision at which (None: now), and how it is shown."""


def path_key(call: Call, query: Query) -> bytes:
    """The key of the raw path; with an empty one, the key_b64= parameter. Raises ApiError."""
    raw = call.key
    given = query.key() if call.query_text else None
    if given is None:
        key = unescape(raw, _PATH_KEY) if "%" in raw else raw.encode("utf-8", "surrogateescape")
        return key if 0 < len(key) <= KEY_BYTES_MAX else check_key(key, _PATH_KEY)
    if raw:
        raise ApiError(Code.BAD_REQUEST, "the key is given twice, in the path and as a parameter: give one")
    return given


def put(service: Service, call: Call) -> Handled:
    """Sets a key to the body's bytes, as they are."""
    query = call.query(_WRITE) if call.query_text else NO_PARAMETERS
    key = path_key(call, query)
    value = call.whole
    if value is None:
        return with_body(service, call, put)
    if len(value) > service.limits.value_bytes_max:
        checked_value(service, value, "the value")
    if_revision = query.number("if_revision") if call.query_text else None
    session = call.session() if call.has_options else NO_SESSION
    return send_record(service, call, session, _PUT, key, value, if_revision), written, session


async def delete(service: Service, call: Call) -> HttpAnswer:
    """Deletes a key. If it does not exist: `applied` with `deleted` 0."""
    query = call.query(_WRITE)
    record = BlockRecord(_DELETE, path_key(call, query), None, None, query.number("if_revision"))
    session = call.session()
    return written(service, call, await commit(service, call, (record,), session), session)


async def delete_range(service: Service, call: Call) -> HttpAnswer:
    """Deletes every key of a range, or, with `key_b64`, one key."""
    query = call.query(_BOUNDS | _WRITE)
    if "key" in query or "key_b64" in query:
        return await delete(service, call)
    if "if_revision" in query:
        raise ApiError(Code.BAD_REQUEST, "if_revision is for one key: a transaction compares ranges")
    start, end = _bounds(query)
    if not any(name in query for name in _BOUNDS):
        raise ApiError(
            Code.BAD_REQUEST, "name what to delete: prefix= (empty for every key), or start= and end=, or a key"
        )
    record = BlockRecord(int(Operation.DELETE_RANGE), start, end)
    session = call.session()
    return written(service, call, await commit(service, call, (record,), session), session)


def written(service: Service, _: Call, settled: RequestResult, session: SessionHeaders) -> HttpAnswer:
    """The answer to the write of keys. Raises ApiError."""
    done = done_of(service, settled, session)
    return HttpAnswer(service.identity, encode_json(written_of(done)), done.last, done.term)


def written_of(done: AppliedRequest) -> Written:
    """The body of the answer to a put or delete that was applied."""
    answer = done.answer
    return Written(
        Outcome.APPLIED, done.result, done.revision, done.last, done.term, answer.deleted if answer is not None else 0
    )


def get(service: Service, call: Call) -> Handled:
    """A key with its versions; with `Accept: application/octet-stream` the bare value."""
    query = call.query(_GET) if call.query_text else NO_PARAMETERS
    key = path_key(call, query)
    if call.query_text:
        return _get(service, call, query, (key, query.number("at", 1), encoding_of(query)))
    return service.node.read_barrier(call.deadline), got, (key, None, _AUTO)


async def _get(service: Service, call: Call, query: Query, what: _What) -> HttpAnswer:
    await read_index(service, call, query)
    if "versions" in query:
        return await read_versions(service, call, query, *what)
    for name in ("from", "value_bytes"):
        if name in query:
            raise ApiError(Code.BAD_REQUEST, f"{name} is for versions=N: give both")
    return got(service, call, None, what)


def got(service: Service, call: Call, _: object, what: _What) -> HttpAnswer:
    """The answer to the read of a key. Raises ApiError."""
    key, at, encoding = what
    node = service.node
    machine = node.machine
    if machine.access.is_on:
        service.access.check_read(call, key)
    version = machine.get(key, at)
    index, term, revision = machine.applied_index, node.term, machine.revision
    if version is None:
        raise ApiError(Code.KEY_NOT_FOUND, "there is no such key", index=index, term=term, revision=revision)
    if call.headers.get("Accept") == _OCTETS:
        return HttpAnswer(
            service.identity,
            version.value,
            index,
            term,
            content_type=_OCTETS,
            extra=(
                ("Raftlog-Revision", str(revision)),
                ("Raftlog-Create", str(version.create)),
                ("Raftlog-Mod", str(version.mod)),
                ("Raftlog-Version", str(version.version)),
            ),
        )
    return HttpAnswer(
        service.identity, encode_json(KeyAnswer(key_value(key, version, encoding), revision, index, term)), index, term
    )


class _Token(NamedTuple):
    """The continuation of a range read: the values that must be equal on all of its pages, and the last key
    returned."""

    version: int
    log_id: str
    revision: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no code calls on it
    term: int
    start: bytes
    end: bytes
    keys_only: bool
    after: bytes


_TOKEN: Final = msgspec.msgpack.Decoder(tuple[int, str, int, int, int, bytes, bytes, bool, bytes])


async def get_range(service: Service, call: Call) -> HttpAnswer | StreamedAnswer:
    """One page of a range. All pages are as of the revision of the first, and carry its index."""
    query = call.query(_RANGE_OR_GET)
    if "key" in query or "key_b64" in query:
        return await finished(service, call, get(service, call))
    query.check_names(_RANGE)
    start, end = _bounds(query)
    limits = service.limits
    limit = query.number_or("limit", min(1_000, limits.page_records_max), 1, limits.page_records_max)
    page_bytes = query.number_or("page_bytes", limits.page_bytes_max, 1, limits.page_bytes_max)
    keys_only = query.flag("keys_only")
    encoding = encoding_of(query)
    at = query.number("at", 1)
    node = service.node
    token: _Token | None = None
    if "continuation" in query:
        token = _parse_token(query.text("continuation"), node.log_id)
        if (token.start, token.end, token.keys_only) != (start, end, keys_only) or at not in (None, token.revision):
            raise ApiError(
                Code.BAD_REQUEST, "this continuation belongs to another range: repeat prefix, start, end, keys_only, at"
            )
        if node.machine.access.is_on:  # a permission may have been taken away since the page before
            await node.read_barrier(call.deadline)
        if token.index > node.applied:
            await wait_applied(service, call, token.index)
        machine = node.machine
        index, term, at = token.index, token.term, token.revision
    else:
        await read_index(service, call, query)
        machine = node.machine  # read again: a leader's snapshot may have replaced it meanwhile
        index, term, at = machine.applied_index, node.term, machine.revision if at is None else at
    service.access.check(call, Grant(Verb.READ, Resource.KEYS, start, end))
    after, bytes_max = token.after if token else None, (page_bytes + 1) // 2  # JSON is larger
    found, count, more = machine.range(start, end, limit, at, keys_only=keys_only, after=after, bytes_max=bytes_max)
    continuation = None
    if more:
        last = found[-1][0]
        continuation = _token_text(_Token(_TOKEN_VERSION, node.log_id, at, index, term, start, end, keys_only, last))
    call.hold_answer(service, sum([len(key) + len(version.value) for key, version in found]))
    kvs: list[KeyValue] = []
    for first in range(0, len(found), SLICE_RECORDS):
        part = found[first : first + SLICE_RECORDS]
        kvs += [key_value(key, version, encoding, keys_only=keys_only) for key, version in part]
        await asyncio.sleep(0)  # the found versions do not change when more is applied
    return service.answer(RangeAnswer(kvs, more, count, continuation, at, index, term), index, term)


def _bounds(query: Query) -> tuple[bytes, bytes]:
    """Start and end of the requested range. An empty end: no upper bound."""
    prefix = query.bound("prefix")
    start, end = query.bound("start"), query.bound("end")
    if prefix is not None:
        if start is not None or end is not None:
            raise ApiError(Code.BAD_REQUEST, "prefix goes without start and end: give either")
        return prefix, store.prefix_end(prefix)
    start, end = start or b"", end or b""
    if end and end < start:
        raise ApiError(Code.BAD_REQUEST, "end is before start: a range is [start, end) in the order of bytes")
    return start, end


def _token_text(token: _Token) -> str:
    packed: bytes = msgpack.packb(token, use_bin_type=True)
    crc = google_crc32c.value(packed).to_bytes(4, "big")
    return base64.urlsafe_b64encode(crc + packed).decode().rstrip("=")


def _parse_token(text: str, log_id: str) -> _Token:
    bad = ApiError(Code.BAD_REQUEST, "continuation is not one that was given out: pass it back as it came")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        if len(data) < 5 or google_crc32c.value(data[4:]).to_bytes(4, "big") != data[:4]:
            raise bad
        token = _Token(*_TOKEN.decode(data[4:]))
    except (binascii.Error, ValueError, TypeError) as error:
        raise bad from error
    if token.version != _TOKEN_VERSION:
        raise ApiError(Code.BAD_REQUEST, f"continuation of version {token.version}: start the range read again")
    if token.log_id != log_id:
        raise ApiError(Code.FOREIGN_LOG, f"this continuation belongs to log {token.log_id}, this is log {log_id}")
    return token


async def compact(service: Service, call: Call) -> HttpAnswer:
    """Lets the history of keys below a revision be deleted."""
    call.query()
    body = decode(_COMPACT_BODY, await read_body(service, call), "the body as JSON")
    done = await submit(service, call, (BlockRecord(int(Operation.COMPACT), argument=body.revision),))
    machine = service.node.machine
    answer = CompactionAnswer(Outcome.APPLIED, machine.compacted_revision, done.revision, done.last, done.term)
    return service.answer(answer, done.last, done.term)


def encoding_of(query: Query) -> Encoding:
    return "base64" if query.choice("encoding", ENCODINGS) == "base64" else "auto"
