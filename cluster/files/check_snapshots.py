"""Checks every byte of the snapshots of a shard: meta, the chain of the chunks, and files that do not belong there.

`raftlog disk check` and scrubbing call it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raftlog.cluster.files.findings import NEWER_CODE, FileHealth, Finding, Steps, in_one_go
from raftlog.raft.codec.checks import UnknownVersion
from raftlog.raft.configuration import Configuration
from raftlog.raft.wal.formats import ForeignFile, LogIdentity
from raftlog.raft.wal.operations import Files
from raftlog.raft.wal.snapshot_files import SNAPSHOTS, OtherSnapshot, SnapshotDamaged, checking, snapshot_folder

PASSED_OVER = "nothing: a start passes over it for an older one, or for the log from its beginning; it may be removed"


@dataclass(slots=True)
class SnapshotFindings:
    """The findings, and the intact snapshots."""

    intact: list[int] = field(default_factory=list)  # newest first
    configurations: list[tuple[int, Configuration]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def look_at_snapshots(log: LogIdentity, files: Files) -> SnapshotFindings:
    """Reads all snapshots."""
    found = SnapshotFindings()
    tell = found.findings.append
    for name in files.names(SNAPSHOTS):
        path = f"{SNAPSHOTS}/{name}"
        if name.endswith(".new"):
            tell(
                Finding(path, FileHealth.UNFINISHED, "it was never finished", mend="nothing: the next start removes it")
            )
        elif not name.isdigit() or snapshot_folder(int(name)) != path:
            tell(Finding(path, FileHealth.UNKNOWN, "not a file of raftlog: left alone"))
        else:
            in_one_go(looking_at_snapshot(log, files, int(name), found))
    found.intact.sort(reverse=True)
    return found


def looking_at_snapshot(log: LogIdentity, files: Files, index: int, found: SnapshotFindings) -> Steps[None]:
    """Reads one snapshot in steps, one for each chunk, and adds to `found`."""
    folder = snapshot_folder(index)
    tell = found.findings.append
    try:
        for stored in checking(files, log, index, folder):  # noqa: B007 - the last one is wanted
            yield
    except SnapshotDamaged as error:
        health = FileHealth.FOREIGN if isinstance(error, OtherSnapshot) else FileHealth.DAMAGED
        if files.size(error.file) < 0:
            health = FileHealth.MISSING
        tell(Finding(error.file, health, error.reason, error.at, mend=PASSED_OVER))
        return
    except ForeignFile as error:
        mend = "move this snapshot to where it belongs, or away"
        tell(Finding(f"{folder}/meta", FileHealth.FOREIGN, str(error), 0, mend=mend))
        return
    except UnknownVersion as error:
        tell(Finding(f"{folder}/meta", FileHealth.NEWER, str(error), 0, mend=NEWER_CODE))
        return
    assert stored is not None
    what = f"the state after record {index} of term {stored.mark.term}: {stored.size} bytes"
    tell(Finding(folder, FileHealth.INTACT, what))
    found.intact.append(index)
    found.configurations.append((stored.configuration_index, stored.configuration))
    for other in files.names(folder):
        if other not in ("meta", "chunks", "installing"):
            tell(Finding(f"{folder}/{other}", FileHealth.UNKNOWN, "not a file of raftlog: left alone"))
