"""Defines the errors of a data folder: one class for each action that they ask of an operator."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from raftlog.raft.wal.formats import ForeignFile
from raftlog.raft.wal.recovery import Damage

UNFORMATTED: Final = (
    "a new node's folder is made with `raftlog format`; restore a folder that was in use from its own disk, because a "
    'node that forgets its promises can undo acknowledged writes (docs/operations/members.md, "A lost node")'
)
RESTORE: Final = (
    "restore the missing files from a copy of this very disk, or leave this node off and put another disk in its "
    'place: `raftlog members replace` (docs/operations/members.md, "A lost node")'
)

REPLACE: Final = (
    "give this node a new disk: `raftlog members replace` with its number, then format its folder again "
    '(docs/operations/members.md, "A wiped node")'
)


class DiskError(Exception):
    """The data folder has a problem. The message names what, where, and what to do."""

    exit_code = 1  # of the command line


class FolderMissing(DiskError):
    """There is no data folder. A node makes one only at the first start of its cluster, with --format-new."""


class FolderExists(DiskError):
    """`raftlog format` found a folder at the place where it should make one."""


class FolderLocked(DiskError):
    """Another process has the folder open."""


class FolderForeign(DiskError):
    """The folder, or a file in it, belongs to another node, log or shard."""


class FolderReadOnly(DiskError):
    """The folder cannot be written."""


class FormatUnknown(DiskError):
    """The files were written by a newer version of raftlog."""


class FolderDamaged(DiskError):
    """The identity, the hard state or the log cannot be read: the node may neither vote nor acknowledge."""

    def __init__(self, message: str, damage: Damage | None = None) -> None:
        super().__init__(message)
        self.damage = damage


class DiskFenced(DiskError):
    """A write or sync failed, or the log is damaged: this process never writes again, because a retry could lie."""


class NoSpace(DiskError):
    """The disk is full; no byte of an entry was written. The caller may repeat the call once there is space."""


class ReadDamaged(DiskError):
    """Entries or effects from disk fail their check: the client must read them from another node."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(f"{damage}; read it from another node, and look at this node's disk")
        self.damage = damage


class StoredSnapshotDamaged(DiskError):
    """A snapshot fails its check."""


def is_full(error: OSError) -> bool:
    """Whether the operating system reports a full disk."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def explain(folder: Path, error: OSError) -> DiskError:
    """The named error for an error of the operating system while the folder was opened or made."""
    match error.errno:
        case errno.EROFS:
            return FolderReadOnly(
                f"{folder}: the file system is read-only; remount it writable, or name another folder"
            )
        case errno.EACCES | errno.EPERM:
            return FolderReadOnly(f"{folder}: {error}; give this user the right to write there")
        case errno.ENOSPC | errno.EDQUOT:
            return NoSpace(f"{folder}: the disk is full ({error}); free disk space, then try again")
        case errno.ENOENT | errno.ENOTDIR:
            return FolderMissing(f"{folder}: {error}; {UNFORMATTED}")
        case _:
            return DiskError(f"{folder}: {error}; look at the disk and at the system's log")


def foreign(folder: Path, error: ForeignFile) -> FolderForeign:
    """The named error for a file that belongs elsewhere."""
    return FolderForeign(f"{folder}: {error}; give this node its own folder, or restore the files that belong here")
