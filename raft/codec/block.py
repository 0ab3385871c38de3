"""Encodes and decodes request blocks and their records: the data of an entry of kind COMMANDS is a row of blocks.

A block is encoded once, where its request came in. Operations are only numbers here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple

import msgpack

from raftlog.raft.codec.checks import Corrupt, UnknownVersion

BLOCK_VERSION: Final = 1
# version, flags, reserved, length of what follows the header, count, namespace, length of the admission, reserved,
# session, sequence, settled (the client's lowest unanswered sequence), time_ms (the client's)
_BLOCK: Final = Struct("<BBHIIIIIQQQq")
BLOCK_SIZE: Final = _BLOCK.size
BLOCK_SESSION: Final = 1  # session, sequence and settled count
BLOCK_TIME: Final = 2  # time_ms is given
BLOCK_PLAIN: Final = 4  # every record is an append: nothing in it touches the store
BLOCK_ADMITTED: Final = 8
"""An admission lies between the header and the records: the principal, and the revision of permissions. Only a
cluster with access control has such blocks. `raftlog.statemachine.access.admission` defines its bytes."""
_BLOCK_FLAGS: Final = BLOCK_SESSION | BLOCK_TIME | BLOCK_PLAIN | BLOCK_ADMITTED
# operation, flags, key length, value length, headers length, reserved, argument
RECORD: Final = Struct("<BBHIIIq")
RECORD_SIZE: Final = RECORD.size
RECORD_KEY: Final = 1
RECORD_VALUE: Final = 2
RECORD_HEADERS: Final = 4
RECORD_ARGUMENT: Final = 8
RECORD_FLAGS: Final = RECORD_KEY | RECORD_VALUE | RECORD_HEADERS | RECORD_ARGUMENT


class BlockRecord(NamedTuple):
    """One record: what an operation number means is `raftlog.statemachine.commands`' business. None is absent, not
    empty."""

    operation: int
    key: bytes | None = None
    value: bytes | None = None
    headers: bytes | None = None  # msgpack array of [name, value] pairs, ordered, may repeat (`encode_headers`)
    argument: int | None = None  # meaning depends on the operation: client time, expected revision


@dataclass(slots=True)
class Block:
    """A request block, its records not yet decoded: `body` is what follows the header and the admission. So a request
    that is sent again has the same body, whatever it was admitted under. No code changes a block."""

    flags: int
    count: int
    namespace: int
    admission: bytes  # b"": none
    session: int
    sequence: int
    settled: int
    time_ms: int
    position: int  # of the block header within the entry's data
    body: bytes | memoryview

    @property
    def end(self) -> int:
        """Where it ends within the entry's data."""
        return self.position + BLOCK_SIZE + len(self.admission) + len(self.body)


def encode_block(
    records: Sequence[BlockRecord],
    *,
    namespace: int = 0,
    admission: bytes = b"",
    session: int = 0,
    sequence: int = 0,
    settled: int = 0,
    time_ms: int | None = None,
    plain: bool = False,
) -> bytes:
    """A request as bytes: header, admission, records, and for more than one record a table of their positions (u32
    each, from the start of the body), so that a reader finds all of them at once."""
    parts: list[bytes] = []
    pack = RECORD.pack
    for operation, key, value, headers, argument in records:
        if key is None and headers is None and argument is None and value is not None:  # as most are
            parts.append(pack(operation, RECORD_VALUE, 0, len(value), 0, 0, 0) + value)
            continue
        flags = (key is not None) | (value is not None) << 1 | (headers is not None) << 2 | (argument is not None) << 3
        key, value, headers = key or b"", value or b"", headers or b""
        parts.append(
            pack(operation, flags, len(key), len(value), len(headers), 0, argument or 0) + key + value + headers
        )
    if len(parts) > 1:
        parts.append(position_table(map(len, parts)))
    body = b"".join(parts)
    head = block_head(len(body), len(records), namespace, admission, session, sequence, settled, time_ms, plain)
    return head + body


def position_table(sizes: Iterable[int]) -> bytes:
    """Where each of the records of these sizes begins."""
    table = array("I", accumulate(sizes, initial=0))
    table.pop()  # the end of the last one
    return table.tobytes()


def block_head(
    length: int,
    count: int,
    namespace: int,
    admission: bytes,
    session: int,
    sequence: int,
    settled: int,
    time_ms: int | None,
    plain: bool,
) -> bytes:
    """Header and admission of a block whose body has `length` bytes."""
    flags = BLOCK_SESSION * bool(session) | BLOCK_TIME * (time_ms is not None) | BLOCK_PLAIN * plain
    size = len(admission)
    head = _BLOCK.pack(
        BLOCK_VERSION,
        flags | BLOCK_ADMITTED * bool(size),
        0,
        length + size,
        count,
        namespace,
        size,
        0,
        session,
        sequence,
        settled,
        time_ms or 0,
    )
    return head + admission


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
            admission,
            reserved2,
            session,
            sequence,
            settled,
            time_ms,
        ) = _BLOCK.unpack_from(data, offset)
        if version != BLOCK_VERSION or flags & ~_BLOCK_FLAGS or reserved or reserved2:
            raise UnknownVersion(f"block at byte {offset} has version {version}, flags {flags:#x}")
        if bool(admission) != bool(flags & BLOCK_ADMITTED):
            raise Corrupt(f"block at byte {offset} has flags {flags:#x} and an admission of {admission} bytes")
        start = offset + BLOCK_SIZE + admission
        stop = offset + BLOCK_SIZE + length
        if count < 1 or stop > end or stop - start < count * RECORD_SIZE + (4 * count if count > 1 else 0):
            raise Corrupt(
                f"block at byte {offset} names {count} records in {length} bytes, {end - offset - BLOCK_SIZE} are left"
            )
        blocks.append(
            Block(
                flags,
                count,
                namespace,
                data[start - admission : start],
                session,
                sequence,
                settled,
                time_ms,
                offset,
                view[start:stop],
            )
        )
        offset = stop
    return blocks


def record_positions(block: Block) -> Sequence[int]:
    """Where each record starts within the block's body."""
    if block.count == 1:
        return (0,)
    table = array("I")
    table.frombytes(block.body[len(block.body) - 4 * block.count :])
    return table


def decode_records(block: Block, skip: int = 0) -> Iterator[BlockRecord]:
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
        operation, flags, key_size, value_size, headers_size, reserved, argument = RECORD.unpack_from(body, position)
        if flags & ~RECORD_FLAGS or reserved:
            raise UnknownVersion(f"record with flags {flags:#x}")
        key_start = position + RECORD_SIZE
        value_start = key_start + key_size
        headers_start = value_start + value_size
        position = headers_start + headers_size
        if position > end:
            raise Corrupt("record runs past its block")
        yield BlockRecord(
            operation,
            bytes(body[key_start:value_start]) if flags & RECORD_KEY else None,
            bytes(body[value_start:headers_start]) if flags & RECORD_VALUE else None,
            bytes(body[headers_start:position]) if flags & RECORD_HEADERS else None,
            argument if flags & RECORD_ARGUMENT else None,
        )
    if position != end:
        raise Corrupt(f"{end - position} bytes after the last record of a block")


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
