"""Bytes that stay for ever, and decoders that accept or say Corrupt, nothing else.

Most golden bytes are in docs/formats.md (tests/raft/wal/test_formats.py); here are those of every message.
"""

from collections.abc import Callable
from dataclasses import replace
from struct import pack

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from raftlog.raft.codec.block import (
    BLOCK_ADMITTED,
    BLOCK_PLAIN,
    BLOCK_SESSION,
    BLOCK_SIZE,
    BLOCK_TIME,
    BLOCK_VERSION,
    RECORD_SIZE,
    BlockRecord,
    decode_blocks,
    decode_headers,
    decode_records,
    encode_block,
    encode_headers,
    record_positions,
)
from raftlog.raft.codec.checks import INDEX_MAX, Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.configuration import decode_configuration, encode_configuration
from raftlog.raft.codec.entry import (
    HEADER_SIZE,
    decode_entries,
    decode_entry,
    decode_header,
    reseal,
    seal_entry,
)
from raftlog.raft.codec.frame import (
    FRAME_HELLO,
    FRAME_MESSAGE,
    FRAME_READ,
    FRAME_SHARD,
    SHARD_MAX,
    Frame,
    FrameDecoder,
    encode_for_shard,
    encode_frame,
)
from raftlog.raft.codec.index_rows import IDX_ROW, index_rows
from raftlog.raft.codec.mark import MARK_SIZE, decode_mark, encode_mark
from raftlog.raft.codec.message import decode_message, encode_message
from raftlog.raft.codec.raw import RawHeader, decode_raw_header, encode_raw_header
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    InstallSnapshotReply,
    Message,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from raftlog.raft.types import GENESIS, Entry, EntryKind, Mark

RECORDS = [
    BlockRecord(1, None, b"value", encode_headers([("name", b"\x00\xff"), ("name", b"")]), 1_700_000_000_123),
    BlockRecord(2, b"key", b""),
    BlockRecord(3, b"", None, None, -7),
]
BLOCK = encode_block(RECORDS, namespace=5, session=77, sequence=8, settled=9, time_ms=1_700_000_000_456)
ADMITTED = encode_block(RECORDS, admission=b"who", session=77, sequence=8, settled=9)
PLAIN = encode_block([BlockRecord(1, None, b"x")], plain=True)
ENTRY = seal_entry(
    Mark(41, 2, 0xDEADBEEF, 1_000, 500),
    term=3,
    kind=EntryKind.COMMANDS,
    count=4,
    time_ms=900,
    clock_ms=600,
    data=BLOCK + PLAIN,
)
NOOP = seal_entry(ENTRY.mark, term=3, kind=EntryKind.NOOP, count=1, time_ms=2_000, clock_ms=700, data=b"")
MEMBERS = Configuration(
    (Member(1, "0" * 32, "127.0.0.1:7001", "http://127.0.0.1:8001"), Member(2, "f" * 32, "b:2", "http://b")),
    (1,),
    (2,),
    (2,),
    1,
    (("sessions_max", 10_000),),
)
AFTER = Configuration(MEMBERS.members[:1], (1,), removed=((2, "f" * 32),))
RAW = RawHeader(4, 400, 96, 0x01020304, 64, 42, 46, 1, 99, 45)
HEAD: dict[str, int] = {"sender": 2, "to": 1, "term": 7}
MESSAGES: dict[str, Message] = {
    "request_vote": RequestVote(**HEAD, last_index=9, last_term=6, pre=True, transfer=False, link_closed=True),
    "request_vote_reply": RequestVoteReply(**HEAD, request_term=8, granted=True, pre=True),
    "append_entries": AppendEntries(**HEAD, prev_index=41, prev_term=2, commit=40, round=12, entries=(ENTRY, NOOP)),
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
}

