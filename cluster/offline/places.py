"""Refuses to make something inside the data folder of a node."""

from __future__ import annotations

from pathlib import Path

from raftlog.cluster.files.errors import FolderForeign
from raftlog.cluster.files.folder import IDENTITY, SHARD, UNFINISHED


def check_outside(folder: Path) -> None:
    """Raises FolderForeign for a folder inside a node's data folder, also by a symbolic link.

    With the disk of the node the backup would be lost, or the other node.
    """
    for outer in folder.resolve().parents:
        if (outer / SHARD).is_dir() and any((outer / name).exists() for name in (IDENTITY, UNFINISHED)):
            raise FolderForeign(f"{folder}: it is inside {outer}, the data folder of a node; name a folder outside it")
