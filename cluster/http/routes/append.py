"""Handles `POST /v1/log`: one record or a batch, in any of four body formats, committed as one request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from raftlog.cluster.api.encoding import from_b64
from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.api.headers import H_KEY, JSON, MSGPACK, NDJSON
from raftlog.cluster.api.records import Appended, RecordIn, ValueIn
from raftlog.cluster.api.text import counted
from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.cluster.http.exchange.answer import HttpAnswer, encode_json
from raftlog.cluster.http.exchange.body import decode, with_body
from raftlog.cluster.http.exchange.call import NO_SESSION, Call, Handled, SessionHeaders, checked_value
from raftlog.cluster.http.exchange.outcomes import Records, commit, done_of, send_record
from raftlog.cluster.http.exchange.query import Query, check_key, unescape
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.protocol.request import RequestResult
from raftlog.raft.codec.block import BlockRecord, encode_headers
from raftlog.statemachine.commands import Operation

_APPEND: Final = int(Operation.APPEND)
_JSON_BODY: Final = msgspec.json.Decoder(list[RecordIn] | RecordIn)
_NDJSON_LINE: Final = msgspec.json.Decoder(RecordIn)
_PACKED_BODY: Final = msgspec.msgpack.Decoder(list[bytes | list[Any]])
_APPLIED: Final = Outcome.APPLIED
_BATCHES: Final = (JSON, NDJSON, MSGPACK)
_LOOP_BYTES: Final = 256 << 10
"""Most bytes that the event loop decodes; a worker thread decodes a larger batch, so that the loop does not pause."""
_PARAMETERS: Final = frozenset({"key", "key_b64"})
_AS_IT_IS: Final = (
    '. A record is {"value": "…"} (docs/http_api.md). To append the body itself, whatever it is, send it with '
    "Content-Type: application/octet-stream"
)
_JSON_VALUES: Final = msgspec.json.Decoder(list[ValueIn])


def append(service: Service, call: Call) -> Handled:
    """Appends the records in the body. They get the indexes first..last, in their order, all or none of them."""
    body = call.whole
    if body is None:
        return with_body(service, call, append)
    key, session = None, NO_SESSION
    if call.has_options or call.query_text:
        media_type = call.media_type()
        query = call.query(_PARAMETERS)
        if media_type in _BATCHES:
            return _append_batch(service, call, query, media_type, body)
        checked_value(service, body, "the body")
        key, session = _bare_key(call, query), call.session()
    elif len(body) > service.limits.value_bytes_max:
        checked_value(service, body, "the body")
    return send_record(service, call, session, _APPEND, key, body, is_plain=True), appended, session


async def _append_batch(service: Service, call: Call, query: Query, media_type: str, body: bytes) -> HttpAnswer:
    if not query.is_empty:
        raise ApiError(Code.BAD_REQUEST, f"key= is for a body that is one bare value: in {media_type} it is inside")
    if H_KEY in call.headers:
        raise ApiError(Code.BAD_REQUEST, f"{H_KEY} is for a body that is one bare value: in {media_type} it is inside")
    if len(body) <= _LOOP_BYTES:
        records = _decode_batch(service, media_type, body)
    else:
        records = await asyncio.to_thread(_decode_batch, service, media_type, body)
    session = call.session()
    return appended(service, call, await commit(service, call, records, session, is_plain=True), session)


def appended(service: Service, _: Call, settled: RequestResult, session: SessionHeaders) -> HttpAnswer:
    """The answer to an append. Raises ApiError."""
    done = done_of(service, settled, session)
    body = Appended(_APPLIED, done.result, done.first, done.last, done.last - done.first + 1, done.last, done.term)
    return HttpAnswer(service.identity, encode_json(body), done.last, done.term)


def _decode_batch(service: Service, media_type: str, body: bytes) -> Records:
    if media_type == MSGPACK:
        packed: list[bytes | list[Any]] = decode(_PACKED_BODY, body, "the body as msgpack")
        return _from_msgpack(service, packed)
    if media_type == NDJSON:
        return _from_json(service, _lines(body))
    try:  # most bodies are such
        items = _JSON_VALUES.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass  # any other body
    else:
        return _checked_values(service, [item.value.encode() for item in items])
    try:
        decoded = decode(_JSON_BODY, body, "the body as JSON")
    except ApiError as error:
        raise ApiError(error.code, error.message + _AS_IT_IS) from error
    return _from_json(service, decoded if isinstance(decoded, list) else (decoded,))


def _bare_key(call: Call, query: Query) -> bytes | None:
    """The key of a record whose value is the body: parameter or header."""
    key = None if query.is_empty else query.key()
    header = call.headers.get(H_KEY)
    if header is None:
        return key
    if key is not None:
        raise ApiError(Code.BAD_REQUEST, f"the key is given twice, as a parameter and as {H_KEY}: give one")
    return check_key(unescape(header, f"header {H_KEY}"), f"header {H_KEY}")


def _lines(body: bytes) -> list[RecordIn]:
    """One record a line; empty lines are skipped. Errors name the line."""
    try:
        return _NDJSON_LINE.decode_lines(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        for number, line in enumerate(body.split(b"\n"), start=1):  # slow, and only to name the line
            if line.strip():
                decode(_NDJSON_LINE, line, f"line {number} of the body")
        raise


def _from_json(service: Service, items: Sequence[RecordIn]) -> list[BlockRecord]:
    _check_count(service, len(items))
    value_max = service.limits.value_bytes_max
    records: list[BlockRecord] = []
    for number, item in enumerate(items):
        key = value = headers = None
        if item.key is not None or item.key_b64 is not None:
            key = check_key(_bytes_of(item.key, item.key_b64, "key", number), f"key of record {number}")
        if item.value is not None or item.value_b64 is not None:
            value = _bytes_of(item.value, item.value_b64, "value", number)
            if len(value) > value_max:
                checked_value(service, value, f"value of record {number}")
        if item.headers is not None:
            pairs = [(name, content.encode()) for name, content in item.headers]
            headers = _checked_headers(service, pairs, number)
        records.append(BlockRecord(_APPEND, key, value, headers, item.time_ms))
    return records


def _bytes_of(text: str | None, coded: str | None, what: str, number: int) -> bytes:
    if text is None:
        return from_b64(coded or "", f"{what}_b64 of record {number}")
    if coded is not None:
        raise ApiError(Code.BAD_REQUEST, f"record {number} has both {what} and {what}_b64: give one")
    return text.encode()


def _checked_values(service: Service, values: list[bytes]) -> list[bytes]:
    _check_count(service, len(values))
    if max(map(len, values)) > service.limits.value_bytes_max:
        for number, value in enumerate(values):
            checked_value(service, value, f"value of record {number}")
    return values


def _from_msgpack(service: Service, items: Sequence[bytes | list[Any]]) -> Records:
    """Each record is its value, or [key, value, time_ms, headers] of which each may be nil."""
    if list not in set(map(type, items)):
        return _checked_values(service, cast(list[bytes], items))
    _check_count(service, len(items))
    value_max = service.limits.value_bytes_max
    records: list[BlockRecord] = []
    for number, item in enumerate(items):
        if type(item) is bytes:
            if len(item) > value_max:
                checked_value(service, item, f"value of record {number}")
            records.append(BlockRecord(_APPEND, None, item))
            continue
        if len(item) != 4:
            raise ApiError(
                Code.BAD_REQUEST,
                f"record {number} has {counted(len(item), 'element')}: it is [key, value, time_ms, headers]",
            )
        key, value, time_ms, pairs = item
        if key is not None:
            key = check_key(_expect_bytes(key, f"key of record {number}"), f"key of record {number}")
        if value is not None:
            what = f"value of record {number}"
            value = checked_value(service, _expect_bytes(value, what), what)
        if time_ms is not None and (type(time_ms) is not int or not 0 <= time_ms <= NUMBER_MAX):
            raise ApiError(
                Code.BAD_REQUEST,
                f"time_ms of record {number} is {time_ms!r:.40}: it must be a whole number from 0 to {NUMBER_MAX}",
            )
        headers = None if pairs is None else _checked_headers(service, _packed_pairs(pairs, number), number)
        records.append(BlockRecord(_APPEND, key, value, headers, time_ms))
    return records


def _expect_bytes(value: object, what: str) -> bytes:
    if type(value) is bytes:
        return value
    raise ApiError(Code.BAD_REQUEST, f"{what} is {type(value).__name__}: in msgpack it is bin or nil")


def _packed_pairs(pairs: object, number: int) -> list[tuple[str, bytes]]:
    try:
        checked = [(name, content) for name, content in pairs]  # type: ignore[attr-defined]  # no pair: raises
        if all(type(name) is str and type(content) is bytes for name, content in checked):
            return checked
    except (TypeError, ValueError):
        pass
    raise ApiError(Code.BAD_REQUEST, f"headers of record {number} must be an array of [str, bin] pairs, or nil")


def _check_count(service: Service, count: int) -> None:
    if count == 0:
        raise ApiError(Code.BAD_REQUEST, "the body holds no record: send at least one")
    if count > service.limits.records_max:
        raise ApiError(
            Code.TOO_LARGE,
            f"the body holds {count} records: the limit is {service.limits.records_max} (limits.records_max)",
        )


def _checked_headers(service: Service, pairs: list[tuple[str, bytes]], number: int) -> bytes:
    packed = encode_headers(pairs)
    if len(packed) > service.limits.record_headers_bytes_max:
        raise ApiError(
            Code.TOO_LARGE,
            f"headers of record {number} take {len(packed)} bytes: the limit is "
            f"{service.limits.record_headers_bytes_max} (limits.record_headers_bytes_max)",
        )
    return packed