GOLDEN_MESSAGES = {
    "request_vote": "0b0000007abe647d0b0001029a01000201070906c3c2c3",
    "request_vote_reply": "09000000fbc88fd00900010298020002010708c3c3",
    "append_entries": (
        "8201000040172d440a0001029903000201072902280c524c454e01040000f8000000040000002d000000000000000300"
        "000000000000e80300000000000058020000000000008339e34defbeadde00000000a67621b8010300006f0000000300"
        "00000500000000000000000000004d0000000000000008000000000000000900000000000000c869e5cf8b010000010e"
        "00000500000013000000000000007b68e5cf8b01000076616c75659292a46e616d65c40200ff92a46e616d65c4000203"
        "030000000000000000000000000000000000000000006b657903090000000000000000000000000000f9ffffffffffff"
        "ff00000000300000004b0000000104000019000000010000000000000000000000000000000000000000000000000000"
        "00000000000000000000000000000000000000000001020000010000000000000000000000000000000000000078524c"
        "454e0101000000000000010000002e000000000000000300000000000000d007000000000000bc020000000000000000"
        "0000a67621b8000000003059ae00"
    ),
    "append_entries_reply": "0c000000d541ac700c0001029b0400020107c200290c1e01",
    "install_snapshot": "19000000b94e9d83140001029b05000201072802ce00040000ce000493e005c26368756e6b",
    "install_snapshot_reply": "0e000000e5e93c310e0001029906000201072802ce00040000c3",
    "timeout_now": "07000000571be250070001029607000201072e",
}

GOLDEN: dict[str, tuple[bytes, str]] = {
    "plain block": (
        PLAIN,
        (
            "010400001900000001000000000000000000000000000000000000000000000000000000000000000000000000000000"
            "000000000000000001020000010000000000000000000000000000000000000078"
        ),
    ),
    "record headers": (encode_headers([("a", b"1"), ("a", b"")]), "9292a161c4013192a161c400"),
    "frame": (
        encode_frame(FRAME_HELLO, [1, "raftlog", b"\x00", None, True], b"payload"),
        "160000008125de880f0001019501a7726166746c6f67c40100c0c37061796c6f6164",
    ),
    **{name: (encode_message(message), GOLDEN_MESSAGES[name]) for name, message in MESSAGES.items()},
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name: str) -> None:
    """Bytes on disk and on the wire do not change by accident: a new layout is a new version."""
    made, golden = GOLDEN[name]
    assert made.hex() == golden


def test_sizes_are_those_of_the_formats() -> None:
    """Fixed widths that readers outside this package rely on."""
    assert (HEADER_SIZE, MARK_SIZE, BLOCK_SIZE, RECORD_SIZE) == (64, 36, 56, 24)


def test_entries_come_back_as_they_were() -> None:
    """Header fields, data, the mark of the end, and the CRC of the one before."""
    (entry, noop) = decode_entries(ENTRY.header + ENTRY.data + NOOP.header)
    assert (entry, noop) == (ENTRY, NOOP)
    assert (entry.first, entry.index, entry.before) == (42, 45, 41)
    assert entry.previous_crc == 0xDEADBEEF
    assert noop.previous_crc == entry.mark.header_crc
    assert noop.mark == Mark(46, 3, noop.mark.header_crc, 2_000, 700)


def test_an_entry_whose_data_was_changed_in_place_is_sealed_again() -> None:
    """It is intact again, with the new data, and names the header CRC that it was given."""
    buffer = bytearray(b"..." + ENTRY.header + ENTRY.data)
    buffer[-1] ^= 1
    with pytest.raises(Corrupt, match="fails its CRC"):
        decode_entry(bytes(buffer), 3)
    crc = reseal(buffer, 3, len(ENTRY.data), 5)
    entry = decode_entry(bytes(buffer), 3)
    assert (entry.data, entry.previous_crc) == (bytes(buffer[3 + HEADER_SIZE :]), 5)
    assert entry.mark == replace(ENTRY.mark, header_crc=crc)


def test_times_never_fall_below_the_entry_before() -> None:
    """Both times of an entry are raised to those of the one before (docs/promises.md: two times)."""
    assert (ENTRY.time_ms, ENTRY.clock_ms) == (1_000, 600)
    with pytest.raises(ValueError, match="this log is full"):
        seal_entry(Mark(INDEX_MAX, 1), term=1, kind=EntryKind.NOOP, count=1, time_ms=0, clock_ms=0, data=b"")


