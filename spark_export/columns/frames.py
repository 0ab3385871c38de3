"""Cuts raw chunks into entries, blocks, records and effects, and checks every byte of them, without a loop per record.

`locate` answers a `Slab` with `Frames`: numpy arrays of the headers of its entries, blocks and records and of the heads
of its effects. Each is proved to lie where the one before ends. So all later code may trust the positions.

Headers are compared as 64-bit words, several fields at once. When a comparison fails, the branch that raises finds out
which field differs. When every entry has one record, the three headers of each lie side by side and are read together.
Such a log has four times the headers, and must still be read at full speed. When such entries also lie at even
distances, with a durable mark among them now and then, they are read run by run (`Slab.runs`). Then no index of each
entry is made or looked up.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raftlog.raft.codec.block import BLOCK_ADMITTED, BLOCK_SIZE, BLOCK_VERSION, RECORD_SIZE
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.entry import ENTRY_MAGIC, ENTRY_VERSION, HEADER_SIZE, decode_entry
from raftlog.raft.codec.mark import MARK_MAGIC, MARK_SIZE, decode_mark
from raftlog.spark_export.columns.effects import Effects, effects_of
from raftlog.spark_export.columns.schema import KIND_COMMANDS, KINDS, OPERATIONS
from raftlog.spark_export.columns.slab import (
    LOW,
    Heads,
    Ints,
    Runs,
    Slab,
    all_equal,
    at,
    changes_at,
    heads_at,
    heads_of,
)
from raftlog.spark_export.columns.sums import RESIDUE, Crcs, Pieces, behind_headers, crcs_hold

# The layouts of raft/codec and statemachine/effects.py; tests/spark_export/columns/test_frames.py holds them to the
# bytes.
ENTRY: Final = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "u1"),
        ("kind", "u1"),
        ("flags", "<u2"),
        ("length", "<u4"),
        ("count", "<u4"),
        ("index", "<u8"),
        ("term", "<u8"),
        ("time_ms", "<i8"),
        ("clock_ms", "<u8"),
        ("data_crc", "<u4"),
        ("previous", "<u4"),
        ("reserved", "<u4"),
        ("crc", "<u4"),
    ]
)
BLOCK: Final = np.dtype(
    [
        ("version", "u1"),
        ("flags", "u1"),
        ("reserved", "<u2"),
        ("length", "<u4"),
        ("count", "<u4"),
        ("namespace", "<u4"),
        ("admission", "<u4"),
        ("reserved2", "<u4"),
        ("session", "<u8"),
        ("sequence", "<u8"),
        ("settled", "<u8"),
        ("time_ms", "<i8"),
    ]
)
RECORD: Final = np.dtype(
    [
        ("operation", "u1"),
        ("flags", "u1"),
        ("key", "<u2"),
        ("value", "<u4"),
        ("headers", "<u4"),
        ("reserved", "<u4"),
        ("argument", "<i8"),
    ]
)
_MAGIC: Final = np.dtype("<u4")
_ENTRY_WORD: Final = np.uint32(int.from_bytes(ENTRY_MAGIC, "little"))
_MARK_WORD: Final = np.uint32(int.from_bytes(MARK_MAGIC, "little"))
_SINGLE: Final = np.dtype([("entry", ENTRY), ("block", BLOCK), ("record", RECORD)])
"""The headers of an entry of one record, side by side."""

# Of the 64-bit words in which several fields are looked at together.
_HIGH: Final = LOW << 32
_ENTRY_HEAD: Final = int.from_bytes(ENTRY_MAGIC, "little") | ENTRY_VERSION << 32  # magic, version, any kind, no flags
_ENTRY_HEAD_BITS: Final = LOW | 0xFFFF_00FF << 32
_BLOCK_HEAD_BITS: Final = 0xFFFF_F0FF  # version, no flags but four, reserved
_BLOCK_ADMITTED_BIT: Final = BLOCK_ADMITTED << 8
_RECORD_FLAG_BITS: Final = 0xF000  # all but four

_OTHER_KINDS: Final = "the .idx rows name other kinds than the entries"
_KNOWN: Final = np.array([name is not None for name in OPERATIONS] + [False] * (256 - len(OPERATIONS)))


@dataclass(frozen=True, slots=True)
class Frames:
    """Where everything in a slab is. Arrays named `*_of_*` map one numbering to another.

    Non-command entries have one row and no block; their rows have block -1 and record position 0.
    """

    first: int
    segment: memoryview
    ledger: memoryview
    entry: Heads
    entry_at: Ints  # position of each entry's header in the segment
    entry_of_row: Ints
    is_command: npt.NDArray[np.bool_] | None  # per row; None: every row is a command
    block: Heads
    entry_of_block: Ints
    block_of_row: Ints | None  # None: every block has one record and every row is a command
    record: Heads  # per row; zeros where the row is no command
    record_at: Ints
    effects: Effects | int
    """Those of the entries; where none has a payload, and so each holds one record, the store revision of them all."""
    runs: Runs  # `Slab.runs`

    @property
    def count(self) -> int:
        """Rows in all."""
        return len(self.record)

    @property
    def revisions(self) -> Ints:
        """The store revision after each entry."""
        if isinstance(self.effects, int):
            return np.broadcast_to(np.int64(self.effects), (len(self.entry),))
        return self.effects.head["revision"].astype(np.int64)

    @property
    def is_block_per_entry(self) -> bool:
        """Whether blocks and entries are numbered alike."""
        return self.is_command is None and len(self.block) == len(self.entry)


def locate(slab: Slab, previous: tuple[int, int] | None = None) -> Frames:
    """Every frame of the slab, checked. `previous` is (index, header CRC) of the entry before, where it is known.

    Raises Corrupt or CorruptEffects for bytes that fail a check, UnknownVersion or UnknownEffects for a version, kind
    or flag that this code does not know.
    """
    count = len(slab.entry)
    if not count:
        raise Corrupt(f"a chunk at index {slab.first} has no rows")
    if slab.runs:
        return _located_singles(slab, heads_of(slab.segment, _SINGLE, slab.runs), previous)
    starts = changes_at(slab.entry)
    is_each = len(starts) == count  # an entry for every row
    counts = None if is_each else np.diff(starts, append=count)
    entry_at = slab.entry if is_each else slab.entry[starts]
    is_command = slab.kind == KIND_COMMANDS
    all_commands = bool(is_command.all())
    if (
        is_each
        and all_commands
        and np.array_equal(slab.block, entry_at + HEADER_SIZE)
        and np.array_equal(slab.record, entry_at + (HEADER_SIZE + BLOCK_SIZE))
    ):
        return _located_singles(slab, heads_at(slab.segment, _SINGLE, slab.entry), previous)
    entry = heads_at(slab.segment, ENTRY, entry_at)
    _check_entries(slab, entry, entry_at, counts, previous)
    every_entry = np.arange(len(entry))
    entry_of_row = every_entry if counts is None else np.repeat(every_entry, counts)
    kinds = entry.few("kind") if is_each else entry["kind"][entry_of_row]
    if (slab.kind != kinds).any():
        raise Corrupt(_OTHER_KINDS)

    effects = effects_of(slab, entry)
    command_rows = np.arange(count) if all_commands else np.flatnonzero(is_command)
    block, entry_of_block, block_of_command, record = _records(slab, entry, entry_at, entry_of_row, command_rows)
    block_of_row: Ints | None = block_of_command
    if all_commands:
        if len(block) == count:
            block_of_row = None
    else:
        whole = np.zeros((len(record.lines), count), np.uint64)
        for line, words in zip(whole, record.lines, strict=True):
            line[command_rows] = words
        record = Heads.of(RECORD, whole)
        spread = np.full(count, -1, np.int64)
        spread[command_rows] = block_of_command
        block_of_row = spread
    return Frames(
        slab.first,
        slab.segment,
        slab.ledger,
        entry,
        entry_at,
        entry_of_row,
        None if all_commands else is_command,
        block,
        entry_of_block,
        block_of_row,
        record,
        slab.record,
        effects,
        (),
    )


def _located_singles(slab: Slab, heads: Heads, previous: tuple[int, int] | None) -> Frames:
    """As `locate`, where each entry holds one command, its headers side by side."""
    entry, block = heads.part(ENTRY, 0), heads.part(BLOCK, HEADER_SIZE)
    record = heads.part(RECORD, HEADER_SIZE + BLOCK_SIZE)
    _check_entries(slab, entry, slab.entry, None, previous)
    if (entry.few("kind") != KIND_COMMANDS).any():
        raise Corrupt(_OTHER_KINDS)
    effects = effects_of(slab, entry)
    _check_singles(slab, entry, block, record)
    each = np.arange(len(entry))
    return Frames(
        slab.first,
        slab.segment,
        slab.ledger,
        entry,
        slab.entry,
        each,
        None,
        block,
        each,
        None,
        record,
        slab.record,
        effects,
        slab.runs,
    )


# ---------------------------------------------------------------------------------------------------------------
# Entries.


def _check_entries(
    slab: Slab, entry: Heads, entry_at: Ints, counts: Ints | None, previous: tuple[int, int] | None
) -> None:
    """Positions, CRCs, versions, kinds, counts (None: one record each), and that each entry follows the one before."""
    word = entry.lines
    lengths = (word[1] & LOW).view(np.int64)
    ends = entry_at + lengths
    ends += HEADER_SIZE
    marks, behind = _marks(slab, entry_at, ends)
    data_crcs = entry.few("data_crc")
    if not lengths.all() and ((lengths == 0) & (data_crcs != 0)).any():
        raise Corrupt("an entry without data names a CRC for it")
    head_is_known = bool(((word[0] & _ENTRY_HEAD_BITS) == _ENTRY_HEAD).all())
    if not head_is_known and (word[0] & LOW != _ENTRY_HEAD & LOW).any():
        raise _first_damage(slab, "the .idx rows point at something that is no entry")
    pieces = _pieces(ends, np.broadcast_to(behind_headers(lengths, data_crcs), (len(entry),)), marks, behind)
    if not crcs_hold(slab.segment, pieces, MARK_SIZE):
        raise _first_damage(slab, "the entries fail their CRC")
    if not head_is_known:
        raise UnknownVersion(f"an entry after index {slab.first} has a version or flag that this code does not know")
    if (word[7] & LOW).any():
        raise UnknownVersion(f"an entry after index {slab.first} uses bytes that this code does not know")
    kinds = entry.few("kind")
    if int(kinds.min()) < 1 or int(kinds.max()) >= len(KINDS):
        raise UnknownVersion(
            f"an entry after index {slab.first} has a kind that this code does not know: upgrade raftlog"
        )
    if (word[1] >> 32 != (1 if counts is None else counts.view(np.uint64))).any():
        raise Corrupt("an entry's count is not that of its .idx rows")
    lasts = np.arange(slab.first, slab.next) if counts is None else slab.first - 1 + np.cumsum(counts)
    lasts = lasts.view(np.uint64)
    if not np.array_equal(entry.word(2), lasts) or lasts[-1] != slab.next - 1:
        raise Corrupt(f"the entries from index {slab.first} on are not contiguous")
    is_chained = np.array_equal(entry.word(6)[1:] & _HIGH, entry.word(7)[:-1])  # the CRC named before it, and that one
    if not is_chained or (word[3][1:] < word[3][:-1]).any():
        raise Corrupt(f"an entry after index {slab.first} does not follow the one before it")
    if previous is not None and (slab.first - 1, int(entry["previous"][0])) != previous:
        raise Corrupt(f"the entry at index {slab.first} does not follow entry {previous[0]}")


def _marks(slab: Slab, entry_at: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Where the durable marks are of the node that sent this: all that may lie between entries; and which entries have
    one behind them."""
    gaps = np.append(entry_at[1:], len(slab.segment))
    gaps -= ends
    behind = np.flatnonzero(gaps)
    gaps = gaps[behind]
    if entry_at[0] != 0 or (gaps < 0).any() or (gaps % MARK_SIZE).any():
        raise _first_damage(slab, "the entries do not lie where the .idx rows say")
    if not len(behind):
        return behind, behind
    each = gaps // MARK_SIZE
    within = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)
    marks: Ints = np.repeat(ends[behind], each) + within * MARK_SIZE
    if (at(slab.segment, _MAGIC, marks) != _MARK_WORD).any():
        raise _first_damage(slab, "the .idx rows point at something that is no entry")
    return marks, behind


