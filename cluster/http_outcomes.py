"""From what the state machine said of a request to what its client is told: one of the three outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn, cast

from cluster.http_call import Call, Service, SessionHeaders
from cluster.requests import Settled, code_of
from cluster.wire import ApiError, Code
from raft.codec import Record, encode_block, encode_values
from statemachine.answers import Answer, Reason, answer_of
from statemachine.commands import Operation, Result

Records = Sequence[Record] | Sequence[bytes]
"""The records of a request; where all are appends of nothing but a value, their values."""
_APPEND: Final = int(Operation.APPEND)
_APPLIED: Final = Result.APPLIED
_LOOP_RECORDS: Final = 2_000
"""A larger batch is encoded by a worker thread: the event loop must not pause for it."""


class Done(NamedTuple):
    """A request that was applied, now or (repeated) before; `answer` is the machine's, None for plain appends."""

    first: int
    last: int
    term: int
    result: str  # applied | repeated
    revision: int
    answer: Answer | None


def _encode(records: Records, session: SessionHeaders, time_ms: int | None, is_plain: bool) -> bytes:
    number, sequence, settled = session
    if type(records[0]) is bytes:
        values = cast(Sequence[bytes], records)
        return encode_values(
            _APPEND, values, session=number, sequence=sequence, settled=settled, time_ms=time_ms
        )  # fmt: skip
    return encode_block(
        cast(Sequence[Record], records), session=number, sequence=sequence, settled=settled, time_ms=time_ms,
        plain=is_plain,
    )  # fmt: skip


async def commit(
    service: Service, call: Call, records: Records, session: SessionHeaders, *, is_plain: bool = False
) -> Settled:
    """Commits the records as one request and returns what the state machine did with it."""
    time_ms = call.time_ms()
    if len(records) > _LOOP_RECORDS:
        block = await asyncio.to_thread(_encode, records, session, time_ms, is_plain)
    else:
        block = _encode(records, session, time_ms, is_plain)
    if len(block) > service.entry_bytes_max:
        raise ApiError(
            Code.TOO_LARGE,
            f"the request makes {len(block)} bytes in the log: the limit is {service.entry_bytes_max} "
            "(raft.entry_bytes_max); send smaller batches",
        )
    return await service.node.submit(
        block, len(records), deadline=call.deadline, session=session.session, sequence=session.sequence
    )


async def submit(
    service: Service, call: Call, records: Records, *, is_plain: bool = False,
    session: SessionHeaders | None = None,
) -> Done:  # fmt: skip
    """Commits the records as one request and returns what became of them. Raises ApiError for every other outcome.

    `session` is what the headers say if it is not given.
    """
    session = call.session() if session is None else session
    return done_of(await commit(service, call, records, session, is_plain=is_plain), session)


def done_of(settled: Settled, session: SessionHeaders) -> Done:
    """What became of the records of a request that was applied. Raises ApiError for every outcome but `applied`."""
    effect = settled.effect
    if effect.result is _APPLIED and not effect.answer:
        return Done(settled.first, settled.last, settled.term, "applied", effect.revision, None)
    answer = told(settled, session)
    if answer.result is Result.APPLIED:
        result = "repeated" if effect.result is Result.REPEATED else "applied"
        return Done(answer.first, answer.last, settled.term, result, answer.revision, answer)
    refuse(answer, settled.term, session)


def told(settled: Settled, session: SessionHeaders) -> Answer:
    """The machine's answer; of a repeated request the first one. Raises ApiError for an expired session and a sequence
    that was made void."""
    result = settled.effect.result
    if result is Result.EXPIRED:
        raise ApiError(
            Code.SESSION_EXPIRED,
            f"session {session.session} is not known: it expired, was closed, or never was. This copy of the "
            "request was not applied; one sent before may have been: read what it would have written before it is sent "
            "under a new session",
            index=settled.last, term=settled.term,
        )  # fmt: skip
    if result is Result.VOIDED:
        raise ApiError(
            Code.SEQUENCE_VOIDED,
            f"sequence {session.sequence} of session {session.session} was made void: it never applies",
            index=settled.last, term=settled.term,
        )  # fmt: skip
    return answer_of(settled.effect, settled.effect.revision, settled.first, settled.last)


_REASONS: Final = {
    Reason.SEQUENCE_SETTLED: "the client had said that it has the answer of this sequence, which is no longer kept: "
    "this copy of the request was not applied, one sent before may have been",
    Reason.SEQUENCE_APPLIED: "this sequence has been applied and cannot be made void",
    Reason.PAYLOAD_DIFFERS: "this sequence was used for a request with other bytes: give every request its own",
    Reason.WINDOW_FULL: "too many sequences of the session are open: send Raftlog-Settled",
    Reason.ANSWERS_FULL: "the kept answers take too many bytes: send Raftlog-Settled",
    Reason.SESSIONS_FULL: "there are as many sessions as there may be: close some, or let them expire",
    Reason.BAD_TTL: "ttl_ms is outside the bounds of the cluster (session_ttl_min_ms, session_ttl_max_ms)",
    Reason.MALFORMED: "the request is malformed",
    Reason.DUPLICATE_KEY: "a branch puts a key twice, or puts one that it deletes: all its changes share one revision",
    Reason.TOO_MANY_OPERATIONS: "a list of the transaction is longer than txn_operations_max",
    Reason.TOO_MANY_KEYS: "its ranges hold more keys than one request may touch (request_keys_max): split them",
    Reason.ANSWER_TOO_LARGE: "its reads answer more than answer_bytes_max: limit them",
    Reason.FUTURE_REVISION: "the store has not reached that revision",
    Reason.NO_CONSUMER: "there is no such consumer group (any more): claim it to make it",
    Reason.CONSUMERS_FULL: "there are as many consumer groups as there may be (consumers_max): delete some",
    Reason.POSITION_BACK: "the position is behind that of the group: a commit goes forward, reset: true goes anywhere",
    Reason.POSITION_AHEAD: "the position is beyond what is committed: nobody can have read up to there",
    Reason.FUTURE_INDEX: "the log has not reached that index: only what is there can be trimmed",
}


def refuse(answer: Answer, term: int, session: SessionHeaders, **more: object) -> NoReturn:
    """Raises what an answer other than applied means; `more` are further fields of the problem."""
    if answer.result is Result.COMPARE_FAILED:
        raise ApiError(
            Code.COMPARE_FAILED,
            f"the key is at revision {answer.current_mod}, not at if_revision: nothing was changed",
            index=answer.last, term=term, revision=answer.current_mod,
        )  # fmt: skip
    code = code_of(answer.reason)
    where = f" (session {session.session}, sequence {session.sequence})" if session.session else ""
    text = "the request was refused" if answer.reason is None else _REASONS[answer.reason]
    raise ApiError(code, f"{text}{where}", index=answer.last, term=term, **more)
