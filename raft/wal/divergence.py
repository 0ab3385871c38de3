"""Keeps the note of a node whose state differed from the majority's: the snapshots with which it may not begin.

    diverged      index of the newest digest point at which its state was right, and of the one at which it was not

The log of such a node is intact; only its state is wrong. So its next start trusts no snapshot from that point on, and
no effects behind the newest snapshot that it trusts. It rebuilds its state by replay, and removes the note. If the log
does not reach back that far, the start is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.wal.formats import FORMAT_VERSION, LogIdentity
from raftlog.raft.wal.operations import Create, Delete, FileOperation, Files, Rename, Sync, SyncFolder
from raftlog.raft.wal.snapshot_files import SNAPSHOTS, StoredSnapshot, list_snapshots, remove

NOTE: Final = "diverged"
NOTE_MAGIC: Final = b"RLDV"
# magic, version, log id, shard, newest point at which the state was right (0: not known), point at which it was not
_NOTE: Final = Struct("<4sB3x16sIQQ")
_CRC: Final = Struct("<I")
NOTE_BYTES: Final = _NOTE.size + _CRC.size


class CannotRebuild(ValueError):
    """The state was wrong, and the log does not reach back to where it was right."""


@dataclass(frozen=True, slots=True)
class DivergenceNote:
    """`agreed`: the newest point at which the state was the majority's; 0: none that the process knew of."""

    agreed: int
    point: int


def encode_note(log: LogIdentity, note: DivergenceNote) -> bytes:
    """The bytes of the file."""
    head = _NOTE.pack(NOTE_MAGIC, FORMAT_VERSION, log.log_id, log.shard, note.agreed, note.point)
    return head + _CRC.pack(crc32c(head))


def decode_note(log: LogIdentity, data: bytes) -> DivergenceNote:
    """The note. Raises Corrupt, UnknownVersion or ForeignFile."""
    if len(data) != NOTE_BYTES or data[:4] != NOTE_MAGIC:
        raise Corrupt(f"{NOTE}: {len(data)} bytes that are no such note")
    if _CRC.unpack_from(data, _NOTE.size)[0] != crc32c(data[: _NOTE.size]):
        raise Corrupt(f"{NOTE} fails its CRC")
    _, version, log_id, shard, agreed, point = _NOTE.unpack_from(data)
    if version != FORMAT_VERSION:
        raise UnknownVersion(f"{NOTE} of version {version}: this code knows {FORMAT_VERSION}")
    log.check(NOTE, log_id, shard)
    return DivergenceNote(agreed, point)


def keep(log: LogIdentity, note: DivergenceNote) -> list[FileOperation]:
    """What writes the note: it is there whole, or not at all."""
    aside = f"{NOTE}.new"
    return [Create(aside, encode_note(log, note)), Sync(aside), Rename(aside, NOTE), SyncFolder("")]


def find(log: LogIdentity, files: Files) -> DivergenceNote | None:
    """The note of the process before, if it left one; one that cannot be read lets nothing be trusted. Raises
    UnknownVersion or ForeignFile."""
    size = files.size(NOTE)
    if size < 0:
        return None
    try:
        return decode_note(log, files.read(NOTE, 0, size))
    except Corrupt:
        return DivergenceNote(0, 0)


def trusted(note: DivergenceNote, snapshots: list[StoredSnapshot], first: int) -> list[StoredSnapshot]:
    """Those of the snapshots that may be begun with; `first` is where the log begins. Raises CannotRebuild."""
    older = [snapshot for snapshot in snapshots if snapshot.mark.index < note.agreed]
    if first > 1 and not any(snapshot.mark.index >= first - 1 for snapshot in older):
        raise CannotRebuild(
            f"the state of this node differed from that of a majority at the digest point {note.point}, and it cannot "
            f"be rebuilt: the log begins at {first}, and no snapshot from before point {note.agreed} reaches it"
        )
    return older


def drop(note: DivergenceNote, files: Files) -> list[FileOperation]:
    """Removes the snapshots that are not trusted."""
    operations: list[FileOperation] = []
    for index in list_snapshots(files):
        if index >= note.agreed:
            operations += remove(index)
    return [*operations, SyncFolder(SNAPSHOTS)]


def done() -> list[FileOperation]:
    """Removes the note: snapshots and effects that were wrong are gone."""
    return [Delete(NOTE), SyncFolder("")]
