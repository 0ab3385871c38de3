"""Tests entries whose blocks hold one record each, which are read in one go."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hypothesis import given, settings, strategies as st

from raftlog.raft.codec.block import (
    BLOCK_PLAIN,
    BLOCK_SIZE,
    Block,
    BlockRecord,
    decode_blocks,
    decode_records,
    encode_block,
)
from raftlog.raft.codec.block_fast import (
    admitted_records,
    encode_single,
    encode_values,
    plain_counts,
    plain_values,
    single_records,
)
from tests.raft.codec.test_codec import RECORDS

ANY_RECORD = st.builds(
    BlockRecord,
    st.integers(1, 40),
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=9),
    st.none() | st.integers(-5, 5),
)


def _fields(block: Block) -> list[Any]:
    """The fields of a block but its position and its body."""
    return [getattr(block, each.name) for each in fields(block)[:8]]  # no copy: a memoryview has none


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_single_records_are_those_of_the_blocks_or_none(data: st.DataObject) -> None:
    """Reading in one go gives the same as blocks and records one after the other. Data of another shape, also by one
    damaged byte, is left to those.
    """
    are_single = data.draw(st.booleans())
    blocks = [
        encode_block(
            data.draw(st.lists(ANY_RECORD, min_size=1, max_size=1 if are_single else 2)),
            plain=not are_single and data.draw(st.booleans()),
            session=0 if are_single else data.draw(st.integers(0, 1)),
            namespace=0 if are_single else data.draw(st.integers(0, 1)),
            time_ms=None if are_single else data.draw(st.none() | st.just(7)),
        )
        for _ in range(data.draw(st.integers(0, 4)))
    ]
    raw = bytearray(b"".join(blocks))
    is_damaged = bool(raw) and data.draw(st.booleans())
    if is_damaged:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    singles = single_records(bytes(raw))
    assert singles is not None or not are_single or is_damaged
    if singles is not None:
        decoded = decode_blocks(bytes(raw))
        assert [_fields(block) for block in decoded] == [[0, 1, 0, b"", 0, 0, 0, 0]] * len(singles)
        assert singles == [tuple(record) for block in decoded for record in decode_records(block)]
    whole = b"".join(blocks)
    for short in (whole + bytes(BLOCK_SIZE), whole[:-1] or b"\x01"):
        assert single_records(short) is None, "the last block is cut short"


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_admitted_records_are_those_of_the_blocks_or_none(data: st.DataObject) -> None:
    """The same of blocks with an admission, plain or not. Damage in one byte is noticed as by `decode_blocks`, or
    changes what that gives in the same way."""
    are_admitted = data.draw(st.booleans())
    blocks = [
        encode_block(
            data.draw(st.lists(ANY_RECORD, min_size=1, max_size=1 if are_admitted else 2)),
            plain=data.draw(st.booleans()),
            session=0 if are_admitted else data.draw(st.integers(0, 1)),
            admission=data.draw(st.binary(min_size=are_admitted, max_size=5)),
        )
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    raw = bytearray(b"".join(blocks))
    is_damaged = bool(raw) and data.draw(st.booleans())
    if is_damaged:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found = admitted_records(bytes(raw))
    assert found is not None or not are_admitted or is_damaged
    if found is not None:
        decoded = decode_blocks(bytes(raw))
        expected = [
            (block.admission, None if block.flags & BLOCK_PLAIN else tuple(next(decode_records(block))))
            for block in decoded
        ]
        assert found == expected
        for block in decoded:
            assert (block.count, block.namespace) == (1, 0)
            assert (block.session, block.sequence, block.settled, block.time_ms) == (0, 0, 0, 0)
    assert admitted_records(b"".join([*blocks, bytes(BLOCK_SIZE - 1)])) is None, "the last block is cut short"


def test_a_record_with_an_unknown_flag_is_left_to_the_general_functions() -> None:
    """With an admission before it, and without one."""
    for admission, read in ((b"", single_records), (b"who", admitted_records)):
        raw = bytearray(encode_block([BlockRecord(2, b"k", b"v")], admission=admission))
        assert read(bytes(raw))
        raw[BLOCK_SIZE + len(admission) + 1] |= 0x80
        assert read(bytes(raw)) is None


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_plain_counts_are_those_of_the_blocks_or_none(data: st.DataObject) -> None:
    """Counts without decoding equal the counts of decoding. Blocks that are not plain, or damaged in one byte, are
    rejected with the same message or left to `decode_blocks`."""
    record = BlockRecord(1, None, b"value")
    blocks = [
        encode_block(
            [record] * data.draw(st.integers(1, 3)),
            plain=data.draw(st.booleans()) or is_plain,
            session=0 if is_plain else data.draw(st.integers(0, 1)),
            namespace=0 if is_plain else data.draw(st.integers(0, 1)),
            time_ms=None if is_plain else data.draw(st.none() | st.just(7)),
        )
        for is_plain in data.draw(st.lists(st.booleans(), max_size=5))
    ]
    raw = bytearray(b"".join(blocks))
    if raw and data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    counts = plain_counts(bytes(raw))
    if counts is not None:
        decoded = decode_blocks(bytes(raw))
        assert counts == [block.count for block in decoded]
        for block in decoded:
            assert _fields(block) == [BLOCK_PLAIN, block.count, 0, b"", 0, 0, 0, 0]
    assert plain_counts(b"".join([*blocks, bytes(BLOCK_SIZE - 1)])) is None, "the last block is cut short"


@given(
    values=st.lists(st.binary(max_size=40), min_size=1, max_size=20),
    session=st.integers(0, 3),
    time_ms=st.none() | st.integers(0, 9),
)
@settings(max_examples=200, deadline=None)
def test_values_make_the_block_that_their_records_make(values: list[bytes], session: int, time_ms: int | None) -> None:
    """The short way of most appends has the bytes of the long one: a repetition may have gone the other way."""
    given: dict[str, Any] = {
        "session": session,
        "sequence": 2 * session,
        "settled": session,
        "time_ms": time_ms,
        "admission": b"who" * session,
    }
    records = [BlockRecord(1, None, value) for value in values]
    assert encode_values(1, values, **given) == encode_block(records, plain=True, **given)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_plain_values_are_those_of_the_records_or_none(data: st.DataObject) -> None:
    """Read in one go, from anywhere in a block, values are what its records hold; whatever is more than a value, or is
    damaged in one byte, is left to `decode_records` or has the same values there."""
    drawn = data.draw(st.lists(st.tuples(st.sampled_from([1, 1, 1, 2]), st.binary(max_size=9)), min_size=1))
    records = [BlockRecord(operation, None, value) for operation, value in drawn]
    if data.draw(st.booleans()):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.sampled_from(RECORDS))
    is_plain = data.draw(st.booleans())
    raw = bytearray(encode_block(records, plain=is_plain))
    (intact,) = decode_blocks(bytes(raw))
    skip = data.draw(st.integers(0, len(records) - 1))
    count = data.draw(st.integers(1, len(records) + 1))
    wanted = records[skip : skip + count]
    is_alike = all(record == BlockRecord(1, None, record.value) and record.value is not None for record in wanted)
    found = plain_values(intact, 1, skip, count)
    assert found == ([record.value for record in wanted] if is_plain and is_alike else None)
    at = data.draw(st.integers(BLOCK_SIZE, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    (damaged,) = decode_blocks(bytes(raw))
    found = plain_values(damaged, 1, 0, len(records))
    if found is not None:
        assert found == [record.value for record in decode_records(damaged)]


@given(key=st.none() | st.binary(max_size=40), value=st.binary(max_size=40), plain=st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_single_record_makes_the_block_that_it_always_made(key: bytes | None, value: bytes, plain: bool) -> None:
    """The bytes do not show by which way an append or a put came."""
    assert encode_single(2, key, value, plain=plain) == encode_block([BlockRecord(2, key, value)], plain=plain)
