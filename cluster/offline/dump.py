"""Prints the files of a stopped node as rows: hard state, segments, entries, records, marks, snapshots.

`raftlog disk dump` calls it. It reads with the decoders of `raft` and `statemachine` and changes nothing. If bytes
cannot
be decoded, it prints everything before them, notes the place in `troubles`, and continues with the next segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from raftlog.cluster.api.text import as_row
from raftlog.cluster.files.errors import FolderDamaged
from raftlog.cluster.files.folder import IDENTITY, SHARD, parse_identity
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.cluster.records.rows import KINDS, decode_rows
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.codec.entry import HEADER_SIZE, decode_header
from raftlog.raft.codec.mark import MARK_MAGIC, MARK_SIZE, decode_mark
from raftlog.raft.types import EntryKind
from raftlog.raft.wal.formats import (
    HARD_STATE,
    HARD_STATE_SLOT,
    LOG_FOLDER,
    SEGMENT_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    SLOT_SIZE,
    ForeignFile,
    LogIdentity,
    SegmentHeader,
    decode_segment_header,
    decode_slot,
    decode_snapshot_meta,
    ledger_name,
    segment_firsts,
    segment_name,
)
from raftlog.raft.wal.recovery import ScannedEntry, scan
from raftlog.raft.wal.snapshot_files import list_snapshots, snapshot_folder
from raftlog.statemachine.effects import (
    EFFECTS_HEADER_SIZE,
    CorruptEffects,
    Effects,
    UnknownEffects,
    decode_effects,
    decode_effects_header,
)

DumpRow = dict[str, Any]
_UNREADABLE: Final = (Corrupt, UnknownVersion, ForeignFile, CorruptEffects, UnknownEffects)


class DumpPart(StrEnum):
    """The kind of rows."""

    ENTRIES = "entries"
    RECORDS = "records"
    MARKS = "marks"
    SEGMENTS = "segments"
    STATE = "state"
    SNAPSHOTS = "snapshots"


@dataclass(slots=True)
class Dump:
    """The rows of one folder. `first` and `to` bound the indexes: from, and up to but not including."""

    folder: Path
    first: int = 1
    to: int | None = None
    troubles: list[str] = field(default_factory=list)
    _files: ShardFiles = field(init=False)
    _log: LogIdentity = field(init=False)

    def __post_init__(self) -> None:
        try:
            identity = parse_identity((self.folder / IDENTITY).read_bytes())
        except (Corrupt, UnknownVersion, FileNotFoundError) as error:
            raise FolderDamaged(f"{self.folder / IDENTITY}: {error}; `raftlog disk check` looks at the rest") from error
        self._log = LogIdentity(bytes.fromhex(identity.log_id))
        self._files = ShardFiles(self.folder / SHARD, read_only=True)

    def close(self) -> None:
        """Closes the files."""
        self._files.close()

    def rows(self, what: DumpPart) -> Iterator[DumpRow]:
        """The rows of that kind, in order."""
        match what:
            case DumpPart.ENTRIES:
                return self._entries()
            case DumpPart.RECORDS:
                return self._records()
            case DumpPart.MARKS:
                return self._marks()
            case DumpPart.SEGMENTS:
                return self._segments()
            case DumpPart.STATE:
                return self._state()
            case DumpPart.SNAPSHOTS:
                return self._snapshots()

    # -- beside the log

    def _state(self) -> Iterator[DumpRow]:
        for number in range(2):
            position = number * HARD_STATE_SLOT
            try:
                slot = decode_slot(self._log, self._files.read(HARD_STATE, position, SLOT_SIZE))
            except _UNREADABLE as error:
                self._trouble(HARD_STATE, position, error)
                continue
            yield {
                "slot": number,
                "sequence": slot.sequence,
                "term": slot.state.term,
                "vote": slot.state.vote,
                "boot": slot.state.boot,
                "cut": slot.cut,
            }

    def _snapshots(self) -> Iterator[DumpRow]:
        for index in reversed(list_snapshots(self._files)):
            name = f"{snapshot_folder(index)}/meta"
            try:
                meta = decode_snapshot_meta(self._log, self._files.read(name, 0, max(0, self._files.size(name))))
                configuration = decode_configuration(meta.configuration)
            except _UNREADABLE as error:
                self._trouble(name, 0, error)
                continue
            yield {
                "index": meta.mark.index,
                "term": meta.mark.term,
                "time_ms": meta.mark.time_ms,
                "clock_ms": meta.mark.clock_ms,
                "header_crc": _hex(meta.mark.header_crc),
                "chunks": meta.chunks,
                "bytes": meta.size,
                "last_crc": _hex(meta.last_crc),
                "configuration_index": meta.configuration_index,
                "configuration": as_row(configuration),
            }

    # -- the log

    def _segments(self) -> Iterator[DumpRow]:
        for header, _ in self._headers():
            previous = header.previous
            yield {
                "file": segment_name(header.first),
                "first": header.first,
                "bytes": header.size,
                "after_index": previous.index,
                "after_term": previous.term,
                "after_crc": _hex(previous.header_crc),
                "after_time_ms": previous.time_ms,
                "after_clock_ms": previous.clock_ms,
            }

    def _headers(self) -> Iterator[tuple[SegmentHeader, int | None]]:
        """The header of each segment, and the first index of the next one. Skips segments out of range."""
        firsts = segment_firsts(self._files.names(LOG_FOLDER))
        for first, following in zip(firsts, [*firsts[1:], None], strict=True):
            if (following is not None and following <= self.first) or (self.to is not None and first >= self.to):
                continue
            try:
                header = decode_segment_header(self._log, self._files.read(segment_name(first), 0, SEGMENT_HEADER_SIZE))
            except _UNREADABLE as error:
                self._trouble(segment_name(first), 0, error)
                continue
            yield header, following

    def _scan(self, header: SegmentHeader, following: int | None) -> Iterator[ScannedEntry]:
        """The entries in range. An early end is a trouble, except after the newest entry."""
        name = segment_name(header.first)
        found, last = None, header.previous.index
        try:
            for found in scan(self._files, name, header):
                if (entry := found.entry) is None:
                    break
                last = entry.index
                if self.to is not None and entry.first >= self.to:
                    return
                if entry.index >= self.first:
                    yield found
        except UnknownVersion as error:
            self._trouble(name, SEGMENT_HEADER_SIZE if found is None else found.position, error)
            return
        if found is not None and (found.reason or (following is not None and last + 1 != following)):
            self._trouble(name, found.position, Corrupt(found.reason or f"the entries end with {last}"))

    def _entries(self) -> Iterator[DumpRow]:
        for header, following in self._headers():
            for found in self._scan(header, following):
                entry = found.entry
                assert entry is not None  # only the last of a scan has none, and it is not yielded
                row: DumpRow = {
                    "index": entry.index,
                    "first": entry.first,
                    "count": entry.count,
                    "term": entry.term,
                    "kind": KINDS[entry.kind],
                    "time_ms": entry.time_ms,
                    "clock_ms": entry.clock_ms,
                    "bytes": entry.size,
                    "file": segment_name(header.first),
                    "position": found.position,
                    "crc": _hex(entry.mark.header_crc),
                    "previous_crc": _hex(entry.previous_crc),
                }
                if entry.kind is EntryKind.CONFIGURATION:
                    row["configuration"] = as_row(decode_configuration(entry.data))
                yield row

    def _records(self) -> Iterator[DumpRow]:
        """Records as `raftlog log` shows them; without `result` if their effects are missing."""
        for header, following in self._headers():
            frames = self._effects(ledger_name(header.first))
            effects = next(frames, None)
            for found in self._scan(header, following):
                entry = found.entry
                assert entry is not None  # as above
                while effects is not None and effects.index < entry.index:
                    effects = next(frames, None)
                own = effects if effects is not None and effects.index == entry.index else None
                try:
                    rows = list(decode_rows(entry, own or _NO_EFFECTS, max(self.first, entry.first)))
                except (Corrupt, UnknownVersion, KeyError) as error:
                    self._trouble(segment_name(header.first), found.position, error)
                    continue
                for row in rows:
                    if self.to is not None and row.index >= self.to:
                        return
                    shown = row._asdict()
                    if own is None:
                        shown |= {"result": None, "revision": None}
                    yield shown

    def _effects(self, name: str) -> Iterator[Effects]:
        position, size = SIDE_HEADER_SIZE, self._files.size(name)
        while position < size:
            head = self._files.read(name, position, EFFECTS_HEADER_SIZE)
            try:
                length = EFFECTS_HEADER_SIZE + decode_effects_header(head).payload_bytes
                effects = decode_effects(self._files.read(name, position, length))
            except (CorruptEffects, UnknownEffects):
                return  # the footer, the end, or damage: `raftlog disk check` distinguishes them
            yield effects
            position += length

    def _marks(self) -> Iterator[DumpRow]:
        for header, _ in self._headers():
            name = segment_name(header.first)
            position = SEGMENT_HEADER_SIZE
            while position + MARK_SIZE <= header.size:
                head = self._files.read(name, position, HEADER_SIZE)
                try:
                    if head[:4] == MARK_MAGIC:
                        mark = decode_mark(head, 0, position)
                        if mark.index >= self.first and (self.to is None or mark.index < self.to):
                            yield {
                                "index": mark.index,
                                "term": mark.term,
                                "crc": _hex(mark.header_crc),
                                "file": name,
                                "position": position,
                            }
                        position += MARK_SIZE
                        continue
                    if not any(head):
                        break
                    position += HEADER_SIZE + decode_header(head).length
                except (Corrupt, UnknownVersion) as error:
                    self._trouble(name, position, error)
                    break

    def _trouble(self, name: str, position: int, error: Exception) -> None:
        self.troubles.append(f"{SHARD}/{name}: at byte {position}: {error}")


_NO_EFFECTS: Final = Effects(0, 0, (), True)


def _hex(crc: int) -> str:
    return f"{crc:08x}"
