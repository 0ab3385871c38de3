"""Reads a backup, in a folder or in an object store, and gives its log and the state after its newest entry.

Every byte of it is checked. `raftlog restore` makes data folders from that, and `raftlog disk check` only reads it. The
files of the log must follow each other, and the state must be that of one of its entries. The entries behind the state
are applied to it, and their effects must be those that the nodes of the cluster had computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raftlog.cluster.client.cursors import BadStream, RawCursor
from raftlog.cluster.files.stopped_folder import OnBytesRead
from raftlog.cluster.offline.backup_file import AHEAD_BYTES, READ_BYTES, Seed, read_backup
from raftlog.cluster.records.backup_format import BackupDamaged
from raftlog.cluster.records.backup_manifest import (
    MANIFEST,
    BackupManifest,
    LogFile,
    decode_manifest,
    followed,
    state_name,
)
from raftlog.cluster.records.entries import UNKNOWN, last_user_index, log_entry
from raftlog.cluster.stores.object_place import StoragePlace
from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.types import EntryKind, Mark
from raftlog.raft.wal.reading import RawSlice
from raftlog.statemachine.effects import encode_effects
from raftlog.statemachine.machine import StateMachine


def read_manifest(folder: StoragePlace) -> BackupManifest | None:
    """The manifest; None if there is none. Raises BackupDamaged, UnknownVersion, ObjectStoreError or OSError."""
    file = folder / MANIFEST
    try:
        return manifest_of(file, file.read_bytes())
    except FileNotFoundError:
        return None


def manifest_of(file: StoragePlace, data: bytes) -> BackupManifest:
    """The manifest in that file. Raises BackupDamaged or UnknownVersion, which name the file."""
    try:
        return decode_manifest(data)
    except BackupDamaged as error:
        raise BackupDamaged(f"{file}: {error}") from error
    except UnknownVersion as error:
        raise UnknownVersion(f"{file}: {error}") from error


@dataclass(frozen=True, slots=True)
class BackupLog:
    """The log of a backup folder."""

    folder: StoragePlace
    files: tuple[LogFile, ...]

    def pieces(self) -> Iterator[RawSlice]:
        """The entries in order. Raises BackupDamaged, which names the file, or OSError."""
        for file in self.files:
            yield from read_pieces(self.folder, file)


def read_pieces(folder: StoragePlace, file: LogFile) -> Iterator[RawSlice]:
    """The pieces of a file of the log. Raises BackupDamaged or OSError."""
    path, crc, size = folder / file.name, 0, 0
    cursor = RawCursor(file.first, file.last + 1)
    try:
        with path.open("rb", AHEAD_BYTES) as source:
            while data := source.read(READ_BYTES):
                crc, size = crc32c(data, crc), size + len(data)
                for chunk in cursor.feed(data):
                    header = chunk.header
                    yield RawSlice(chunk.rows, chunk.segment, chunk.ledger, header.base, header.first, header.next)
    except FileNotFoundError as error:
        raise BackupDamaged(f"{path}: the file is missing") from error
    except BadStream as error:
        raise BackupDamaged(f"{path}: damaged: {error}") from error
    if size != file.size:
        raise BackupDamaged(f"{path}: cut short, or longer than it was: it has {size} bytes, not {file.size}")
    if crc != file.crc or cursor.buffer or cursor.position != file.last + 1:
        raise BackupDamaged(f"{path}: damaged: its bytes are not those that were written")


def read_folder(folder: StoragePlace, progress: OnBytesRead | None = None) -> tuple[Seed, BackupLog]:
    """The state after the newest entry, and the log that a reader may read. Raises BackupDamaged, UnknownVersion or
    OSError."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.state is None:
        what = f"there is no {MANIFEST}" if manifest is None else "its first run has not ended"
        raise BackupDamaged(f"{folder}: {what}, so it is no backup yet: run `raftlog backup {folder}` again")
    state_file = folder / state_name(manifest.state, manifest.state_writer)
    try:
        seed = read_backup(state_file)
    except FileNotFoundError as error:
        raise BackupDamaged(f"{state_file}: the file is missing") from error
    if (seed.log_id, seed.mark.index) != (manifest.log, manifest.state):
        raise BackupDamaged(
            f"{state_file}: it is the state of log {seed.log_id} after record {seed.mark.index}, and {MANIFEST} names "
            f"that of log {manifest.log} after {manifest.state}: one of them was changed"
        )
    try:
        seed = _applied(folder, manifest, seed, progress)
    except UNKNOWN as error:
        raise UnknownVersion(f"{folder}: {error}; use a version of raftlog that knows it") from error
    oldest = seed.state.oldest
    return seed, BackupLog(folder, tuple(file for file in manifest.files if file.last >= oldest))


def _applied(folder: StoragePlace, manifest: BackupManifest, seed: Seed, progress: OnBytesRead | None) -> Seed:
    """The state after the last entry. Checks each entry on the way."""
    machine, last_user, configuration = StateMachine.of(seed.state), seed.last_user, seed.configuration
    end: Mark | None = None
    done, total = 0, sum(file.size for file in manifest.files)
    for file in manifest.files:
        try:
            for piece in read_pieces(folder, file):
                for entry, frame in followed(piece.segment, piece.ledger, end):
                    end = entry.mark
                    if entry.index == seed.mark.index and end != seed.mark:
                        raise Corrupt(f"entry {entry.index} is not that of the state")
                    if entry.index <= seed.mark.index:
                        continue
                    decoded = log_entry(entry)
                    effects = machine.apply(decoded)
                    if encode_effects(effects) != frame:
                        raise Corrupt(f"the state after entry {entry.index} is not that of the cluster")
                    last_user = last_user_index(decoded, effects) or last_user
                    if entry.kind is EntryKind.CONFIGURATION:
                        configuration = decode_configuration(entry.data)
                done += len(piece.segment) + len(piece.ledger) + len(piece.rows)
                if progress is not None:
                    progress(done, total)
        except Corrupt as error:
            raise BackupDamaged(f"{folder / file.name}: damaged: {error}") from error
    end, first = end or seed.mark, manifest.files[0].first if manifest.files else seed.mark.index + 1
    said = manifest.end
    if said is None or (said.index, said.term, said.header_crc) != (end.index, end.term, end.header_crc):
        raise BackupDamaged(f"{folder / MANIFEST}: its files end with record {end.index}, not where it says")
    if end.index < seed.mark.index or first > machine.oldest:
        raise BackupDamaged(
            f"{folder / MANIFEST}: it names the records {first} to {end.index}, and the state after "
            f"{seed.mark.index} needs those from {machine.oldest} on"
        )
    return Seed(seed.log_id, end, configuration, last_user, machine.state())
