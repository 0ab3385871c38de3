"""Opens a stopped node's folder to read it: nobody starts a node on it meanwhile, and nothing is written."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.disk_errors import FolderLocked, FolderMissing
from cluster.disk_files import ShardFiles
from cluster.disk_findings import NotLooked
from cluster.disk_open import IDENTITY, SHARD

Progress = Callable[[int, int], None]
"""Told how many bytes of how many were read."""


class WatchedFiles(ShardFiles):
    """Files that are only read, and that tell how far."""

    __slots__ = ("_done", "_progress", "_seen", "total")

    def __init__(self, root: Path, progress: Progress | None) -> None:
        super().__init__(root, read_only=True)
        self._progress = progress
        self._seen: dict[str, int] = {}
        self._done = 0
        self.total = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) if progress else 0

    def read(self, name: str, position: int, size: int) -> bytes:
        """As ShardFiles; where a file is read again, that is no progress."""
        data = super().read(name, position, size)
        if self._progress is not None and (more := position + len(data) - self._seen.get(name, 0)) > 0:
            self._seen[name] = position + len(data)
            self._done += more
            self._progress(self._done, self.total)
        return data


@contextmanager
def held(folder: Path, *, even_if_locked: bool = False) -> Iterator[None]:
    """Keeps nodes from starting on the folder. Raises FolderMissing, FolderLocked or NotLooked."""
    if not folder.is_dir():
        raise FolderMissing(f"{folder}: there is no such folder; name the data folder of a node")
    if not (folder / IDENTITY).exists() and not (folder / SHARD).is_dir():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{IDENTITY}"))
        hint = f"it holds those of {', '.join(inside)}: name one of them" if inside else "name one that has them"
        raise FolderMissing(f"{folder}: neither {IDENTITY} nor {SHARD} is in it, so it is no data folder; {hint}")
    descriptor = -1
    try:
        if (folder / IDENTITY).exists():
            descriptor = os.open(folder / IDENTITY, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        if not even_if_locked:
            os.close(descriptor)
            raise FolderLocked(f"{folder}: a process has it open; stop that node first") from error
    except OSError as error:
        raise NotLooked(f"{folder}: {error}; run it as a user who may read there") from error
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)
