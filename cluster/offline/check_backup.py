"""Checks every byte of a backup file: CRCs of each part and of the whole, sizes, and bytes after the end.

`raftlog disk check` calls it.
"""

from __future__ import annotations

from pathlib import Path

from raftlog.cluster.api.text import as_time
from raftlog.cluster.files.findings import NEWER_CODE, FileHealth, Finding, NotLooked, Report
from raftlog.cluster.files.stopped_folder import OnBytesRead
from raftlog.cluster.offline.restore import check_backup
from raftlog.cluster.records.backup_format import BackupDamaged
from raftlog.raft.codec.checks import UnknownVersion

MEND = "take another copy of this backup, or another backup: nothing is restored from this one"


def check_backup_file(file: Path, progress: OnBytesRead | None = None) -> Report:
    """Reads everything, a part at a time. Raises NotLooked; damage is in the report."""

    def told(state: FileHealth, what: str, mend: str = "") -> Report:
        refusal = "" if state is FileHealth.INTACT else what
        return Report(str(file), None, None, 0, 0, [Finding(file.name, state, what, mend=mend)], refusal)

    try:
        head, end = check_backup(file, progress)
    except BackupDamaged as error:
        return told(FileHealth.DAMAGED, str(error).removeprefix(f"{file}: "), MEND)
    except UnknownVersion as error:
        return told(FileHealth.NEWER, str(error), NEWER_CODE)
    except OSError as error:
        raise NotLooked(f"{file}: {error}; run it as a user with the right to read it") from error
    what = (
        f"a backup of log {head.log_id}: the state after record {head.index} of term {head.term}, {head.digest.count} "
        f"keys, {end.parts} parts of {end.state_bytes} bytes; made by node {head.node}, {as_time(head.made_ms)}"
    )
    return told(FileHealth.INTACT, what)
