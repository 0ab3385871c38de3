"""Finds proof that an entry which a start cannot read had been synced: its absence is then damage, not a torn tail.

`raftlog.raft.wal.recovery` asks where the newest segment ends. Each proof consists of bytes that this node writes only
after it synced an entry: a durable mark, a row of the .idx, effects in the .ledger, an entry behind a mark. Proofs may
be missing, as most of them are not synced themselves. They are never wrong: a cut removes them and syncs that before
the hard state says that the cut is over. The last proof is the damage itself: no torn write leaves one wrong bit.
"""

from __future__ import annotations

from typing import Final

from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.entry import HEADER_SIZE, EntryHeader, decode_header
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.codec.mark import MARK_MAGIC, MARK_SIZE, decode_mark
from raftlog.raft.types import EntryKind
from raftlog.raft.wal.formats import (
    FRAME_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    decode_frame_header,
    index_name,
    ledger_name,
)
from raftlog.raft.wal.journal import Segment, row_position
from raftlog.raft.wal.operations import WINDOW, Files

SECTOR: Final = 512
"""Bytes that a disk writes together. After a power cut a sector holds new bytes up to some place (all or none of them)
and old bytes after it. The old bytes are zeros, because entries are only written over zeros.
"""
ONE_BIT_BYTES_MAX: Final = 1 << 20
"""Data of a larger entry is not searched for one wrong bit. By chance a torn write of n bytes looks like one, once in
2**32 / 8n times. At this size that is once in 512, and the node then heals although it need not.
"""

_KINDS: Final = frozenset(int(kind) for kind in EntryKind)
_STORED_CRC: Final = HEADER_SIZE - 4


def synced_until(files: Files, segment: Segment, durable: int, applied: int, bytes_end: int) -> tuple[int, str]:
    """The newest index that is known to have been synced, and what says so: empty where that is not behind `segment`.

    `segment` is the newest one: `last` and `end` are those of its newest intact entry. `durable` is the index of the
    newest snapshot, `applied` that of the newest effects (`newest_frame`), and `bytes_end` is where the last byte of
    the file that is not zero ends.
    """
    proofs = [
        (durable, "a snapshot has the state after index {}"),
        (
            newest_mark(files, segment.name, segment.end, bytes_end),
            "a durable mark says that index {} was synced",
        ),
        (newest_row(files, segment), "its .idx has the row of index {}, which is written after the sync"),
        (applied, "its .ledger has the effects of index {}, which was committed"),
    ]
    if bytes_end > segment.end:
        proofs.append((_behind_a_mark(files, segment), "what follows was written after index {} was synced"))
        proofs.append((_one_bit_off(files, segment), "one bit of the entry up to index {} is wrong: no torn write"))
    beyond = [(index, why.format(index)) for index, why in proofs if index > segment.last.index]
    return max([index for index, _ in beyond], default=0), "; ".join([why for _, why in beyond])


def newest_mark(files: Files, name: str, start: int, end: int) -> int:
    """The highest index that a durable mark between two positions of a segment names; 0: there is none."""
    newest, position = 0, start
    while position < end:
        window = files.read(name, position, min(WINDOW, end - position) + MARK_SIZE - 1)
        found = window.find(MARK_MAGIC)
        while found >= 0:
            try:
                newest = max(newest, decode_mark(window, found, position + found).index)
            except (Corrupt, UnknownVersion):
                pass  # not a mark of this place
            found = window.find(MARK_MAGIC, found + 1)
        position += WINDOW
    return newest


