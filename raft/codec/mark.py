"""Encodes and decodes a durable mark: it says what had been synced when it was written.

Marks are local to a node's segments, and stand between entries.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import google_crc32c

from raftlog.raft.codec.checks import CRC, Corrupt, UnknownVersion
from raftlog.raft.codec.entry import ENTRY_VERSION
from raftlog.raft.types import Mark

MARK_MAGIC: Final = b"RLMK"
# magic, version, index, term, header CRC of that entry, position of the mark in its segment; then the CRC of these
_MARK: Final = Struct("<4sB3xQQIII")
MARK_SIZE: Final = _MARK.size


def encode_mark(mark: Mark, position: int) -> bytes:
    """`everything up to this end of an entry is synced`, as bytes for the segment (36 bytes, padding included).

    `position` is where in its segment it will stand: a copy of a mark somewhere else (in a record's value, say) is
    then no mark.
    """
    head = _MARK.pack(MARK_MAGIC, ENTRY_VERSION, mark.index, mark.term, mark.header_crc, position, 0)[: MARK_SIZE - 4]
    return head + CRC.pack(google_crc32c.value(head))


def decode_mark(buffer: bytes | memoryview, offset: int = 0, position: int | None = None) -> Mark:
    """The mark at `offset` (its times are not stored and read as 0); where `position` is given, it must stand there.

    Raises Corrupt or UnknownVersion.
    """
    if len(buffer) - offset < MARK_SIZE:
        raise Corrupt("durable mark cut short")
    magic, version, index, term, entry_crc, own, crc = _MARK.unpack_from(buffer, offset)
    if magic != MARK_MAGIC or crc != google_crc32c.value(bytes(buffer[offset : offset + MARK_SIZE - 4])):
        raise Corrupt("durable mark fails its CRC")
    if version != ENTRY_VERSION:
        raise UnknownVersion(f"durable mark of version {version}")
    if position is not None and own != position:
        raise Corrupt(f"durable mark of position {own} stands at {position}")
    return Mark(index, term, entry_crc)
