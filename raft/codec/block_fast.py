"""Encodes and decodes the blocks that most requests make, several times as fast as `raftlog.raft.codec.block`.

The bytes are the same. Blocks of another form go through the general functions.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain, pairwise
from struct import Struct, iter_unpack
from typing import Final

from raftlog.raft.codec.block import (
    BLOCK_ADMITTED,
    BLOCK_PLAIN,
    BLOCK_SIZE,
    BLOCK_VERSION,
    RECORD,
    RECORD_ARGUMENT,
    RECORD_FLAGS,
    RECORD_HEADERS,
    RECORD_KEY,
    RECORD_SIZE,
    RECORD_VALUE,
    Block,
    block_head,
    position_table,
    record_positions,
)


def encode_single(operation: int, key: bytes | None, value: bytes, *, plain: bool = False) -> bytes:
    """A request of one record that says nothing but this, as `encode_block`: a quarter of what that takes."""
    flags, key_size = (RECORD_VALUE, 0) if key is None else (RECORD_KEY | RECORD_VALUE, len(key))
    head = _SINGLE.pack(
        _PLAIN_START if plain else SINGLE_START,
        RECORD_SIZE + key_size + len(value),
        1,
        _PLAIN_REST,
        operation,
        flags,
        key_size,
        len(value),
        0,
        0,
        0,
    )
    return head + value if key is None else head + key + value


def encode_values(
    operation: int,
    values: Sequence[bytes],
    *,
    session: int = 0,
    sequence: int = 0,
    settled: int = 0,
    time_ms: int | None = None,
    admission: bytes = b"",
) -> bytes:
    """A plain request whose records are nothing but their values, as `encode_block`: 0.1 µs for each, not 0.7."""
    sizes = list(map(len, values))
    heads = {size: RECORD.pack(operation, RECORD_VALUE, 0, size, 0, 0, 0) for size in dict.fromkeys(sizes)}
    count = len(sizes)
    if len(heads) == 1:  # as in most
        step = sizes[0] + RECORD_SIZE
        table = array("I", range(0, step * count, step)).tobytes() if count > 1 else b""
    else:
        table = position_table([size + RECORD_SIZE for size in sizes])
    length = sum(sizes) + count * RECORD_SIZE + len(table)
    head = block_head(length, count, 0, admission, session, sequence, settled, time_ms, True)
    records = chain.from_iterable(zip(map(heads.__getitem__, sizes), values, strict=True))
    return b"".join(chain((head,), records, (table,)))


def plain_counts(data: bytes) -> list[int] | None:
    """How many records each request block of an entry's data holds, where all of them are plain and say nothing else:
    no session, time, namespace or admission. None where one does, or is none: `decode_blocks` says what it is.

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
    namespace or admission; not that it is plain). None where one does, or is no block: `decode_blocks` says what it is.

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
        if begin != SINGLE_START or count != 1 or rest != _PLAIN_REST or flags & ~RECORD_FLAGS or reserved:
            return None
        value_start = start + key_size
        headers_start = value_start + value_size
        block_end = offset + BLOCK_SIZE + length
        offset = headers_start + headers_size
        if offset != block_end or offset > end:
            return None
        found.append(
            (
                operation,
                data[start:value_start] if flags & RECORD_KEY else None,
                data[value_start:headers_start] if flags & RECORD_VALUE else None,
                data[headers_start:offset] if flags & RECORD_HEADERS else None,
                argument if flags & RECORD_ARGUMENT else None,
            )
        )
    return found


def admitted_records(data: bytes) -> list[tuple[bytes, Fields | None]] | None:
    """As `single_records`, of blocks with an admission: that, and the record; None for it where the block is plain.
    None in all where a block says anything else. So single writes cost little more with access control than without."""
    found: list[tuple[bytes, Fields | None]] = []
    unpack, unpack_record = _ADMITTED.unpack_from, RECORD.unpack_from
    offset, end = 0, len(data)
    while offset < end:
        if offset + BLOCK_SIZE > end:
            return None
        begin, length, count, namespace, size, rest = unpack(data, offset)
        is_plain = begin == ADMITTED_PLAIN_START
        start = offset + BLOCK_SIZE + size
        position, block_end = start + RECORD_SIZE, offset + BLOCK_SIZE + length
        is_single = count == 1 and size and not namespace and rest == _ADMITTED_REST
        if not (is_single and (is_plain or begin == ADMITTED_START)) or position > block_end or block_end > end:
            return None
        offset = block_end
        admission = data[start - size : start]
        if is_plain:
            found.append((admission, None))
            continue
        operation, flags, key_size, value_size, headers_size, reserved, argument = unpack_record(data, start)
        value_start = position + key_size
        headers_start = value_start + value_size
        if flags & ~RECORD_FLAGS or reserved or headers_start + headers_size != block_end:
            return None
        fields = (
            operation,
            data[position:value_start] if flags & RECORD_KEY else None,
            data[value_start:headers_start] if flags & RECORD_VALUE else None,
            data[headers_start:block_end] if flags & RECORD_HEADERS else None,
            argument if flags & RECORD_ARGUMENT else None,
        )
        found.append((admission, fields))
    return found


ADMITTED_START: Final = bytes((BLOCK_VERSION, BLOCK_ADMITTED, 0, 0))
ADMITTED_PLAIN_START: Final = bytes((BLOCK_VERSION, BLOCK_ADMITTED | BLOCK_PLAIN, 0, 0))
_ADMITTED: Final = Struct(f"<4sIIII{BLOCK_SIZE - 20}s")
_ADMITTED_REST: Final = bytes(BLOCK_SIZE - 20)
SINGLE_START: Final = bytes((BLOCK_VERSION, 0, 0, 0))
"""A block that begins so is not plain, and has no session, time, namespace or principal in its flags."""
_SINGLE: Final = Struct(f"<4sII{BLOCK_SIZE - 12}s" + RECORD.format.removeprefix("<"))


def plain_values(block: Block, operation: int, skip: int, count: int) -> list[bytes] | None:
    """The values of at most `count` records of a plain block, without the first `skip`, if they are of that operation
    and nothing but their values. None if not, or if they are no records: `decode_records` says what they are."""
    if not block.flags & BLOCK_PLAIN:
        return None
    if block.count == 1:
        body = bytes(block.body)
        size = len(body) - RECORD_SIZE
        is_value = body.startswith(RECORD.pack(operation, RECORD_VALUE, 0, size, 0, 0, 0))
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
        alike = [head for head, _ in pairs].count(RECORD.pack(operation, RECORD_VALUE, 0, sizes[0], 0, 0, 0))
        return [value for _, value in pairs] if alike == len(pairs) else None
    starts = [0, *[bound - origin for bound in bounds[:-1]]]
    heads = {size: RECORD.pack(operation, RECORD_VALUE, 0, size, 0, 0, 0) for size in dict.fromkeys(sizes)}
    if [body[start : start + RECORD_SIZE] for start in starts] != [heads[size] for size in sizes]:
        return None
    return [body[start + RECORD_SIZE : start + RECORD_SIZE + size] for start, size in zip(starts, sizes, strict=True)]
