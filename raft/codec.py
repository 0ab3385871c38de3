"""Messages, entries, blocks and records to bytes and back; operations are only numbers here.

All integers are little-endian. Golden bytes are in tests/raft/test_codec.py and docs/formats.md. Every structure
starts with a version; a version, kind or flag that is not known raises `UnknownVersion`, bytes that fail their check
raise `Corrupt`, and nothing else is raised, whatever the bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from struct import Struct, iter_unpack
from typing import Any, Final, NamedTuple

import google_crc32c
import msgpack

from raft.configuration import Configuration, Member
from raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    InstallSnapshotReply,
    Message,
    Recall,
    RecallReply,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from raft.types import Entry, EntryKind, Mark

INDEX_MAX: Final = 2**53 - 1
"""Indexes, terms, revisions, sessions and sequences stay exact as JSON numbers (DESIGN section 6)."""


class Corrupt(ValueError):
    """Bytes that fail their check: damage on disk, or a peer that does not speak the protocol."""


class UnknownVersion(ValueError):
    """Intact bytes of a version, kind or flag that this code does not know: upgrade before going on."""


def crc32c(data: bytes | memoryview, start: int = 0) -> int:
    """CRC32C (Castagnoli) of `data`, continuing from `start`."""
    crc: int = google_crc32c.extend(start, data if type(data) is bytes else bytes(data))
    return crc


# ---------------------------------------------------------------------------------------------------------------
# Entry: header (64 bytes), then data.

ENTRY_MAGIC: Final = b"RLEN"
ENTRY_VERSION: Final = 1
# magic, version, kind, flags (0), data length, count, index, term, time_ms, clock_ms, data CRC, header CRC of the
# entry before, reserved (0); then the CRC of these 60 bytes.
_HEADER: Final = Struct("<4sBBHIIQQqQIII")
_CRC: Final = Struct("<I")
HEADER_SIZE: Final = _HEADER.size + _CRC.size
_PREVIOUS_CRC: Final = _HEADER.size - 2 * _CRC.size  # where it stands: the last but one of these fields


class EntryHeader(NamedTuple):
    """A decoded entry header; `crc` is its own CRC, which the next entry's `previous_crc` repeats."""

    kind: EntryKind
    length: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on it
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

    `time_ms` and `clock_ms` are raised to the previous entry's where they are below it (DESIGN section 3).
    """
    index = previous.index + count
    if index > INDEX_MAX:
        raise ValueError(f"index {index} is above {INDEX_MAX}: this log is full")
    time_ms = max(time_ms, previous.time_ms)
    clock_ms = max(clock_ms, previous.clock_ms)
    head = _HEADER.pack(
        ENTRY_MAGIC, ENTRY_VERSION, kind, 0, len(data), count, index, term, time_ms, clock_ms,
        google_crc32c.value(data), previous.header_crc, 0,
    )  # fmt: skip
    header = head + _CRC.pack(google_crc32c.value(head))
    return Entry(index, term, kind, count, time_ms, clock_ms, header, data)


def header_crc(entry: Entry) -> int:
    """The CRC of the entry's header: what the next entry must name."""
    crc: int = _CRC.unpack_from(entry.header, _HEADER.size)[0]
    return crc


def entry_mark(entry: Entry) -> Mark:
    """The end of that entry as a mark."""
    return Mark(entry.index, entry.term, header_crc(entry), entry.time_ms, entry.clock_ms)


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
    crc = _CRC.unpack_from(buffer, offset + _HEADER.size)[0]
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
    return Entry(
        header.index, header.term, header.kind, header.count, header.time_ms, header.clock_ms,
        bytes(buffer[offset:start]), data,
    )  # fmt: skip


def decode_entries(buffer: bytes | memoryview) -> tuple[Entry, ...]:
    """A row of entries that fills the buffer, each following the one before (index and chain checked)."""
    entries: list[Entry] = []
    offset = 0
    previous: Entry | None = None
    while offset < len(buffer):
        entry = decode_entry(buffer, offset)
        if previous is not None and (
            entry.before != previous.index or previous_crc(entry) != header_crc(previous) or entry.term < previous.term
        ):
            raise Corrupt(f"entry {entry.index} does not follow entry {previous.index}")
        entries.append(entry)
        offset += entry.size
        previous = entry
    return tuple(entries)


