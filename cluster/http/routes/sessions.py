"""Handles `/v1/sessions`: opens, keeps alive, closes, and returns the receipt of a sequence."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.sessions import Receipt, SessionAnswer, SessionDone, SessionIn
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.body import decode, drop_body, read_body
from raftlog.cluster.http.exchange.call import NO_SESSION, READ_PARAMETERS, Call, SessionHeaders, read_index
from raftlog.cluster.http.exchange.outcomes import commit, first_answer, refuse, submit
from raftlog.cluster.http.exchange.query import parse_number, unescape
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.records.rows import RESULTS
from raftlog.raft.codec.block import BlockRecord
from raftlog.statemachine.answers import Reason
from raftlog.statemachine.commands import Operation, Result
from raftlog.statemachine.sessions import ReceiptKind

_BODY: Final = msgspec.json.Decoder(SessionIn)
_DECIDED: Final = (Reason.SEQUENCE_APPLIED, Reason.SEQUENCE_SETTLED)
"""Reasons why a sequence cannot be voided; its receipt shows the reason."""


async def open_session(service: Service, call: Call) -> HttpAnswer:
    """Opens a session; an empty body asks for the defaults."""
    call.query()
    body = await read_body(service, call)
    asked = decode(_BODY, body, "the body as JSON") if body else SessionIn()
    service.access.check_writer(call)
    done = await submit(
        service, call, (BlockRecord(int(Operation.SESSION_OPEN), argument=asked.ttl_ms),), session=NO_SESSION
    )
    return service.answer(SessionAnswer(done.last, asked.ttl_ms, done.last, done.term), done.last, done.term)


async def keep_alive(service: Service, call: Call) -> HttpAnswer:
    """Restarts a session's time to live."""
    return await _of_session(service, call, Operation.SESSION_KEEPALIVE)


async def close_session(service: Service, call: Call) -> HttpAnswer:
    """Ends a session: its kept answers are deleted, and its id is never used again."""
    return await _of_session(service, call, Operation.SESSION_CLOSE)


async def _of_session(service: Service, call: Call, operation: Operation) -> HttpAnswer:
    call.query()
    session = _number(call.parts[0], "the session in the path")
    await drop_body(service, call)
    record = BlockRecord(int(operation), argument=session)
    # It names the session that it is about, but has no sequence of it: the block has none.
    settled = await commit(service, call, (record,), NO_SESSION)
    answer = first_answer(settled, SessionHeaders(session))
    if answer.result is not Result.APPLIED:
        refuse(service, answer, settled.term, SessionHeaders(session))
    return service.answer(SessionDone(session, settled.last, settled.term), settled.last, settled.term)


async def get_receipt(service: Service, call: Call) -> HttpAnswer:
    """The receipt of a sequence, as of an index."""
    query = call.query(READ_PARAMETERS)
    session = _number(call.parts[0], "the session in the path")
    sequence = _number(call.parts[1], "the sequence in the path")
    await read_index(service, call, query)
    node = service.node
    return _receipt(service, call, session, sequence, node.machine.applied_index, node.term)


async def void(service: Service, call: Call) -> HttpAnswer:
    """Voids a sequence that was not seen, so that it never applies. For an applied one, returns its receipt."""
    call.query()
    headers = SessionHeaders(_number(call.parts[0], "the session in the path"))
    sequence = _number(call.parts[1], "the sequence in the path")
    await drop_body(service, call)
    settled = await commit(service, call, (BlockRecord(int(Operation.VOID), argument=sequence),), headers)
    answer = first_answer(settled, headers)
    if answer.result is not Result.APPLIED and answer.reason not in _DECIDED:
        refuse(service, answer, settled.term, headers)
    return _receipt(service, call, headers.session, sequence, service.node.machine.applied_index, settled.term)


def _receipt(service: Service, call: Call, session: int, sequence: int, index: int, term: int) -> HttpAnswer:
    state = service.node.machine.receipt(session, sequence, service.access.owner(call))
    if state.state is ReceiptKind.EXPIRED:
        raise ApiError(
            Code.SESSION_EXPIRED,
            f"session {session} is not known: it expired, was closed, or never was",
            index=index,
            term=term,
        )
    receipt = Receipt(session, sequence, state.state.value, index, term)
    if (answer := state.answer) is not None:
        result = RESULTS[answer.result]
        receipt = replace(receipt, first=answer.first, last=answer.last, revision=answer.revision, result=result)
    return service.answer(receipt, index, term)


def _number(raw: str, what: str) -> int:
    return parse_number(unescape(raw, what).decode("utf-8", "replace"), what, 1)
