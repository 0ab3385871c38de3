"""Bytes that stay for ever: golden bytes of every structure, and decoders that accept or say Corrupt, nothing else."""

from collections.abc import Callable
from dataclasses import replace
from struct import pack
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raft import codec
from raft.codec import Corrupt, Frame, FrameDecoder, Record, UnknownVersion
from raft.configuration import Configuration, Member
from raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    InstallSnapshotReply,
    Message,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from raft.types import GENESIS, Entry, EntryKind, Mark

RECORDS = [
    Record(1, None, b"value", codec.encode_headers([("name", b"\x00\xff"), ("name", b"")]), 1_700_000_000_123),
    Record(2, b"key", b""),
    Record(3, b"", None, None, -7),
]
BLOCK = codec.encode_block(
    RECORDS, namespace=5, principal=6, session=77, sequence=8, settled=9, time_ms=1_700_000_000_456
)
PLAIN = codec.encode_block([Record(1, None, b"x")], plain=True)
ENTRY = codec.seal_entry(
    Mark(41, 2, 0xDEADBEEF, 1_000, 500),
    term=3, kind=EntryKind.COMMANDS, count=4, time_ms=900, clock_ms=600, data=BLOCK + PLAIN,
)  # fmt: skip
NOOP = codec.seal_entry(
    codec.entry_mark(ENTRY), term=3, kind=EntryKind.NOOP, count=1, time_ms=2_000, clock_ms=700, data=b""
)
MEMBERS = Configuration(
    (Member(1, "0" * 32, "127.0.0.1:7001", "http://127.0.0.1:8001"), Member(2, "f" * 32, "b:2", "http://b")),
    (1,), (2,), (2,), 1, (("sessions_max", 10_000),),
)  # fmt: skip
RAW = codec.RawHeader(4, 400, 96, 0x01020304, 64, 42, 46, 1, 99, 45)
HEAD: dict[str, int] = {"sender": 2, "to": 1, "term": 7}
MESSAGES: dict[str, Message] = {
    "request_vote": RequestVote(**HEAD, last_index=9, last_term=6, pre=True, transfer=False, link_closed=True),
    "request_vote_reply": RequestVoteReply(**HEAD, request_term=8, granted=True, pre=True),
    "append_entries": AppendEntries(
        **HEAD, prev_index=41, prev_term=2, commit=40, round=12, entries=(ENTRY, NOOP)
    ),
    "append_entries_reply": AppendEntriesReply(
        **HEAD, success=False, match=0, prev_index=41, round=12, hint_index=30, hint_term=1
    ),
    "install_snapshot": InstallSnapshot(
        **HEAD, snapshot_index=40, snapshot_term=2, offset=262_144, total=300_000, crc=5, done=False, data=b"chunk"
    ),
    "install_snapshot_reply": InstallSnapshotReply(
        **HEAD, snapshot_index=40, snapshot_term=2, offset=262_144, accepted=True
    ),
    "timeout_now": TimeoutNow(**HEAD, last_index=46),
}  # fmt: skip

GOLDEN_MESSAGES = {
    "request_vote": "0b0000007abe647d0b0001029a01000201070906c3c2c3",
    "request_vote_reply": "09000000fbc88fd00900010298020002010708c3c3",
    "append_entries": (
        "8201000003ca15530a0001029903000201072902280c524c454e01040000f8000000040000002d000000000000000300"
        "000000000000e80300000000000058020000000000007da9b2b8efbeadde0000000002ae9214010300006f0000000300"
        "00000500000006000000000000004d0000000000000008000000000000000900000000000000c869e5cf8b010000010e"
        "00000500000013000000000000007b68e5cf8b01000076616c75659292a46e616d65c40200ff92a46e616d65c4000203"
        "030000000000000000000000000000000000000000006b657903090000000000000000000000000000f9ffffffffffff"
        "ff00000000300000004b0000000104000019000000010000000000000000000000000000000000000000000000000000"
        "00000000000000000000000000000000000000000001020000010000000000000000000000000000000000000078524c"
        "454e0101000000000000010000002e000000000000000300000000000000d007000000000000bc020000000000000000"
        "000002ae9214000000004ea97978"
    ),
    "append_entries_reply": "0c000000d541ac700c0001029b0400020107c200290c1e01",
    "install_snapshot": "19000000b94e9d83140001029b05000201072802ce00040000ce000493e005c26368756e6b",
    "install_snapshot_reply": "0e000000e5e93c310e0001029906000201072802ce00040000c3",
    "timeout_now": "07000000571be250070001029607000201072e",
}

