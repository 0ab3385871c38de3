"""Cuts raw chunks into entries, blocks, records and effects, and checks every byte of them, without a loop per record.

A `Slab` is one or several raw chunks (`raft.codec.RawHeader`) joined. `locate` answers with `Frames`: numpy arrays of
the headers of its entries, blocks and records and of the heads of its effects, each proved to lie where the one before
ends, so that everything after it may trust the positions.

CRCs are checked all at once. A CRC is linear: XORing a piece's stored CRC into the four bytes behind it cancels the
piece's own contribution, so one pass of the hardware's CRC over the whole slab, after such an XOR behind every piece,
must give the stored CRC of the last piece. One wrong piece always shows; several together escape with a chance of
2**-32, as with any CRC. A header with its own CRC at its end has the same CRC for every content (the residue).
"""

from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from raft.codec import (
    BLOCK_SIZE,
    BLOCK_VERSION,
    ENTRY_MAGIC,
    ENTRY_VERSION,
    HEADER_SIZE,
    MARK_MAGIC,
    MARK_SIZE,
    RECORD_SIZE,
    Corrupt,
    RawHeader,
    UnknownVersion,
    decode_entry,
    decode_mark,
)
from spark_export.schema import KIND_COMMANDS, KINDS, OPERATIONS
from statemachine.effects import (
    EFFECTS_HEADER_SIZE,
    EFFECTS_MAGIC,
    EFFECTS_PLAIN,
    EFFECTS_VERSION,
    CorruptEffects,
    UnknownEffects,
    decode_effects,
)

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]
"""A structured array: one row per header."""

# The layouts of raft/codec.py and statemachine/effects.py; tests/spark_export/test_frames.py holds them to the bytes.
ENTRY: Final = np.dtype(
    [
        ("magic", "<u4"), ("version", "u1"), ("kind", "u1"), ("flags", "<u2"), ("length", "<u4"), ("count", "<u4"),
        ("index", "<u8"), ("term", "<u8"), ("time_ms", "<i8"), ("clock_ms", "<u8"), ("data_crc", "<u4"),
        ("previous", "<u4"), ("reserved", "<u4"), ("crc", "<u4"),
    ]
)  # fmt: skip
BLOCK: Final = np.dtype(
    [
        ("version", "u1"), ("flags", "u1"), ("reserved", "<u2"), ("length", "<u4"), ("count", "<u4"),
        ("namespace", "<u4"), ("principal", "<u4"), ("reserved2", "<u4"), ("session", "<u8"), ("sequence", "<u8"),
        ("settled", "<u8"), ("time_ms", "<i8"),
    ]
)  # fmt: skip
RECORD: Final = np.dtype(
    [
        ("operation", "u1"), ("flags", "u1"), ("key", "<u2"), ("value", "<u4"), ("headers", "<u4"), ("reserved", "<u4"),
        ("argument", "<i8"),
    ]
)  # fmt: skip
EFFECTS: Final = np.dtype(
    [
        ("magic", "<u4"), ("version", "u1"), ("flags", "u1"), ("reserved", "<u2"), ("index", "<u8"),
        ("revision", "<u8"), ("rows", "<u4"), ("length", "<u4"), ("payload_crc", "<u4"), ("crc", "<u4"),
    ]
)  # fmt: skip
_IDX: Final = np.dtype([("entry", "<u4"), ("block", "<u4"), ("record", "<u4"), ("kind", "<u4")])

_BLOCK_FLAGS: Final = 7
_RECORD_FLAGS: Final = 15
_RESIDUE: Final = 0x48674BC7  # CRC32C of anything followed by its own CRC32C


@dataclass(frozen=True, slots=True)
class Slab:
    """Raw chunks joined: `rows` holds the .idx rows, positions made relative to `segment`."""

    first: int
    next: int
    rows: Rows
    segment: bytearray
    ledger: bytearray


