"""Records as they are shown: the short way of plain appends shows what the long one does."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings, strategies as st

from raftlog.cluster.api.encoding import Encoding
from raftlog.cluster.records import rows as records
from raftlog.cluster.records.rows import as_record, decode_rows, plain_json, row_bytes
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.block_fast import encode_values
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.types import Entry, EntryKind, Mark
from raftlog.statemachine.commands import Operation, Result
from raftlog.statemachine.digest import LogRow
from raftlog.statemachine.effects import Effects, RequestEffect

ALL = 1 << 30
APPEND = int(Operation.APPEND)
VALUES = st.one_of(
    st.binary(max_size=6),
    st.text(max_size=6).map(str.encode),
    st.sampled_from([b"", b'"', b"\\", b"\n", b'{"value":""}', b"\xff", "\u2028\U0001f600".encode()]),
)


def entry(*blocks: bytes, count: int, last: int = 100, kind: EntryKind = EntryKind.COMMANDS) -> Entry:
    """An entry of these blocks, which hold `count` records."""
    before = Mark(last - count, 7)
    return seal_entry(
        before, term=7, kind=kind, count=count, time_ms=1_700_000_000_123, clock_ms=5, data=b"".join(blocks)
    )


def long_way(entry: Entry, effects: Effects, first: int, encoding: Encoding = "auto") -> list[bytes]:
    """Row by row."""
    return [msgspec.json.encode(as_record(row, encoding)) for row in decode_rows(entry, effects, first)]


@given(data=st.data(), encoding=st.sampled_from(["auto", "base64"]))
@settings(max_examples=300, deadline=None)
def test_plain_appends_are_shown_byte_for_byte_alike(data: st.DataObject, encoding: Encoding) -> None:
    """Whatever the values, the sessions and times of their requests, where reading begins and where it must end."""
    blocks, count = [], 0
    for _ in range(data.draw(st.integers(1, 4))):
        values = data.draw(st.lists(VALUES, min_size=1, max_size=5))
        session = data.draw(st.sampled_from([0, 9]))
        time_ms = data.draw(st.sampled_from([None, 0, 12]))
        blocks.append(encode_values(APPEND, values, session=session, sequence=2 * session, time_ms=time_ms))
        count += len(values)
    whole = entry(*blocks, count=count)
    effects = Effects(whole.index, 3, (), is_plain=True)
    first = data.draw(st.integers(whole.first, whole.index))
    wanted, bytes_max = data.draw(st.integers(1, count + 1)), data.draw(st.integers(1, ROOM))
    rows: list[LogRow] = []
    size = 0
    for row in decode_rows(whole, effects, first):
        if len(rows) == wanted or size >= bytes_max:
            break
        rows.append(row)
        size += row_bytes(row)
    shown = plain_json(whole, effects, first, wanted, bytes_max, encoding)
    assert shown == ([msgspec.json.encode(as_record(row, encoding)) for row in rows], size)


ROOM = 5 * records.ROW_BYTES


def test_rows_with_more_than_a_value_go_the_long_way() -> None:
    """A key, headers, a time of its own, another operation, an entry of another kind, or effects that are not plain
    exclude the short way, unless they lie outside of the requested range.
    """
    value = BlockRecord(APPEND, None, b"v")
    for other in (
        BlockRecord(APPEND, b"k", b"v"),
        BlockRecord(APPEND, None, b"v", b"\x90"),
        BlockRecord(APPEND, None, b"v", None, 5),
        BlockRecord(APPEND),
        BlockRecord(int(Operation.PUT), None, b"v"),
    ):
        whole = entry(encode_block([value, other], plain=True), count=2)
        plain = Effects(whole.index, 3, (), is_plain=True)
        assert plain_json(whole, plain, whole.index, ALL, ALL, "auto") is None
        assert plain_json(whole, plain, whole.first, ALL, ALL, "auto") is None
        shown = plain_json(whole, plain, whole.first, 1, ALL, "auto")
        assert shown is not None
        assert shown[0] == long_way(whole, plain, whole.first)[:1]
    values = entry(encode_values(APPEND, [b"v"]), count=1)
    assert plain_json(values, Effects(100, 3, (RequestEffect(Result.REPEATED, 3),)), 1, ALL, ALL, "auto") is None
    noop = entry(count=1, kind=EntryKind.NOOP)
    assert plain_json(noop, Effects(100, 3, (), is_plain=True), 1, ALL, ALL, "auto") is None
