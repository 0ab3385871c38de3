"""The ledger's bytes: golden, reversible, and nothing but CorruptEffects or UnknownEffects for any others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemachine.commands import Result
from statemachine.effects import (
    EFFECTS_HEADER_SIZE,
    Change,
    CorruptEffects,
    Effects,
    RequestEffect,
    UnknownEffects,
    decode_effects,
    decode_effects_header,
    encode_effects,
)

PLAIN = Effects(1000, 7, (), True)
MIXED = Effects(
    12,
    9,
    (
        RequestEffect(Result.APPLIED, 8, changes=(Change(b"", None, 3, 2, 4, False),)),
        RequestEffect(Result.REPEATED, 5, True, 6),
        RequestEffect(
            Result.APPLIED, 9, True,
            changes=(Change(b"a", b"value", 0, 9, 1, True), Change(b"b", None, 8, 0, 0, True)),
        ),
        RequestEffect(Result.COMPARE_FAILED, 9),
    ),
)  # fmt: skip

GOLDEN_PLAIN = bytes.fromhex(
    "524c4658 01 01 0000 e803000000000000 0700000000000000 00000000 00000000 00000000".replace(" ", "")
)
GOLDEN_MIXED_PAYLOAD = bytes.fromhex(
    (
        "01 00 0000 01000000 0800000000000000 0000000000000000"
        "02 01 0000 00000000 0500000000000000 0600000000000000"
        "01 01 0000 02000000 0900000000000000 0000000000000000"
        "03 00 0000 00000000 0900000000000000 0000000000000000"
        "0300000000000000 0200000000000000 0400000000000000 00 00 0000 00000000"
        "0000000000000000 0900000000000000 0100000000000000 02 00 0100 05000000" + b"avalue".hex() +
        "0800000000000000 0000000000000000 0000000000000000 03 00 0100 00000000" + b"b".hex()
    ).replace(" ", "")
)  # fmt: skip


def test_golden_bytes() -> None:
    """The bytes of a plain and of a mixed entry are those of docs/formats.md, for ever."""
    plain = encode_effects(PLAIN)
    assert plain[: len(GOLDEN_PLAIN)] == GOLDEN_PLAIN
    assert len(plain) == EFFECTS_HEADER_SIZE
    assert encode_effects(MIXED)[EFFECTS_HEADER_SIZE:] == GOLDEN_MIXED_PAYLOAD


def test_what_goes_in_comes_out() -> None:
    """Decoding gives the effects back, also from the middle of a ledger."""
    assert decode_effects(encode_effects(PLAIN)) == PLAIN
    ledger = encode_effects(PLAIN) + encode_effects(MIXED)
    assert decode_effects(ledger, EFFECTS_HEADER_SIZE) == MIXED
    assert decode_effects_header(ledger, EFFECTS_HEADER_SIZE).rows == 4


changes = st.builds(
    lambda key, value, prior, create, gone: Change(
        key, None if gone else value, prior, 0 if gone else create, 0 if gone else 3, True
    ),
    st.binary(min_size=1, max_size=9), st.binary(max_size=9), st.integers(0, 2**53 - 1), st.integers(1, 2**53 - 1),
    st.booleans(),
)  # fmt: skip
rows = st.builds(
    RequestEffect, st.sampled_from(Result), st.integers(1, 2**53 - 1), st.booleans(), st.integers(0, 9),
    st.lists(changes, max_size=3).map(tuple), st.just(b""),
)  # fmt: skip
effects = st.builds(
    Effects, st.integers(1, 2**53 - 1), st.integers(1, 2**53 - 1), st.lists(rows, max_size=4).map(tuple), st.just(False)
)


@settings(max_examples=60)
@given(effects)
def test_any_effects_come_back(one: Effects) -> None:
    """Encoding and decoding is the identity on effects whose changes are explicit."""
    assert decode_effects(encode_effects(one)) == one


@settings(max_examples=150)
@given(effects, st.data())
def test_damaged_bytes_raise_and_nothing_else(one: Effects, data: st.DataObject) -> None:
    """One flipped bit anywhere, or a cut, is CorruptEffects or UnknownEffects: never a value, never another error."""
    encoded = bytearray(encode_effects(one))
    if data.draw(st.booleans()):
        bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
        encoded[bit // 8] ^= 1 << bit % 8
    else:
        del encoded[data.draw(st.integers(0, len(encoded) - 1)) :]
    with pytest.raises((CorruptEffects, UnknownEffects)):
        decode_effects(bytes(encoded))


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_noise_raises_and_nothing_else(noise: bytes) -> None:
    """Bytes that never were effects are refused."""
    with pytest.raises((CorruptEffects, UnknownEffects)):
        decode_effects(noise)