GOLDEN: dict[str, tuple[bytes, str]] = {
    "entry header": (
        ENTRY.header,
        (
            "524c454e01040000f8000000040000002d000000000000000300000000000000e8030000000000005802000000000000"
            "7da9b2b8efbeadde0000000002ae9214"
        ),
    ),
    "no-op entry": (
        NOOP.header + NOOP.data,
        (
            "524c454e0101000000000000010000002e000000000000000300000000000000d007000000000000bc02000000000000"
            "0000000002ae9214000000004ea97978"
        ),
    ),
    "durable mark": (
        codec.encode_mark(Mark(42, 3, 0xCAFEF00D), 4_096),
        "524c4d4b010000002a0000000000000003000000000000000df0feca001000000596b8da",
    ),
    "block": (
        BLOCK,
        (
            "010300006f000000030000000500000006000000000000004d0000000000000008000000000000000900000000000000"
            "c869e5cf8b010000010e00000500000013000000000000007b68e5cf8b01000076616c75659292a46e616d65c40200ff"
            "92a46e616d65c4000203030000000000000000000000000000000000000000006b657903090000000000000000000000"
            "000000f9ffffffffffffff00000000300000004b000000"
        ),
    ),
    "plain block": (
        PLAIN,
        (
            "010400001900000001000000000000000000000000000000000000000000000000000000000000000000000000000000"
            "000000000000000001020000010000000000000000000000000000000000000078"
        ),
    ),
    "record headers": (codec.encode_headers([("a", b"1"), ("a", b"")]), "9292a161c4013192a161c400"),
    "index rows": (
        codec.index_rows(ENTRY, 4_096),
        (
            "001000004010000078100000040000000010000040100000a8100000040000000010000040100000c310000004000000"
            "00100000e71000001f11000004000000"
        ),
    ),
    "index rows of a no-op": (codec.index_rows(NOOP, 8_192), "00200000000000000000000001000000"),
    "raw header": (
        codec.encode_raw_header(RAW),
        (
            "524c5257010000000400000090010000600000000403020140000000000000002a000000000000002e00000000000000"
            "010000000000000063000000000000002d000000000000000000000090ae0764"
        ),
    ),
    "configuration": (
        codec.encode_configuration(MEMBERS),
        (
            "970101929401d9203030303030303030303030303030303030303030303030303030303030303030ae3132372e302e30"
            "2e313a37303031b5687474703a2f2f3132372e302e302e313a383030319402d920666666666666666666666666666666"
            "6666666666666666666666666666666666a3623a32a8687474703a2f2f629101910291029192ac73657373696f6e735f"
            "6d6178cd2710"
        ),
    ),
    "frame": (
        codec.encode_frame(codec.FRAME_HELLO, [1, "raftlog", b"\x00", None, True], b"payload"),
        "160000008125de880f0001019501a7726166746c6f67c40100c0c37061796c6f6164",
    ),
    **{name: (codec.encode_message(message), GOLDEN_MESSAGES[name]) for name, message in MESSAGES.items()},
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name: str) -> None:
    """What is on disk and on the wire does not change by accident: a new layout is a new version."""
    made, golden = GOLDEN[name]
    assert made.hex() == golden


def test_sizes_are_those_of_the_formats() -> None:
    """Fixed widths that readers outside this package rely on."""
    assert (codec.HEADER_SIZE, codec.MARK_SIZE, codec.BLOCK_SIZE, codec.RECORD_SIZE) == (64, 36, 56, 24)


def test_entries_come_back_as_they_were() -> None:
    """Header fields, data, the mark of the end, and the CRC of the one before."""
    (entry, noop) = codec.decode_entries(ENTRY.header + ENTRY.data + NOOP.header)
    assert (entry, noop) == (ENTRY, NOOP)
    assert (entry.first, entry.index, entry.before) == (42, 45, 41)
    assert codec.previous_crc(entry) == 0xDEADBEEF
    assert codec.previous_crc(noop) == codec.header_crc(entry)
    assert codec.entry_mark(noop) == Mark(46, 3, codec.header_crc(noop), 2_000, 700)


