"""Opens a stopped node's folder for reading, and keeps a node from starting on it meanwhile.

The offline tools (`raftlog disk check`, `disk dump`) call it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raftlog.cluster.files.errors import FolderLocked, FolderMissing
from raftlog.cluster.files.findings import NotLooked
from raftlog.cluster.files.folder import IDENTITY, SHARD
from raftlog.cluster.files.shard_files import ShardFiles

OnBytesRead = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes in all."""


class WatchedFiles(ShardFiles):
    """Files that are only read, and whose progress is reported."""

    __slots__ = ("_done", "_progress", "_seen", "total")

    def __init__(self, root: Path, progress: OnBytesRead | None) -> None:
        super().__init__(root, read_only=True)
        self._progress = progress
        self._seen: dict[str, int] = {}
        self._done = 0
        self.total = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) if progress else 0

    def read(self, name: str, position: int, size: int) -> bytes:
        """As ShardFiles. Reading a file again is no progress."""
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
        raise NotLooked(f"{folder}: {error}; run it as a user with the right to read there") from error
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)
