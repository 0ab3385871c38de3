"""`/v1/kv`: keys, ranges of keys, and the compaction of their history."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Final, NamedTuple

import google_crc32c
import msgpack
import msgspec

from cluster.http_answer import Answer, encode_json
from cluster.http_call import READ_PARAMETERS, Call, Service, answers_full, decode, read_index, wait_applied
from cluster.http_log import ENCODINGS, SLICE_RECORDS
from cluster.http_outcomes import Done, submit
from cluster.http_query import Query, check_key, unescape
from cluster.records import key_value
from cluster.wire import (
    ApiError,
    Code,
    Compacted,
    CompactIn,
    Encoding,
    Got,
    KeyValue,
    Outcome,
    Ranged,
    Written,
)
from raft.codec import Record
from statemachine import store
from statemachine.commands import Operation

_PUT: Final = int(Operation.PUT)
_DELETE: Final = int(Operation.DELETE)
_KEY: Final = frozenset({"key", "key_b64"})
_GET: Final = READ_PARAMETERS | _KEY | {"at", "encoding"}
_WRITE: Final = _KEY | {"if_revision"}
_BOUNDS: Final = frozenset({"prefix", "prefix_b64", "start", "start_b64", "end", "end_b64"})
_RANGE: Final = READ_PARAMETERS | _BOUNDS | _KEY | {"limit", "continuation", "at", "keys_only", "encoding"}
_OCTETS: Final = "application/octet-stream"
_COMPACT_BODY: Final = msgspec.json.Decoder(CompactIn)
_TOKEN_VERSION: Final = 1


def path_key(call: Call, query: Query) -> bytes:
    """The key of the raw path; with an empty one, the key_b64= parameter."""
    raw = call.parts[0] if call.parts else ""
    given = query.key()
    if raw and given is not None:
        raise ApiError(Code.BAD_REQUEST, "the key is given twice, in the path and as a parameter: give one")
    if given is not None:
        return given
    return key_in_path(raw)


def key_in_path(raw: str) -> bytes:
    """The key that a raw path names. Raises ApiError."""
    return check_key(unescape(raw, "the key in the path"), "the key in the path")


async def put(service: Service, call: Call) -> Answer:
    """Sets a key to the body's bytes, as they are."""
    query = call.query(_WRITE)
    key = path_key(call, query)
    value = await call.body(service)
    if len(value) > service.limits.value_bytes_max:
        raise ApiError(
            Code.TOO_LARGE,
            f"the value has {len(value)} bytes: the limit is {service.limits.value_bytes_max} (limits.value_bytes_max)",
        )
    done = await submit(service, call, (Record(_PUT, key, value, None, query.number("if_revision")),))
    return written(service, done)


async def delete(service: Service, call: Call) -> Answer:
    """Deletes a key; one that is not there is `applied` with `deleted` 0."""
    query = call.query(_WRITE)
    record = Record(_DELETE, path_key(call, query), None, None, query.number("if_revision"))
    return written(service, await submit(service, call, (record,)))


async def delete_range(service: Service, call: Call) -> Answer:
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
    record = Record(int(Operation.DELETE_RANGE), start, end)
    return written(service, await submit(service, call, (record,)))


def written(service: Service, done: Done) -> Answer:
    """What is answered to the write of keys."""
    return service.answer(written_of(done), done.last, done.term)


def written_of(done: Done) -> Written:
    """What a client is told of a put or delete that was applied."""
    answer = done.answer
    return Written(
        Outcome.APPLIED, done.result, done.revision, done.last, done.term, answer.deleted if answer is not None else 0
    )


async def get(service: Service, call: Call) -> Answer:
    """A key with its versions; with `Accept: application/octet-stream` the bare value."""
    query = call.query(_GET)
    key = path_key(call, query)
    at = query.number("at", 1)
    encoding = encoding_of(query)
    await read_index(service, call, query)
    return got(service, key, at, encoding, is_bare=call.headers.get("Accept") == _OCTETS)