def previous_crc(entry: Entry) -> int:
    """The header CRC of the entry before, as this one names it."""
    crc: int = _CRC.unpack_from(entry.header, _PREVIOUS_CRC)[0]
    return crc


# ---------------------------------------------------------------------------------------------------------------
# Durable mark: local to a node's segments, between entries; says what had been synced when it was written.

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
    return head + _CRC.pack(google_crc32c.value(head))


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


# ---------------------------------------------------------------------------------------------------------------
# Request blocks: the data of an entry of kind COMMANDS is a row of them. Encoded once, where the request came in.

BLOCK_VERSION: Final = 1
# version, flags, reserved, length of what follows the header, count, namespace, principal, reserved, session,
# sequence, settled (the client's lowest unanswered sequence), time_ms (the client's)
_BLOCK: Final = Struct("<BBHIIIIIQQQq")
BLOCK_SIZE: Final = _BLOCK.size
BLOCK_SESSION: Final = 1  # session, sequence and settled count
BLOCK_TIME: Final = 2  # time_ms is given
BLOCK_PLAIN: Final = 4  # every record is an append: nothing in it touches the store
_BLOCK_FLAGS: Final = BLOCK_SESSION | BLOCK_TIME | BLOCK_PLAIN

# operation, flags, key length, value length, headers length, reserved, argument
_RECORD: Final = Struct("<BBHIIIq")
RECORD_SIZE: Final = _RECORD.size
RECORD_KEY: Final = 1
RECORD_VALUE: Final = 2
RECORD_HEADERS: Final = 4
RECORD_ARGUMENT: Final = 8
_RECORD_FLAGS: Final = RECORD_KEY | RECORD_VALUE | RECORD_HEADERS | RECORD_ARGUMENT


class Record(NamedTuple):
    """One record: what an operation number means is `statemachine.commands`' business. None is absent, not empty."""

    operation: int
    key: bytes | None = None
    value: bytes | None = None
    headers: bytes | None = None  # msgpack array of [name, value] pairs, ordered, may repeat (`encode_headers`)
    argument: int | None = None  # meaning depends on the operation: client time, expected revision


class Block(NamedTuple):
    """A request block, its records not yet decoded: `body` is what follows the header."""

    flags: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it
    namespace: int
    principal: int
    session: int
    sequence: int
    settled: int
    time_ms: int
    position: int  # of the block header within the entry's data
    body: memoryview


def encode_block(
    records: Sequence[Record], *, namespace: int = 0, principal: int = 0, session: int = 0, sequence: int = 0,
    settled: int = 0, time_ms: int | None = None, plain: bool = False,
) -> bytes:  # fmt: skip
    """A request as bytes: header, records, and for more than one record a table of their positions (u32 each,
    from the start of the body), so that a reader finds all of them at once."""
    parts: list[bytes] = []
    pack = _RECORD.pack
    for operation, key, value, headers, argument in records:
        if key is None and headers is None and argument is None and value is not None:  # as most are
            parts.append(pack(operation, RECORD_VALUE, 0, len(value), 0, 0, 0) + value)
            continue
        flags = (key is not None) | (value is not None) << 1 | (headers is not None) << 2 | (argument is not None) << 3
        key, value, headers = key or b"", value or b"", headers or b""
        parts.append(
            pack(operation, flags, len(key), len(value), len(headers), 0, argument or 0)
            + key + value + headers
        )  # fmt: skip
    if len(parts) > 1:
        parts.append(_table(map(len, parts)))
    body = b"".join(parts)
    head = _block_head(
        len(body), len(records), namespace, principal, session, sequence, settled, time_ms, plain
    )  # fmt: skip
    return head + body


