"""Reads sealed segments from a node's data folder on the machine where a task runs: slabs as over HTTP, without a node.

A segment counts only when its ledger ends with an intact footer. The node writes the footer once it has applied every
entry of the segment and synced all files. Only committed entries are applied, so such files are final. The cluster
serves the rest: newer or trimmed records, another log, a missing folder.

The .idx rows and the entry's header say where an entry begins and ends. The samples in the footer say where its effects
do. None of that is trusted: `frames.locate` checks every byte and index of the result.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.entry import HEADER_SIZE, EntryHeader, decode_header
from raftlog.raft.codec.index_rows import IDX_ROW
from raftlog.raft.wal.formats import (
    FRAME_HEADER_SIZE,
    FRAME_LENGTH_BYTES,
    INDEX_MAGIC,
    LEDGER_FOOTER_SIZE,
    LEDGER_MAGIC,
    SEGMENT_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    ForeignFile,
    LedgerFooter,
    LogIdentity,
    check_side_header,
    decode_ledger_footer,
    decode_segment_header,
    ledger_footer_bytes,
    peek_frame,
)
from raftlog.spark_export.columns.slab import Slab, slab_of

PIECE_BYTES: Final = 4 << 20
"""Of the segment in one slab, about: as of those that come over HTTP."""
_LOG: Final = Path("shard-0") / "log"
_WINDOW: Final = 256 << 10  # of a ledger, looked through for where effects end
_REACH: Final = 8  # frames of one size that are first looked at together, and then twice as many each time
_DAMAGE: Final = (OSError, Corrupt, UnknownVersion, ForeignFile)


def slabs(folders: tuple[str, ...], log_id: str, position: int, stop: int) -> Iterator[Slab]:
    """Slabs one behind the other, from the entry that holds `position` to the one before `stop`.

    They reach as far as sealed segments of that log in these folders go without a gap. A missing or damaged file ends
    them without an error.
    """
    log = LogIdentity(bytes.fromhex(log_id))
    with suppress(*_DAMAGE):
        while position < stop:
            with ExitStack() as stack:
                sealed = next(filter(None, (_sealed(Path(folder), log, position, stack) for folder in folders)), None)
                if sealed is None:
                    return
                for slab in sealed.slabs(position, stop):
                    yield slab
                    position = slab.next


def _sealed(folder: Path, log: LogIdentity, position: int, stack: ExitStack) -> "_SealedSegment | None":
    """The segment with that index, its files open until the stack ends; None where this folder has none."""
    try:
        firsts = sorted(int(name[:-7]) for name in os.listdir(folder / _LOG) if name.endswith(".ledger"))
        place = bisect_right(firsts, position) - 1
        if place < 0:
            return None
        files = [stack.enter_context(_File(folder / _LOG / f"{firsts[place]:020d}{kind}")) for kind in _KINDS]
        segment, index, ledger = files
        header = decode_segment_header(log, segment.read(0, SEGMENT_HEADER_SIZE))
        check_side_header(log, INDEX_MAGIC, header.previous, index.read(0, SIDE_HEADER_SIZE))
        check_side_header(log, LEDGER_MAGIC, header.previous, ledger.read(0, SIDE_HEADER_SIZE))
        footer = _footer(ledger)
    except _DAMAGE:
        return None
    return _SealedSegment(header.first, footer, segment, index, ledger) if position <= footer.last else None


_KINDS: Final = (".seg", ".idx", ".ledger")


def _footer(ledger: "_File") -> LedgerFooter:
    size = os.fstat(ledger.descriptor).st_size
    tail = ledger.read(size - LEDGER_FOOTER_SIZE, LEDGER_FOOTER_SIZE)
    wanted = ledger_footer_bytes(tail)
    return decode_ledger_footer(ledger.read(size - wanted, wanted), size)


class _File:
    """A file that is read by position."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def read(self, position: int, size: int) -> bytes:
        """So many bytes. Raises Corrupt where there are fewer."""
        return bytes(self.take(position, size))

    def take(self, position: int, size: int) -> memoryview:
        """As `read`, in memory that may be written to."""
        found = np.empty(max(size, 0), np.uint8).data
        if size <= 0 or position < 0 or os.preadv(self.descriptor, [found], position) != size:
            raise Corrupt(f"no {size} bytes at {position}")
        return found


