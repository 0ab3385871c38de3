"""Writes zeros over what a reader may not see in segments of the log, which otherwise go to it as they are on disk.

`raftlog.cluster.http.routes.log_stream` calls it for a reader of all keys and groups that may not see all the rest
(`raftlog.statemachine.access.needs`): the user of a block, configurations, changes of permissions. Positions and
lengths stay. The CRCs are made again, because the CRC of hidden bytes would confirm a guess of them, and so would that
of a header, which covers it. The bytes on disk are checked first: new CRCs must not hide damage.
"""

from __future__ import annotations

from typing import Final

from raftlog.raft.codec.block import BLOCK_SIZE, RECORD, RECORD_SIZE, RECORD_VALUE
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.entry import HEADER_SIZE, decode_entry, reseal
from raftlog.raft.codec.index_rows import IDX_ROW, index_rows
from raftlog.raft.codec.mark import MARK_MAGIC, MARK_SIZE, decode_mark, encode_mark
from raftlog.raft.types import EntryKind, Mark
from raftlog.statemachine.access.needs import hidden, sees_members
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.commands import Command, Operation

_ACCESS: Final = int(Operation.ACCESS)


def blanked(rows: bytes, segment: bytes, base: int, sees: Permissions) -> bytes:
    """The bytes of a segment, whole entries from its byte `base` on with their .idx rows, as that principal may see
    them. Its first entry names 0 as the CRC of the header before. Raises Corrupt or UnknownVersion for damage."""
    out = bytearray(segment)
    sees_users, sees_access = sees_members(sees), hidden(sees, Command(_ACCESS)) is None
    at = row_at = previous_crc = 0
    while at < len(segment):
        if segment.startswith(MARK_MAGIC, at):
            mark = decode_mark(segment, at, base + at)
            out[at : at + MARK_SIZE] = encode_mark(Mark(mark.index, mark.term, previous_crc), base + at)
            at += MARK_SIZE
            continue
        entry = decode_entry(segment, at)
        own_rows = index_rows(entry, base + at)
        if not rows.startswith(own_rows, row_at):
            raise Corrupt(f"the .idx rows of entry {entry.index} do not name its records")
        row_at += len(own_rows)
        if entry.kind is EntryKind.COMMANDS:
            _blank_commands(out, own_rows, base, sees_users=sees_users, sees_access=sees_access)
        elif entry.kind is EntryKind.CONFIGURATION and not sees_users:
            _blank(out, at + HEADER_SIZE, len(entry.data))
        previous_crc = reseal(out, at, len(entry.data), previous_crc)
        at += entry.size
    return bytes(out)


def _blank_commands(out: bytearray, rows: bytes, base: int, *, sees_users: bool, sees_access: bool) -> None:
    """Blanks the admissions and the records of permissions of one entry."""
    block = 0
    for _, block_at, record_at, _ in IDX_ROW.iter_unpack(rows):
        if block_at != block and not sees_users:
            begin = block_at - base + BLOCK_SIZE
            _blank(out, begin, record_at - base - begin)
        block = block_at
        at = record_at - base
        if out[at] == _ACCESS and not sees_access:
            operation, flags, key, value, *rest = RECORD.unpack_from(out, at)
            RECORD.pack_into(out, at, operation, flags & ~RECORD_VALUE, key, value, *rest)  # a value of none
            _blank(out, at + RECORD_SIZE + key, value)


def _blank(out: bytearray, begin: int, size: int) -> None:
    out[begin : begin + size] = bytes(size)