def test_times_never_fall_below_the_entry_before() -> None:
    """Both times of an entry are raised to those of the one before (DESIGN section 3)."""
    assert (ENTRY.time_ms, ENTRY.clock_ms) == (1_000, 600)
    with pytest.raises(ValueError, match="this log is full"):
        codec.seal_entry(
            Mark(codec.INDEX_MAX, 1), term=1, kind=EntryKind.NOOP, count=1, time_ms=0, clock_ms=0, data=b""
        )


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_plain_counts_are_those_of_the_blocks_or_none(data: st.DataObject) -> None:
    """What is counted without decoding is what decoding counts, and whatever is not plain, or damaged in one byte, is
    either refused in the same words or left to `decode_blocks`."""
    record = Record(1, None, b"value")
    blocks = [
        codec.encode_block(
            [record] * data.draw(st.integers(1, 3)), plain=data.draw(st.booleans()) or is_plain,
            session=0 if is_plain else data.draw(st.integers(0, 1)),
            namespace=0 if is_plain else data.draw(st.integers(0, 1)),
            time_ms=None if is_plain else data.draw(st.none() | st.just(7)),
        )
        for is_plain in data.draw(st.lists(st.booleans(), max_size=5))
    ]  # fmt: skip
    raw = bytearray(b"".join(blocks))
    if raw and data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    counts = codec.plain_counts(bytes(raw))
    if counts is not None:
        decoded = codec.decode_blocks(bytes(raw))
        assert counts == [block.count for block in decoded]
        for block in decoded:
            nothing = (codec.BLOCK_PLAIN, 0, 0, 0, 0, 0, 0)
            assert (block.flags, *block[2:8]) == nothing


