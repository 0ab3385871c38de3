"""Handles `POST /v1/kv/txn`: compares, then carries out one of two branches, atomically."""

from __future__ import annotations

from typing import Final

import msgspec

from raftlog.cluster.api.encoding import Encoding, from_b64
from raftlog.cluster.api.errors import ApiError, Code, Outcome
from raftlog.cluster.api.kv import CompareIn, OperationIn, TxnAnswer, TxnIn, TxnStepAnswer
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.body import decode, read_body
from raftlog.cluster.http.exchange.call import Call, checked_value
from raftlog.cluster.http.exchange.outcomes import submit
from raftlog.cluster.http.exchange.query import check_key
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes.kv import encoding_of
from raftlog.cluster.records.rows import key_value
from raftlog.raft.codec.block import BlockRecord
from raftlog.statemachine import answers
from raftlog.statemachine.commands import (
    GET_OPERATION,
    KEY_BYTES_MAX,
    Compare,
    CompareOperator,
    CompareTarget,
    Operation,
    Txn,
    TxnOperation,
)
from raftlog.statemachine.txn import encode_txn

_BODY: Final = msgspec.json.Decoder(TxnIn)
_PARAMETERS: Final = frozenset({"encoding"})
_TARGETS: Final = {target.name.lower(): target for target in CompareTarget}
_OPERATORS: Final = {
    "=": CompareOperator.EQUAL,
    "!=": CompareOperator.NOT_EQUAL,
    "<": CompareOperator.LESS,
    ">": CompareOperator.GREATER,
}
_STEPS: Final = {
    "put": int(Operation.PUT),
    "delete": int(Operation.DELETE),
    "delete_range": int(Operation.DELETE_RANGE),
    "get": GET_OPERATION,
}
_STEP_NAMES: Final = {number: name for name, number in _STEPS.items()}


async def transact(service: Service, call: Call) -> HttpAnswer:
    """Runs a transaction. One that took its else branch is applied too, with `succeeded` false."""
    encoding = encoding_of(call.query(_PARAMETERS))
    body = decode(_BODY, await read_body(service, call), "the body as JSON")
    txn = Txn(
        tuple(_compare(item, f"compare[{number}]") for number, item in enumerate(body.compare)),
        tuple(_step(service, item, f"then[{number}]") for number, item in enumerate(body.then)),
        tuple(_step(service, item, f"else[{number}]") for number, item in enumerate(body.orelse)),
    )
    if any(step.operation == Operation.DELETE_RANGE for step in (*txn.then, *txn.orelse)):
        call.action = "delete_range"
    limit = service.node.machine.limits.txn_operations_max
    if (most := max(map(len, txn))) > limit:
        raise ApiError(Code.TOO_LARGE, f"{most} operations in one list: the limit is {limit} (txn_operations_max)")
    done = await submit(service, call, (BlockRecord(int(Operation.TXN), None, encode_txn(txn)),))
    answer = done.answer
    assert answer is not None, "a transaction is never a plain append"
    responses = [_response(response, encoding) for response in answer.responses]
    body_out = TxnAnswer(Outcome.APPLIED, done.result, answer.succeeded, responses, done.revision, done.last, done.term)
    return service.answer(body_out, done.last, done.term)


def _compare(item: CompareIn, where: str) -> Compare:
    key = bytes_of(item.key, item.key_b64, "key", where)
    if key is None:
        raise ApiError(Code.BAD_REQUEST, f"{where} has no key: give key or key_b64")
    end = bytes_of(item.end, item.end_b64, "end", where)
    if end is None:
        check_key(key, f"{where}.key")
    value = bytes_of(item.value, item.value_b64, "value", where)
    operand: bytes | int | None = item.number
    if item.target == "value":
        if item.number is not None:
            raise ApiError(Code.BAD_REQUEST, f"{where} compares the value: give value or value_b64, not number")
        operand = value
    elif value is not None:
        raise ApiError(Code.BAD_REQUEST, f"{where} compares {item.target}: give number, not value")
    if operand is None:
        what = "value or value_b64" if item.target == "value" else "number"
        raise ApiError(Code.BAD_REQUEST, f"{where} has nothing to compare with: give {what}")
    return Compare(key, _TARGETS[item.target], _OPERATORS[item.operator], operand, end)


def _step(service: Service, item: OperationIn, where: str) -> TxnOperation:
    key = bytes_of(item.key, item.key_b64, "key", where)
    value = bytes_of(item.value, item.value_b64, "value", where)
    end = bytes_of(item.end, item.end_b64, "end", where)
    name = item.operation
    if key is None:
        raise ApiError(Code.BAD_REQUEST, f"{where} ({name}) has no key: give key or key_b64")
    if (value is not None) is not (name == "put"):
        raise ApiError(Code.BAD_REQUEST, f"{where} ({name}): put, and nothing else, has a value")
    if end is not None and name not in ("delete_range", "get"):
        raise ApiError(Code.BAD_REQUEST, f"{where} ({name}): only delete_range and get have an end")
    if end is None and name == "delete_range":
        raise ApiError(Code.BAD_REQUEST, f"{where} (delete_range) has no end: an empty one is behind the last key")
    if item.limit and name != "get":
        raise ApiError(Code.BAD_REQUEST, f"{where} ({name}): only get has a limit")
    if end is None:
        check_key(key, f"{where}.key")
    if value is not None:
        checked_value(service, value, f"{where}.value")
    return TxnOperation(_STEPS[name], key, value, end, item.limit)


def bytes_of(text: str | None, coded: str | None, what: str, where: str) -> bytes | None:
    """The bytes of a pair of fields of which at most one may be given."""
    if text is not None and coded is not None:
        raise ApiError(Code.BAD_REQUEST, f"{where} has both {what} and {what}_b64: give one")
    data = text.encode() if text is not None else None if coded is None else from_b64(coded, f"{where}.{what}_b64")
    if data is not None and what != "value" and len(data) > KEY_BYTES_MAX:
        raise ApiError(Code.TOO_LARGE, f"{where}.{what} has {len(data)} bytes: the limit is {KEY_BYTES_MAX}")
    return data


def _response(response: answers.StepAnswer, encoding: Encoding) -> TxnStepAnswer:
    name = _STEP_NAMES[response.operation]
    if name == "get":
        kvs = [key_value(key, version, encoding) for key, version in response.items]
        return TxnStepAnswer(name, kvs, response.count)
    return TxnStepAnswer(name, deleted=None if name == "put" else response.deleted)
