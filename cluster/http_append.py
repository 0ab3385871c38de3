"""`POST /v1/log`: one record or a batch, in any of four body formats, committed as one request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from cluster import wire
from cluster.http_answer import Answer, encode_json
from cluster.http_call import Call, Service, decode
from cluster.http_outcomes import Done, Records, submit
from cluster.http_query import Query, check_key, unescape
from cluster.wire import NUMBER_MAX, ApiError, Appended, Code, Outcome, RecordIn
from raft.codec import Record, encode_headers
from statemachine.commands import Operation

_APPEND: Final = int(Operation.APPEND)
_JSON_BODY: Final = msgspec.json.Decoder(list[RecordIn] | RecordIn)
_NDJSON_LINE: Final = msgspec.json.Decoder(RecordIn)
_PACKED_BODY: Final = msgspec.msgpack.Decoder(list[bytes | list[Any]])
_APPLIED: Final = Outcome.APPLIED
_BATCHES: Final = (wire.JSON, wire.NDJSON, wire.MSGPACK)
_LOOP_BYTES: Final = 256 << 10
"""A larger batch is decoded by a worker thread: the event loop must not pause for it."""
_PARAMETERS: Final = frozenset({"key", "key_b64"})


class _ValueIn(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record that is nothing but text: five fields fewer to look at."""

    value: str


_JSON_VALUES: Final = msgspec.json.Decoder(list[_ValueIn])


async def append(service: Service, call: Call) -> Answer:
    """Appends what the body holds. The records get the indexes first..last, in their order, all or none of them."""
    body = await call.body(service)
    media_type = call.media_type()
    query = call.query(_PARAMETERS)
    if media_type not in _BATCHES:
        value, key = _checked_value(service, body, "the body"), _bare_key(call, query)
        records: Records = [value] if key is None else [Record(_APPEND, key, value)]
    elif not query.is_empty:
        raise ApiError(Code.BAD_REQUEST, f"key= is for a body that is one bare value: in {media_type} it is inside")
    elif len(body) <= _LOOP_BYTES:
        records = _decode_batch(service, media_type, body)
    else:
        records = await asyncio.to_thread(_decode_batch, service, media_type, body)
    return appended(service, await submit(service, call, records, is_plain=True))


def appended(service: Service, done: Done) -> Answer:
    """What is answered to an append."""
    body = Appended(_APPLIED, done.result, done.first, done.last, done.last - done.first + 1, done.last, done.term)
    return Answer(service.identity, encode_json(body), done.last, done.term)  # encode_answer, were it free: 8 %


def _decode_batch(service: Service, media_type: str, body: bytes) -> Records:
    if media_type == wire.MSGPACK:
        packed: list[bytes | list[Any]] = decode(_PACKED_BODY, body, "the body as msgpack")
        return _from_msgpack(service, packed)
    if media_type == wire.NDJSON:
        return _from_json(service, _lines(body))
    try:  # as most are
        items = _JSON_VALUES.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass  # whatever else it is
    else:
        return _checked_values(service, [item.value.encode() for item in items])
    decoded = decode(_JSON_BODY, body, "the body as JSON")
    return _from_json(service, decoded if isinstance(decoded, list) else (decoded,))


def _bare_key(call: Call, query: Query) -> bytes | None:
    """The key of a record whose value is the body: parameter or header."""
    key = None if query.is_empty else query.key()
    header = call.headers.get(wire.H_KEY)
    if header is None:
        return key
    if key is not None:
        raise ApiError(Code.BAD_REQUEST, f"the key is given twice, as a parameter and as {wire.H_KEY}: give one")
    return check_key(unescape(header, f"header {wire.H_KEY}"), f"header {wire.H_KEY}")