def _pieces(ends: Ints, crcs: Crcs, marks: Ints, behind: Ints) -> list[Pieces]:
    """Entries and marks, each with the magic of the structure behind it. The caller has checked all of those magics."""
    if not len(marks):
        return [Pieces(ends, crcs, _ENTRY_WORD)]
    words = np.full(len(ends), _ENTRY_WORD)
    words[behind] = _MARK_WORD
    mark_ends = marks + MARK_SIZE
    follows = np.append(mark_ends[:-1] == marks[1:], False)
    return [Pieces(ends, crcs, words), Pieces(mark_ends, RESIDUE, np.where(follows, _MARK_WORD, _ENTRY_WORD))]


# ---------------------------------------------------------------------------------------------------------------
# Blocks and records.


def _check_singles(slab: Slab, entry: Heads, block: Heads, record: Heads) -> None:
    """Makes the remaining checks where each entry holds one block of one record, side by side."""
    _check_blocks(slab, block)
    _check_records(slab, record)
    heads, record_words = block.lines, record.lines
    in_block = entry.lines[1] & LOW
    in_block -= BLOCK_SIZE
    if (heads[1] & LOW != 1).any() or (heads[0] >> 32 != in_block).any() or heads[2].any():
        raise Corrupt(f"a block after index {slab.first} does not lie where the .idx rows say")
    in_block -= RECORD_SIZE
    # Of the value and of the headers: what else is in that word was found to be 0.
    if ((record_words[0] >> 32) + record_words[1] + record.few("key") != in_block).any():
        raise Corrupt(f"a record after index {slab.first} does not lie where the .idx rows say")


