"""Checks the effects of a slab: each has its CRC, a known version, and the index of its entry.

Where all effects without a payload would say the same, a node may send the first and the last of a chunk alone.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from raftlog.spark_export.columns.slab import LOW, Heads, Ints, Slab, at, heads_at, heads_of
from raftlog.spark_export.columns.sums import RESIDUE, Pieces, behind_headers, crcs_hold
from raftlog.statemachine.effects import (
    EFFECTS_HEADER_SIZE,
    EFFECTS_MAGIC,
    EFFECTS_PLAIN,
    EFFECTS_VERSION,
    CorruptEffects,
    UnknownEffects,
    decode_effects,
    decode_effects_header,
)

# The layout of statemachine/effects.py; tests/spark_export/columns/test_frames.py holds it to the bytes.
EFFECTS: Final = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "u1"),
        ("flags", "u1"),
        ("reserved", "<u2"),
        ("index", "<u8"),
        ("revision", "<u8"),
        ("rows", "<u4"),
        ("length", "<u4"),
        ("payload_crc", "<u4"),
        ("crc", "<u4"),
    ]
)

_EFFECTS_HEAD: Final = int.from_bytes(EFFECTS_MAGIC, "little") | EFFECTS_VERSION << 32
_EFFECTS_HEAD_BITS: Final = LOW | (0xFFFF_00FF | (0xFF & ~EFFECTS_PLAIN) << 8) << 32


@dataclass(frozen=True, slots=True)
class Effects:
    """The heads of the effects, one for each entry, and where in the ledger each is."""

    head: Heads
    at: Ints


def effects_of(slab: Slab, entry: Heads) -> Effects | int:
    """The effects of the entries; of brief ones the store revision of them all.

    Raises CorruptEffects or UnknownEffects.
    """
    return _alike(slab, entry) if slab.is_brief else _whole(slab, entry)


def _alike(slab: Slab, entry: Heads) -> int:
    """The store revision of effects, when only the first and last effects of each chunk were sent.

    The revision is the same throughout: effects without a payload did not touch the store.
    """
    if len(entry) != slab.next - slab.first or len(slab.ledger) % (2 * EFFECTS_HEADER_SIZE) or not len(slab.ledger):
        raise CorruptEffects(f"brief effects after index {slab.first} of entries that cannot have them")
    due, revision = slab.first, -1
    for place in range(0, len(slab.ledger), 2 * EFFECTS_HEADER_SIZE):
        first, last = (decode_effects_header(slab.ledger, place + side) for side in (0, EFFECTS_HEADER_SIZE))
        revision = first.revision if place == 0 else revision
        is_bare = not (first.rows or first.payload_bytes or last.rows or last.payload_bytes)
        if not is_bare or first.index != due or last.index < due or (first.revision, last.revision) != (revision,) * 2:
            raise CorruptEffects(f"brief effects from index {due} on are those of {first.index} and {last.index}")
        due = last.index + 1
    if due != slab.next:
        raise CorruptEffects(f"brief effects end before index {due}, their entries before {slab.next}")
    return revision


def _whole(slab: Slab, entry: Heads) -> Effects:
    """The effects, of which all are there."""
    effects, positions = _heads(slab, len(entry))
    lengths, crcs = effects["length"].astype(np.int64), effects["payload_crc"]
    if lengths.any():
        pieces = Pieces(positions + EFFECTS_HEADER_SIZE + lengths, behind_headers(lengths, crcs))
        crcs = crcs[lengths == 0]
    else:
        pieces = Pieces(range(EFFECTS_HEADER_SIZE, len(slab.ledger) + 1, EFFECTS_HEADER_SIZE), RESIDUE)
    if crcs.any() or not crcs_hold(slab.ledger, [pieces], EFFECTS_HEADER_SIZE):
        raise _first_damage(slab, "the effects fail their CRC")
    word = effects.lines
    if ((word[0] & _EFFECTS_HEAD_BITS) != _EFFECTS_HEAD).any():
        if (word[0] & LOW != _EFFECTS_HEAD & LOW).any():
            raise CorruptEffects("no effects where they should be")
        raise UnknownEffects(f"effects after index {slab.first} have a version or flag that this code does not know")
    if not np.array_equal(effects.word(1), entry.word(2)):
        raise CorruptEffects(f"the effects after index {slab.first} are not those of the entries")
    return Effects(effects, positions)


def _heads(slab: Slab, count: int) -> tuple[Heads, Ints]:
    """The `count` heads, each found from the one before, and the position of each.

    Needs no loop when all are of one size, or when no payload looks like a head.
    """
    ledger = slab.ledger
    stride = len(ledger) // count
    if len(ledger) % count == 0 and stride >= EFFECTS_HEADER_SIZE:
        even = heads_of(ledger, EFFECTS, (range(0, count * stride, stride),))
        if (even["length"] == stride - EFFECTS_HEADER_SIZE).all():
            return even, np.arange(count) * stride
    data = np.frombuffer(ledger, np.uint8)
    found: Ints = np.flatnonzero(data[: len(data) - EFFECTS_HEADER_SIZE + 1] == EFFECTS_MAGIC[0])
    found = found[at(ledger, EFFECTS, found)["magic"] == int.from_bytes(EFFECTS_MAGIC, "little")]
    if len(found) == count and _is_chain(ledger, found):
        return heads_at(ledger, EFFECTS, found), found
    chain: list[int] = []  # a value in some payload spells the magic, or the bytes are damaged
    position = 0
    while position + EFFECTS_HEADER_SIZE <= len(ledger) and len(chain) < count:
        chain.append(position)
        position += EFFECTS_HEADER_SIZE + int.from_bytes(ledger[position + 28 : position + 32], "little")
    found = np.array(chain, np.int64)
    if len(found) != count or not _is_chain(ledger, found):
        raise _first_damage(slab, "the effects do not fill their bytes")
    return heads_at(ledger, EFFECTS, found), found


def _is_chain(ledger: memoryview, positions: Ints) -> bool:
    """Whether each head's length leads to the next, from the first byte to the last."""
    if not len(positions) or positions[0] != 0 or positions[-1] + EFFECTS_HEADER_SIZE > len(ledger):
        return False
    ends = positions + EFFECTS_HEADER_SIZE + at(ledger, EFFECTS, positions)["length"]
    return bool(np.array_equal(ends, np.append(positions[1:], len(ledger))))


def _first_damage(slab: Slab, otherwise: str) -> CorruptEffects:
    """The fault of the first damaged effects, found by checking each."""
    position = 0
    try:
        while position < len(slab.ledger):
            decode_effects(slab.ledger, position)
            length = int.from_bytes(slab.ledger[position + 28 : position + 32], "little")
            position += EFFECTS_HEADER_SIZE + length
    except (CorruptEffects, UnknownEffects) as error:
        return CorruptEffects(f"in the chunk at index {slab.first}: {error}")
    return CorruptEffects(f"in the chunk at index {slab.first}: {otherwise}")
