"""Defines the answer to a client's request, and its bytes, which sessions and snapshots keep.

The state machine makes answers; the HTTP layer turns them into outcomes. Layout (docs/formats.md): version, result,
flags, reserved, deleted, revision, first, last, current_mod. If there is a reason, a response or a consumer, a msgpack
array [reason, responses] follows, with a consumer as its third element. All integers are little-endian.
"""

from __future__ import annotations

from enum import StrEnum
from struct import Struct
from typing import Any, Final, NamedTuple

import msgpack

from raftlog.statemachine.commands import ConsumerGroup, Result, Version
from raftlog.statemachine.effects import RequestEffect

ANSWER_VERSION: Final = 1
ANSWER_SUCCEEDED: Final = 1  # a transaction took its `then` branch
ANSWER_TAIL: Final = 2  # reason and responses follow
ANSWER_CONSUMER: Final = 4  # the tail has a consumer group, too

_HEAD: Final = Struct("<BBBBIQQQQ")
ANSWER_SIZE: Final = _HEAD.size  # 40


class CorruptAnswer(ValueError):
    """Answer bytes that do not decode."""


class UnknownAnswer(ValueError):
    """Intact answer bytes of a version, flag, result or reason that this code does not know."""


class Reason(StrEnum):
    """Why a request was refused. The texts are kept in sessions and snapshots for ever."""

    SEQUENCE_SETTLED = "sequence_settled"  # the client had said that it has the answer; it is no longer kept
    SEQUENCE_APPLIED = "sequence_applied"  # cannot be made void: it has been applied
    PAYLOAD_DIFFERS = "payload_differs"  # this sequence was used for a request with other bytes
    WINDOW_FULL = "window_full"  # too many sequences of the session are open
    ANSWERS_FULL = "answers_full"  # the kept answers of this session, or of all, take too many bytes
    SESSIONS_FULL = "sessions_full"
    ANSWERS_SHARE = "answers_share"  # the principal has its share of what ANSWERS_FULL bounds, and so on
    SESSIONS_SHARE = "sessions_share"
    CONSUMERS_SHARE = "consumers_share"
    BAD_TTL = "bad_ttl"
    MALFORMED = "malformed"
    DUPLICATE_KEY = "duplicate_key"  # a branch puts a key twice, or puts one that it deletes
    TOO_MANY_OPERATIONS = "too_many_operations"
    TOO_MANY_KEYS = "too_many_keys"  # ranges to compare or delete hold more than one request may touch
    ANSWER_TOO_LARGE = "answer_too_large"  # the reads of a transaction
    FUTURE_REVISION = "future_revision"  # compact above the store's revision
    NO_CONSUMER = "no_consumer"  # a generation of a group that is not there (any more)
    CONSUMERS_FULL = "consumers_full"
    POSITION_BACK = "position_back"  # a commit behind the group's position
    POSITION_AHEAD = "position_ahead"  # of what has been applied
    FUTURE_INDEX = "future_index"  # trim above the index of the trim itself
    NOT_PERMITTED = "not_permitted"  # the principal may not do this, as of the request's place in the log
    ACCESS_SET_UP = "access_set_up"  # the first admin is made once
    ACCESS_NOT_SET_UP = "access_not_set_up"
    ACCESS_FULL = "access_full"  # as many users, roles, grants or tokens as there can be
    USER_EXISTS = "user_exists"
    NO_USER = "no_user"
    ROLE_EXISTS = "role_exists"
    NO_ROLE = "no_role"
    ROLE_IN_USE = "role_in_use"
    BUILT_IN_ROLE = "built_in_role"  # it cannot be changed
    STILL_GRANTED = "still_granted"  # the role has not this grant, but another one that allows some of it
    TOKEN_EXISTS = "token_exists"
    NO_TOKEN = "no_token"
    LAST_ADMIN = "last_admin"  # no user could change permissions any more


class StepAnswer(NamedTuple):
    """What one step of a transaction's branch answered."""

    operation: int
    deleted: int = 0  # DELETE, DELETE_RANGE: keys deleted
    count: int = 0  # type: ignore[assignment]  # GET: keys in its range in all, whatever its limit
    items: tuple[tuple[bytes, Version], ...] = ()  # GET


class Answer(NamedTuple):
    """What became of a request. For a repeated one it is the first answer, unchanged."""

    result: Result
    revision: int  # of the store after the request
    first: int  # indexes of its records
    last: int
    deleted: int = 0  # keys deleted by DELETE and DELETE_RANGE
    succeeded: bool = False  # a transaction took its `then` branch
    responses: tuple[StepAnswer, ...] = ()
    reason: Reason | None = None  # why it was refused
    current_mod: int = 0  # COMPARE_FAILED: the mod revision that the key has (0: it is missing)
    consumer: ConsumerGroup | None = None  # CONSUMER: the group after the request, also where that was refused


_pack_tail: Final = msgpack.Packer(use_bin_type=True).pack


