"""Checks the ledger of one segment: the CRC of each frame, one frame for each entry in order, the footer, its samples.

`raftlog disk check` and scrubbing call it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from raftlog.cluster.files.check_segment import SegmentReport
from raftlog.cluster.files.findings import NEWER_CODE, NEXT_START, RESTORE, FileHealth, Finding, Steps
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.wal.formats import (
    LEDGER_FOOTER_SIZE,
    LEDGER_MAGIC,
    SIDE_HEADER_SIZE,
    ForeignFile,
    LogIdentity,
    check_side_header,
    decode_ledger_footer,
    ledger_footer_bytes,
    ledger_name,
)
from raftlog.raft.wal.ledger import read_footer
from raftlog.raft.wal.operations import Files, end_of_bytes
from raftlog.statemachine.effects import (
    EFFECTS_HEADER_SIZE,
    CorruptEffects,
    UnknownEffects,
    decode_effects,
    decode_effects_header,
)

WINDOW = 1 << 20


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """The finding about a ledger, and the newest entry up to which effects exist without a gap."""

    finding: Finding
    last: int


def looking_at_ledger(
    log: LogIdentity, files: Files, looked: SegmentReport, *, is_sealed: bool, mend: str = ""
) -> Steps[LedgerReport]:
    """Reads the ledger beside a segment, in steps, one for each frame. `mend`: the advice if it must be made again."""
    segment = looked.segment
    name = ledger_name(segment.first)
    before = segment.previous.index

    def found(state: FileHealth, what: str, position: int, last: int, then: str = mend) -> LedgerReport:
        return LedgerReport(Finding(name, state, what, position, last, then), last)

    size = files.size(name)
    if size < 0:
        then = NEXT_START if mend != RESTORE else RESTORE
        return LedgerReport(Finding(name, FileHealth.MISSING, "there is no such file", mend=then), before)
    try:
        check_side_header(log, LEDGER_MAGIC, segment.previous, files.read(name, 0, SIDE_HEADER_SIZE))
    except Corrupt as error:
        return found(FileHealth.DAMAGED, str(error), 0, before)
    except ForeignFile as error:
        return found(FileHealth.FOREIGN, str(error), 0, before)
    except UnknownVersion as error:
        return found(FileHealth.NEWER, str(error), 0, before, NEWER_CODE)
    return (yield from _Frames(files, name, size, looked, is_sealed=is_sealed, mend=mend).look())


class _Frames:
    """The frames of one ledger, read in order."""

    def __init__(
        self, files: Files, name: str, size: int, looked: SegmentReport, *, is_sealed: bool, mend: str
    ) -> None:
        self._files, self._name, self._size, self._looked = files, name, size, looked
        self._is_sealed, self._mend = is_sealed, mend
        self._position = SIDE_HEADER_SIZE
        self._last = looked.segment.previous.index
        self._sampled: dict[int, int] = {}  # places of frames that the footer names and that were not read yet
        with suppress(UnknownVersion):  # reported once the frames were read
            if (footer := read_footer(files, name)) is not None:
                self._sampled.update(zip(footer.samples[0::2], footer.samples[1::2], strict=True))
        self._count = 0

    def look(self) -> Steps[LedgerReport]:
        """Reads every frame, then the bytes after them."""
        buffer, base = b"", 0
        for index in self._looked.ends:
            offset = self._position - base
            if len(buffer) - offset < EFFECTS_HEADER_SIZE:
                buffer, base, offset = self._files.read(self._name, self._position, WINDOW), self._position, 0
            if not any(buffer[offset : offset + EFFECTS_HEADER_SIZE]):
                return self._end_early(index)
            try:
                size = EFFECTS_HEADER_SIZE + decode_effects_header(buffer, offset).payload_bytes
                if offset + size > len(buffer):
                    wanted = max(WINDOW, size)
                    buffer, base, offset = self._files.read(self._name, self._position, wanted), self._position, 0
                effects = decode_effects(buffer, offset)
            except CorruptEffects as error:
                if (
                    self._position + len(buffer) - offset >= self._size
                    and not self._is_sealed
                    and "short" in str(error)
                ):
                    return self._end_early(index)
                return self._wrong(f"{error} (effects of entry {index})")
            except UnknownEffects as error:
                return self._found(FileHealth.NEWER, str(error), NEWER_CODE)
            if effects.index != index:
                return self._wrong(f"effects of entry {effects.index} where those of {index} should be")
            if self._sampled.get(index) == self._position:
                del self._sampled[index]
            self._position += size
            self._last = index
            self._count += 1
            yield
        return self._behind()

    def _end_early(self, index: int) -> LedgerReport:
        """The frames end before the entries do: a crash leaves that, unless other bytes follow."""
        if end_of_bytes(self._files, self._name, self._position, self._size) > self._position + EFFECTS_HEADER_SIZE:
            return self._wrong(f"no effects of entry {index}, but other bytes")
        what = f"effects of {self._count} of {len(self._looked.ends)} entries; replay makes those from {index} on"
        return self._found(FileHealth.UNFINISHED, what, NEXT_START)

    def _behind(self) -> LedgerReport:
        """Checks the footer, or the end of the file."""
        if not self._looked.is_whole:
            what = f"effects of its first {self._count} entries; there is nothing to compare the others with"
            return self._found(FileHealth.INTACT, what, "")
        if self._size == self._position:
            if self._is_sealed:
                return self._found(
                    FileHealth.UNFINISHED, f"effects of {self._count} entries, no footer yet", NEXT_START
                )
            return self._found(FileHealth.INTACT, f"effects of {self._count} entries, no footer yet", "")
        try:
            tail = self._files.read(self._name, max(0, self._size - LEDGER_FOOTER_SIZE), LEDGER_FOOTER_SIZE)
            wanted = ledger_footer_bytes(tail)
            start = max(0, self._size - wanted)
            footer = decode_ledger_footer(self._files.read(self._name, start, wanted), self._size)
        except Corrupt as error:
            end = end_of_bytes(self._files, self._name, self._position, self._size)
            if not self._is_sealed and end == self._position:
                return self._found(FileHealth.UNFINISHED, f"{error}", NEXT_START)
            return self._found(FileHealth.DAMAGED, str(error), NEXT_START)
        except UnknownVersion as error:
            return self._found(FileHealth.NEWER, str(error), NEWER_CODE)
        if (footer.last, footer.end) != (self._last, self._position):
            return self._wrong(f"its footer names entry {footer.last} and byte {footer.end} as the end")
        if self._sampled:
            return self._wrong("its footer names places at which no such effects are")
        return self._found(FileHealth.INTACT, f"effects of {self._count} entries and the footer", "")

    def _wrong(self, what: str) -> LedgerReport:
        return self._found(FileHealth.DAMAGED, what, self._mend)

    def _found(self, state: FileHealth, what: str, mend: str) -> LedgerReport:
        position = None if state is FileHealth.INTACT else self._position
        index = None if state is FileHealth.INTACT else self._last
        return LedgerReport(Finding(self._name, state, what, position, index, mend), self._last)