def _lines(body: bytes) -> list[RecordIn]:
    """One record a line; empty lines are passed over. The error names the line."""
    try:
        return _NDJSON_LINE.decode_lines(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        for number, line in enumerate(body.split(b"\n"), start=1):  # slow, and only to say which one it is
            if line.strip():
                decode(_NDJSON_LINE, line, f"line {number} of the body")
        raise


def _from_json(service: Service, items: Sequence[RecordIn]) -> list[Record]:
    _check_count(service, len(items))
    value_max = service.limits.value_bytes_max
    records: list[Record] = []
    for number, item in enumerate(items):
        key = value = headers = None
        if item.key is not None or item.key_b64 is not None:
            key = check_key(_bytes_of(item.key, item.key_b64, "key", number), f"key of record {number}")
        if item.value is not None or item.value_b64 is not None:
            value = _bytes_of(item.value, item.value_b64, "value", number)
            if len(value) > value_max:
                _checked_value(service, value, f"value of record {number}")
        if item.headers is not None:
            pairs = [(name, content.encode()) for name, content in item.headers]
            headers = _checked_headers(service, pairs, number)
        records.append(Record(_APPEND, key, value, headers, item.time_ms))
    return records


def _bytes_of(text: str | None, coded: str | None, what: str, number: int) -> bytes:
    if text is None:
        return wire.from_b64(coded or "", f"{what}_b64 of record {number}")
    if coded is not None:
        raise ApiError(Code.BAD_REQUEST, f"record {number} has both {what} and {what}_b64: give one")
    return text.encode()


def _checked_values(service: Service, values: list[bytes]) -> list[bytes]:
    _check_count(service, len(values))
    if max(map(len, values)) > service.limits.value_bytes_max:
        for number, value in enumerate(values):
            _checked_value(service, value, f"value of record {number}")
    return values


def _from_msgpack(service: Service, items: Sequence[bytes | list[Any]]) -> Records:
    """Each record is its value, or [key, value, time_ms, headers] of which each may be nil."""
    if list not in set(map(type, items)):
        return _checked_values(service, cast(list[bytes], items))
    _check_count(service, len(items))
    value_max = service.limits.value_bytes_max
    records: list[Record] = []
    for number, item in enumerate(items):
        if type(item) is bytes:
            if len(item) > value_max:
                _checked_value(service, item, f"value of record {number}")
            records.append(Record(_APPEND, None, item))
            continue
        if len(item) != 4:
            raise ApiError(
                Code.BAD_REQUEST, f"record {number} has {len(item)} elements: it is [key, value, time_ms, headers]"
            )
        key, value, time_ms, pairs = item
        if key is not None:
            key = check_key(_expect_bytes(key, f"key of record {number}"), f"key of record {number}")
        if value is not None:
            what = f"value of record {number}"
            value = _checked_value(service, _expect_bytes(value, what), what)
        if time_ms is not None and (type(time_ms) is not int or not 0 <= time_ms <= NUMBER_MAX):
            raise ApiError(
                Code.BAD_REQUEST,
                f"time_ms of record {number} is {time_ms!r:.40}: it must be a whole number from 0 to {NUMBER_MAX}",
            )
        headers = None if pairs is None else _checked_headers(service, _packed_pairs(pairs, number), number)
        records.append(Record(_APPEND, key, value, headers, time_ms))
    return records


def _expect_bytes(value: object, what: str) -> bytes:
    if type(value) is bytes:
        return value
    raise ApiError(Code.BAD_REQUEST, f"{what} is {type(value).__name__}: in msgpack it is bin or nil")


def _packed_pairs(pairs: object, number: int) -> list[tuple[str, bytes]]:
    try:
        checked = [(name, content) for name, content in pairs]  # type: ignore[attr-defined]  # what is none raises
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


def _checked_value(service: Service, value: bytes, what: str) -> bytes:
    if len(value) > service.limits.value_bytes_max:
        raise ApiError(
            Code.TOO_LARGE,
            f"{what} has {len(value)} bytes: the limit is {service.limits.value_bytes_max} (limits.value_bytes_max)",
        )
    return value


def _checked_headers(service: Service, pairs: list[tuple[str, bytes]], number: int) -> bytes:
    packed = encode_headers(pairs)
    if len(packed) > service.limits.record_headers_bytes_max:
        raise ApiError(
            Code.TOO_LARGE,
            f"headers of record {number} take {len(packed)} bytes: the limit is "
            f"{service.limits.record_headers_bytes_max} (limits.record_headers_bytes_max)",
        )
    return packed
