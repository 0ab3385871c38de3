"""Writes snapshots as files: aside chunk by chunk, synced, renamed, and checked whole before use.

snapshots/<index:020d>/meta     raftlog.raft.wal.formats.encode_snapshot_meta
snapshots/<index:020d>/chunks   per chunk a header (length, chained CRC) and its bytes
snapshots/<index:020d>/installing   empty: it came from a leader, and the log has still to make room for it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.configuration import decode_configuration, encode_configuration
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import Mark
from raftlog.raft.wal.formats import (
    CHUNK_BYTES_MAX,
    CHUNK_HEADER_SIZE,
    ForeignFile,
    LogIdentity,
    SnapshotMeta,
    decode_chunk_header,
    decode_snapshot_meta,
    encode_chunk,
    encode_snapshot_meta,
)
from raftlog.raft.wal.operations import (
    Create,
    Delete,
    DeleteFolder,
    FileOperation,
    Files,
    MakeFolder,
    Rename,
    Sync,
    SyncFolder,
    Write,
)

SNAPSHOTS: Final = "snapshots"
SNAPSHOTS_KEPT: Final = 2
_ASIDE: Final = ".new"
_INSTALLING: Final = "installing"
SYNC_BYTES: Final = 8 << 20
"""Bytes written before a sync. One sync of the whole file at the end would delay every user of the disk, above all the
node's own log."""
_LENGTH: Final = Struct("<I")
_META_BYTES_MAX: Final = 1 << 20