@dataclass(frozen=True, slots=True)
class _SealedSegment:
    """One sealed segment."""

    first: int
    footer: LedgerFooter
    segment: _File
    index: _File
    ledger: _File

    def slabs(self, position: int, stop: int) -> Iterator[Slab]:
        """From the entry that holds `position` on. Raises Corrupt, UnknownVersion or OSError."""
        stop = min(stop, self.footer.last + 1)
        place, header = self._entry(position)
        position = header.index - header.count + 1
        effects = self._effects_of(header.index)
        each = max(1, os.fstat(self.segment.descriptor).st_size // (self.footer.last + 1 - self.first))
        while position < stop:
            place, header = self._entry(min(position + PIECE_BYTES // each, stop - 1))
            end = place + HEADER_SIZE + header.length
            rows = self.index.read(self._row(position), IDX_ROW.size * (header.index + 1 - position))
            begin = int(IDX_ROW.unpack_from(rows)[0])
            entries = np.frombuffer(rows, "<u4")[:: IDX_ROW.size // 4]
            count = 1 + int(np.count_nonzero(entries[1:] != entries[:-1]))
            size = self._effects_bytes(effects, count)
            is_brief = count == len(entries) and size == count * FRAME_HEADER_SIZE
            ledger = self._ends(effects, size) if is_brief else self.ledger.take(effects, size)
            segment = self.segment.take(begin, end - begin)
            yield slab_of(position, [(rows, begin, len(segment))], segment, ledger, is_brief=is_brief)
            position, effects = header.index + 1, effects + size

    def _row(self, index: int) -> int:
        return SIDE_HEADER_SIZE + IDX_ROW.size * (index - self.first)

    def _entry(self, index: int) -> tuple[int, EntryHeader]:
        """Where the entry that holds a record begins, and its header."""
        place = int(IDX_ROW.unpack(self.index.read(self._row(index), IDX_ROW.size))[0])
        header = decode_header(self.segment.read(place, HEADER_SIZE))
        if not header.index - header.count < index <= header.index <= self.footer.last:
            raise Corrupt(f"the row of record {index} leads to entry {header.index} of {header.count} records")
        return place, header

    def _effects_of(self, index: int) -> int:
        """Where the effects of the entry that ends there begin."""
        indexes, positions = self.footer.samples[0::2], self.footer.samples[1::2]
        sample = bisect_right(indexes, index) - 1
        position = positions[sample] if sample >= 0 else SIDE_HEADER_SIZE
        window = self.ledger.read(position, min(_WINDOW, self.footer.end - position))
        offset = 0
        while offset + FRAME_HEADER_SIZE <= len(window):
            found, size = peek_frame(window, offset)
            if found >= index or not size:
                break
            offset += size
        return position + offset

    def _ends(self, position: int, size: int) -> memoryview:
        """The first and the last of the effects there, which have no payload."""
        last = position + size - FRAME_HEADER_SIZE
        return memoryview(self.ledger.read(position, FRAME_HEADER_SIZE) + self.ledger.read(last, FRAME_HEADER_SIZE))

    def _effects_bytes(self, position: int, count: int) -> int:
        """How long the effects of so many entries are together: frames of one size that follow one another are passed
        over at once."""
        begin, reach = position, _REACH
        window, base = b"", 0
        while count:
            offset = position - base
            if len(window) - offset < FRAME_HEADER_SIZE:
                window, base, offset = self.ledger.read(position, min(_WINDOW, self.footer.end - position)), position, 0
                if len(window) < FRAME_HEADER_SIZE:
                    raise Corrupt(f"no effects at {position}")
            size = peek_frame(window, offset)[1]
            if not size:
                raise Corrupt(f"no effects at {position}")
            whole = min(count, reach, 1 + (len(window) - offset - FRAME_HEADER_SIZE) // size)
            lengths = np.ndarray((whole,), "<u4", window, offset + FRAME_LENGTH_BYTES[0], (size,))
            differs = np.flatnonzero(lengths != size - FRAME_HEADER_SIZE)
            alike = int(differs[0]) if len(differs) else whole
            count, position = count - alike, position + alike * size
            reach = 2 * reach if alike == reach else _REACH
        return position - begin