def newest_row(files: Files, segment: Segment) -> int:
    """The highest index behind the newest intact entry that has a row in the .idx; 0: there is none.

    Rows are written once their entries were synced, and not synced themselves: some may be zeros, or cut short.
    """
    name, newest, index = index_name(segment.first), 0, segment.last.index
    position, end = row_position(segment, index + 1), files.size(name)
    while position + IDX_ROW.size <= end:
        rows = files.read(name, position, min(WINDOW, (end - position) // IDX_ROW.size * IDX_ROW.size))
        for entry, block, record, kind in IDX_ROW.iter_unpack(rows):
            index += 1
            if segment.end <= entry < segment.size and kind in _KINDS and (entry < block < record or block == record):
                newest = index
        position += len(rows)
    return newest


def newest_frame(files: Files, segment: Segment) -> int:
    """The highest index that has effects in the .ledger, be it behind the newest intact entry; 0: there are none.

    Effects are written only for committed entries whose rows are written. The search follows frames from the first one
    on, and requires one of each intact entry before. So neither a value inside a frame nor a block of another place
    passes for a frame.
    """
    name, newest, previous = ledger_name(segment.first), 0, segment.previous.index
    position, base, buffer = SIDE_HEADER_SIZE, 0, b""
    while True:
        offset = position - base
        if len(buffer) - offset < FRAME_HEADER_SIZE:
            buffer, base, offset = files.read(name, position, WINDOW), position, 0
        try:
            index, payload_bytes, _ = decode_frame_header(buffer, offset)
        except (Corrupt, UnknownVersion):
            return newest
        if index <= previous or previous < segment.last.index < index:
            return newest
        previous = newest = index
        position += FRAME_HEADER_SIZE + payload_bytes


def header_after(buffer: bytes, offset: int, index: int, crc: int) -> EntryHeader | None:
    """The header at `offset` where it is intact and that of the entry after `index`, whose header has that CRC."""
    try:
        header = decode_header(buffer, offset)
    except (Corrupt, UnknownVersion):
        return None
    return header if (header.index - header.count, header.previous_crc) == (index, crc) else None


def _behind_a_mark(files: Files, segment: Segment) -> int:
    """The index of the first entry that cannot be read, where an entry follows it behind the room of a mark; else 0.

    The gap shows that another batch begins there, which was written after this one was synced. An entry that follows
    directly proves nothing: it may be of the same write, whose later sectors may be there without earlier ones.
    """
    name, last = segment.name, segment.last
    header = header_after(files.read(name, segment.end, HEADER_SIZE), 0, last.index, last.header_crc)
    if header is None:
        return 0
    position = segment.end + HEADER_SIZE + header.length + MARK_SIZE
    behind = header_after(files.read(name, position, HEADER_SIZE), 0, header.index, header.crc)
    return header.index if behind is not None else 0


def _one_bit_off(files: Files, segment: Segment) -> int:
    """The index of the first entry that cannot be read, where it differs in one bit from an intact one; else 0.

    One bit that could have been the last of its sector is no proof: the write may have ended before it.
    """
    name, last = segment.name, segment.last
    raw = files.read(name, segment.end, HEADER_SIZE)
    if len(raw) < HEADER_SIZE:
        return 0
    header = header_after(raw, 0, last.index, last.header_crc)
    if header is None:
        wrong = int.from_bytes(raw[_STORED_CRC:], "little") ^ crc32c(raw[:_STORED_CRC])
        at = _STORED_CRC * 8 + wrong.bit_length() - 1 if wrong.bit_count() == 1 else flipped_bit(_STORED_CRC, wrong)
        header = header_after(_with_bit(raw, at), 0, last.index, last.header_crc) if at is not None else None
        start = segment.end
    elif header.length <= ONE_BIT_BYTES_MAX:
        start = segment.end + HEADER_SIZE
        at = flipped_bit(header.length, crc32c(files.read(name, start, header.length)) ^ header.data_crc)
    else:
        return 0
    if header is None or at is None:
        return 0
    place = start + at // 8
    return header.index if any(files.read(name, place, SECTOR - place % SECTOR)) else 0


def _with_bit(data: bytes, bit: int) -> bytes:
    """The bytes with that bit the other way round; bit 8 is the lowest one of byte 1."""
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


_SHIFT: Final = tuple(crc32c(bytes([byte])) ^ crc32c(b"\0") for byte in range(256))
"""What one wrong byte, the last one, changes in a CRC32C, by the bits in which it is wrong."""
_UNSHIFT: Final = {wrong >> 24: byte for byte, wrong in enumerate(_SHIFT)}
_ONE_BIT: Final = {_SHIFT[1 << bit]: bit for bit in range(8)}


def flipped_bit(size: int, wrong: int) -> int | None:
    """Which bit of `size` bytes must be turned to change their CRC32C by `wrong` (exclusive or); None: no single one.

    The change that a wrong bit makes depends only on how many bytes follow it. So the search takes the bytes off the
    end one by one, until the change is that of a bit in the last remaining byte. Two and three wrong bits are never
    taken for one, up to 2**31 bits (the Hamming distance of this CRC is 4: Koopman, DSN 2002).
    """
    for byte in range(size - 1, -1, -1):
        if (bit := _ONE_BIT.get(wrong)) is not None:
            return 8 * byte + bit
        lost = _UNSHIFT[wrong >> 24]
        wrong = ((wrong ^ _SHIFT[lost]) << 8) & 0xFFFFFFFF | lost
    return None