def got(service: Service, key: bytes, at: int | None, encoding: Encoding, *, is_bare: bool) -> Answer:
    """What is answered to the read of a key. Raises ApiError where there is nothing to read."""
    node = service.node
    machine = node.machine
    try:
        version = machine.get(key, at)
    except (store.Compacted, store.FutureRevision) as error:
        raise unreadable(error) from error
    index, term, revision = machine.applied_index, node.term, machine.revision
    if version is None:
        raise ApiError(Code.KEY_NOT_FOUND, "there is no such key", index=index, term=term, revision=revision)
    if is_bare:
        return Answer(
            service.identity, version.value, index, term, content_type=_OCTETS,
            extra=(
                ("Raftlog-Revision", str(revision)), ("Raftlog-Create", str(version.create)),
                ("Raftlog-Mod", str(version.mod)), ("Raftlog-Version", str(version.version)),
            ),
        )  # fmt: skip
    body = encode_json(Got(key_value(key, version, encoding), revision, index, term))
    return Answer(service.identity, body, index, term)  # as encode_answer does; that call costs 2 %


class _Token(NamedTuple):
    """Where a range read goes on: everything that must be equal on all of its pages, and the last key told."""

    version: int
    log_id: str
    revision: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on it
    term: int
    start: bytes
    end: bytes
    keys_only: bool
    after: bytes


async def get_range(service: Service, call: Call) -> Answer:
    """One page of a range. All pages are as of the revision of the first, and carry its index."""
    query = call.query(_RANGE)
    if "key" in query or "key_b64" in query:
        return await get(service, call)
    start, end = _bounds(query)
    limits = service.limits
    limit = query.number_or("limit", min(1_000, limits.page_records_max), 1, limits.page_records_max)
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
        if token.index > node.applied:
            await wait_applied(service, call, token.index)
        machine = node.machine
        index, term, at = token.index, token.term, token.revision
    else:
        await read_index(service, call, query)
        machine = node.machine  # a leader's snapshot may have taken its place meanwhile: not that of before
        index, term, at = machine.applied_index, node.term, machine.revision if at is None else at
    try:
        found, count, more = machine.range(
            start, end, limit, at, keys_only=keys_only, after=token.after if token else None,
            bytes_max=limits.page_bytes_max // 2,
        )  # fmt: skip
    except (store.Compacted, store.FutureRevision) as error:
        raise unreadable(error) from error
    continuation = None
    if more:
        last = found[-1][0]
        continuation = _token_text(_Token(_TOKEN_VERSION, node.log_id, at, index, term, start, end, keys_only, last))
    if not call.hold_answer(service, sum([len(key) + len(version.value) for key, version in found])):
        raise answers_full(service.answers)
    kvs: list[KeyValue] = []
    for first in range(0, len(found), SLICE_RECORDS):
        part = found[first : first + SLICE_RECORDS]
        kvs += [key_value(key, version, encoding, keys_only=keys_only) for key, version in part]
        await asyncio.sleep(0)  # what was found stays as it is, whatever is applied meanwhile
    return service.answer(Ranged(kvs, more, count, continuation, at, index, term), index, term)


def _bounds(query: Query) -> tuple[bytes, bytes]:
    """Start and end of the range asked for; an empty end: to the last key."""
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
        version, *rest = msgpack.unpackb(data[4:], raw=False, use_list=False)
    except (binascii.Error, ValueError, TypeError) as error:
        raise bad from error
    if version != _TOKEN_VERSION:
        raise ApiError(Code.BAD_REQUEST, f"continuation of version {version}: start the range read again")
    token = _Token(version, *rest)
    if token.log_id != log_id:
        raise ApiError(Code.FOREIGN_LOG, f"this continuation belongs to log {token.log_id}, this is log {log_id}")
    return token


async def compact(service: Service, call: Call) -> Answer:
    """Lets key history below a revision go."""
    call.query()
    body = decode(_COMPACT_BODY, await call.body(service), "the body as JSON")
    done = await submit(service, call, (Record(int(Operation.COMPACT), argument=body.revision),))
    machine = service.node.machine
    answer = Compacted(Outcome.APPLIED, machine.compacted_revision, done.revision, done.last, done.term)
    return service.answer(answer, done.last, done.term)


def encoding_of(query: Query) -> Encoding:
    """The parameter `encoding`."""
    return "base64" if query.choice("encoding", ENCODINGS) == "base64" else "auto"


def unreadable(error: store.Compacted | store.FutureRevision) -> ApiError:
    """A revision that cannot be read: 410 or 425."""
    if isinstance(error, store.Compacted):
        return ApiError(Code.COMPACTED, str(error), revision=error.oldest)
    return ApiError(Code.FUTURE_INDEX, str(error), revision=error.newest)
