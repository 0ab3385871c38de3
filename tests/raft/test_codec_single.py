"""Entries whose blocks hold one record each: what is read of them in one go."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raft import codec
from raft.codec import Record

ANY_RECORD = st.builds(
    Record, st.integers(1, 40), st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=9), st.none() | st.integers(-5, 5),
)  # fmt: skip


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_single_records_are_those_of_the_blocks_or_none(data: st.DataObject) -> None:
    """What is read in one go is what blocks and records give one after the other; whatever has another shape, or is
    damaged in one byte so that it has none, is left to those."""
    are_single = data.draw(st.booleans())
    blocks = [
        codec.encode_block(
            data.draw(st.lists(ANY_RECORD, min_size=1, max_size=1 if are_single else 2)),
            plain=not are_single and data.draw(st.booleans()),
            session=0 if are_single else data.draw(st.integers(0, 1)),
            namespace=0 if are_single else data.draw(st.integers(0, 1)),
            time_ms=None if are_single else data.draw(st.none() | st.just(7)),
        )
        for _ in range(data.draw(st.integers(0, 4)))
    ]  # fmt: skip
    raw = bytearray(b"".join(blocks))
    is_damaged = bool(raw) and data.draw(st.booleans())
    if is_damaged:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    singles = codec.single_records(bytes(raw))
    assert singles is not None or not are_single or is_damaged
    if singles is not None:
        decoded = codec.decode_blocks(bytes(raw))
        assert [(block.flags, *block[1:8]) for block in decoded] == [(0, 1, 0, 0, 0, 0, 0, 0)] * len(singles)
        assert singles == [tuple(record) for block in decoded for record in codec.decode_records(block)]