def encode_answer(answer: Answer) -> bytes:
    """The answer as bytes, equal for equal answers."""
    result, revision, first, last, deleted, succeeded, responses, reason, current_mod, consumer = answer
    flags = ANSWER_SUCCEEDED * succeeded | ANSWER_CONSUMER * (consumer is not None)
    if reason is None and not responses and consumer is None:
        return _HEAD.pack(ANSWER_VERSION, result, flags, 0, deleted, revision, first, last, current_mod)
    head = _HEAD.pack(ANSWER_VERSION, result, flags | ANSWER_TAIL, 0, deleted, revision, first, last, current_mod)
    rows = [
        [step.operation, step.deleted, step.count, [[key, *version] for key, version in step.items]]
        for step in responses
    ]
    tail: list[Any] = [None if reason is None else reason.value, rows]
    if consumer is not None:
        tail.append(consumer)
    return head + bytes(_pack_tail(tail))


def encode_brief(result: Result, revision: int, first: int, last: int, deleted: int = 0, current_mod: int = 0) -> bytes:
    """`encode_answer` of an answer without reason, responses and branch: the usual one, without building it."""
    return _HEAD.pack(ANSWER_VERSION, result, 0, 0, deleted, revision, first, last, current_mod)


def decode_answer(data: bytes) -> Answer:
    """The answer of these bytes. Raises CorruptAnswer or UnknownAnswer."""
    if len(data) < ANSWER_SIZE:
        raise CorruptAnswer(f"answer cut short: {len(data)} of {ANSWER_SIZE} bytes")
    version, result, flags, reserved, deleted, revision, first, last, current_mod = _HEAD.unpack_from(data)
    if version != ANSWER_VERSION or flags & ~_FLAGS or reserved:
        raise UnknownAnswer(f"answer of version {version}, flags {flags:#x}")
    if result not in _RESULTS:
        raise UnknownAnswer(f"answer with result {result}")
    reason: Reason | None = None
    responses: tuple[StepAnswer, ...] = ()
    consumer: ConsumerGroup | None = None
    if flags & ANSWER_TAIL:
        reason, responses, consumer = _decode_tail(data[ANSWER_SIZE:], bool(flags & ANSWER_CONSUMER))
    elif len(data) != ANSWER_SIZE or flags & ANSWER_CONSUMER:
        raise CorruptAnswer(f"answer with {len(data) - ANSWER_SIZE} bytes too many")
    return Answer(
        _RESULTS[result],
        revision,
        first,
        last,
        deleted,
        bool(flags & ANSWER_SUCCEEDED),
        responses,
        reason,
        current_mod,
        consumer,
    )


_FLAGS: Final = ANSWER_SUCCEEDED | ANSWER_TAIL | ANSWER_CONSUMER
_RESULTS: Final = {int(result): result for result in Result}
_REASONS: Final = {reason.value: reason for reason in Reason}


def _decode_tail(data: bytes, has_consumer: bool) -> tuple[Reason | None, tuple[StepAnswer, ...], ConsumerGroup | None]:
    try:
        text, rows, *consumers = msgpack.unpackb(data, raw=False, use_list=False)
        if len(consumers) != has_consumer:
            raise ValueError(f"it has {len(consumers)} consumers")
        consumer = decode_consumer_row(*consumers[0]) if has_consumer else None
        responses = tuple(_response(row) for row in rows)
        if text is not None and type(text) is not str:
            raise TypeError("a reason is text")
    except Exception as error:
        raise CorruptAnswer(f"reason and responses of an answer: {error}") from error
    if text is not None and text not in _REASONS:
        raise UnknownAnswer(f"answer with reason {text!r}")
    return None if text is None else _REASONS[text], responses, consumer


def decode_consumer_row(next_: Any, generation: Any, owner: Any, time_ms: Any, clock_ms: Any) -> ConsumerGroup:
    """The consumer of an answer's or a snapshot's row. Raises TypeError."""
    numbers = (next_, generation, time_ms, clock_ms)
    if not all(type(number) is int and number >= 0 for number in numbers) or type(owner) is not bytes:
        raise TypeError(f"a consumer of {numbers!r}, owned by {owner!r}")
    return ConsumerGroup(next_, generation, owner, time_ms, clock_ms)


def _response(row: Any) -> StepAnswer:
    operation, deleted, count, items = row
    if not all(type(number) is int for number in (operation, deleted, count)):
        raise TypeError("a response is counted in whole numbers")
    return StepAnswer(operation, deleted, count, tuple(_item(item) for item in items))


def _item(item: Any) -> tuple[bytes, Version]:
    key, value, *numbers = item
    if type(key) is not bytes or type(value) is not bytes or len(numbers) != 4:
        raise TypeError("an item is key, value and four numbers")
    if not all(type(number) is int for number in numbers):
        raise TypeError("an item's numbers are whole")
    return key, Version(value, *numbers)


def answer_of(effect: RequestEffect | None, revision: int, first: int, last: int) -> Answer:
    """The answer of a request of an applied entry: `effect` is its own, or None where the entry's effects are plain.

    Appends and puts that were applied carry no answer bytes, because their effect and their indexes say it all.
    """
    if effect is None:
        return Answer(Result.APPLIED, revision, first, last)
    if not effect.answer:
        return Answer(effect.result, effect.revision, first, last)
    return decode_answer(effect.answer)
