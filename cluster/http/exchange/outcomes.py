"""Turns the state machine's answer to a request into one of the three outcomes for the client.

The routes of writes call it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn, cast

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.exchange.call import Call, SessionHeaders
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.protocol.request import RequestResult, code_of
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.block_fast import encode_single, encode_values
from raftlog.statemachine.answers import Answer, Reason, answer_of
from raftlog.statemachine.commands import SHARE_PARTS, Operation, Result, share_of

Records = Sequence[BlockRecord] | Sequence[bytes]
"""The records of a request; if all of them append nothing but a value, the values."""
_APPEND: Final = int(Operation.APPEND)
_APPLIED: Final = Result.APPLIED
_new: Final = tuple.__new__  # a NamedTuple without the cost of its constructor
_LOOP_RECORDS: Final = 2_000
"""Most records that the event loop encodes; a worker thread encodes a larger batch, so that the loop does not pause."""


class AppliedRequest(NamedTuple):
    """A request that was applied, now or (repeated) before. `answer` is the state machine's, None for plain appends."""

    first: int
    last: int
    term: int
    result: str  # applied | repeated
    revision: int
    answer: Answer | None


def _encode(
    records: Records, session: SessionHeaders, time_ms: int | None, is_plain: bool, admission: bytes = b""
) -> bytes:
    number, sequence, settled = session
    if type(records[0]) is bytes:
        values = cast(Sequence[bytes], records)
        return encode_values(
            _APPEND,
            values,
            session=number,
            sequence=sequence,
            settled=settled,
            time_ms=time_ms,
            admission=admission,
        )
    return encode_block(
        cast(Sequence[BlockRecord], records),
        session=number,
        sequence=sequence,
        settled=settled,
        time_ms=time_ms,
        plain=is_plain,
        admission=admission,
    )


def _too_large(service: Service, block: bytes) -> ApiError:
    return ApiError(
        Code.TOO_LARGE,
        f"the request makes {len(block)} bytes in the log: the limit is {service.entry_bytes_max} "
        "(raft.entry_bytes_max); send smaller batches",
    )


def send_record(
    service: Service,
    call: Call,
    session: SessionHeaders,
    operation: int,
    key: bytes | None,
    value: bytes,
    argument: int | None = None,
    *,
    is_plain: bool = False,
) -> asyncio.Future[RequestResult]:
    """Submits a request of one record to the node. Raises ApiError, as the future does."""
    number, sequence, _ = session
    if service.node.machine.access.is_on:
        record = BlockRecord(operation, key, value, None, argument)
        admission = service.access.admission(call, (record,))
        is_plain = is_plain and service.access.is_plain(call)
        block = _encode((record,), session, call.time_ms(), is_plain, admission)
    elif call.has_options or argument is not None:
        block = _encode((BlockRecord(operation, key, value, None, argument),), session, call.time_ms(), is_plain)
    else:
        block = encode_single(operation, key, value, plain=is_plain)  # the same bytes, at a quarter of the cost
    if len(block) > service.entry_bytes_max:
        raise _too_large(service, block)
    return service.node.submit(block, 1, deadline=call.deadline, session=number, sequence=sequence)


async def commit(
    service: Service, call: Call, records: Records, session: SessionHeaders, *, is_plain: bool = False
) -> RequestResult:
    """Commits the records as one request, and returns the state machine's answer."""
    time_ms = call.time_ms()
    admission = b""
    if service.node.machine.access.is_on:
        admission = service.access.admission(call, records)
        is_plain = is_plain and service.access.is_plain(call)
    if len(records) > _LOOP_RECORDS:
        block = await asyncio.to_thread(_encode, records, session, time_ms, is_plain, admission)
    else:
        block = _encode(records, session, time_ms, is_plain, admission)
    if len(block) > service.entry_bytes_max:
        raise _too_large(service, block)
    return await service.node.submit(
        block, len(records), deadline=call.deadline, session=session.session, sequence=session.sequence
    )


async def submit(
    service: Service, call: Call, records: Records, *, session: SessionHeaders | None = None
) -> AppliedRequest:
    """Commits the records as one request, and returns the result. Raises ApiError for every other outcome.

    `session`: from the headers, unless given.
    """
    session = call.session() if session is None else session
    return done_of(service, await commit(service, call, records, session), session)


def done_of(service: Service, settled: RequestResult, session: SessionHeaders) -> AppliedRequest:
    """The result of a request that was applied. Raises ApiError for every outcome but `applied`."""
    effect = settled.effect
    if effect.result is _APPLIED and not effect.answer:
        return _new(AppliedRequest, (settled.first, settled.last, settled.term, "applied", effect.revision, None))
    answer = first_answer(settled, session)
    if answer.result is Result.APPLIED:
        result = "repeated" if effect.result is Result.REPEATED else "applied"
        return AppliedRequest(answer.first, answer.last, settled.term, result, answer.revision, answer)
    refuse(service, answer, settled.term, session)