@given(
    values=st.lists(st.binary(max_size=40), min_size=1, max_size=20),
    session=st.integers(0, 3),
    time_ms=st.none() | st.integers(0, 9),
)
@settings(max_examples=200, deadline=None)
def test_values_make_the_block_that_their_records_make(values: list[bytes], session: int, time_ms: int | None) -> None:
    """The short way of most appends has the bytes of the long one: a repetition may have gone the other way."""
    given: dict[str, Any] = {"session": session, "sequence": 2 * session, "settled": session, "time_ms": time_ms}
    records = [Record(1, None, value) for value in values]
    assert codec.encode_values(1, values, **given) == codec.encode_block(records, plain=True, **given)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_plain_values_are_those_of_the_records_or_none(data: st.DataObject) -> None:
    """Read in one go, from anywhere in a block, values are what its records hold; whatever is more than a value, or is
    damaged in one byte, is left to `decode_records` or has the same values there."""
    drawn = data.draw(st.lists(st.tuples(st.sampled_from([1, 1, 1, 2]), st.binary(max_size=9)), min_size=1))
    records = [Record(operation, None, value) for operation, value in drawn]
    if data.draw(st.booleans()):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.sampled_from(RECORDS))
    is_plain = data.draw(st.booleans())
    raw = bytearray(codec.encode_block(records, plain=is_plain))
    (intact,) = codec.decode_blocks(bytes(raw))
    skip = data.draw(st.integers(0, len(records) - 1))
    count = data.draw(st.integers(1, len(records) + 1))
    wanted = records[skip : skip + count]
    is_alike = all(record == Record(1, None, record.value) and record.value is not None for record in wanted)
    found = codec.plain_values(intact, 1, skip, count)
    assert found == ([record.value for record in wanted] if is_plain and is_alike else None)
    at = data.draw(st.integers(codec.BLOCK_SIZE, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    (damaged,) = codec.decode_blocks(bytes(raw))
    found = codec.plain_values(damaged, 1, 0, len(records))
    if found is not None:
        assert found == [record.value for record in codec.decode_records(damaged)]


def test_blocks_and_records_come_back_as_they_were() -> None:
    """Absent is not empty, headers keep their order and repeats, positions match the table."""
    block, plain = codec.decode_blocks(BLOCK + PLAIN)
    assert list(codec.decode_records(block)) == RECORDS
    assert (block.namespace, block.principal, block.session, block.sequence, block.settled) == (5, 6, 77, 8, 9)
    assert block.time_ms == 1_700_000_000_456
    assert block.flags == codec.BLOCK_SESSION | codec.BLOCK_TIME
    assert plain.flags == codec.BLOCK_PLAIN
    assert list(codec.decode_records(plain)) == [Record(1, None, b"x")]
    headers = RECORDS[0].headers
    assert headers is not None
    assert codec.decode_headers(headers) == [("name", b"\x00\xff"), ("name", b"")]
    positions = list(codec.record_positions(block))
    assert len(positions) == 3
    assert positions[0] == 0


def test_index_rows_point_at_the_headers_they_name() -> None:
    """Each row finds its entry, block and record header in the segment."""
    segment = bytes(4_096) + ENTRY.header + ENTRY.data
    rows = codec.index_rows(ENTRY, 4_096)
    assert len(rows) == 16 * ENTRY.count
    seen = []
    for entry_at, block_at, record_at, kind in codec.IDX_ROW.iter_unpack(rows):
        assert codec.decode_header(segment, entry_at).index == 45
        assert segment[block_at] == codec.BLOCK_VERSION
        assert kind == EntryKind.COMMANDS
        seen.append(segment[record_at])
    assert seen == [1, 2, 3, 1]
    with pytest.raises(Corrupt, match="its blocks hold 4"):
        codec.index_rows(replace(ENTRY, count=5), 0)


def test_configuration_and_raw_header_come_back() -> None:
    """Round trips."""
    assert codec.decode_configuration(codec.encode_configuration(MEMBERS)) == MEMBERS
    assert codec.decode_raw_header(b"..." + codec.encode_raw_header(RAW), 3) == RAW
    mark = Mark(42, 3, 7)
    assert codec.decode_mark(codec.encode_mark(mark, 96), 0, 96) == mark
    with pytest.raises(Corrupt, match="stands at"):
        codec.decode_mark(codec.encode_mark(mark, 96), 0, 100)


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_messages_come_back_however_the_stream_is_cut(message: Message, step: int) -> None:
    """Frames are put together again from pieces of any size, several in a row."""
    stream = codec.encode_message(message) * 2
    decoder = FrameDecoder()
    frames = [frame for start in range(0, len(stream), step) for frame in decoder.feed(stream[start : start + step])]
    assert [codec.decode_message(frame) for frame in frames] == [message, message]


def test_a_decoder_knows_whether_it_waits_for_the_rest_of_a_frame() -> None:
    """A connection that ends then was cut off in the middle of something; between two frames nothing is missing."""
    frame = codec.encode_frame(codec.FRAME_MESSAGE, [1], b"payload")
    decoder = FrameDecoder()
    waits = [decoder.is_unfinished]
    for part in (frame[:1], frame[1:-1], frame[-1:], frame + frame[:5], frame[5:]):
        decoder.feed(part)
        waits.append(decoder.is_unfinished)
    assert waits == [False, True, True, False, True, False]


def test_entries_that_do_not_follow_each_other_are_corrupt() -> None:
    """A row of entries is a chain: index, term and header CRC."""
    other = codec.seal_entry(GENESIS, term=1, kind=EntryKind.NOOP, count=1, time_ms=0, clock_ms=0, data=b"")
    for row in ((NOOP, ENTRY), (ENTRY, other), (ENTRY, ENTRY)):
        with pytest.raises(Corrupt, match="does not follow"):
            codec.decode_entries(b"".join(entry.header + entry.data for entry in row))


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_every_kind_of_entry_is_known_and_no_other(kind: int) -> None:
    """An unknown kind, version or flag stops the reader; zeroed bytes are no entry."""
    entry = codec.seal_entry(GENESIS, term=1, kind=EntryKind(kind), count=1, time_ms=0, clock_ms=0, data=b"")
    assert codec.decode_entry(entry.header).kind is EntryKind(kind)
    for position, value in ((4, 9), (5, 9), (5, 0), (6, 1)):
        header = bytearray(entry.header)
        header[position] = value
        header[60:] = pack("<I", codec.crc32c(bytes(header[:60])))
        with pytest.raises(UnknownVersion):
            codec.decode_header(bytes(header))
    with pytest.raises(Corrupt, match="no entry here"):
        codec.decode_header(bytes(64))


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ([99, 0, 2, 1, 7, 5], UnknownVersion),
        ([], UnknownVersion),
        ([True, 0, 2, 1, 7, 5], UnknownVersion),
        ([{}, 0, 2, 1, 7, 5], UnknownVersion),
        ([7, 0, 2, 1, 7], Corrupt),
        ([7, 0, 2, 1, 7, -1], Corrupt),
        ([7, 0, 2, 1, 7, 1 << 53], Corrupt),
        ([7, 0, 2, 1, 7, "5"], Corrupt),
        ([7, 0, 2, 1, 7, True], Corrupt),
        ([2, 0, 2, 1, 7, 5, 1, False], Corrupt),
    ],
)
def test_messages_with_wrong_fields_are_refused(header: list[object], error: type[Exception]) -> None:
    """Number, count, type and range of the fields are checked; nothing is unpickled (pitfall 84)."""
    (frame,) = FrameDecoder().feed(codec.encode_frame(codec.FRAME_MESSAGE, header))
    with pytest.raises(error):
        codec.decode_message(frame)