def _check_blocks(slab: Slab, block: Heads) -> None:
    """Versions, flags and reserved bytes."""
    word = block.lines
    if ((word[0] & _BLOCK_HEAD_BITS) != BLOCK_VERSION).any() or (word[2] & _HIGH).any():
        raise UnknownVersion(
            f"a block after index {slab.first} has a version or flag, or uses bytes, that this code does not know"
        )
    if ((word[0] & _BLOCK_ADMITTED_BIT != 0) != (word[2] != 0)).any():
        raise Corrupt(f"a block after index {slab.first} has an admission without its flag, or the flag alone")


def _check_records(slab: Slab, record: Heads) -> None:
    """Flags, reserved bytes and operations."""
    word = record.lines
    if (word[0] & _RECORD_FLAG_BITS).any() or (word[1] & _HIGH).any():
        raise UnknownVersion(f"a record after index {slab.first} has a flag that this code does not know")
    some = np.ascontiguousarray(record.few("operation"))
    some = some[:1] if all_equal(some) else some
    if not _KNOWN[some].all():
        number = int(some[~_KNOWN[some]][0])
        raise UnknownVersion(f"a record after index {slab.first} has operation {number}: upgrade raftlog to read it")


def _records(
    slab: Slab, entry: Heads, entry_at: Ints, entry_of_row: Ints, command_rows: Ints
) -> tuple[Heads, Ints, Ints, Heads]:
    """Blocks, the entry of each, the block of each command row, and the record headers of the command rows."""
    whole = len(command_rows) == len(slab.entry)
    block_of = slab.block if whole else slab.block[command_rows]
    record_at = slab.record if whole else slab.record[command_rows]
    entry_of_command = entry_of_row if whole else entry_of_row[command_rows]
    starts = changes_at(block_of)
    counts = np.diff(starts, append=len(command_rows))
    block_at = block_of[starts]
    block = heads_at(slab.segment, BLOCK, block_at)
    entry_of_block = entry_of_command[starts]
    _check_blocks(slab, block)
    block_end = block_at + BLOCK_SIZE + block["length"]
    is_first = np.zeros(len(block), bool)
    is_first[changes_at(entry_of_block)] = True
    expected = np.where(is_first, entry_at[entry_of_block] + HEADER_SIZE, np.roll(block_end, 1))
    is_last = np.roll(is_first, -1)
    entry_end = entry_at[entry_of_block] + HEADER_SIZE + entry["length"][entry_of_block]
    if (
        not np.array_equal(block["count"], counts)
        or not np.array_equal(block_at, expected)
        or not np.array_equal(block_end[is_last], entry_end[is_last])
    ):
        raise Corrupt(f"a block after index {slab.first} does not lie where the .idx rows say")

    record = heads_at(slab.segment, RECORD, record_at)
    _check_records(slab, record)
    end = record_at + RECORD_SIZE + record["key"] + record["value"] + record["headers"]
    lasts = starts + counts - 1
    records_end = block_end - np.where(counts > 1, 4 * counts, 0)  # behind several a table of their positions
    follows = record_at[1:] == end[:-1]
    follows[lasts[:-1]] = True  # what follows those is of another block
    if (
        not follows.all()
        or not np.array_equal(record_at[starts], block_at + BLOCK_SIZE + block["admission"])
        or not np.array_equal(end[lasts], records_end)
    ):
        raise Corrupt(f"a record after index {slab.first} does not lie where the .idx rows say")
    blocks = np.arange(len(block))
    return block, entry_of_block, blocks if len(block) == len(record) else np.repeat(blocks, counts), record


def _first_damage(slab: Slab, otherwise: str) -> Corrupt:
    """The fault of the first damaged entry or mark, found by checking each."""
    segment = slab.segment
    position = 0
    index = slab.first - 1
    try:
        while position < len(segment):
            if bytes(segment[position : position + 4]) == MARK_MAGIC:
                decode_mark(segment, position)
                position += MARK_SIZE
                continue
            entry = decode_entry(segment, position)
            index, position = entry.index, position + entry.size
    except (Corrupt, UnknownVersion) as error:
        return Corrupt(f"after index {index}: {error}")
    return Corrupt(f"in the chunk at index {slab.first}: {otherwise}")