@dataclass(frozen=True, slots=True)
class Frames:
    """Where everything in a slab is. Arrays named `*_of_*` map one numbering to another.

    Non-command entries have one row and no block; their rows have block -1 and record position 0.
    """

    first: int
    segment: bytearray
    ledger: bytearray
    entry: Rows
    entry_at: Ints  # position of each entry's header in the segment
    entry_of_row: Ints
    is_command: npt.NDArray[np.bool_] | None  # per row; None: every row is a command
    block: Rows
    entry_of_block: Ints
    block_of_row: Ints | None  # None: every block has one record and every row is a command
    record: Rows  # per row; zeros where the row is no command
    record_at: Ints
    effects: Rows  # per entry
    effects_at: Ints  # position of each head in the ledger

    @property
    def count(self) -> int:
        """Rows in all."""
        return len(self.record)


def at(buffer: bytearray, dtype: np.dtype[Any], positions: Ints) -> Rows:
    """The structures at these positions, copied out."""
    if len(buffer) < dtype.itemsize:
        return np.zeros(0, dtype)
    if len(positions) and (int(positions.min()) < 0 or int(positions.max()) > len(buffer) - dtype.itemsize):
        raise Corrupt(f"a position lies outside its {len(buffer)} bytes")
    # as opaque bytes: numpy would copy a structure field by field
    every = np.ndarray((len(buffer) - dtype.itemsize + 1,), f"V{dtype.itemsize}", buffer, 0, (1,))
    found: Rows = every[positions].view(dtype)
    return found


def changes_at(values: Ints) -> Ints:
    """The positions where a new run of equal values begins, 0 included."""
    if not len(values):
        return np.zeros(0, np.int64)
    return np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))


def join(chunks: list[tuple[RawHeader, bytes, bytes, bytes]]) -> Slab:
    """Chunks (head, rows, segment, ledger) that follow one another, as one slab. Raises Corrupt."""
    parts: list[Rows] = []
    offset = 0
    expected = chunks[0][0].first
    for head, rows, segment, _ in chunks:
        if google_crc32c.value(rows) != head.rows_crc:
            raise Corrupt(f"the .idx rows of the chunk at index {head.first} fail their CRC")
        if head.first != expected or head.next - head.first != head.rows:
            raise Corrupt(f"a chunk names {head.rows} rows from {head.first} to {head.next}, expected from {expected}")
        expected = head.next
        table = np.frombuffer(rows, _IDX)
        shift = offset - head.base
        moved = np.empty(len(table), [(name, "<i8") for name in ("entry", "block", "record", "kind")])
        command = table["kind"] == KIND_COMMANDS
        moved["kind"] = table["kind"]
        moved["entry"] = table["entry"] + np.int64(shift)
        moved["block"] = np.where(command, table["block"] + np.int64(shift), 0)
        moved["record"] = np.where(command, table["record"] + np.int64(shift), 0)
        parts.append(moved)
        offset += len(segment)
    return Slab(
        chunks[0][0].first, expected, parts[0] if len(parts) == 1 else np.concatenate(parts),
        bytearray().join(chunk[2] for chunk in chunks), bytearray().join(chunk[3] for chunk in chunks),
    )  # fmt: skip


