"""Encodes and decodes `backup.json`, and follows the log of a backup entry by entry.

The manifest of a backup folder names each file that belongs to the backup, and the entry that the log ends with.
`raftlog.cluster.offline.take_backup` writes it last, so a file that it does not name is no part of the backup.
Layout: docs/formats.md. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from raftlog.cluster.records.backup_format import BackupDamaged
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.types import Entry, Mark
from raftlog.raft.wal.formats import intact_frame
from raftlog.raft.wal.reading import entries_in

MANIFEST: Final = "backup.json"
MANIFEST_VERSION: Final = 1

RunName = str | msgspec.UnsetType
"""In a store: the run that wrote the file, which no other run then writes. Unset in a folder."""

_Number = Annotated[int, msgspec.Meta(ge=0)]


class LogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of raw chunks: whole entries that hold the records `first` to `last`, with their effects."""

    first: _Number
    last: _Number
    size: _Number  # bytes
    crc: _Number  # CRC32C of the whole file
    writer: RunName = msgspec.UNSET

    @property
    def name(self) -> str:
        """Its name in the folder."""
        return f"{self.first:020d}-{self.last:020d}{_of(self.writer)}.log"


class EndOfLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest entry of the backup: the next one names its header CRC."""

    index: _Number
    term: _Number
    header_crc: _Number


class BackupManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a backup folder."""

    log: str  # the log id: 32 hex digits
    made_ms: int  # wall clock of the newest run
    state: _Number | None = None  # the index of the state; None: the first run has not ended
    files: tuple[LogFile, ...] = ()  # in the order of the log, without a gap
    end: EndOfLog | None = None  # None: no entry yet
    version: int = MANIFEST_VERSION
    state_writer: RunName = msgspec.UNSET

    @property
    def names(self) -> set[str]:
        """The files of the backup."""
        state = set() if self.state is None else {state_name(self.state, self.state_writer)}
        return {MANIFEST, *(file.name for file in self.files)} | state


def state_name(index: int, writer: RunName) -> str:
    """The file of the state as of that index, a backup as `raftlog backup --state-only` makes one."""
    return f"state-{index:020d}{_of(writer)}.backup"


def _of(writer: RunName) -> str:
    return f"-{writer}" if writer else ""


class _Versioned(msgspec.Struct):
    version: int


_version_of: Final = msgspec.json.Decoder(_Versioned).decode
_decode: Final = msgspec.json.Decoder(BackupManifest).decode


def encode_manifest(manifest: BackupManifest) -> bytes:
    """The bytes of `backup.json`."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(data: bytes) -> BackupManifest:
    """The manifest. Raises BackupDamaged, or UnknownVersion for one of a newer raftlog."""
    try:
        if _version_of(data).version > MANIFEST_VERSION:
            raise UnknownVersion(f"it is of a newer version: this code knows {MANIFEST_VERSION}; use a newer raftlog")
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackupDamaged(f"it cannot be read: {error}") from error


def followed(segment: bytes, ledger: bytes, end: Mark | None) -> Iterator[tuple[Entry, bytes]]:
    """The entries of a raw chunk with their effects. Every CRC is checked, and that each follows the one before.

    `end`: the end of the entry before; None: the chunk begins a log. Raises Corrupt or UnknownVersion.
    """
    at = 0
    for entry in entries_in(segment):
        end = before_first(entry) if end is None else end
        if (entry.before, entry.previous_crc) != (end.index, end.header_crc) or entry.term < end.term:
            raise Corrupt(f"entry {entry.index} of term {entry.term} does not follow entry {end.index}")
        frame = intact_frame(ledger, at, entry.index)
        yield entry, frame
        at += len(frame)
        end = entry.mark


def before_first(entry: Entry) -> Mark:
    """A mark that a log may begin behind, where `entry` is its first one and the entry before was trimmed.

    Term and times of that entry are not known, and those of `entry` stand for them. The log stays safe: no other entry
    of this index can have this term, because the leader of the term made none there.
    """
    return Mark(entry.before, entry.term, entry.previous_crc, entry.time_ms, entry.clock_ms) if entry.before else Mark()
