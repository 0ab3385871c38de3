"""Reports on a backup for `raftlog disk check`: a file with the state, or a folder or prefix with state and log."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from raftlog.cluster.api.text import as_time, counted
from raftlog.cluster.files.findings import NEWER_CODE, FileHealth, Finding, NotLooked, Report
from raftlog.cluster.files.stopped_folder import OnBytesRead
from raftlog.cluster.offline.backup_file import check_backup
from raftlog.cluster.offline.backup_folder import read_folder
from raftlog.cluster.records.backup_format import BackupDamaged
from raftlog.cluster.records.backup_manifest import MANIFEST
from raftlog.cluster.stores.object_place import ObjectPlace, ObjectStoreError, StoragePlace
from raftlog.raft.codec.checks import UnknownVersion

MEND: Final = "take another copy of this backup, or another backup: nothing is restored from this one"


def is_backup(path: StoragePlace) -> bool:
    """Whether it is a file, a folder with the manifest of a backup, or in a store, which has nothing else to check."""
    return isinstance(path, ObjectPlace) or path.is_file() or (path / MANIFEST).is_file()


def report_of(path: StoragePlace, progress: OnBytesRead | None = None) -> Report:
    """Reads all of a backup. Raises NotLooked; damage is in the report."""

    def report(state: FileHealth, what: str, mend: str = "") -> Report:
        refusal = "" if state is FileHealth.INTACT else what
        return Report(str(path), None, None, 0, 0, [Finding(path.name or str(path), state, what, mend=mend)], refusal)

    try:
        what = (
            _described_file(path, progress)
            if isinstance(path, Path) and path.is_file()
            else _described_folder(path, progress)
        )
    except BackupDamaged as error:
        return report(FileHealth.DAMAGED, str(error).removeprefix(f"{path}: "), MEND)
    except UnknownVersion as error:
        return report(FileHealth.NEWER, str(error), NEWER_CODE)
    except OSError as error:
        raise NotLooked(f"{path}: {error}; run it as a user with the right to read it") from error
    except ObjectStoreError as error:
        raise NotLooked(str(error)) from error
    return report(FileHealth.INTACT, what)


def _described_file(file: StoragePlace, progress: OnBytesRead | None) -> str:
    head, end = check_backup(file, progress)
    keys, parts = counted(head.digest.count, "key"), counted(end.parts, "part")
    return (
        f"a backup of log {head.log_id}: the state after record {head.index} of term {head.term}, {keys}, {parts} of "
        f"{end.state_bytes} bytes; made by node {head.node}, {as_time(head.made_ms)}"
    )


def _described_folder(folder: StoragePlace, progress: OnBytesRead | None) -> str:
    seed, log = read_folder(folder, progress)
    first = max(log.files[0].first, seed.state.oldest) if log.files else seed.mark.index + 1
    return (
        f"a backup of log {seed.log_id}: records {first} to {seed.mark.index} of term {seed.mark.term}, in "
        f"{counted(len(log.files), 'file')}, and the state with {counted(seed.digest.count, 'key')}; the newest record "
        f"is of {as_time(seed.mark.time_ms)}"
    )