def locate(slab: Slab, previous: tuple[int, int] | None = None) -> Frames:
    """Every frame of the slab, checked. `previous` is (index, header CRC) of the entry before, where it is known.

    Raises Corrupt or CorruptEffects for bytes that fail a check, UnknownVersion or UnknownEffects for a version, kind
    or flag that this code does not know.
    """
    if not len(slab.rows):
        raise Corrupt(f"a chunk at index {slab.first} has no rows")
    rows = slab.rows
    row_starts = changes_at(rows["entry"])
    counts = np.diff(row_starts, append=len(rows))
    entry_at = rows["entry"][row_starts]
    entry = at(slab.segment, ENTRY, entry_at)
    _check_entries(slab, entry, entry_at, counts, previous)
    every_entry = np.arange(len(entry))
    entry_of_row = every_entry if len(entry) == len(rows) else np.repeat(every_entry, counts)

    command = rows["kind"] == KIND_COMMANDS
    if not np.array_equal(rows["kind"], entry["kind"][entry_of_row]):
        raise Corrupt("the .idx rows name other kinds than the entries")
    all_commands = bool(command.all())
    command_rows = np.arange(len(rows)) if all_commands else np.flatnonzero(command)
    block, entry_of_block, block_of_command, record = _records(slab, entry, entry_at, entry_of_row, command_rows)
    record_at = rows["record"]
    block_of_row: Ints | None = block_of_command
    if all_commands:
        if len(block) == len(rows):
            block_of_row = None
    else:
        whole = np.zeros(len(rows), RECORD)
        whole[command_rows] = record
        record = whole
        spread = np.full(len(rows), -1, np.int64)
        spread[command_rows] = block_of_command
        block_of_row = spread
    effects, effects_at = _effects(slab, entry)
    return Frames(
        slab.first, slab.segment, slab.ledger, entry, entry_at, entry_of_row, None if all_commands else command,
        block, entry_of_block, block_of_row, record, record_at, effects, effects_at,
    )  # fmt: skip


def _check_entries(slab: Slab, entry: Rows, entry_at: Ints, counts: Ints, previous: tuple[int, int] | None) -> None:
    """Positions, CRCs, versions, kinds, counts, and that each entry follows the one before."""
    ends = entry_at + HEADER_SIZE + entry["length"]
    gaps = np.append(entry_at[1:], len(slab.segment)) - ends
    if entry_at[0] != 0 or (gaps < 0).any() or (gaps % MARK_SIZE).any():
        raise _first_damage(slab, "the entries do not lie where the .idx rows say")
    marks = np.zeros(0, np.int64)
    if gaps.any():  # durable marks of the node that sent this
        per_gap = gaps // MARK_SIZE
        within = np.arange(int(per_gap.sum())) - np.repeat(np.cumsum(per_gap) - per_gap, per_gap)
        marks = np.repeat(ends, per_gap) + within * MARK_SIZE
    lengths = entry["length"].astype(np.int64)
    filled = lengths > 0
    piece_ends = np.concatenate((entry_at + HEADER_SIZE, ends[filled], marks + MARK_SIZE))
    crcs = np.concatenate(
        (_residues(len(entry)), entry["data_crc"][filled], _residues(len(marks)))
    )  # fmt: skip
    if not filled.all() and entry["data_crc"][~filled].any():
        raise Corrupt("an entry without data names a CRC for it")
    if not _crcs_hold(slab.segment, piece_ends, crcs, int(lengths[filled].min(initial=4))):
        raise _first_damage(slab, "the entries fail their CRC")
    known = (entry["magic"] == int.from_bytes(ENTRY_MAGIC, "little")).all()
    if not known or (len(marks) and not _all_marks(slab.segment, marks)):
        raise Corrupt("the .idx rows point at something that is no entry")
    if (entry["version"] != ENTRY_VERSION).any() or entry["flags"].any() or entry["reserved"].any():
        raise UnknownVersion(f"an entry after index {slab.first} has a version or flag that this code does not know")
    if ((entry["kind"] < 1) | (entry["kind"] >= len(KINDS))).any():
        raise UnknownVersion(
            f"an entry after index {slab.first} has a kind that this code does not know: upgrade raftlog"
        )
    index = entry["index"].astype(np.int64)
    if not np.array_equal(entry["count"], counts):
        raise Corrupt("an entry's count is not that of its .idx rows")
    before = index - counts
    if before[0] != slab.first - 1 or not np.array_equal(before[1:], index[:-1]) or index[-1] != slab.next - 1:
        raise Corrupt(f"the entries from index {slab.first} on are not contiguous")
    chained = np.array_equal(entry["previous"][1:], entry["crc"][:-1])
    if not chained or (np.diff(entry["term"].astype(np.int64)) < 0).any():
        raise Corrupt(f"an entry after index {slab.first} does not follow the one before it")
    if previous is not None and (int(before[0]), int(entry["previous"][0])) != previous:
        raise Corrupt(f"the entry at index {slab.first} does not follow entry {previous[0]}")