def test_frames_over_the_limit_or_of_another_version_are_refused() -> None:
    """The length is checked before anything is buffered for it."""
    with pytest.raises(Corrupt, match="the limit is 10"):
        FrameDecoder(10).feed(codec.encode_frame(codec.FRAME_HELLO, [b"x" * 20]))
    body = pack("<HBB", 1, 9, 1) + b"\x90"
    with pytest.raises(UnknownVersion):
        FrameDecoder().feed(pack("<II", 1, codec.crc32c(body)) + body)
    with pytest.raises(Corrupt, match="CRC"):
        FrameDecoder().feed(pack("<II", 1, 5) + body)


def all_of(iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Exhaust what a decoder yields."""
    return lambda data: list(iterate(data))


DECODERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "entry": (codec.decode_entry, ENTRY.header + ENTRY.data),
    "entries": (codec.decode_entries, ENTRY.header + ENTRY.data + NOOP.header),
    "mark": (codec.decode_mark, codec.encode_mark(Mark(42, 3, 7), 0)),
    "records": (lambda data: [list(codec.decode_records(block)) for block in codec.decode_blocks(data)], BLOCK + PLAIN),
    "rows": (lambda data: codec.index_rows(Entry(4, 1, EntryKind.COMMANDS, 4, 0, 0, b"", data), 0), BLOCK + PLAIN),
    "headers": (codec.decode_headers, codec.encode_headers([("a", b"1")])),
    "raw": (codec.decode_raw_header, codec.encode_raw_header(RAW)),
    "configuration": (codec.decode_configuration, codec.encode_configuration(MEMBERS)),
    "stream": (
        lambda data: [codec.decode_message(frame) for frame in FrameDecoder().feed(data)],
        codec.encode_message(MESSAGES["append_entries"]),
    ),
}


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=150)
@given(st.data())
def test_any_bytes_are_accepted_or_corrupt(name: str, data: st.DataObject) -> None:
    """Random bytes, and good ones with a few bytes changed, cut or doubled: Corrupt or UnknownVersion, nothing else."""
    decode, good = DECODERS[name]
    if data.draw(st.booleans()):
        bad = bytearray(good)
        for _ in range(data.draw(st.integers(1, 3))):
            bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
        tail = data.draw(st.integers(0, len(bad)))
        raw = bytes(bad[:tail]) + good[: data.draw(st.integers(0, 8))]
    else:
        raw = data.draw(st.binary(max_size=300))
    try:
        decode(raw)
    except (Corrupt, UnknownVersion):
        pass


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 54) | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=20,
)


@given(st.lists(JSONISH, max_size=12), st.binary(max_size=80))
def test_any_message_header_is_accepted_or_corrupt(header: list[object], payload: bytes) -> None:
    """A peer may send any msgpack it likes."""
    unpacked = msgpack.unpackb(msgpack.packb(header), raw=False, use_list=False)
    for first in [*header[:1], *range(1, 8)]:
        try:
            codec.decode_message(Frame(codec.FRAME_MESSAGE, (first, *unpacked[1:]), payload))
        except (Corrupt, UnknownVersion):
            pass


@given(JSONISH)
def test_any_configuration_is_accepted_or_corrupt(value: object) -> None:
    """Intact msgpack of the wrong shape is Corrupt."""
    for shape in (value, [1, value], [1, 1, [[1, value, "", ""]], [1], [], [], []], [1, 1, value, [], [], [], []]):
        try:
            codec.decode_configuration(msgpack.packb(shape))
        except (Corrupt, UnknownVersion):
            pass


def test_no_flipped_bit_of_an_entry_goes_unnoticed() -> None:
    """Every single bit of header and data is covered by a CRC."""
    good = ENTRY.header + ENTRY.data
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        with pytest.raises((Corrupt, UnknownVersion)):
            codec.decode_entry(bytes(bad))
