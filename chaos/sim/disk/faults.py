"""Damages bytes at rest: flipped bits, blocks that went elsewhere or never arrived.

Damage is done only where the formats promise to notice it: in the newest segment below its newest durable mark
(`raftlog.chaos.sim.disk.newest` damages the bytes behind it), in the hard state in one of two equal slots. Each
function changes the disk and returns the file and the damage. Where no damage is allowed now, it returns None.
"""

from __future__ import annotations

from random import Random
from typing import Final

from raftlog.chaos.sim.disk.disk import Hit, SimDisk
from raftlog.chaos.sim.disk.files import SECTOR, is_segment
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.mark import MARK_SIZE
from raftlog.raft.wal.formats import (
    HARD_STATE,
    HARD_STATE_SLOT,
    LOG_FOLDER,
    SEGMENT_HEADER_SIZE,
    SLOT_SIZE,
    decode_segment_header,
    decode_slot,
)
from raftlog.raft.wal.recovery import ScannedEntry, scan
from raftlog.raft.wal.snapshot_files import SNAPSHOTS

Span = tuple[str, int, int]
"""A file, and from where to where in it."""

AREAS: Final = ("log", "history", "hard_state", "snapshot", "ledger", "idx")
"""Where a bit may flip: "log" is the newest segment, which every start reads whole, "history" a sealed one, which is
read when somebody asks for it."""

FATAL: Final = ("log", "history")
"""Areas whose damage takes entries away: a start cuts the log, or a read gives nothing."""


def flip_bit(disk: SimDisk, area: str, random: Random) -> Hit | None:
    """One bit is another one."""
    spans = _spans(disk, area, random)
    if not spans:
        return None
    name, start, end = random.choice(spans)
    position, bit = random.randrange(start, end), random.randrange(8)
    content = disk.files.nodes[name]
    content.hit(position, bytes([content.seen[position] ^ 1 << bit]))
    return name, f"bit {bit} of byte {position} of {name} flipped"


def misdirect(disk: SimDisk, area: str, random: Random) -> Hit | None:
    """A block was written over another one. Its own place keeps the bytes from before: zeros."""
    spans = [span for span in _spans(disk, area, random) if span[2] - span[1] >= 2 * SECTOR]
    if not spans:
        return None
    name, start, end = random.choice(spans)
    blocks = range(-(-start // SECTOR), end // SECTOR)
    if len(blocks) < 2:
        return None
    source, target = random.sample(blocks, 2)
    inode = disk.files.nodes[name]
    moved = bytes(inode.seen[source * SECTOR : (source + 1) * SECTOR])
    if moved == inode.seen[target * SECTOR : (target + 1) * SECTOR] or not any(moved):
        return None
    inode.hit(target * SECTOR, moved)
    inode.hit(source * SECTOR, bytes(SECTOR))
    return name, f"block {source} of {name} was written as block {target}"


def stale_block(disk: SimDisk, area: str, random: Random) -> Hit | None:
    """A write never reached the disk: the block keeps the bytes from before."""
    spans = _spans(disk, area, random)
    if not spans:
        return None
    name, start, end = random.choice(spans)
    inode = disk.files.nodes[name]
    if area == "hard_state":
        before = disk.old_hard_state[start : start + SLOT_SIZE]
        if not before or before == inode.seen[start:end]:
            return None
        inode.hit(start, before)
        return name, f"slot {start // HARD_STATE_SLOT} of {name} has an older hard state"
    block = random.randrange(start // SECTOR, -(-end // SECTOR))
    start, end = max(start, block * SECTOR), min(end, (block + 1) * SECTOR)
    if not any(inode.seen[start:end]):
        return None
    inode.hit(start, bytes(end - start))
    return name, f"bytes {start} to {end} of {name} were never written"


def _spans(disk: SimDisk, area: str, random: Random) -> list[Span]:
    """What of an area may be hit now."""
    nodes = disk.files.nodes
    if area == "hard_state":
        return _slots(disk)
    if area == "snapshot":
        names = [name for name in nodes if name.startswith(f"{SNAPSHOTS}/") and ".new/" not in name]
    elif area in ("ledger", "idx"):
        # A file beside a damaged segment may be the only proof of its entries: another fault must not take it, too.
        hurt = tuple(f"{name[:-4]}." for name in disk.damaged if name.endswith(".seg"))
        names = [name for name in nodes if name.startswith(LOG_FOLDER) and name.endswith(f".{area}")]
        names = [name for name in names if not (hurt and name.startswith(hurt))]
    else:
        segments = sorted(name for name in nodes if is_segment(name))
        names = segments[-1:] if area == "log" else segments[:-1]
        if not names:
            return []
        return _guarded(disk, random.choice(names), is_newest=area == "log")
    return [(name, 0, len(nodes[name].seen)) for name in sorted(names) if nodes[name].is_durable and nodes[name].seen]


def _guarded(disk: SimDisk, name: str, *, is_newest: bool) -> list[Span]:
    """Of a segment what must be noticed: up to the newest durable mark, of a sealed one all its entries. A mark behind
    the last of them is not: without it the segment is as whole as with it."""
    found = entries_at_rest(disk, name)
    if not found:
        return []
    end = found[-1]
    ends_with_a_mark = end.position == end.from_mark + MARK_SIZE
    return [(name, 0, end.from_mark if is_newest or ends_with_a_mark else end.position)]


def entries_at_rest(disk: SimDisk, name: str) -> list[ScannedEntry]:
    """What a scan of that segment finds, the end of its entries last; [] where it is damaged or not synced."""
    inode = disk.files.nodes[name]
    if not inode.is_durable or name in disk.damaged:
        return []
    try:
        return list(scan(disk.files, name, decode_segment_header(disk.log, bytes(inode.seen[:SEGMENT_HEADER_SIZE]))))
    except Corrupt:
        return []


def _slots(disk: SimDisk) -> list[Span]:
    """Either slot of the hard state, where both are intact and say the same."""
    inode = disk.files.nodes.get(HARD_STATE)
    if inode is None or not inode.is_durable or HARD_STATE in disk.damaged:
        return []
    spans = [(HARD_STATE, start, start + SLOT_SIZE) for start in (0, HARD_STATE_SLOT)]
    try:
        one, other = (decode_slot(disk.log, bytes(inode.seen[start:end])) for _, start, end in spans)
    except Corrupt:
        return []
    return spans if one == other else []