def _records(
    slab: Slab, entry: Rows, entry_at: Ints, entry_of_row: Ints, command_rows: Ints
) -> tuple[Rows, Ints, Ints, Rows]:
    """Blocks, the entry of each, the block of each command row, and the record headers of the command rows."""
    whole = len(command_rows) == len(slab.rows)
    block_of = slab.rows["block"] if whole else slab.rows["block"][command_rows]
    record_at = slab.rows["record"] if whole else slab.rows["record"][command_rows]
    entry_of_command = entry_of_row if whole else entry_of_row[command_rows]
    starts = changes_at(block_of)
    counts = np.diff(starts, append=len(command_rows))
    block_at = block_of[starts]
    block = at(slab.segment, BLOCK, block_at)
    entry_of_block = entry_of_command[starts]
    if (block["version"] != BLOCK_VERSION).any() or (block["flags"] & ~np.uint8(_BLOCK_FLAGS)).any():
        raise UnknownVersion(f"a block after index {slab.first} has a version or flag that this code does not know")
    if block["reserved"].any() or block["reserved2"].any():
        raise UnknownVersion(f"a block after index {slab.first} uses bytes that this code does not know")
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

    record = at(slab.segment, RECORD, record_at)
    if (record["flags"] & ~np.uint8(_RECORD_FLAGS)).any() or record["reserved"].any():
        raise UnknownVersion(f"a record after index {slab.first} has a flag that this code does not know")
    end = record_at + RECORD_SIZE + record["key"] + record["value"] + record["headers"]
    records_end = block_end - np.where(counts > 1, 4 * counts, 0)
    if len(block) == len(record):
        follows = np.array_equal(record_at, block_at + BLOCK_SIZE) and np.array_equal(end, records_end)
    else:
        expected = np.roll(end, 1)
        expected[starts] = block_at + BLOCK_SIZE
        lasts = starts + counts - 1
        follows = np.array_equal(record_at, expected) and np.array_equal(end[lasts], records_end)
    if not follows:
        raise Corrupt(f"a record after index {slab.first} does not lie where the .idx rows say")
    known = np.array([name is not None for name in OPERATIONS] + [False] * (256 - len(OPERATIONS)))
    if not known[record["operation"]].all():
        number = int(record["operation"][~known[record["operation"]]][0])
        raise UnknownVersion(f"a record after index {slab.first} has operation {number}: upgrade raftlog to read it")
    blocks_of = np.arange(len(block))
    return (
        block,
        entry_of_block,
        blocks_of if whole and len(block) == len(record) else np.repeat(blocks_of, counts),
        record,
    )


def _effects(slab: Slab, entry: Rows) -> tuple[Rows, Ints]:
    """The heads of the effects, one per entry, and where they are."""
    positions = _effects_positions(slab.ledger, len(entry))
    effects = at(slab.ledger, EFFECTS, positions)
    lengths = effects["length"].astype(np.int64)
    ends = positions + EFFECTS_HEADER_SIZE + lengths
    if len(effects) != len(entry) or not np.array_equal(ends, np.append(positions[1:], len(slab.ledger))):
        raise _first_ledger_damage(slab, "the effects do not fill their bytes")
    filled = lengths > 0
    piece_ends = np.concatenate((positions + EFFECTS_HEADER_SIZE, ends[filled]))
    crcs = np.concatenate((_residues(len(entry)), effects["payload_crc"][filled]))
    hollow = not filled.all() and effects["payload_crc"][~filled].any()
    if hollow or not _crcs_hold(slab.ledger, piece_ends, crcs, int(lengths[filled].min(initial=4))):
        raise _first_ledger_damage(slab, "the effects fail their CRC")
    if (effects["magic"] != int.from_bytes(EFFECTS_MAGIC, "little")).any():
        raise CorruptEffects("no effects where they should be")
    unknown = (effects["version"] != EFFECTS_VERSION) | (effects["flags"] & ~np.uint8(EFFECTS_PLAIN) != 0)
    if unknown.any() or effects["reserved"].any():
        raise UnknownEffects(f"effects after index {slab.first} have a version or flag that this code does not know")
    if not np.array_equal(effects["index"], entry["index"]):
        raise CorruptEffects(f"the effects after index {slab.first} are not those of the entries")
    return effects, positions