def test_blocks_and_records_come_back_as_they_were() -> None:
    """Absent is not empty, headers keep their order and repeats, positions match the table."""
    block, plain = decode_blocks(BLOCK + PLAIN)
    assert list(decode_records(block)) == RECORDS
    assert (block.namespace, block.admission, block.session, block.sequence, block.settled) == (5, b"", 77, 8, 9)
    assert block.time_ms == 1_700_000_000_456
    assert block.flags == BLOCK_SESSION | BLOCK_TIME
    assert plain.flags == BLOCK_PLAIN
    assert list(decode_records(plain)) == [BlockRecord(1, None, b"x")]
    headers = RECORDS[0].headers
    assert headers is not None
    assert decode_headers(headers) == [("name", b"\x00\xff"), ("name", b"")]
    positions = list(record_positions(block))
    assert len(positions) == 3
    assert positions[0] == 0


def test_an_admission_lies_before_the_records_and_is_no_part_of_the_body() -> None:
    """A request that is sent again has the same body, whatever it was admitted under: sessions compare its hash. An
    admission without its flag, the flag alone, or one that leaves no room for the records is damage."""
    block, plain = decode_blocks(ADMITTED + PLAIN)
    assert (block.flags, block.admission, plain.admission) == (BLOCK_SESSION | BLOCK_ADMITTED, b"who", b"")
    assert block.body == decode_blocks(BLOCK)[0].body
    assert list(decode_records(block)) == RECORDS
    entry = seal_entry(GENESIS, term=1, kind=EntryKind.COMMANDS, count=4, time_ms=0, clock_ms=0, data=ADMITTED + PLAIN)
    rows = [IDX_ROW.unpack_from(index_rows(entry, 0), place * IDX_ROW.size) for place in range(3)]
    assert [row[2] for row in rows] == [HEADER_SIZE + BLOCK_SIZE + 3 + each for each in record_positions(block)]
    for at, value in ((1, BLOCK_SESSION), (16, 0), (16, 99)):
        with pytest.raises(Corrupt):
            decode_blocks(ADMITTED[:at] + bytes((value,)) + ADMITTED[at + 1 :])


def test_index_rows_point_at_the_headers_they_name() -> None:
    """Each row finds its entry, block and record header in the segment."""
    segment = bytes(4_096) + ENTRY.header + ENTRY.data
    rows = index_rows(ENTRY, 4_096)
    assert len(rows) == 16 * ENTRY.count
    seen = []
    for entry_at, block_at, record_at, kind in IDX_ROW.iter_unpack(rows):
        assert decode_header(segment, entry_at).index == 45
        assert segment[block_at] == BLOCK_VERSION
        assert kind == EntryKind.COMMANDS
        seen.append(segment[record_at])
    assert seen == [1, 2, 3, 1]
    with pytest.raises(Corrupt, match="its blocks hold 4"):
        index_rows(replace(ENTRY, count=5), 0)


def test_configuration_and_raw_header_come_back() -> None:
    """Round trips."""
    for each in (MEMBERS, AFTER):
        assert decode_configuration(encode_configuration(each)) == each
    assert decode_raw_header(b"..." + encode_raw_header(RAW), 3) == RAW
    mark = Mark(42, 3, 7)
    assert decode_mark(encode_mark(mark, 96), 0, 96) == mark
    with pytest.raises(Corrupt, match="stands at"):
        decode_mark(encode_mark(mark, 96), 0, 100)


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_messages_come_back_however_the_stream_is_cut(message: Message, step: int) -> None:
    """Frames are put together again from pieces of any size, several in a row."""
    stream = encode_message(message) * 2
    decoder = FrameDecoder()
    frames = [frame for start in range(0, len(stream), step) for frame in decoder.feed(stream[start : start + step])]
    assert [decode_message(frame) for frame in frames] == [message, message]


def test_a_decoder_knows_whether_it_waits_for_the_rest_of_a_frame() -> None:
    """A connection that ends then was cut off in the middle of something; between two frames nothing is missing."""
    frame = encode_frame(FRAME_MESSAGE, [1], b"payload")
    decoder = FrameDecoder()
    waits = [decoder.is_unfinished]
    for part in (frame[:1], frame[1:-1], frame[-1:], frame + frame[:5], frame[5:]):
        decoder.feed(part)
        waits.append(decoder.is_unfinished)
    assert waits == [False, True, True, False, True, False]