def first_answer(settled: RequestResult, session: SessionHeaders) -> Answer:
    """The state machine's answer; for a repeated request its first one. Raises ApiError for an expired session and a
    voided sequence."""
    result = settled.effect.result
    if result is Result.EXPIRED:
        raise ApiError(
            Code.SESSION_EXPIRED,
            f"session {session.session} is not known: it expired, was closed, or never was. This copy of the "
            "request was not applied; one sent before may have been: read what it would have written before it is sent "
            "under a new session",
            index=settled.last,
            term=settled.term,
        )
    if result is Result.VOIDED:
        raise ApiError(
            Code.SEQUENCE_VOIDED,
            f"sequence {session.sequence} of session {session.session} was made void: it never applies",
            index=settled.last,
            term=settled.term,
        )
    return answer_of(settled.effect, settled.effect.revision, settled.first, settled.last)


_REASONS: Final = {
    Reason.SEQUENCE_SETTLED: "the client had said that it has the answer of this sequence, which is no longer kept: "
    "this copy of the request was not applied, one sent before may have been",
    Reason.SEQUENCE_APPLIED: "this sequence has been applied and cannot be made void",
    Reason.PAYLOAD_DIFFERS: "this sequence was used for a request with other bytes: give every request its own",
    Reason.WINDOW_FULL: "too many sequences of the session are open: send Raftlog-Settled",
    Reason.ANSWERS_FULL: "the kept answers take too many bytes: send Raftlog-Settled",
    Reason.SESSIONS_FULL: "the maximum number of sessions exists: close some, or let them expire",
    Reason.BAD_TTL: "ttl_ms is outside the bounds of the cluster (session_ttl_min_ms, session_ttl_max_ms)",
    Reason.MALFORMED: "the request is malformed",
    Reason.DUPLICATE_KEY: "a branch puts a key twice, or puts one that it deletes: all its changes share one revision",
    Reason.TOO_MANY_OPERATIONS: "a list of the transaction is longer than txn_operations_max",
    Reason.TOO_MANY_KEYS: "its ranges hold more keys than one request may touch (request_keys_max): split them",
    Reason.ANSWER_TOO_LARGE: "its reads return more than answer_bytes_max: limit them",
    Reason.FUTURE_REVISION: "the store has not reached that revision",
    Reason.NO_CONSUMER: "this consumer group does not exist: claim it to create it",
    Reason.CONSUMERS_FULL: "the maximum number of consumer groups exists (consumers_max): delete some",
    Reason.POSITION_BACK: "the position is below that of the group: a commit goes forward, reset: true anywhere",
    Reason.POSITION_AHEAD: "the position is beyond the committed log: commit an index that a reader can have reached",
    Reason.NOT_PERMITTED: "a permission that it needs was taken away, or a token of its user was revoked, after a node "
    "had taken it: it was not applied. `raftlog access can` names the missing grant",
    Reason.ACCESS_SET_UP: "access control was set up before: the first admin is made once",
    Reason.ACCESS_NOT_SET_UP: "access control is not set up: make the first admin with raftlog access init",
    Reason.ACCESS_FULL: "there are as many users, roles, grants or tokens as there can be: delete some",
    Reason.USER_EXISTS: "a user of that name exists",
    Reason.NO_USER: "no user has that name",
    Reason.ROLE_EXISTS: "a role of that name exists",
    Reason.NO_ROLE: "no role has that name: raftlog role set makes one",
    Reason.ROLE_IN_USE: "a user has this role: take it from all users first",
    Reason.BUILT_IN_ROLE: "this role is part of raftlog and cannot be changed: make one of another name",
    Reason.STILL_GRANTED: "the role has not this grant, but a wider or narrower one that allows some of it: take that "
    "one (raftlog role list), or set all grants of the role",
    Reason.TOKEN_EXISTS: "a token of that name exists",
    Reason.NO_TOKEN: "no token has that name",
    Reason.LAST_ADMIN: "no user could change permissions any more: give another user the role admin first",
    Reason.FUTURE_INDEX: "the log has not reached that index: trim at or below the last committed index",
}
_SHARES: Final = {
    Reason.ANSWERS_SHARE: (
        "session_answers_bytes_max",
        "bytes of kept answers",
        "send Raftlog-Settled, or close sessions",
    ),
    Reason.SESSIONS_SHARE: ("sessions_max", "sessions", "close some, or let them expire"),
    Reason.CONSUMERS_SHARE: ("consumers_max", "consumer groups", "delete some"),
}
"""Of a share that is used up: the limit that it is a part of, what it counts, and what to do."""


def refuse(service: Service, answer: Answer, term: int, session: SessionHeaders, **more: object) -> NoReturn:
    """Raises the error for an answer other than applied; `more` are further fields of the problem."""
    if answer.result is Result.COMPARE_FAILED:
        raise ApiError(
            Code.COMPARE_FAILED,
            f"the key is at revision {answer.current_mod}, not at if_revision: nothing was changed",
            index=answer.last,
            term=term,
            revision=answer.current_mod,
        )
    code = code_of(answer.reason)
    where = f" (session {session.session}, sequence {session.sequence})" if session.session else ""
    if answer.reason in _SHARES:
        name, what, mend = _SHARES[answer.reason]
        limit: int = getattr(service.node.machine.limits, name)
        share = share_of(limit, SHARE_PARTS)
        text = f"this user has its share of {what}: {share} of the {limit} in all ({name}): {mend}"
    else:
        text = "the request was refused" if answer.reason is None else _REASONS[answer.reason]
    raise ApiError(code, f"{text}{where}", index=answer.last, term=term, **more)
