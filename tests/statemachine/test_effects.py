"""The ledger's bytes: golden, reversible, and nothing but CorruptEffects or UnknownEffects for any others."""

from struct import Struct

import google_crc32c
import pytest
from hypothesis import given, settings, strategies as st

from raftlog.statemachine.commands import Result
from raftlog.statemachine.effects import (
    EFFECTS_HEADER_SIZE,
    CorruptEffects,
    Effects,
    KeyChange,
    RequestEffect,
    UnknownEffects,
    decode_effects,
    decode_effects_header,
    encode_effects,
)

HEADER, ROW, CHANGE = Struct("<4sBBHQQIII"), Struct("<BBHIQQ"), Struct("<QQQBBHI")

PLAIN = Effects(1000, 7, (), True)
MIXED = Effects(
    12,
    9,
    (
        RequestEffect(Result.APPLIED, 8, changes=(KeyChange(b"", None, 3, 2, 4, False),)),
        RequestEffect(Result.REPEATED, 5, True, 6),
        RequestEffect(
            Result.APPLIED,
            9,
            True,
            changes=(KeyChange(b"a", b"value", 0, 9, 1, True), KeyChange(b"b", None, 8, 0, 0, True)),
        ),
        RequestEffect(Result.COMPARE_FAILED, 9),
    ),
)

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
        "0000000000000000 0900000000000000 0100000000000000 02 00 0100 05000000"
        + b"avalue".hex()
        + "0800000000000000 0000000000000000 0000000000000000 03 00 0100 00000000"
        + b"b".hex()
    ).replace(" ", "")
)


def test_golden_bytes() -> None:
    """The bytes of a plain and of a mixed entry are those of docs/formats.md, for ever."""
    plain = encode_effects(PLAIN)
    assert plain[: len(GOLDEN_PLAIN)] == GOLDEN_PLAIN
    assert len(plain) == EFFECTS_HEADER_SIZE
    assert encode_effects(MIXED)[EFFECTS_HEADER_SIZE:] == GOLDEN_MIXED_PAYLOAD


def test_effects_decode_to_the_encoded_values() -> None:
    """Decoding gives the effects back, also from the middle of a ledger."""
    assert decode_effects(encode_effects(PLAIN)) == PLAIN
    ledger = encode_effects(PLAIN) + encode_effects(MIXED)
    assert decode_effects(ledger, EFFECTS_HEADER_SIZE) == MIXED
    assert decode_effects_header(ledger, EFFECTS_HEADER_SIZE).rows == 4


changes = st.builds(
    lambda key, value, prior, create, gone: KeyChange(
        key, None if gone else value, prior, 0 if gone else create, 0 if gone else 3, True
    ),
    st.binary(min_size=1, max_size=9),
    st.binary(max_size=9),
    st.integers(0, 2**53 - 1),
    st.integers(1, 2**53 - 1),
    st.booleans(),
)
rows = st.builds(
    RequestEffect,
    st.sampled_from(Result),
    st.integers(1, 2**53 - 1),
    st.booleans(),
    st.integers(0, 9),
    st.lists(changes, max_size=3).map(tuple),
    st.just(b""),
)
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


def sealed(payload: bytes, rows: int, flags: int = 0) -> bytes:
    """Effects with these bytes as payload, and right CRCs."""
    head = HEADER.pack(b"RLFX", 1, flags, 0, 12, 9, rows, len(payload), google_crc32c.value(payload))
    crc: int = google_crc32c.value(head)
    return head + crc.to_bytes(4, "little") + payload


def row(result: int = 1, flags: int = 0, reserved: int = 0, changes: int = 0) -> bytes:
    """The row of a request."""
    return ROW.pack(result, flags, reserved, changes, 9, 0)


def change(flags: int = 0, key: int = 0, value: int = 0) -> bytes:
    """A change, without its bytes."""
    return CHANGE.pack(3, 2, 4, flags, 0, key, value)


@pytest.mark.parametrize(
    ("encoded", "error", "words"),
    [
        (sealed(b"", 0, flags=2), UnknownEffects, "flags 0x2"),
        (sealed(row(flags=2), 1), UnknownEffects, "row flags 0x2"),
        (sealed(row(reserved=1), 1), UnknownEffects, "row flags"),
        (sealed(row(changes=1) + change(flags=4), 1), UnknownEffects, "change flags 0x4"),
        (sealed(row(result=99), 1), CorruptEffects, "99"),
        (sealed(row(), 2), CorruptEffects, "unpack"),
        (sealed(row(changes=1), 1), CorruptEffects, "unpack"),
        (sealed(row(changes=1) + change(key=5), 1), CorruptEffects, "too many"),
        (sealed(row() + b"x", 1), CorruptEffects, "1 bytes too many"),
    ],
)
def test_impossible_effects_with_a_good_crc_are_corrupt(encoded: bytes, error: type[Exception], words: str) -> None:
    """What a later version might say is unknown, everything else is corrupt; both name the entry."""
    with pytest.raises(error, match=words) as caught:
        decode_effects(encoded)
    assert "entry 12" in str(caught.value)
