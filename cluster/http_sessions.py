"""`/v1/sessions`: open, keep alive, close, and what became of a sequence."""

from __future__ import annotations

from typing import Final

import msgspec

from cluster.http_answer import Answer
from cluster.http_call import NO_SESSION, READ_PARAMETERS, Call, Service, SessionHeaders, decode, read_index
from cluster.http_outcomes import commit, refuse, submit, told
from cluster.http_query import parse_number, unescape
from cluster.records import RESULTS
from cluster.wire import ApiError, Code, Receipt, SessionAnswer, SessionDone, SessionIn
from raft.codec import Record
from statemachine.answers import Reason
from statemachine.commands import Operation, Result
from statemachine.sessions import ReceiptKind

_BODY: Final = msgspec.json.Decoder(SessionIn)
_DECIDED: Final = (Reason.SEQUENCE_APPLIED, Reason.SEQUENCE_SETTLED)
"""It cannot be made void, and its receipt says why."""


async def open_session(service: Service, call: Call) -> Answer:
    """Opens a session; an empty body asks for the defaults."""
    call.query()
    body = await call.body(service)
    asked = decode(_BODY, body, "the body as JSON") if body else SessionIn()
    done = await submit(
        service, call, (Record(int(Operation.SESSION_OPEN), argument=asked.ttl_ms),), session=NO_SESSION
    )
    return service.answer(SessionAnswer(done.last, asked.ttl_ms, done.last, done.term), done.last, done.term)


async def keep_alive(service: Service, call: Call) -> Answer:
    """Puts off a session's expiry by its time to live."""
    return await _of_session(service, call, Operation.SESSION_KEEPALIVE)


async def close_session(service: Service, call: Call) -> Answer:
    """Ends a session: its kept answers go, and its id is never given again."""
    return await _of_session(service, call, Operation.SESSION_CLOSE)


async def _of_session(service: Service, call: Call, operation: Operation) -> Answer:
    call.query()
    session = _number(call.parts[0], "the session in the path")
    await call.drop_body(service)
    record = Record(int(operation), argument=session)
    # It names the session it is about, but is no sequence of it: the block has none.
    settled = await commit(service, call, (record,), NO_SESSION)
    answer = told(settled, SessionHeaders(session))
    if answer.result is not Result.APPLIED:
        refuse(answer, settled.term, SessionHeaders(session))
    return service.answer(SessionDone(session, settled.last, settled.term), settled.last, settled.term)


async def get_receipt(service: Service, call: Call) -> Answer:
    """What became of a sequence, as of an index."""
    query = call.query(READ_PARAMETERS)
    session = _number(call.parts[0], "the session in the path")
    sequence = _number(call.parts[1], "the sequence in the path")
    await read_index(service, call, query)
    node = service.node
    return _receipt(service, session, sequence, node.machine.applied_index, node.term)


async def void(service: Service, call: Call) -> Answer:
    """Makes a sequence that was not seen final: it never applies. One that was applied stays so, and is told."""
    call.query()
    headers = SessionHeaders(_number(call.parts[0], "the session in the path"))
    sequence = _number(call.parts[1], "the sequence in the path")
    await call.drop_body(service)
    settled = await commit(service, call, (Record(int(Operation.VOID), argument=sequence),), headers)
    answer = told(settled, headers)
    if answer.result is not Result.APPLIED and answer.reason not in _DECIDED:
        refuse(answer, settled.term, headers)
    return _receipt(service, headers.session, sequence, service.node.machine.applied_index, settled.term)


def _receipt(service: Service, session: int, sequence: int, index: int, term: int) -> Answer:
    state = service.node.machine.receipt(session, sequence)
    if state.state is ReceiptKind.EXPIRED:
        raise ApiError(
            Code.SESSION_EXPIRED, f"session {session} is not known: it expired, was closed, or never was",
            index=index, term=term,
        )  # fmt: skip
    answer = state.answer
    if answer is None:
        receipt = Receipt(session, sequence, state.state.value, index, term)
    else:
        receipt = Receipt(
            session, sequence, state.state.value, index, term, answer.first, answer.last, answer.revision,
            RESULTS[answer.result],
        )  # fmt: skip
    return service.answer(receipt, index, term)


def _number(raw: str, what: str) -> int:
    return parse_number(unescape(raw, what).decode("utf-8", "replace"), what, 1)