class SnapshotDamaged(ValueError):
    """A snapshot fails its check; the message names the file and the reason."""

    def __init__(self, file: str, at: int, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file, self.at, self.reason = file, at, reason


class OtherSnapshot(SnapshotDamaged):
    """The files are those of a snapshot of another index."""


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot that passed every check: the state after the entry of `mark`."""

    mark: Mark
    configuration: Configuration
    configuration_index: int
    size: int
    folder: str


def snapshot_folder(index: int) -> str:
    """The folder of the snapshot of that index."""
    return f"{SNAPSHOTS}/{index:020d}"


class SnapshotPlan:
    """The operations that write one snapshot; it is invisible before `finish`."""

    __slots__ = ("_aside", "_chunks", "_crc", "_log", "_position", "_size", "_synced", "folder")

    def __init__(self, log: LogIdentity, index: int) -> None:
        self._log = log
        self.folder = snapshot_folder(index)
        self._aside = self.folder + _ASIDE
        self._chunks = self._size = self._crc = self._position = self._synced = 0

    def begin(self) -> list[FileOperation]:
        """A folder aside."""
        return [DeleteFolder(self._aside), MakeFolder(self._aside), Create(f"{self._aside}/chunks", b"")]

    def add(self, chunk: bytes) -> list[FileOperation]:
        """One more chunk; an empty one is none. Raises ValueError for one that is too large."""
        if not chunk:
            return []
        if len(chunk) > CHUNK_BYTES_MAX:
            raise ValueError(f"a snapshot chunk of {len(chunk)} bytes: the limit is {CHUNK_BYTES_MAX}")
        header, self._crc = encode_chunk(chunk, self._crc)
        write = Write(f"{self._aside}/chunks", self._position, header + chunk)
        self._position += len(write.data)
        self._chunks += 1
        self._size += len(chunk)
        if self._position - self._synced < SYNC_BYTES:
            return [write]
        self._synced = self._position
        return [write, Sync(write.name)]

    def finish(self, mark: Mark, configuration: Configuration, configuration_index: int) -> list[FileOperation]:
        """Syncs it and gives it its name (pitfall 56: the folder is synced after the rename)."""
        assert configuration_index <= mark.index, (configuration_index, mark)
        meta = SnapshotMeta(
            mark, encode_configuration(configuration), configuration_index, self._chunks, self._size, self._crc
        )
        return [
            Sync(f"{self._aside}/chunks"),
            Create(f"{self._aside}/meta", encode_snapshot_meta(self._log, meta)),
            Sync(f"{self._aside}/meta"),
            SyncFolder(self._aside),
            DeleteFolder(self.folder),
            Rename(self._aside, self.folder),
            SyncFolder(SNAPSHOTS),
        ]

    def abandon(self) -> list[FileOperation]:
        """Removes the written part; nothing to do after `finish`."""
        return [DeleteFolder(self._aside)]


def list_snapshots(files: Files) -> list[int]:
    """The indexes of finished snapshots, newest first."""
    return sorted((int(name) for name in files.names(SNAPSHOTS) if name.isdigit()), reverse=True)


def bytes_below(files: Files, index: int) -> int:
    """The bytes of the newest finished snapshot before that index; 0: there is none."""
    for each in list_snapshots(files):
        if each < index:
            folder = snapshot_folder(each)
            return sum([files.size(f"{folder}/{name}") for name in files.names(folder)])
    return 0


def drop_old(files: Files, kept: int | None = None) -> list[FileOperation]:
    """Removes unfinished snapshots, and all finished ones but the newest SNAPSHOTS_KEPT and that of index `kept`."""
    operations: list[FileOperation] = [
        DeleteFolder(f"{SNAPSHOTS}/{name}") for name in files.names(SNAPSHOTS) if name.endswith(_ASIDE)
    ]
    for index in list_snapshots(files)[SNAPSHOTS_KEPT:]:
        if index != kept:
            operations += remove(index)
    return operations


def remove(index: int) -> list[FileOperation]:
    """Removes a snapshot. Its name goes first: a half-removed one must not look like one."""
    folder = snapshot_folder(index)
    return [Rename(folder, folder + _ASIDE), DeleteFolder(folder + _ASIDE)]


def open_snapshot(files: Files, log: LogIdentity, index: int, folder: str = "") -> StoredSnapshot:
    """Reads and checks a snapshot, every byte, in `folder` before it has its name. Raises SnapshotDamaged,
    UnknownVersion or ForeignFile."""
    *_, stored = checking(files, log, index, folder or snapshot_folder(index))
    assert stored is not None
    return stored


def is_installing(files: Files, index: int) -> bool:
    """Whether the log has still to make room for that snapshot: a crash came between."""
    return files.size(f"{snapshot_folder(index)}/{_INSTALLING}") >= 0


def checking(files: Files, log: LogIdentity, index: int, folder: str) -> Iterator[StoredSnapshot | None]:
    """`open_snapshot` in steps, one for each chunk; the last one gives the snapshot."""
    name = f"{folder}/meta"
    try:
        meta = decode_snapshot_meta(log, files.read(name, 0, max(0, files.size(name))))
        configuration = decode_configuration(meta.configuration)
    except Corrupt as error:
        raise SnapshotDamaged(name, 0, str(error)) from error
    if index != meta.mark.index:
        raise OtherSnapshot(name, 0, f"it is a copy of the snapshot of index {meta.mark.index}")
    if meta.configuration_index > index:
        raise SnapshotDamaged(name, 0, f"it is of {index}, its configuration of {meta.configuration_index}")
    name = f"{folder}/chunks"
    chunks = size = crc = 0
    for crc, chunk in _chunks(files, name):  # noqa: B007 - the last one is wanted
        chunks += 1
        size += len(chunk)
        yield None
    if (chunks, size, crc) != (meta.chunks, meta.size, meta.last_crc):
        what = f"{chunks} chunks of {size} bytes, the meta file names {meta.chunks} of {meta.size}"
        raise SnapshotDamaged(name, chunks * CHUNK_HEADER_SIZE + size, what)
    yield StoredSnapshot(meta.mark, configuration, meta.configuration_index, size, folder)


# ---------------------------------------------------------------------------------------------------------------
# From a leader to a follower: length of meta, meta, chunks, as one row of bytes, in pieces of any size.


def read_piece(files: Files, log: LogIdentity, index: int, term: int, offset: int, bytes_max: int) -> tuple[int, bytes]:
    """Bytes of the snapshot (index, term) from `offset` on, after how many it has; (0, b"") where it is not there."""
    folder = snapshot_folder(index)
    meta = files.read(f"{folder}/meta", 0, max(0, files.size(f"{folder}/meta")))
    try:
        if decode_snapshot_meta(log, meta).mark.term != term:
            return 0, b""
    except (Corrupt, UnknownVersion, ForeignFile):
        return 0, b""
    head = _LENGTH.pack(len(meta)) + meta
    total = len(head) + max(0, files.size(f"{folder}/chunks"))
    data = head[offset : offset + bytes_max]
    if len(data) < bytes_max:
        position = max(0, offset - len(head))
        data += files.read(f"{folder}/chunks", position, bytes_max - len(data))
    return total, data


class Pieces:
    """The operations that write a snapshot aside as its pieces come; `Storage.install` makes it the newest one."""

    __slots__ = ("_aside", "_head", "_index", "_log", "_position", "_synced", "folder", "size")

    def __init__(self, log: LogIdentity, index: int) -> None:
        self._log, self._index = log, index
        self.folder = snapshot_folder(index)
        self._aside = self.folder + _ASIDE
        self._head = b""  # what came until meta was whole
        self._position = -1  # in the chunks file; -1 until then
        self._synced = 0  # of that file
        self.size = 0  # bytes that came

    def begin(self) -> list[FileOperation]:
        """A folder aside; one that was begun before goes."""
        return [DeleteFolder(self._aside), MakeFolder(self._aside), Create(f"{self._aside}/chunks", b"")]

    def add(self, data: bytes) -> list[FileOperation]:
        """The bytes that follow those that came. Raises SnapshotDamaged where they cannot be the start of one."""
        self.size += len(data)
        operations: list[FileOperation] = []
        if self._position < 0:
            self._head += data
            end = _LENGTH.size + (_LENGTH.unpack_from(self._head)[0] if len(self._head) >= _LENGTH.size else 0)
            if end > _META_BYTES_MAX:
                raise SnapshotDamaged(f"{self._aside}/meta", 0, f"a meta file of {end} bytes")
            if len(self._head) < max(end, _LENGTH.size + 1):
                return []
            meta, data = self._head[_LENGTH.size : end], self._head[end:]
            operations.append(Create(f"{self._aside}/meta", meta))
            self._head, self._position = b"", 0
        if data:
            operations.append(Write(f"{self._aside}/chunks", self._position, data))
            self._position += len(data)
        if self._position - self._synced >= SYNC_BYTES:
            operations.append(Sync(f"{self._aside}/chunks"))
            self._synced = self._position
        return operations

    def check(self, files: Files) -> StoredSnapshot:
        """Reads all that was written. Raises SnapshotDamaged, UnknownVersion or ForeignFile."""
        return open_snapshot(files, self._log, self._index, self._aside)

    def prepare(self) -> list[FileOperation]:
        """Syncs it, with a note in it that the log has still to make room for it."""
        return [
            Sync(f"{self._aside}/chunks"),
            Sync(f"{self._aside}/meta"),
            Create(f"{self._aside}/{_INSTALLING}", b""),
            SyncFolder(self._aside),
        ]

    def finish(self) -> list[FileOperation]:
        """Gives it its name. It was prepared, so this takes no disk space."""
        return [
            DeleteFolder(self.folder),
            Rename(self._aside, self.folder),
            SyncFolder(SNAPSHOTS),
        ]


def end_install(index: int) -> list[FileOperation]:
    """Removes the note that the log has still to make room for that snapshot."""
    folder = snapshot_folder(index)
    return [Delete(f"{folder}/{_INSTALLING}"), SyncFolder(folder)]


def read_chunks(files: Files, folder: str) -> Iterator[bytes]:
    """The chunks of a snapshot, each CRC checked. Raises SnapshotDamaged."""
    for _, chunk in _chunks(files, f"{folder}/chunks"):
        yield chunk


def _chunks(files: Files, name: str) -> Iterator[tuple[int, bytes]]:
    position = number = crc = 0
    while header := files.read(name, position, CHUNK_HEADER_SIZE):
        number += 1
        try:
            length, wanted = decode_chunk_header(header)
        except Corrupt as error:
            raise SnapshotDamaged(name, position, str(error)) from error
        chunk = files.read(name, position + CHUNK_HEADER_SIZE, length)
        crc = crc32c(chunk, crc)
        if len(chunk) != length or crc != wanted:
            raise SnapshotDamaged(name, position, f"chunk {number} fails its CRC")
        position += CHUNK_HEADER_SIZE + length
        yield crc, chunk
