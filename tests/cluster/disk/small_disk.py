"""Makes folders with a limited disk space, for any user: they need no file system of their own and no rights."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PLENTY = 1 << 60
"""Of a folder that a test has just taken out of `room`, while the node's writer thread looked."""


class SmallDisks:
    """What a node of this process does below the folders named in `room` fails with ENOSPC where its files, by their
    sizes, would take more than that. A write takes what fits first, as real file systems do."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.room: dict[Path, int] = {}
        self.allocated: set[str] = set()  # names of files that room was asked for
        self._pwrite, self._fallocate, self._statvfs = os.pwrite, os.posix_fallocate, os.statvfs
        patch.setattr(os, "pwrite", self.pwrite)
        patch.setattr(os, "posix_fallocate", self.fallocate)
        patch.setattr(os, "statvfs", self.statvfs)

    def used(self, root: Path) -> int:
        """What the files below it take now."""
        total = 0
        for folder, _, names in os.walk(root):
            for name in names:
                try:
                    total += os.stat(os.path.join(folder, name)).st_size
                except FileNotFoundError:
                    continue  # deleted meanwhile
        return total

    def _root(self, path: str) -> Path | None:
        return next((root for root in tuple(self.room) if Path(path).is_relative_to(root)), None)

    def _grow(self, descriptor: int, end: int, *, fits: int = 0) -> int:
        """How many bytes are missing, of an end whose last `fits` bytes may be left out."""
        root = self._root(os.readlink(f"/proc/self/fd/{descriptor}"))
        more = end - os.fstat(descriptor).st_size
        if root is None or more <= 0:
            return 0
        missing = max(0, self.used(root) + more - self.room.get(root, PLENTY))
        if missing and missing >= fits:
            raise OSError(errno.ENOSPC, "no space left on this small disk")
        return missing

    def pwrite(self, descriptor: int, data: bytes, position: int) -> int:
        """As os.pwrite."""
        missing = self._grow(descriptor, position + len(data), fits=len(data))
        return self._pwrite(descriptor, memoryview(data)[: len(data) - missing], position)

    def fallocate(self, descriptor: int, position: int, size: int) -> None:
        """As os.posix_fallocate."""
        self.allocated.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        self._grow(descriptor, position + size)
        self._fallocate(descriptor, position, size)

    def statvfs(self, path: Any) -> Any:
        """As os.statvfs, as far as anybody asks."""
        root = self._root(os.fspath(path))
        if root is None:
            return self._statvfs(path)
        room = self.room.get(root, PLENTY)
        free = max(0, room - self.used(root))
        return SimpleNamespace(f_blocks=room, f_bfree=free, f_bavail=free, f_frsize=1)
