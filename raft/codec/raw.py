"""Encodes and decodes the head of a raw chunk, which `GET /v1/log?format=raw` sends.

A chunk is a run of whole entries of one segment, with their rows and effects.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from raftlog.raft.codec.checks import CRC, Corrupt, UnknownVersion

RAW_MAGIC: Final = b"RLRW"
RAW_VERSION: Final = 1
RAW_BRIEF: Final = 1
RAW_BLANKED: Final = 2
# magic, version, flags, rows, segment bytes, ledger bytes, CRC of the rows, base, first, next, oldest, committed,
# last_user_index, reserved; then the CRC of the header.
_RAW: Final = Struct("<4sBBxxIIIIQQQQQQI")
RAW_SIZE: Final = _RAW.size + CRC.size


class RawHeader(NamedTuple):
    """The head of a raw chunk; after it follow `rows` .idx rows, `segment_bytes` and `ledger_bytes`.

    `base` is the position in its segment of the first of the segment bytes: subtract it from the positions in the
    rows. The rows are of the records `first` to `next - 1`. A chunk without rows is a progress mark.

    `is_brief`: every entry holds one record and no effects have a payload; only the first and the last frame are sent.
    `is_blanked`: zeros stand for what the reader may not see, and CRCs are those of the bytes sent. So the first entry
    follows none: its header names 0 as the CRC before it.
    """

    rows: int
    segment_bytes: int
    ledger_bytes: int
    rows_crc: int
    base: int
    first: int
    next: int
    oldest: int
    committed: int
    last_user_index: int
    is_brief: bool = False
    is_blanked: bool = False


def encode_raw_header(header: RawHeader) -> bytes:
    """The head of a raw chunk as bytes (RAW_SIZE)."""
    flags = RAW_BRIEF * header.is_brief | RAW_BLANKED * header.is_blanked
    head = _RAW.pack(RAW_MAGIC, RAW_VERSION, flags, *header[:-2], 0)
    return head + CRC.pack(google_crc32c.value(head))


def decode_raw_header(buffer: bytes | memoryview, offset: int = 0) -> RawHeader:
    """The head of a raw chunk. Raises Corrupt or UnknownVersion."""
    if len(buffer) - offset < RAW_SIZE:
        raise Corrupt("raw chunk header cut short")
    magic, version, flags, *fields, reserved = _RAW.unpack_from(buffer, offset)
    crc = CRC.unpack_from(buffer, offset + _RAW.size)[0]
    if magic != RAW_MAGIC or crc != google_crc32c.value(bytes(buffer[offset : offset + _RAW.size])):
        raise Corrupt("raw chunk header fails its CRC")
    if version != RAW_VERSION or flags & ~(RAW_BRIEF | RAW_BLANKED) or reserved:
        raise UnknownVersion(f"raw chunk of version {version}, flags {flags}")
    return RawHeader._make((*fields, bool(flags & RAW_BRIEF), bool(flags & RAW_BLANKED)))