def encode_single(operation: int, key: bytes | None, value: bytes, *, plain: bool = False) -> bytes:
    """A request of one record that says nothing but this, as `encode_block`: a quarter of what that takes."""
    flags, key_size = (RECORD_VALUE, 0) if key is None else (RECORD_KEY | RECORD_VALUE, len(key))
    head = _SINGLE.pack(
        _PLAIN_START if plain else _SINGLE_START, RECORD_SIZE + key_size + len(value), 1, _PLAIN_REST, operation, flags,
        key_size, len(value), 0, 0, 0,
    )  # fmt: skip
    return head + value if key is None else head + key + value


def encode_values(
    operation: int, values: Sequence[bytes], *, session: int = 0, sequence: int = 0, settled: int = 0,
    time_ms: int | None = None,
) -> bytes:  # fmt: skip
    """A plain request whose records are nothing but their values, as `encode_block`: 0.1 µs for each, not 0.7."""
    sizes = list(map(len, values))
    heads = {size: _RECORD.pack(operation, RECORD_VALUE, 0, size, 0, 0, 0) for size in dict.fromkeys(sizes)}
    count = len(sizes)
    if len(heads) == 1:  # as in most
        step = sizes[0] + RECORD_SIZE
        table = array("I", range(0, step * count, step)).tobytes() if count > 1 else b""
    else:
        table = _table([size + RECORD_SIZE for size in sizes])
    length = sum(sizes) + count * RECORD_SIZE + len(table)
    head = _block_head(length, count, 0, 0, session, sequence, settled, time_ms, True)
    records = chain.from_iterable(zip(map(heads.__getitem__, sizes), values, strict=True))
    return b"".join(chain((head,), records, (table,)))


def _table(sizes: Iterable[int]) -> bytes:
    """Where each of the records of these sizes begins."""
    table = array("I", accumulate(sizes, initial=0))
    table.pop()  # the end of the last one
    return table.tobytes()


def _block_head(
    length: int, count: int, namespace: int, principal: int, session: int, sequence: int, settled: int,
    time_ms: int | None, plain: bool,
) -> bytes:  # fmt: skip
    flags = BLOCK_SESSION * bool(session) | BLOCK_TIME * (time_ms is not None) | BLOCK_PLAIN * plain
    return _BLOCK.pack(
        BLOCK_VERSION, flags, 0, length, count, namespace, principal, 0, session, sequence, settled, time_ms or 0
    )


def decode_blocks(data: bytes) -> list[Block]:
    """The request blocks of an entry's data. Raises Corrupt or UnknownVersion."""
    blocks: list[Block] = []
    view = memoryview(data)
    offset, end = 0, len(data)
    while offset < end:
        if end - offset < BLOCK_SIZE:
            raise Corrupt(f"block header cut short at byte {offset}")
        (
            version,
            flags,
            reserved,
            length,
            count,
            namespace,
            principal,
            reserved2,
            session,
            sequence,
            settled,
            time_ms,
        ) = _BLOCK.unpack_from(data, offset)
        if version != BLOCK_VERSION or flags & ~_BLOCK_FLAGS or reserved or reserved2:
            raise UnknownVersion(f"block at byte {offset} has version {version}, flags {flags:#x}")
        start = offset + BLOCK_SIZE
        if count < 1 or start + length > end or length < count * RECORD_SIZE + (4 * count if count > 1 else 0):
            raise Corrupt(f"block at byte {offset} names {count} records in {length} bytes, {end - start} are left")
        blocks.append(
            Block(
                flags, count, namespace, principal, session, sequence, settled, time_ms, offset,
                view[start : start + length],
            )
        )  # fmt: skip
        offset = start + length
    return blocks


def plain_counts(data: bytes) -> list[int] | None:
    """How many records each request block of an entry's data holds, where all of them are plain and say nothing else:
    no session, time, namespace or principal. None where one does, or is none: `decode_blocks` says what it is.

    Most writes pass here three times, on each node, so it reads no more of a block than it needs.
    """
    counts: list[int] = []
    unpack = _PLAIN.unpack_from
    offset, end = 0, len(data)
    while offset < end:
        start = offset + BLOCK_SIZE
        if start > end:
            return None
        begin, length, count, rest = unpack(data, offset)
        if begin != _PLAIN_START or rest != _PLAIN_REST:
            return None
        offset = start + length
        if count < 1 or offset > end or length < count * RECORD_SIZE + (4 * count if count > 1 else 0):
            return None
        counts.append(count)
    return counts


