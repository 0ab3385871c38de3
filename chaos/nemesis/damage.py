"""Damages the files of a stopped node: a flipped bit or a cut end, in each kind of file.

It damages only places where the formats promise to notice (docs/formats.md, Undecidable). In the newest segment that is
below its newest durable mark, which a clean stop writes. Older marks are left alone, because a start writes them again.
Behind the newest mark it flips one bit, unless only zeros follow in that sector. It damages a hard state in both slots,
or in one of two equal ones.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.entry import decode_entry

Area = Literal[
    "log", "newest", "mark", "history", "ledger", "index", "hard-state", "hard-state-slot", "snapshot", "identity"
]
"""`log`: the newest segment, which every start reads whole. `newest`: its entries behind the newest durable mark.
`mark`: a durable mark of it that is not the newest. `history`: a sealed segment, which is read only for a reader of the
log.
"""

MARK: Final = b"RLMK"
MARK_BYTES: Final = 36
SEGMENT_HEADER_BYTES: Final = 80
SECTOR: Final = 512
SLOT_AT: Final = (0, 4_096)
SLOT_BYTES: Final = 80

_SHARD: Final = "shard-0"


@dataclass(frozen=True, slots=True)
class Hit:
    """The damage and its file; `first` is the first index of the segment if the file belongs to one, else 0."""

    file: Path
    what: str
    first: int = 0


def flip(data: Path, area: Area, chance: random.Random) -> Hit | None:
    """One bit is another one; None where there is no such file yet."""
    found = _spans(data, area, chance)
    if not found:
        return None
    file, spans = found
    bits = []
    for start, end in spans:
        position, bit = chance.randrange(start, end), chance.randrange(8)
        with file.open("r+b") as content:
            content.seek(position)
            byte = content.read(1)[0]
            content.seek(position)
            content.write(bytes([byte ^ 1 << bit]))
        bits.append(f"bit {bit} of byte {position}")
    return Hit(file, f"{' and '.join(bits)} of {file.relative_to(data)} flipped", _first_of(file))


def truncate(data: Path, area: Area, chance: random.Random) -> Hit | None:
    """The end of a file is gone; None where there is no such file yet."""
    found = _spans(data, area, chance)
    if not found:
        return None
    file, spans = found
    length = chance.randrange(*spans[0])
    size = file.stat().st_size
    with file.open("r+b") as content:
        content.truncate(length)
    return Hit(file, f"{file.relative_to(data)} cut from {size} to {length} bytes", _first_of(file))


def _spans(data: Path, area: Area, chance: random.Random) -> tuple[Path, list[tuple[int, int]]] | None:
    """A file of that kind, and where in it a byte is to be hit (in each of these places)."""
    shard = data / _SHARD
    if area == "identity":
        return _whole(data / "identity.json")
    if area in ("hard-state", "hard-state-slot"):
        slots = [(start, start + SLOT_BYTES) for start in SLOT_AT]
        if area == "hard-state":
            return shard / "hard_state", slots
        content = (shard / "hard_state").read_bytes()
        one, other = (content[start:end] for start, end in slots)
        return (shard / "hard_state", [chance.choice(slots)]) if one == other else None
    segments = sorted((shard / "log").glob("[0-9]*.seg"))
    if area == "newest":
        spans = _behind_the_mark(segments[-1].read_bytes()) if segments else []
        return (segments[-1], [chance.choice(spans)]) if spans else None
    if area in ("log", "mark"):
        entries, marks = _entries_and_marks(segments[-1].read_bytes())
        spans = entries if area == "log" else marks
        if not spans:
            return None
        return segments[-1], chance.choices(spans, [end - start for start, end in spans])
    match area:
        case "history":
            files = segments[:-1]
        case "ledger":
            files = sorted((shard / "log").glob("*.ledger"))[:-1]
        case "index":
            files = sorted((shard / "log").glob("*.idx"))
        case _:
            files = [file for file in sorted(shard.glob("snapshots/*/*")) if ".new" not in file.parent.name]
    if area == "history" and files:
        file = chance.choice(files)
        end = len(file.read_bytes().rstrip(b"\0"))
        return (file, [(0, end)]) if end else None
    return _whole(chance.choice(files)) if files else None


def _entries_and_marks(segment: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where below its newest durable mark a segment holds other things than marks, and where the older marks are."""
    starts = [found.start() for found in re.finditer(MARK, segment)]
    marks = [(start, start + MARK_BYTES) for start in starts[:-1]]
    ends = [0, *(end for _, end in marks)]
    return [(end, start) for end, start in zip(ends, starts, strict=False) if end < start], marks


def _behind_the_mark(segment: bytes) -> list[tuple[int, int]]:
    """Where intact entries behind the newest durable mark are, without each sector's last byte that is not zero."""
    position = segment.rfind(MARK) + MARK_BYTES if MARK in segment else SEGMENT_HEADER_BYTES
    spans: list[tuple[int, int]] = []
    while True:
        try:
            end = position + decode_entry(segment, position).size
        except Corrupt:
            return [(start, stop) for start, stop in spans if start < stop]
        while position < end:
            sector_end = (position // SECTOR + 1) * SECTOR
            last = len(segment[:sector_end].rstrip(b"\0")) - 1
            spans += [(position, min(last, end)), (max(position, last + 1), min(sector_end, end))]
            position = min(sector_end, end)


def _whole(file: Path) -> tuple[Path, list[tuple[int, int]]] | None:
    size = file.stat().st_size if file.exists() else 0
    return (file, [(0, size)]) if size else None


def _first_of(file: Path) -> int:
    return int(file.stem) if file.stem.isdigit() else 0
