"""Reads a backup file: checks every byte of it, and gives its state.

`raftlog restore` and `raftlog disk check` call it; `raftlog.cluster.offline.backup_folder` reads the state of a folder
with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raftlog.cluster.files.stopped_folder import OnBytesRead
from raftlog.cluster.records.backup_format import BackupDamaged, BackupDecoder, BackupEnd, BackupHead, NoBackup
from raftlog.cluster.records.snapshot_stream import decode_preamble
from raftlog.cluster.stores.object_place import StoragePlace
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import Mark
from raftlog.statemachine.digest import SetDigest
from raftlog.statemachine.snapshot import CorruptSnapshot, Restorer, SnapshotState, UnknownSnapshot

READ_BYTES: Final = 1 << 18
AHEAD_BYTES: Final = 4 << 20
"""Bytes that one request to a store brings."""


@dataclass(frozen=True, slots=True)
class Seed:
    """The beginning of a new cluster: the state after the entry of `mark` of another log."""

    log_id: str
    mark: Mark
    configuration: Configuration  # of the old cluster, at the mark
    last_user: int
    state: SnapshotState

    @property
    def digest(self) -> SetDigest:
        """The digest of the live keys."""
        return SetDigest(*self.state.store.digest())


def check_backup(file: StoragePlace, progress: OnBytesRead | None = None) -> tuple[BackupHead, BackupEnd]:
    """Reads every byte, a part at a time. Raises BackupDamaged (with the file's name), UnknownVersion or OSError."""
    decoder = BackupDecoder()
    for _ in _parts(file, decoder, progress):
        pass
    return decoder.finish()


def read_backup(file: StoragePlace, progress: OnBytesRead | None = None) -> Seed:
    """The state in a backup, compared with the digest in its head. Raises as `check_backup`."""
    decoder, restorer = BackupDecoder(), Restorer()
    last_user = -1
    try:
        for part in _parts(file, decoder, progress):
            if last_user < 0:
                last_user = decode_preamble(part)
            else:
                restorer.feed(part)
        state = restorer.finish()
    except (Corrupt, CorruptSnapshot) as error:
        raise BackupDamaged(f"{file}: its state cannot be read: {error}") from error
    except UnknownSnapshot as error:
        raise UnknownVersion(f"{file}: {error}") from error
    head, end = decoder.finish()
    here = (state.applied_index, state.applied_term, state.store.revision, state.store.digest())
    if here != (head.index, head.term, head.revision, tuple(head.digest)):
        raise BackupDamaged(f"{file}: its state is {here}, its head names {head}")
    return Seed(head.log_id, end.mark, end.configuration, last_user, state)


def _parts(file: StoragePlace, decoder: BackupDecoder, progress: OnBytesRead | None) -> Iterator[bytes]:
    done = 0
    with file.open("rb", AHEAD_BYTES) as source:
        total = source.seek(0, os.SEEK_END)
        source.seek(0)
        try:
            while data := source.read(READ_BYTES):
                yield from decoder.feed(data)
                done += len(data)
                if progress is not None:
                    progress(done, total)
            decoder.finish()
        except NoBackup as error:
            raise NoBackup(f"{file}: {error}; `raftlog backup FILE` makes one") from error
        except BackupDamaged as error:
            raise BackupDamaged(f"{file}: {error}") from error
