"""Snapshots on disk: written aside chunk by chunk, synced, renamed, and checked whole before one is used.

snapshots/<index:020d>/meta     raft.formats.encode_snapshot_meta
snapshots/<index:020d>/chunks   per chunk a header (length, chained CRC) and its bytes
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster.disk_errors import SnapshotDamaged
from cluster.disk_files import ShortWrite, sync_folder, write_new
from raft.codec import Corrupt, crc32c, decode_configuration, encode_configuration
from raft.configuration import Configuration
from raft.formats import (
    CHUNK_BYTES_MAX,
    CHUNK_HEADER_SIZE,
    Log,
    SnapshotMeta,
    decode_chunk_header,
    decode_snapshot_meta,
    encode_chunk,
    encode_snapshot_meta,
)
from raft.types import Mark

SNAPSHOTS: Final = "snapshots"
SNAPSHOTS_KEPT: Final = 2
_ASIDE: Final = ".new"


@dataclass(frozen=True, slots=True)
class RecoveredSnapshot:
    """A snapshot that passed every check: the state after the entry of `mark`."""

    mark: Mark
    configuration: Configuration
    configuration_index: int
    size: int
    folder: Path

    def chunks(self) -> Iterator[bytes]:
        """Its chunks in order, checked again. Raises SnapshotDamaged."""
        return read_chunks(self.folder)


class SnapshotWriter:
    """Writes one snapshot; nobody sees it before `finish`."""

    __slots__ = ("_chunks", "_crc", "_descriptor", "_final", "_folder", "_log", "_size")

    def __init__(self, shard: Path, log: Log, index: int) -> None:
        self._log = log
        self._final = shard / SNAPSHOTS / f"{index:020d}"
        self._folder = self._final.with_name(self._final.name + _ASIDE)
        self._chunks = self._size = self._crc = 0
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(self._folder / "chunks", flags, 0o644)

    def add(self, chunk: bytes) -> None:
        """Writes one chunk. Raises OSError, or ValueError for one that is too large."""
        if len(chunk) > CHUNK_BYTES_MAX:
            raise ValueError(f"a snapshot chunk of {len(chunk)} bytes: the limit is {CHUNK_BYTES_MAX}")
        header, self._crc = encode_chunk(chunk, self._crc)
        data = header + chunk
        if (written := os.write(self._descriptor, data)) != len(data):
            raise ShortWrite(str(self._folder), written, len(data))
        self._chunks += 1
        self._size += len(chunk)

    def finish(self, mark: Mark, configuration: Configuration, configuration_index: int) -> None:
        """Syncs it and gives it its name (pitfall 56: the folder is synced after the rename). Raises OSError."""
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        meta = SnapshotMeta(
            mark, encode_configuration(configuration), configuration_index, self._chunks, self._size, self._crc
        )
        write_new(self._folder / "meta", encode_snapshot_meta(self._log, meta))
        sync_folder(self._folder)
        shutil.rmtree(self._final, ignore_errors=True)
        self._folder.rename(self._final)
        sync_folder(self._final.parent)

    def abandon(self) -> None:
        """Removes what was written; nothing to do after `finish`."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        shutil.rmtree(self._folder, ignore_errors=True)


def list_snapshots(shard: Path) -> list[Path]:
    """The folders of finished snapshots, newest first."""
    folder = shard / SNAPSHOTS
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.name.isdigit()), reverse=True)


def drop_old(shard: Path, kept: int = SNAPSHOTS_KEPT) -> None:
    """Removes all but the newest ones, and what was left unfinished. Raises OSError."""
    for path in list_snapshots(shard)[kept:]:
        # The name goes first: a half-removed snapshot must not look like one.
        aside = path.with_name(path.name + _ASIDE)
        path.rename(aside)
    folder = shard / SNAPSHOTS
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.endswith(_ASIDE):
            shutil.rmtree(path)


def open_snapshot(folder: Path, log: Log) -> RecoveredSnapshot:
    """Reads and checks a snapshot, every byte. Raises SnapshotDamaged, or UnknownVersion, ForeignFile, OSError."""
    try:
        meta = decode_snapshot_meta(log, (folder / "meta").read_bytes())
        configuration = decode_configuration(meta.configuration)
    except (Corrupt, FileNotFoundError) as error:
        raise SnapshotDamaged(f"{folder}: {error}") from error
    if folder.name != f"{meta.mark.index:020d}":
        raise SnapshotDamaged(f"{folder}: it is a snapshot of index {meta.mark.index}")
    chunks = size = crc = 0
    for crc, chunk in _chunks(folder):  # noqa: B007 - the last one is wanted
        chunks += 1
        size += len(chunk)
    if (chunks, size, crc) != (meta.chunks, meta.size, meta.last_crc):
        raise SnapshotDamaged(
            f"{folder}: {chunks} chunks of {size} bytes, the meta file names {meta.chunks} of {meta.size}"
        )
    return RecoveredSnapshot(meta.mark, configuration, meta.configuration_index, size, folder)


def read_chunks(folder: Path) -> Iterator[bytes]:
    """The chunks of a snapshot, each CRC checked. Raises SnapshotDamaged."""
    for _, chunk in _chunks(folder):
        yield chunk


def _chunks(folder: Path) -> Iterator[tuple[int, bytes]]:
    crc = 0
    try:
        with open(folder / "chunks", "rb") as file:
            while header := file.read(CHUNK_HEADER_SIZE):
                length, wanted = decode_chunk_header(header)
                chunk = file.read(length)
                crc = crc32c(chunk, crc)
                if len(chunk) != length or crc != wanted:
                    raise Corrupt("a chunk fails its CRC")
                yield crc, chunk
    except (Corrupt, FileNotFoundError) as error:
        raise SnapshotDamaged(f"{folder}: {error}") from error
