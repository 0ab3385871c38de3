"""What a reader may not see of a segment is zeros; all else stays where it is, and damage stays damage."""

from __future__ import annotations

import random

import pytest

from raftlog.cluster.records.blanking import blanked
from raftlog.cluster.records.rows import principals
from raftlog.raft.codec.block import BlockRecord, decode_blocks, decode_records, encode_block
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.entry import decode_entries, seal_entry
from raftlog.raft.codec.index_rows import index_rows
from raftlog.raft.codec.mark import MARK_SIZE, decode_mark, encode_mark
from raftlog.raft.types import Entry, EntryKind, Mark
from raftlog.statemachine.access.admission import Admission, encode_admission
from raftlog.statemachine.access.grants import BUILT_IN, parse_grant
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.commands import Operation

BASE = 4_096
READER = BUILT_IN["reader"]
SIGHTS = {
    "reader": (Permissions(READER), False, False),
    "operator as well": (Permissions((*READER, parse_grant("operate on cluster"))), True, False),
    "keeper of access": (Permissions((*READER, parse_grant("access on cluster"))), False, True),
}
ADMISSION = encode_admission(Admission("alice", 5))
SECRET = b"roles, hashes"


def entries() -> list[Entry]:
    """A configuration, a no-op, and commands of several blocks and records with and without a user."""
    access = BlockRecord(int(Operation.ACCESS), None, SECRET)
    append = BlockRecord(int(Operation.APPEND), b"k", b"v", argument=7)
    blocks = [
        encode_block([append], admission=ADMISSION, session=3, sequence=1, settled=1),
        encode_block([append, append, append], admission=ADMISSION, plain=True),
        encode_block([append]),
        encode_block([access], admission=ADMISSION),
    ]
    contents = [
        (EntryKind.CONFIGURATION, SECRET, 1),
        (EntryKind.NOOP, b"", 1),
        (EntryKind.COMMANDS, b"".join(blocks), 6),
        (EntryKind.COMMANDS, blocks[3], 1),
        (EntryKind.CLOCK, b"", 1),
        (EntryKind.COMMANDS, blocks[0], 1),
    ]
    found: list[Entry] = []
    for kind, data, count in contents:
        previous = found[-1].mark if found else Mark(8, 1, 0xABCD, 5, 6)
        found.append(seal_entry(previous, term=2, kind=kind, count=count, time_ms=9, clock_ms=9, data=data))
    return found


def segment_of(found: list[Entry], *, marks: bool) -> tuple[bytes, bytes]:
    """Its .idx rows, and the bytes from byte BASE on, with a durable mark between any two entries if asked for."""
    rows, segment = b"", b""
    for entry in found:
        if marks and segment:
            segment += encode_mark(Mark(entry.before, 2, entry.previous_crc), BASE + len(segment))
        rows += index_rows(entry, BASE + len(segment))
        segment += entry.header + entry.data
    return rows, segment


@pytest.mark.parametrize("sight", SIGHTS)
def test_only_what_the_reader_may_not_see_changes(sight: str) -> None:
    """Entries still follow one another by their CRCs, with the same records. Hidden are the user of each block and the
    configuration without `operate on cluster`, and changes of permissions without `access on cluster`."""
    sees, sees_users, sees_access = SIGHTS[sight]
    found = entries()
    rows, segment = segment_of(found, marks=False)
    shown = decode_entries(blanked(rows, segment, BASE, sees))
    facts = [
        [(each.index, each.term, each.count, each.time_ms, each.clock_ms) for each in row] for row in (shown, found)
    ]
    assert facts[0] == facts[1]
    assert shown[0].previous_crc == 0
    for entry, original in zip(shown, found, strict=True):
        if entry.kind is not EntryKind.COMMANDS:
            is_hidden = entry.kind is EntryKind.CONFIGURATION and not sees_users
            assert entry.data == (bytes(len(SECRET)) if is_hidden else original.data)
            continue
        assert (b"alice" in entry.data) is sees_users
        assert set(principals(original).values()) == {"alice"}
        for block, other in zip(decode_blocks(entry.data), decode_blocks(original.data), strict=True):
            due = [
                record._replace(value=None) if record.operation == Operation.ACCESS and not sees_access else record
                for record in decode_records(other)
            ]
            assert list(decode_records(block)) == due
            assert (block.session, block.sequence, block.position) == (other.session, other.sequence, other.position)


def test_no_crc_of_hidden_bytes_goes_out() -> None:
    """Not in the header of an entry, in the one behind it, or in a durable mark: a reader could check its guess."""
    found = entries()
    rows, segment = segment_of(found, marks=True)
    shown = blanked(rows, segment, BASE, SIGHTS["reader"][0])
    position, names = 0, 0
    for entry in found:
        if position:
            decode_mark(shown, position, BASE + position)
            position += MARK_SIZE
        position += entry.size
    for entry in found:
        assert entry.mark.header_crc.to_bytes(4, "little") not in shown
        names += entry.header[48:52] in shown and bool(entry.data)
    assert names == 0
    assert position == len(shown)


@pytest.mark.parametrize("marks", [False, True])
def test_damage_is_not_made_good(*, marks: bool) -> None:
    """Any wrong bit of the entries, the marks or their .idx rows is refused, not covered by new CRCs."""
    rows, segment = segment_of(entries(), marks=marks)
    sees = SIGHTS["reader"][0]
    chance = random.Random(1)
    for _ in range(400):
        at, bit = chance.randrange(len(segment) + len(rows)), 1 << chance.randrange(8)
        both = bytearray(segment + rows)
        both[at] ^= bit
        with pytest.raises(Corrupt):
            blanked(bytes(both[len(segment) :]), bytes(both[: len(segment)]), BASE, sees)
