"""Changes bytes and seals them with a right CRC: every reader of the core reads them as they are, or refuses.

A CRC shows damage. Here it is computed again after each change, as a later version or a hostile writer would. The code
must write the same bytes for the value it read: then no two different files mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from struct import pack

import pytest

from raftlog.raft.codec.block import (
    BLOCK_SIZE,
    BlockRecord,
    decode_blocks,
    decode_headers,
    decode_records,
    encode_block,
)
from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.entry import decode_header
from raftlog.raft.codec.frame import FRAME_MESSAGE, FrameDecoder
from raftlog.raft.codec.raw import decode_raw_header, encode_raw_header
from raftlog.raft.wal.formats import (
    CHUNK_BYTES_MAX,
    INDEX_MAGIC,
    ForeignFile,
    check_side_header,
    decode_chunk_header,
    decode_frame_header,
    decode_index_footer,
    decode_ledger_footer,
    decode_segment_header,
    decode_slot,
    decode_snapshot_meta,
    encode_index_footer,
    encode_ledger_footer,
    encode_segment_header,
    encode_slot,
    encode_snapshot_meta,
    peek_frame,
)
from raftlog.statemachine.effects import Effects, encode_effects
from tests.raft.wal.test_formats import BLOCK, LEDGER, LOG, MARK, WRITTEN

REFUSALS = (Corrupt, UnknownVersion, ForeignFile)


SEALED: dict[str, Callable[[bytes], bytes]] = {
    "segment header": lambda data: encode_segment_header(LOG, decode_segment_header(LOG, data)),
    "idx footer": lambda data: encode_index_footer(*decode_index_footer(data)),
    "ledger footer": lambda data: encode_ledger_footer(decode_ledger_footer(data, LEDGER.end + len(data))),
    "hard state slot": lambda data: encode_slot(LOG, decode_slot(LOG, data)),
    "snapshot meta": lambda data: encode_snapshot_meta(LOG, decode_snapshot_meta(LOG, data)),
    "raw header": lambda data: encode_raw_header(decode_raw_header(data)),
}


# Padding of the layouts in docs/formats.md: whatever stands there is not looked at. Of a snapshot's meta, neither is
# the length, since the array ends by itself.
UNREAD = {
    "segment header": [5, 6, 7],
    "idx footer": [5, 6, 7],
    "ledger footer": [37, 38, 39],
    "hard state slot": [5, 6, 7],
    "snapshot meta": [5, 6, 7, 8, 9, 10, 11],
    "raw header": [6, 7],
}


@pytest.mark.parametrize("name", SEALED)
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_sealed_bytes_are_read_as_they_say_or_refused(name: str, mask: int) -> None:
    """One byte is changed and the CRC computed again: either it is refused, or writing the value gives these bytes."""
    whole = WRITTEN[name]()
    assert SEALED[name](whole) == whole
    ignored = []
    refused = 0
    for position in range(len(whole) - 4):
        data = whole[:position] + bytes((whole[position] ^ mask,)) + whole[position + 1 : -4]
        data += crc32c(data).to_bytes(4, "little")
        try:
            again = SEALED[name](data)
        except REFUSALS:
            refused += 1
        else:
            if again != data:
                ignored.append(position)
    assert refused >= 5
    if name == "snapshot meta":  # msgpack has several forms of one number
        ignored = [position for position in ignored if position < 12]
    assert ignored == UNREAD[name]


def resealed(data: bytes, position: int, change: bytes) -> bytes:
    """`data` with `change` at `position`, and its last four bytes the CRC of the bytes before them."""
    data = data[:position] + change + data[position + len(change) : -4]
    return data + crc32c(data).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("position", "change", "words"),
    [
        (0, b"NONE", "no entry here"),
        (4, b"\x02", "version 2"),
        (5, b"\x00", "kind 0"),
        (5, b"\x09", "kind 9"),
        (6, b"\x01", "flags"),
        (12, bytes(4), "names count 0"),
        (12, b"\xff\xff\xff\xff", "names count"),
        (16, b"\xff" * 8, "names count"),
    ],
)
def test_impossible_entry_headers_are_corrupt(position: int, change: bytes, words: str) -> None:
    """Another magic, version, kind or flag; counts and indexes that do not fit each other."""
    with pytest.raises((Corrupt, UnknownVersion), match=words):
        decode_header(resealed(WRITTEN["entry header"](), position, change))


def test_side_headers_are_of_one_segment() -> None:
    """Headers of another log, of another shard, or of other entries: each is reported."""
    whole = WRITTEN["idx header"]()
    check_side_header(LOG, INDEX_MAGIC, MARK, whole)
    with pytest.raises(ForeignFile, match="belongs to log"):
        check_side_header(replace(LOG, log_id=bytes(16)), INDEX_MAGIC, MARK, whole)
    with pytest.raises(ForeignFile, match="shard 7"):
        check_side_header(replace(LOG, shard=7), INDEX_MAGIC, MARK, whole)
    for other in (replace(MARK, index=40), replace(MARK, header_crc=1)):
        with pytest.raises(ForeignFile, match="of a segment that starts"):
            check_side_header(LOG, INDEX_MAGIC, other, whole)


def test_chunks_of_a_snapshot_have_a_limit() -> None:
    """A length is believed only within the limit, so that damage cannot ask for all memory."""
    with pytest.raises(Corrupt, match="cut short"):
        decode_chunk_header(b"\0" * 7)
    with pytest.raises(Corrupt, match="the limit is"):
        decode_chunk_header(pack("<II", CHUNK_BYTES_MAX + 1, 0))


def test_the_log_reads_effect_headers_as_the_state_machine_writes_them() -> None:
    """`decode_frame_header` and `peek_frame` read index, size and CRC of the frames of raftlog.statemachine.effects."""
    whole = encode_effects(Effects(12, 9, (), True))
    index, size, crc = decode_frame_header(b"xx" + whole, 2)
    assert (index, size, crc) == (12, len(whole) - 40, crc32c(whole[40:]))
    assert peek_frame(b"xx" + whole, 2) == (12, len(whole))
    assert peek_frame(b"\0" * 60, 0) == (0, 0)
    for damaged in (whole[:39], b"x" + whole[1:], whole[:10] + b"\xff" + whole[11:]):
        with pytest.raises(Corrupt):
            decode_frame_header(damaged)
    head = whole[:4] + b"\x02" + whole[5:36]
    with pytest.raises(UnknownVersion, match="version 2"):
        decode_frame_header(head + crc32c(head).to_bytes(4, "little"))


PAIR = encode_block([BlockRecord(1, b"k", b"v"), BlockRecord(2, b"key", None)])
BODY = BLOCK_SIZE


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (BLOCK[:20], "cut short"),
        (b"\x02" + BLOCK[1:], "version 2"),
        (BLOCK[:1] + b"\x80" + BLOCK[2:], "flags"),
        (PAIR[: BODY + 1] + b"\x80" + PAIR[BODY + 2 :], "record with flags"),
        (PAIR[: BODY + 4] + b"\xff\xff" + PAIR[BODY + 6 :], "runs past|names byte"),
        (PAIR[:-8] + b"\x01" + PAIR[-7:], "for the first record"),
        (PAIR[:-4] + b"\x01" + PAIR[-3:], "names byte 1"),
        (PAIR[:-4] + b"\xff" + PAIR[-3:], "names byte 255"),
    ],
)
def test_impossible_blocks_and_records_are_corrupt(data: bytes, words: str) -> None:
    """Lengths, flags and the position table are checked against the bytes that follow."""
    with pytest.raises((Corrupt, UnknownVersion), match=words):
        [list(decode_records(block)) for block in decode_blocks(data)]


def test_a_record_shorter_than_its_block_is_corrupt() -> None:
    """Bytes between the last record and the end of the block are no record's."""
    (block,) = decode_blocks(encode_block([BlockRecord(1, b"k", b"v" * 77)]))
    body = bytes(block.body)
    place = body.index(77)  # the size of the value, which is one byte shorter now
    shorter = replace(block, body=memoryview(body[:place] + b"\x4c" + body[place + 1 :]))
    with pytest.raises(Corrupt, match="1 bytes after the last record"):
        list(decode_records(shorter))


def test_records_can_be_read_from_the_middle() -> None:
    """Without the first few, the table says where to begin; without all of them, there is nothing to read."""
    (block,) = decode_blocks(PAIR)
    assert [record.key for record in decode_records(block, 1)] == [b"key"]
    assert list(decode_records(block, 2)) == []


@pytest.mark.parametrize(
    ("header", "words"), [(b"\xc1", "frame header"), (b"\xa1x", "is no array"), (b"\x80", "is no array")]
)
def test_frames_whose_header_is_no_array_are_corrupt(header: bytes, words: str) -> None:
    """The CRC is right, the msgpack is not what a message begins with."""
    body = pack("<HBB", len(header), 1, FRAME_MESSAGE) + header
    with pytest.raises(Corrupt, match=words):
        FrameDecoder().feed(pack("<II", len(header), crc32c(body)) + body)


def test_headers_of_a_record_are_text_and_bytes() -> None:
    """Pairs of anything else are corrupt."""
    for packed in (b"\xc1", b"\x91\x01", b"\x91\x92\xa1a\x01", b"\x91\x92\x01\xc4\x01v"):
        with pytest.raises(Corrupt, match="record headers"):
            decode_headers(packed)