def test_entries_that_do_not_follow_each_other_are_corrupt() -> None:
    """A row of entries is a chain: index, term and header CRC."""
    other = seal_entry(GENESIS, term=1, kind=EntryKind.NOOP, count=1, time_ms=0, clock_ms=0, data=b"")
    for row in ((NOOP, ENTRY), (ENTRY, other), (ENTRY, ENTRY)):
        with pytest.raises(Corrupt, match="does not follow"):
            decode_entries(b"".join(entry.header + entry.data for entry in row))


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
    """Number, count, type and range of the fields are checked; nothing is unpickled (pitfall 84: unpickled network
    input)."""
    (frame,) = FrameDecoder().feed(encode_frame(FRAME_MESSAGE, header))
    with pytest.raises(error):
        decode_message(frame)


def test_frames_over_the_limit_or_of_another_version_are_refused() -> None:
    """The length is checked before anything is buffered for it."""
    with pytest.raises(Corrupt, match="the limit is 10"):
        FrameDecoder(10).feed(encode_frame(FRAME_HELLO, [b"x" * 20]))
    body = pack("<HBB", 1, 9, 1) + b"\x90"
    with pytest.raises(UnknownVersion):
        FrameDecoder().feed(pack("<II", 1, crc32c(body)) + body)
    with pytest.raises(Corrupt, match="CRC"):
        FrameDecoder().feed(pack("<II", 1, 5) + body)


def test_envelope_holds_one_frame_of_the_bulk_link() -> None:
    """Group 0 has none: its frames are as they were. Anything else in one is Corrupt."""
    inner = encode_frame(FRAME_READ, [5])
    assert encode_for_shard(0, inner) == inner
    (frame,) = FrameDecoder().feed(encode_for_shard(3, inner))
    assert (frame.kind, frame.header, frame.payload, frame.shard) == (FRAME_READ, (5,), b"", 3)
    wrong = [
        encode_for_shard(SHARD_MAX + 1, inner),
        encode_for_shard(3, inner + inner),
        encode_for_shard(3, inner[:-1]),
        encode_for_shard(3, inner + b"x"),
        encode_for_shard(3, encode_frame(FRAME_HELLO, [1])),
        encode_for_shard(3, encode_for_shard(3, inner)),
        encode_frame(FRAME_SHARD, [0], inner),
        encode_frame(FRAME_SHARD, ["3"], inner),
        encode_frame(FRAME_SHARD, []),
    ]
    for data in wrong:
        with pytest.raises(Corrupt):
            FrameDecoder().feed(data)


def _entry_of_four(data: bytes) -> Entry:
    return seal_entry(GENESIS, term=1, kind=EntryKind.COMMANDS, count=4, time_ms=0, clock_ms=0, data=data)


DECODERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "entry": (decode_entry, ENTRY.header + ENTRY.data),
    "entries": (decode_entries, ENTRY.header + ENTRY.data + NOOP.header),
    "mark": (decode_mark, encode_mark(Mark(42, 3, 7), 0)),
    "records": (lambda data: [list(decode_records(block)) for block in decode_blocks(data)], BLOCK + PLAIN),
    "rows": (lambda data: index_rows(_entry_of_four(data), 0), BLOCK + PLAIN),
    "headers": (decode_headers, encode_headers([("a", b"1")])),
    "raw": (decode_raw_header, encode_raw_header(RAW)),
    "configuration": (decode_configuration, encode_configuration(MEMBERS)),
    "stream": (
        lambda data: [decode_message(frame) for frame in FrameDecoder().feed(data)],
        encode_message(MESSAGES["append_entries"]),
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
            decode_message(Frame(FRAME_MESSAGE, (first, *unpacked[1:]), payload))
        except (Corrupt, UnknownVersion):
            pass


@given(JSONISH)
def test_any_configuration_is_accepted_or_corrupt(value: object) -> None:
    """Intact msgpack of the wrong shape is Corrupt."""
    for shape in (
        value,
        [1, value],
        [1, value, [], [], [], [], [], []],
        [1, 1, [[1, value, "", ""]], [1], [], [], [], []],
        [1, 1, value, [], [], [], [], []],
        [1, 4, [], [], [], [], [], value],
        [1, 4, [], [], [], [], [], [value]],
    ):
        try:
            decode_configuration(msgpack.packb(shape))
        except (Corrupt, UnknownVersion):
            pass
