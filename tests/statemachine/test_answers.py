"""Answers: reversible, and nothing but their own errors for bytes that are none."""

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from raftlog.statemachine.answers import (
    ANSWER_SIZE,
    Answer,
    CorruptAnswer,
    Reason,
    StepAnswer,
    UnknownAnswer,
    answer_of,
    decode_answer,
    encode_answer,
    encode_brief,
)
from raftlog.statemachine.commands import ConsumerGroup, Result, Version
from raftlog.statemachine.effects import RequestEffect

PUT = Answer(Result.APPLIED, 3, 7, 7)
FAILED = Answer(Result.COMPARE_FAILED, 9, 12, 12, current_mod=4)
REFUSED = Answer(Result.REFUSED, 2, 5, 6, reason=Reason.MALFORMED)
FENCED = Answer(Result.COMPARE_FAILED, 2, 9, 9, consumer=ConsumerGroup(5, 7, b"host", 1_000, 10))


def test_the_brief_way_gives_the_same_bytes() -> None:
    """`encode_brief` is `encode_answer` of an answer without reason, branch and responses."""
    assert encode_brief(Result.COMPARE_FAILED, 9, 12, 12, 0, 4) == encode_answer(FAILED)
    assert encode_brief(Result.APPLIED, 9, 12, 12, 3) == encode_answer(Answer(Result.APPLIED, 9, 12, 12, 3))


def test_the_answer_of_a_request_comes_from_its_effect() -> None:
    """Plain effects and effects without answer bytes imply it; others carry it."""
    assert answer_of(None, 4, 7, 9) == Answer(Result.APPLIED, 4, 7, 9)
    assert answer_of(RequestEffect(Result.APPLIED, 5), 4, 7, 7) == Answer(Result.APPLIED, 5, 7, 7)
    repeated = RequestEffect(Result.REPEATED, 3, first_answer_index=7, answer=encode_answer(PUT))
    assert answer_of(repeated, 4, 20, 20) == PUT


numbers = st.integers(0, 2**53 - 1)
items = st.tuples(st.binary(max_size=5), st.builds(Version, st.binary(max_size=5), numbers, numbers, numbers, numbers))
responses = st.builds(StepAnswer, st.integers(0, 4), numbers, numbers, st.lists(items, max_size=2).map(tuple))
consumers = st.builds(ConsumerGroup, numbers, numbers, st.binary(max_size=5), numbers, numbers)
answers = st.builds(
    Answer,
    st.sampled_from(Result),
    numbers,
    numbers,
    numbers,
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.lists(responses, max_size=3).map(tuple),
    st.one_of(st.none(), st.sampled_from(Reason)),
    numbers,
    st.one_of(st.none(), consumers),
)


@settings(max_examples=60)
@given(answers)
def test_any_answer_comes_back(answer: Answer) -> None:
    """Encoding and decoding is the identity."""
    assert decode_answer(encode_answer(answer)) == answer


cuts = st.tuples(answers, st.integers(0, 60)).map(lambda drawn: encode_answer(drawn[0])[: drawn[1]])


@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=60), cuts))
def test_noise_raises_its_own_errors_and_nothing_else(noise: bytes) -> None:
    """Whatever the bytes: an answer, CorruptAnswer or UnknownAnswer."""
    try:
        decode_answer(noise)
    except (CorruptAnswer, UnknownAnswer):
        return
    assert len(noise) >= ANSWER_SIZE


@pytest.mark.parametrize(
    ("place", "byte", "error"),
    [
        (0, 2, UnknownAnswer),
        (1, 0, UnknownAnswer),
        (1, 99, UnknownAnswer),
        (2, 8, UnknownAnswer),
        (2, 4, CorruptAnswer),
        (3, 1, UnknownAnswer),
    ],
)
def test_unknown_answers_are_refused(place: int, byte: int, error: type[Exception]) -> None:
    """Another version, result or flag is named as unknown; so is a reason of a later version."""
    data = bytearray(encode_answer(PUT))
    data[place] = byte
    with pytest.raises(error):
        decode_answer(bytes(data))
    with pytest.raises(UnknownAnswer, match="melformed"):
        decode_answer(encode_answer(REFUSED).replace(b"malformed", b"melformed"))
    with pytest.raises(CorruptAnswer, match="too many"):
        decode_answer(encode_answer(PUT) + b"\0")


@pytest.mark.parametrize("row", [(), (1, 2, b"", 3), (1, 2, "", 3, 4), (1, -2, b"", 3, 4), (1, 2, b"", 3, None)])
def test_a_consumer_of_other_types_is_corrupt(row: tuple[object, ...]) -> None:
    """As for the rest of a tail."""
    with pytest.raises(CorruptAnswer, match="reason and responses"):
        decode_answer(encode_answer(FENCED)[:ANSWER_SIZE] + msgpack.packb([None, [], row]))


HEAD_WITH_TAIL = encode_answer(REFUSED)[:ANSWER_SIZE]


@pytest.mark.parametrize(
    "tail",
    [
        [7, []],
        [None, [[0, 1]]],
        [None, [["0", 1, 1, []]]],
        [None, [[0, 1, 1, [["a", b"v", 1, 1, 1, 1]]]]],
        [None, [[0, 1, 1, [[b"a", b"v", 1, 1, 1]]]]],
        [None, [[0, 1, 1, [[b"a", b"v", 1, 1, 1, "1"]]]]],
        [None],
        [None, [], [1, 1, b"", 1, 1]],
        None,
    ],
)
def test_a_tail_of_other_types_is_corrupt(tail: object) -> None:
    """Whole numbers, bytes and text stay distinct: an answer repeated years later must not change its type."""
    with pytest.raises(CorruptAnswer, match="reason and responses"):
        decode_answer(HEAD_WITH_TAIL + msgpack.packb(tail, use_bin_type=True))
