"""Damages what a machine wrote last before it lost power: the newest batch, its mark, its row, its effects.

A start needs a proof that the batch was synced; without one it takes the damage for a torn write (docs/formats.md,
Undecidable). This module looks for the proofs in another way than `raftlog.raft.wal.evidence`. No promise covers damage
without a proof, so such damage is not done to an entry that the node had acknowledged.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

from raftlog.chaos.sim.disk.disk import Hit, SimDisk
from raftlog.chaos.sim.disk.faults import entries_at_rest
from raftlog.chaos.sim.disk.files import SECTOR, is_segment
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.entry import HEADER_SIZE
from raftlog.raft.codec.index_rows import IDX_ROW, index_rows
from raftlog.raft.codec.mark import MARK_SIZE
from raftlog.raft.types import Entry
from raftlog.raft.wal.formats import (
    FRAME_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    decode_frame_header,
)

REGIONS: Final = ("header", "data", "mark", "row", "effects")


class Place(NamedTuple):
    """A region of the newest batch: bytes of a file, and the entry that they belong to (0 and none for others)."""

    region: str
    file: str
    start: int
    end: int
    entry: Entry | None = None
    position: int = 0  # of the entry


def places(disk: SimDisk) -> list[Place]:
    """What may be hit of a disk at rest: the entries behind the newest durable mark, that mark, the newest row and the
    newest effects; nothing where the newest segment was hit already."""
    nodes = disk.files.nodes
    name = max((name for name in nodes if is_segment(name)), default="")
    scanned = entries_at_rest(disk, name) if name else []
    if not scanned:
        return []
    ended = scanned[-1]
    found: list[Place] = []
    for each in scanned:
        if each.entry is not None and each.position >= ended.from_mark:
            body, entry = each.position + HEADER_SIZE, each.entry
            found.append(Place("header", name, each.position, body, entry, each.position))
            found.append(Place("data", name, body, body + len(entry.data), entry, each.position))
    if ended.from_mark > SEGMENT_HEADER_SIZE:
        found.append(Place("mark", name, ended.from_mark, ended.from_mark + MARK_SIZE))
    for region, file, size in (("row", f"{name[:-4]}.idx", IDX_ROW.size), ("effects", f"{name[:-4]}.ledger", 64)):
        inode = nodes.get(file)
        if inode is not None and file not in disk.damaged and len(inode.seen) > SIDE_HEADER_SIZE:
            found.append(Place(region, file, max(SIDE_HEADER_SIZE, len(inode.seen) - size), len(inode.seen)))
    return [place for place in found if place.end > place.start]


def flip(disk: SimDisk, place: Place, position: int, mask: int) -> Hit | None:
    """Flips the bits of `mask` in one byte of that place; None where no promise covers that damage."""
    if place.entry is not None and not is_noticed(disk, place, position, mask):
        return None
    inode = disk.files.nodes[place.file]
    inode.hit(position, bytes([inode.seen[position] ^ mask]))
    return place.file, f"byte {position} of {place.file} (the newest {place.region}) changed by {mask:#04x}"


def is_noticed(disk: SimDisk, place: Place, position: int, mask: int) -> bool:
    """Whether that damage to an entry breaks no promise: it was never promised, something proves its sync, or one bit
    is wrong, and not one behind which its sector holds nothing."""
    assert place.entry is not None
    if place.entry.before >= disk.view.durable_last or has_proof(disk, place.entry, place.position, place.file):
        return True
    rest = bytes(disk.files.nodes[place.file].seen[position : (position // SECTOR + 1) * SECTOR])
    return mask.bit_count() == 1 and (rest[0] ^ mask != 0 or any(rest[1:]))


def has_proof(disk: SimDisk, entry: Entry, position: int, segment: str) -> bool:
    """Whether the row of the entry or its effects are on the disk, and all effects before them."""
    files, first = disk.files, int(segment.rpartition("/")[2][:-4])
    rows = index_rows(entry, position)
    at = SIDE_HEADER_SIZE + IDX_ROW.size * (entry.first - first)
    found = files.read(f"{segment[:-4]}.idx", at, len(rows))
    if any(found[i : i + IDX_ROW.size] == rows[i : i + IDX_ROW.size] for i in range(0, len(rows), IDX_ROW.size)):
        return True
    ledger = files.read(f"{segment[:-4]}.ledger", SIDE_HEADER_SIZE, 1 << 30)
    before = [each for each in disk.view.entries if first <= each.index <= entry.index]
    return _has_effects(ledger, before)


def _has_effects(ledger: bytes, entries: list[Entry]) -> bool:
    """Whether the frames of these entries are there, one behind the other."""
    at = 0
    for entry in entries:
        try:
            index, payload_bytes, _ = decode_frame_header(ledger, at)
        except Corrupt:
            return False
        if index != entry.index:
            return False
        at += FRAME_HEADER_SIZE + payload_bytes
    return bool(entries)


def flip_newest(disk: SimDisk, random: Random) -> tuple[str, str]:
    """Flips one bit of a random place, or several of one byte; returns the region and the damage as text. The damage is
    empty where no promise covers it; both are empty where the disk has no such bytes."""
    found = places(disk)
    if not found:
        return "", ""
    region = random.choice(sorted({place.region for place in found}))
    place = random.choice([place for place in found if place.region == region])
    mask = 1 << random.randrange(8) if random.randrange(2) else random.randint(1, 255)
    return region, disk.hit(flip(disk, place, random.randrange(place.start, place.end), mask))
