"""Checks a backup file, every byte: CRCs of each part and of all, sizes, and what stands behind it."""

from __future__ import annotations

from pathlib import Path

from cluster.backup_file import BackupDamaged
from cluster.disk_findings import NEWER_CODE, Finding, NotLooked, Report, State
from cluster.disk_look import Progress
from cluster.output import as_time
from cluster.restore import check_backup
from raft.codec import UnknownVersion

MEND = "take another copy of this backup, or another backup: nothing is restored from this one"


def check_backup_file(file: Path, progress: Progress | None = None) -> Report:
    """Reads everything, a part at a time. Raises NotLooked; damage is in the report."""

    def told(state: State, what: str, mend: str = "") -> Report:
        refusal = "" if state is State.INTACT else what
        return Report(str(file), None, None, 0, 0, [Finding(file.name, state, what, mend=mend)], refusal)

    try:
        head, end = check_backup(file, progress)
    except BackupDamaged as error:
        return told(State.DAMAGED, str(error).removeprefix(f"{file}: "), MEND)
    except UnknownVersion as error:
        return told(State.NEWER, str(error), NEWER_CODE)
    except OSError as error:
        raise NotLooked(f"{file}: {error}; run it as a user who may read it") from error
    what = (
        f"a backup of log {head.log_id}: the state after record {head.index} of term {head.term}, {head.digest.count} "
        f"keys, {end.parts} parts of {end.state_bytes} bytes; made by node {head.node}, {as_time(head.made_ms)}"
    )
    return told(State.INTACT, what)
