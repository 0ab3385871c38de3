"""Encodes and decodes an entry: a header of 64 bytes with two CRCs, then its data."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from raftlog.raft.codec.checks import CRC, INDEX_MAX, Corrupt, UnknownVersion
from raftlog.raft.types import Entry, EntryKind, Mark

ENTRY_MAGIC: Final = b"RLEN"
ENTRY_VERSION: Final = 1
# magic, version, kind, flags (0), data length, count, index, term, time_ms, clock_ms, data CRC, header CRC of the
# entry before, reserved (0); then the CRC of these 60 bytes.
_HEADER: Final = Struct("<4sBBHIIQQqQIII")
HEADER_SIZE: Final = _HEADER.size + CRC.size
_CRCS: Final = Struct("<II")  # in the header: of the data, of the header before
_CRCS_AT: Final = 48


class EntryHeader(NamedTuple):
    """A decoded entry header; `crc` is its own CRC, which the next entry's `previous_crc` repeats."""

    kind: EntryKind
    length: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is never called here
    index: int  # type: ignore[assignment]  # hides tuple.index, which is never called here
    term: int
    time_ms: int
    clock_ms: int
    data_crc: int
    previous_crc: int
    crc: int


def seal_entry(
    previous: Mark, *, term: int, kind: EntryKind, count: int, time_ms: int, clock_ms: int, data: bytes
) -> Entry:
    """The entry after `previous`, with its header encoded: done once, by the leader.

    `time_ms` and `clock_ms` are raised to the previous entry's where they are below it (docs/promises.md: two times).
    """
    index = previous.index + count
    if index > INDEX_MAX:
        raise ValueError(f"index {index} is above {INDEX_MAX}: this log is full")
    time_ms = max(time_ms, previous.time_ms)
    clock_ms = max(clock_ms, previous.clock_ms)
    head = _HEADER.pack(
        ENTRY_MAGIC,
        ENTRY_VERSION,
        kind,
        0,
        len(data),
        count,
        index,
        term,
        time_ms,
        clock_ms,
        google_crc32c.value(data),
        previous.header_crc,
        0,
    )
    crc = google_crc32c.value(head)
    return Entry(
        index,
        term,
        kind,
        count,
        time_ms,
        clock_ms,
        head + CRC.pack(crc),
        data,
        previous.index,
        HEADER_SIZE + len(data),
        Mark(index, term, crc, time_ms, clock_ms),
        previous.header_crc,
    )


def decode_header(buffer: bytes | memoryview, offset: int = 0) -> EntryHeader:
    """The entry header at `offset`. Raises Corrupt (also when the buffer ends) or UnknownVersion."""
    if len(buffer) - offset < HEADER_SIZE:
        raise Corrupt(f"entry header cut short: {len(buffer) - offset} of {HEADER_SIZE} bytes")
    (
        magic,
        version,
        kind,
        flags,
        length,
        count,
        index,
        term,
        time_ms,
        clock_ms,
        data_crc,
        previous,
        reserved,
    ) = _HEADER.unpack_from(buffer, offset)
    if magic != ENTRY_MAGIC:
        raise Corrupt(f"no entry here: magic is {magic!r}")
    crc = CRC.unpack_from(buffer, offset + _HEADER.size)[0]
    if crc != google_crc32c.value(bytes(buffer[offset : offset + _HEADER.size])):
        raise Corrupt("entry header fails its CRC")
    if version != ENTRY_VERSION or flags or reserved:
        raise UnknownVersion(f"entry {index} has version {version}, flags {flags}: this code knows {ENTRY_VERSION}, 0")
    if kind not in _KINDS:
        raise UnknownVersion(f"entry {index} has kind {kind}, which this code does not know")
    if count < 1 or index < count or index > INDEX_MAX:
        raise Corrupt(f"entry header names count {count} and index {index}")
    return EntryHeader(_KINDS[kind], length, count, index, term, time_ms, clock_ms, data_crc, previous, crc)


_KINDS: Final = {int(kind): kind for kind in EntryKind}


def decode_entry(buffer: bytes | memoryview, offset: int = 0) -> Entry:
    """The whole entry at `offset`, both CRCs checked. Raises Corrupt or UnknownVersion."""
    return entry_of(decode_header(buffer, offset), buffer, offset)


def entry_of(header: EntryHeader, buffer: bytes | memoryview, offset: int) -> Entry:
    """The entry at `offset`, whose header was decoded already. Raises Corrupt."""
    start = offset + HEADER_SIZE
    data = bytes(buffer[start : start + header.length])
    if len(data) != header.length:
        raise Corrupt(f"data of entry {header.index} cut short: {len(data)} of {header.length} bytes")
    if google_crc32c.value(data) != header.data_crc:
        raise Corrupt(f"data of entry {header.index} fails its CRC")
    mark = Mark(header.index, header.term, header.crc, header.time_ms, header.clock_ms)
    return Entry(
        header.index,
        header.term,
        header.kind,
        header.count,
        header.time_ms,
        header.clock_ms,
        bytes(buffer[offset:start]),
        data,
        header.index - header.count,
        HEADER_SIZE + len(data),
        mark,
        header.previous_crc,
    )


def reseal(buffer: bytearray, offset: int, length: int, previous_crc: int) -> int:
    """Makes both CRCs of the entry at `offset` again, after bytes of its data (`length`) were changed. Its header then
    names `previous_crc` as that of the entry before. Returns its own header CRC."""
    start, crc_at = offset + HEADER_SIZE, offset + _HEADER.size
    _CRCS.pack_into(buffer, offset + _CRCS_AT, google_crc32c.value(bytes(buffer[start : start + length])), previous_crc)
    crc: int = google_crc32c.value(bytes(buffer[offset:crc_at]))
    CRC.pack_into(buffer, crc_at, crc)
    return crc


def decode_entries(buffer: bytes | memoryview) -> tuple[Entry, ...]:
    """A row of entries that fills the buffer, each following the one before (index and chain checked)."""
    entries: list[Entry] = []
    offset = 0
    previous: Entry | None = None
    while offset < len(buffer):
        entry = decode_entry(buffer, offset)
        if previous is not None and (
            entry.before != previous.index
            or entry.previous_crc != previous.mark.header_crc
            or entry.term < previous.term
        ):
            raise Corrupt(f"entry {entry.index} does not follow entry {previous.index}")
        entries.append(entry)
        offset += entry.size
        previous = entry
    return tuple(entries)