_PLAIN_START: Final = bytes((BLOCK_VERSION, BLOCK_PLAIN, 0, 0))
_PLAIN_REST: Final = bytes(BLOCK_SIZE - 12)
_PLAIN: Final = Struct(f"<4sII{BLOCK_SIZE - 12}s")


Fields = tuple[int, bytes | None, bytes | None, bytes | None, int | None]
"""Those of a `Record`, in its order."""


def single_records(data: bytes) -> list[Fields] | None:
    """The records of an entry's data, where each of its blocks holds one and says nothing else (no session, time,
    namespace or principal; not that it is plain). None where one does, or is no block: `decode_blocks` says what it is.

    Single puts pass here on each node, and again at its start: a third of what blocks and records by themselves take.
    """
    found: list[Fields] = []
    unpack = _SINGLE.unpack_from
    offset, end = 0, len(data)
    while offset < end:
        start = offset + BLOCK_SIZE + RECORD_SIZE
        if start > end:
            return None
        begin, length, count, rest, operation, flags, key_size, value_size, headers_size, reserved, argument = unpack(
            data, offset
        )
        if begin != _SINGLE_START or count != 1 or rest != _PLAIN_REST or flags & ~_RECORD_FLAGS or reserved:
            return None
        value_start = start + key_size
        headers_start = value_start + value_size
        block_end = offset + BLOCK_SIZE + length
        offset = headers_start + headers_size
        if offset != block_end or offset > end:
            return None
        found.append((
            operation,
            data[start:value_start] if flags & RECORD_KEY else None,
            data[value_start:headers_start] if flags & RECORD_VALUE else None,
            data[headers_start:offset] if flags & RECORD_HEADERS else None,
            argument if flags & RECORD_ARGUMENT else None,
        ))  # fmt: skip
    return found


_SINGLE_START: Final = bytes((BLOCK_VERSION, 0, 0, 0))
_SINGLE: Final = Struct(f"<4sII{BLOCK_SIZE - 12}s" + _RECORD.format.removeprefix("<"))


def record_positions(block: Block) -> Sequence[int]:
    """Where each record starts within the block's body."""
    if block.count == 1:
        return (0,)
    table = array("I")
    table.frombytes(block.body[len(block.body) - 4 * block.count :])
    return table


def decode_records(block: Block, skip: int = 0) -> Iterator[Record]:
    """The block's records in order, without the first `skip` of them; the position table is checked against those
    that are decoded. Raises Corrupt or UnknownVersion."""
    body = block.body
    end = len(body) - (4 * block.count if block.count > 1 else 0)
    positions = record_positions(block)[skip:]
    position = positions[0] if positions else end
    if not skip and position:
        raise Corrupt(f"record table names byte {position} for the first record")
    for expected in positions:
        if position != expected or position + RECORD_SIZE > end:
            raise Corrupt(f"record table names byte {expected}, the record is at {position} of {end}")
        operation, flags, key_size, value_size, headers_size, reserved, argument = _RECORD.unpack_from(body, position)
        if flags & ~_RECORD_FLAGS or reserved:
            raise UnknownVersion(f"record with flags {flags:#x}")
        key_start = position + RECORD_SIZE
        value_start = key_start + key_size
        headers_start = value_start + value_size
        position = headers_start + headers_size
        if position > end:
            raise Corrupt("record runs past its block")
        yield Record(
            operation,
            bytes(body[key_start:value_start]) if flags & RECORD_KEY else None,
            bytes(body[value_start:headers_start]) if flags & RECORD_VALUE else None,
            bytes(body[headers_start:position]) if flags & RECORD_HEADERS else None,
            argument if flags & RECORD_ARGUMENT else None,
        )
    if position != end:
        raise Corrupt(f"{end - position} bytes after the last record of a block")


