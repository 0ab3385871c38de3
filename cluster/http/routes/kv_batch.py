"""Handles `POST /v1/kv/batch`: independent puts and deletes in one request, each with an outcome of its own.

The node submits each write as a request of its own, as `PUT /v1/kv/{key}` does, under its own sequence of the session.
So a repeated write is applied once, and the log, the effects and Spark's rows are those of single writes. A batch saves
the cost of HTTP, which is the largest part of a small write's cost for client and node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.headers import H_SEQUENCE, H_SESSION, H_SETTLED, MSGPACK
from raftlog.cluster.api.kv import BatchAnswer, BatchIn, BatchItem, WriteIn
from raftlog.cluster.api.values import NUMBER_MAX, Number
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.body import decode, read_body
from raftlog.cluster.http.exchange.call import Call, SessionHeaders, checked_value
from raftlog.cluster.http.exchange.outcomes import done_of
from raftlog.cluster.http.exchange.query import check_key, parse_number
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes.kv import written_of
from raftlog.cluster.http.routes.txn import bytes_of
from raftlog.cluster.protocol.request import RequestResult
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation

_PUT: Final = int(Operation.PUT)
_DELETE: Final = int(Operation.DELETE)
_JSON_BODY: Final = msgspec.json.Decoder(BatchIn)
_PACKED_BODY: Final = msgspec.msgpack.Decoder(list[tuple[Number, bytes, bytes | None, Number | None]])
_SLICE_WRITES: Final = 128
"""Writes submitted before the event loop serves other requests: about 3 ms."""


class _Write(NamedTuple):
    sequence: int
    record: BlockRecord


async def write(service: Service, call: Call) -> HttpAnswer:
    """Submits every write of the body. The answer has one result for each, in the order of the writes."""
    call.query()
    body = await read_body(service, call)
    writes = _decode(service, call, body)
    session, settled = _session(call, [each.sequence for each in writes])
    admission = service.access.admission(call, [each.record for each in writes])
    submitted: list[asyncio.Future[RequestResult] | ApiError] = []
    for number, each in enumerate(writes, start=1):
        submitted.append(_submit(service, call, each, session, settled, admission))
        if number % _SLICE_WRITES == 0:
            await asyncio.sleep(0)
    futures = [each for each in submitted if not isinstance(each, ApiError)]
    try:
        if futures:
            await asyncio.wait(futures)
    except asyncio.CancelledError:
        for future in futures:
            future.cancel()
        raise
    items = [
        _item(service, call, each, SessionHeaders(session, sequence, settled))
        for (sequence, _), each in zip(writes, submitted, strict=True)
    ]
    return service.answer(BatchAnswer(items))


def _submit(
    service: Service, call: Call, each: _Write, session: int, settled: int, admission: bytes
) -> asyncio.Future[RequestResult] | ApiError:
    """The submitted write, or the error if the node does not take it."""
    sequence, record = each
    try:
        if record.value is not None:
            checked_value(service, record.value, "a value")
        block = encode_block((record,), session=session, sequence=sequence, settled=settled, admission=admission)
        return service.node.submit(block, 1, deadline=call.deadline, session=session, sequence=sequence)
    except ApiError as error:
        return error


def _item(
    service: Service, call: Call, each: asyncio.Future[RequestResult] | ApiError, session: SessionHeaders
) -> BatchItem:
    try:
        if isinstance(each, ApiError):
            raise each
        return BatchItem(written=written_of(done_of(service, each.result(), session)))
    except ApiError as error:
        return BatchItem(problem=service.problem(error, call.request_id, has_session=session.session > 0))


def _decode(service: Service, call: Call, body: bytes) -> list[_Write]:
    if call.media_type() == MSGPACK:
        packed = decode(_PACKED_BODY, body, "the body as msgpack")
        writes = [_write(*each, f"writes[{number}]") for number, each in enumerate(packed)]
    else:
        given = decode(_JSON_BODY, body, "the body as JSON").writes
        writes = [_from_json(item, f"writes[{number}]") for number, item in enumerate(given)]
    limit = service.limits.records_max
    if not 1 <= len(writes) <= limit:
        raise ApiError(
            Code.TOO_LARGE if writes else Code.BAD_REQUEST,
            f"the batch holds {len(writes)} writes: it takes 1 to {limit} (limits.records_max)",
        )
    return writes


def _session(call: Call, sequences: Sequence[int]) -> tuple[int, int]:
    """Session and settled mark of the headers; 0 without. Raises ApiError if they do not fit the sequences."""
    text, mark = call.headers.get(H_SESSION), call.headers.get(H_SETTLED)
    if H_SEQUENCE in call.headers:
        raise ApiError(Code.BAD_REQUEST, f"header {H_SEQUENCE} is for one request: each write of a batch has its own")
    if text is None:
        if mark is not None or any(sequences):
            raise ApiError(
                Code.BAD_REQUEST,
                f"sequences and {H_SETTLED} belong to a session: give {H_SESSION} too, or none",
            )
        return 0, 0
    session = parse_number(text, f"header {H_SESSION}", 1)
    settled = 0 if mark is None else parse_number(mark, f"header {H_SETTLED}", 0, NUMBER_MAX)
    if min(sequences) < max(1, settled):
        raise ApiError(
            Code.BAD_REQUEST,
            f"a write has sequence {min(sequences)}: those of a session are 1 or more, and not below "
            f"{H_SETTLED} ({settled})",
        )
    if len(set(sequences)) != len(sequences):
        raise ApiError(Code.BAD_REQUEST, "two writes have the same sequence: give each its own")
    return session, settled


def _from_json(item: WriteIn, where: str) -> _Write:
    key = bytes_of(item.key, item.key_b64, "key", where)
    value = bytes_of(item.value, item.value_b64, "value", where)
    if key is None:
        raise ApiError(Code.BAD_REQUEST, f"{where} has no key: give key or key_b64")
    if (value is None) != item.delete:
        raise ApiError(Code.BAD_REQUEST, f"{where} needs either a value (or value_b64) or delete: true")
    return _write(item.sequence, key, value, item.if_revision, where)


def _write(sequence: int, key: bytes, value: bytes | None, if_revision: int | None, where: str) -> _Write:
    operation = _DELETE if value is None else _PUT
    return _Write(sequence, BlockRecord(operation, check_key(key, f"{where}.key"), value, None, if_revision))