def _effects_positions(ledger: bytearray, count: int) -> Ints:
    """Where each of `count` heads begins: without a loop where all are of one size or no payload looks like a head."""
    if len(ledger) % count == 0:
        even = np.arange(count) * (len(ledger) // count)
        if _is_chain(ledger, even):
            return even
    data = np.frombuffer(ledger, np.uint8)
    found: Ints = np.flatnonzero(data[: len(data) - EFFECTS_HEADER_SIZE + 1] == EFFECTS_MAGIC[0])
    found = found[at(ledger, EFFECTS, found)["magic"] == int.from_bytes(EFFECTS_MAGIC, "little")]
    if len(found) == count and _is_chain(ledger, found):
        return found
    chain: list[int] = []  # a value in some payload spells the magic, or the bytes are damaged
    position = 0
    while position + EFFECTS_HEADER_SIZE <= len(ledger) and len(chain) < count:
        chain.append(position)
        position += EFFECTS_HEADER_SIZE + int.from_bytes(ledger[position + 28 : position + 32], "little")
    return np.array(chain, np.int64)


def _is_chain(ledger: bytearray, positions: Ints) -> bool:
    """Whether each head's length leads to the next, from the first byte to the last."""
    if not len(positions) or positions[0] != 0 or positions[-1] + EFFECTS_HEADER_SIZE > len(ledger):
        return False
    ends = positions + EFFECTS_HEADER_SIZE + at(ledger, EFFECTS, positions)["length"]
    return bool(np.array_equal(ends, np.append(positions[1:], len(ledger))))


def _residues(count: int) -> npt.NDArray[np.uint32]:
    return np.full(count, _RESIDUE, np.uint32)


def _crcs_hold(buffer: bytearray, ends: Ints, crcs: npt.NDArray[np.uint32], smallest: int) -> bool:
    """Whether the pieces that partition the buffer have these CRCs (see the module's docstring).

    `smallest` is the length of the shortest piece: below four bytes the words behind two pieces would overlap.
    """
    if smallest < 4 or len(buffer) < 4:
        return False  # the caller looks at each piece by itself
    is_last = ends == len(buffer)
    behind, inner = ends[~is_last], crcs[~is_last]
    words = np.ndarray((len(buffer) - 3,), "V4", buffer, 0, (1,))
    kept = words[behind]
    words[behind] = (kept.view("<u4") ^ inner).view("V4")
    whole: int = google_crc32c.value(np.frombuffer(buffer, np.uint8))  # a bytearray it would not take, but uncopied
    words[behind] = kept
    return whole == int(crcs[is_last][0])


def _all_marks(segment: bytearray, positions: Ints) -> bool:
    words = np.ndarray((len(segment) - 3,), "<u4", segment, 0, (1,))
    return bool((words[positions] == int.from_bytes(MARK_MAGIC, "little")).all())


def _first_damage(slab: Slab, otherwise: str) -> Corrupt:
    """What is wrong with the first damaged entry or mark, by looking at each."""
    segment = memoryview(slab.segment)
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


def _first_ledger_damage(slab: Slab, otherwise: str) -> CorruptEffects:
    """What is wrong with the first damaged effects, by looking at each."""
    position = 0
    try:
        while position < len(slab.ledger):
            decode_effects(memoryview(slab.ledger), position)
            length = int.from_bytes(slab.ledger[position + 28 : position + 32], "little")
            position += EFFECTS_HEADER_SIZE + length
    except (CorruptEffects, UnknownEffects) as error:
        return CorruptEffects(f"in the chunk at index {slab.first}: {error}")
    return CorruptEffects(f"in the chunk at index {slab.first}: {otherwise}")