def plain_values(block: Block, operation: int, skip: int, count: int) -> list[bytes] | None:
    """The values of at most `count` records of a plain block, without the first `skip`, if they are of that operation
    and nothing but their values. None if not, or if they are no records: `decode_records` says what they are."""
    if not block.flags & BLOCK_PLAIN:
        return None
    if block.count == 1:
        body = bytes(block.body)
        size = len(body) - RECORD_SIZE
        is_value = body.startswith(_RECORD.pack(operation, RECORD_VALUE, 0, size, 0, 0, 0))
        return [body[RECORD_SIZE:]] if is_value else None
    end = len(block.body) - 4 * block.count
    bounds = list(record_positions(block)[skip : skip + count + 1])
    if skip + count >= block.count:
        bounds.append(end)
    sizes = [stop - start - RECORD_SIZE for start, stop in pairwise(bounds)]
    if min(sizes) < 0 or bounds[-1] > end or (not skip and bounds[0]):
        return None
    origin = bounds.pop(0)
    body = bytes(block.body[origin : bounds[-1]])
    if sizes.count(sizes[0]) == len(sizes):  # as many logs' records are: half the time
        pairs = list(iter_unpack(f"{RECORD_SIZE}s{sizes[0]}s", body))
        alike = [head for head, _ in pairs].count(_RECORD.pack(operation, RECORD_VALUE, 0, sizes[0], 0, 0, 0))
        return [value for _, value in pairs] if alike == len(pairs) else None
    starts = [0, *[bound - origin for bound in bounds[:-1]]]
    heads = {size: _RECORD.pack(operation, RECORD_VALUE, 0, size, 0, 0, 0) for size in dict.fromkeys(sizes)}
    if [body[start : start + RECORD_SIZE] for start in starts] != [heads[size] for size in sizes]:
        return None
    return [body[start + RECORD_SIZE : start + RECORD_SIZE + size] for start, size in zip(starts, sizes, strict=True)]


def encode_headers(headers: Sequence[tuple[str, bytes]]) -> bytes:
    """Record headers: ordered, names may repeat."""
    packed: bytes = msgpack.packb([[name, value] for name, value in headers], use_bin_type=True)
    return packed


def decode_headers(data: bytes) -> list[tuple[str, bytes]]:
    """The pairs of `encode_headers`. Raises Corrupt."""
    try:
        pairs = msgpack.unpackb(data, raw=False, use_list=False)
        if any(type(name) is not str or type(value) is not bytes for name, value in pairs):
            raise TypeError("a header is a text name and a bytes value")
    except Exception as error:
        raise Corrupt(f"record headers: {error}") from error
    return list(pairs)


# ---------------------------------------------------------------------------------------------------------------
# .idx rows: one per record, positions within the segment file (below 4 GiB, checked where segments are made).

IDX_ROW: Final = Struct("<IIII")
"""entry header, block header, record header, entry kind. Entries without blocks (no-op, clock, configuration) have
0 for the block and the record header."""


def index_rows(entry: Entry, position: int) -> bytes:
    """The .idx rows of an entry whose header is at `position` of its segment. Raises Corrupt or UnknownVersion.

    Every write passes here, so it reads no more of a block's header than it needs: 0.4 µs a block.
    """
    if entry.kind is not EntryKind.COMMANDS:
        return IDX_ROW.pack(position, 0, 0, entry.kind) * entry.count
    data = entry.data
    data_start = position + HEADER_SIZE
    kind = int(entry.kind)
    rows: list[int] = []
    done: list[bytes] = []
    offset, end, total = 0, len(data), 0
    while offset + BLOCK_SIZE <= end:
        version, _, length, count = _BLOCK_START.unpack_from(data, offset)
        if version != BLOCK_VERSION:
            raise UnknownVersion(f"block at byte {offset} of entry {entry.index} has version {version}")
        block_position, body_position = data_start + offset, data_start + offset + BLOCK_SIZE
        if count == 1:
            rows += (position, block_position, body_position, kind)
        else:
            stop = offset + BLOCK_SIZE + length
            table = data[stop - 4 * count : stop] if 4 * count <= length else b""
            if rows:
                done.append(array("I", rows).tobytes())
                rows = []
            done.append(_table_rows(table, count, length, (position, block_position, body_position, kind), entry.index))
        total += count
        offset += BLOCK_SIZE + length
    if offset != end or total != entry.count:
        raise Corrupt(
            f"entry {entry.index} says {entry.count} records in {end} bytes, its blocks hold {total} in {offset}"
        )
    done.append(array("I", rows).tobytes())
    return b"".join(done)


def _table_rows(table: bytes, count: int, length: int, row: tuple[int, int, int, int], index: int) -> bytes:
    """The rows of a block of several records, whose position table is `table`."""
    positions = array("I")
    if len(table) == 4 * count:
        positions.frombytes(table)
    if not positions or max(positions) >= length:
        raise Corrupt(f"a block of entry {index} has no table of its {count} records")
    position, block_position, body_position, kind = row
    rows = array("I", (position, block_position, 0, kind)) * count
    rows[2::4] = array("I", [body_position + offset for offset in positions])
    return rows.tobytes()


_BLOCK_START: Final = Struct("<BB2xII")  # version, flags, length, count


# ---------------------------------------------------------------------------------------------------------------
# Raw chunks: what `GET /v1/log?format=raw` sends; a run of whole entries of one segment with rows and effects.

RAW_MAGIC: Final = b"RLRW"
RAW_VERSION: Final = 1
RAW_BRIEF: Final = 1
# magic, version, flags, rows, segment bytes, ledger bytes, CRC of the rows, base, first, next, oldest, committed,
# last_user_index, reserved; then the CRC of the header.
_RAW: Final = Struct("<4sBBxxIIIIQQQQQQI")
RAW_SIZE: Final = _RAW.size + _CRC.size


class RawHeader(NamedTuple):
    """The head of a raw chunk; after it follow `rows` .idx rows, `segment_bytes` and `ledger_bytes`.

    `base` is the position in its segment of the first of the segment bytes: subtract it from the positions in the
    rows. The rows are of the records `first` to `next - 1`. A chunk without rows is a progress mark.

    `is_brief`: every entry holds one record and no effects have a payload; only the first and the last frame are sent.
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


def encode_raw_header(header: RawHeader) -> bytes:
    """The head of a raw chunk as bytes (RAW_SIZE)."""
    head = _RAW.pack(RAW_MAGIC, RAW_VERSION, RAW_BRIEF * header.is_brief, *header[:-1], 0)
    return head + _CRC.pack(google_crc32c.value(head))


def decode_raw_header(buffer: bytes | memoryview, offset: int = 0) -> RawHeader:
    """The head of a raw chunk. Raises Corrupt or UnknownVersion."""
    if len(buffer) - offset < RAW_SIZE:
        raise Corrupt("raw chunk header cut short")
    magic, version, flags, *fields, reserved = _RAW.unpack_from(buffer, offset)
    crc = _CRC.unpack_from(buffer, offset + _RAW.size)[0]
    if magic != RAW_MAGIC or crc != google_crc32c.value(bytes(buffer[offset : offset + _RAW.size])):
        raise Corrupt("raw chunk header fails its CRC")
    if version != RAW_VERSION or flags & ~RAW_BRIEF or reserved:
        raise UnknownVersion(f"raw chunk of version {version}, flags {flags}")
    return RawHeader._make((*fields, bool(flags)))


# ---------------------------------------------------------------------------------------------------------------
# Configuration entries.


def encode_configuration(configuration: Configuration) -> bytes:
    """The data of a CONFIGURATION entry: a msgpack array, its format version first."""
    packed: bytes = msgpack.packb(
        [
            1,
            configuration.version,
            [[m.node, m.incarnation, m.peer, m.url] for m in configuration.members],
            list(configuration.voters),
            list(configuration.outgoing),
            list(configuration.learners),
            [list(pair) for pair in configuration.parameters],
        ],
        use_bin_type=True,
    )
    return packed


def decode_configuration(data: bytes) -> Configuration:
    """The configuration of a CONFIGURATION entry. Raises Corrupt or UnknownVersion."""
    try:
        version, *rest = msgpack.unpackb(data, raw=False, use_list=False)
    except Exception as error:
        raise Corrupt(f"configuration: {error}") from error
    if version != 1:
        raise UnknownVersion(f"configuration of format version {version}")
    try:
        cluster_version, members, voters, outgoing, learners, parameters = rest
        return Configuration(
            tuple(Member(*m) for m in members), voters, outgoing, learners, cluster_version, parameters
        )
    except Exception as error:
        raise Corrupt(f"configuration: {error}") from error


# ---------------------------------------------------------------------------------------------------------------
# Peer frames: length of header and payload, CRC32C of what follows it, header length, version, kind; then a msgpack
# header and a payload (entries as on disk, block bytes, a chunk).

FRAME_VERSION: Final = 1
_FRAME: Final = Struct("<IIHBB")
FRAME_SIZE: Final = _FRAME.size
FRAME_BYTES_MAX: Final = 32 << 20

FRAME_HELLO: Final = 1
FRAME_MESSAGE: Final = 2  # consensus: `encode_message`
FRAME_FORWARD: Final = 3  # a request passed to the leader
FRAME_FORWARD_REPLY: Final = 4
FRAME_READ: Final = 5  # a follower asks the leader for a read index
FRAME_READ_REPLY: Final = 6
FRAME_POINTS: Final = 7  # a replica's values at the newest digest points
FRAME_DISK: Final = 8  # a node's report about its disk
_FRAME_KINDS: Final = range(FRAME_HELLO, FRAME_DISK + 1)


class Frame(NamedTuple):
    """A peer frame: its kind, its decoded msgpack header (a tuple), its payload."""

    kind: int
    header: tuple[object, ...]
    payload: bytes


def encode_frame(kind: int, header: Sequence[object], payload: bytes = b"") -> bytes:
    """A frame as bytes. `header` holds what msgpack takes: integers, booleans, text, bytes, None, lists of them."""
    return b"".join(_frame_parts(kind, header, (payload,)))


def _frame_parts(kind: int, header: Sequence[object], payload: Sequence[bytes]) -> list[bytes]:
    """The same in parts: what stands before the payload, and its parts as they are, not copied."""
    packed: bytes = msgpack.packb(header, use_bin_type=True)
    body = _FRAME_REST.pack(len(packed), FRAME_VERSION, kind) + packed
    size, crc = len(packed), google_crc32c.value(body)
    for part in payload:
        size += len(part)
        crc = google_crc32c.extend(crc, part)
    return [_FRAME_START.pack(size, crc) + body, *payload]


_FRAME_START: Final = Struct("<II")
_FRAME_REST: Final = Struct("<HBB")


class FrameDecoder:
    """Cuts a stream of bytes into frames. After Corrupt or UnknownVersion the connection is worthless."""

    __slots__ = ("_max", "_needed", "_parts", "_size")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._max = bytes_max
        self._parts: list[bytes] = []  # what came of a frame that is not whole: put together once
        self._size = self._needed = 0  # their bytes, and how many it takes to go on

    @property
    def is_unfinished(self) -> bool:
        """Whether it waits for the rest of a frame."""
        return bool(self._parts)

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """The frames completed by `data`. Raises Corrupt or UnknownVersion."""
        if type(data) is not bytes:
            data = bytes(data)
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._needed:
                return []
            data = b"".join(self._parts)
            self._parts = []
        needed = FRAME_SIZE
        frames: list[Frame] = []
        offset, size = 0, len(data)
        while size - offset >= FRAME_SIZE:
            length, crc, header_size, version, kind = _FRAME.unpack_from(data, offset)
            if length > self._max or header_size > length:
                raise Corrupt(f"frame of {length} bytes (header {header_size}): the limit is {self._max}")
            start, end = offset + FRAME_SIZE, offset + FRAME_SIZE + length
            if size < end:
                needed = end - offset
                break
            payload_start = start + header_size
            payload = data[payload_start:end]
            if google_crc32c.extend(google_crc32c.value(data[offset + 8 : payload_start]), payload) != crc:
                raise Corrupt("frame fails its CRC")
            if version != FRAME_VERSION or kind not in _FRAME_KINDS:
                raise UnknownVersion(f"frame of version {version}, kind {kind}")
            try:
                header = msgpack.unpackb(data[start:payload_start], raw=False, use_list=False)
            except Exception as error:
                raise Corrupt(f"frame header: {error}") from error
            if type(header) is not tuple:
                raise Corrupt("frame header is no array")
            frames.append(Frame(kind, header, payload))
            offset = end
        if offset < size:
            self._parts = [data[offset:]]
            self._size, self._needed = size - offset, needed
        return frames


_MESSAGE_FIELDS: Final[dict[int, tuple[type, tuple[str, ...]]]] = {
    1: (RequestVote, ("last_index", "last_term", "pre", "transfer", "link_closed")),
    2: (RequestVoteReply, ("request_term", "granted", "pre")),
    3: (AppendEntries, ("prev_index", "prev_term", "commit", "round")),
    4: (AppendEntriesReply, ("success", "match", "prev_index", "round", "hint_index", "hint_term")),
    5: (InstallSnapshot, ("snapshot_index", "snapshot_term", "offset", "total", "crc", "done")),
    6: (InstallSnapshotReply, ("snapshot_index", "snapshot_term", "offset", "accepted")),
    7: (TimeoutNow, ("last_index",)),
    8: (Recall, ("run", "floor")),
    9: (
        RecallReply,
        (
            "run",
            "promised_term",
            "acked_term",
            "acked_index",
            "led_term",
            "led_index",
            "healed_index",
            "is_alone",
            "is_lost",
        ),
    ),
}
_MESSAGE_NUMBERS: Final = {kind: number for number, (kind, _) in _MESSAGE_FIELDS.items()}
_BOOLEANS: Final = frozenset(
    {"pre", "transfer", "link_closed", "granted", "success", "done", "accepted", "is_alone", "is_lost"}
)


_NAMES: Final = {number: ("shard", "sender", "to", "term", *names) for number, (_, names) in _MESSAGE_FIELDS.items()}
_VALUES: Final = {number: attrgetter(*names) for number, names in _NAMES.items()}
_TYPES: Final = {
    number: tuple(bool if name in _BOOLEANS else int for name in names) for number, names in _NAMES.items()
}


def encode_message(message: Message) -> bytes:
    """A consensus message as a whole frame."""
    return b"".join(message_parts(message))


def message_parts(message: Message) -> list[bytes]:
    """The same in parts: entries are large, and go to several peers."""
    number = _MESSAGE_NUMBERS[type(message)]
    header = (number, *_VALUES[number](message))
    payload: Sequence[bytes] = ()
    if type(message) is AppendEntries:
        payload = [part for entry in message.entries for part in (entry.header, entry.data)]
    elif type(message) is InstallSnapshot:
        payload = (message.data,)
    return _frame_parts(FRAME_MESSAGE, header, payload)


def decode_message(frame: Frame) -> Message:
    """The message of a FRAME_MESSAGE frame. Raises Corrupt or UnknownVersion."""
    number, *values = frame.header or (0,)
    if type(number) is not int or number not in _MESSAGE_FIELDS:
        raise UnknownVersion(f"message number {number!r}")
    kind, names = _MESSAGE_FIELDS[number][0], _NAMES[number]
    numbers: list[Any] = values  # as the first look makes sure
    if tuple(map(type, values)) != _TYPES[number] or min(numbers) < 0 or max(numbers) > INDEX_MAX:
        raise _malformed(kind, names, values)
    fields: dict[str, Any] = dict(zip(names, values, strict=True))
    if kind is AppendEntries:
        fields["entries"] = decode_entries(frame.payload) if frame.payload else ()
    elif kind is InstallSnapshot:
        fields["data"] = frame.payload
    message: Message = kind(**fields)
    return message


def _malformed(kind: type, names: Sequence[str], values: Sequence[object]) -> Corrupt:
    """What is wrong with the fields of a message."""
    if len(values) != len(names):
        return Corrupt(f"{kind.__name__} has {len(values)} fields, not {len(names)}")
    for name, value in zip(names, values, strict=True):
        if type(value) is not (bool if name in _BOOLEANS else int) or (
            type(value) is int and not 0 <= value <= INDEX_MAX
        ):
            return Corrupt(f"{kind.__name__}.{name} is {value!r}")
    raise AssertionError("one of them is wrong")
