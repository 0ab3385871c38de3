"""Follows a file that others write, across rotation, as `tail -F` does.

`raftlog.cluster.importer.importer` calls it. A rotated file is read to its end before the next is opened. After a
restart the file that was being read is found again by its inode, under whatever name it has then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from raftlog.cluster.importer.inputs import CHUNK_BYTES, IDLE_S

WaitForMore = Callable[[float], bool]
"""Waits that many seconds; returns whether the import ends."""

_IS_COMPRESSED: Final = (".gz", ".zst", ".xz", ".bz2")


def find(path: Path, inode: int) -> Path | None:
    """The name that the file with this inode has now; `path` for inode 0; None if it is gone."""
    for each in (path, *_rotated(path)):
        if inode == 0 or _inode(each) == inode:
            return each
    return None


def after(path: Path, current: Path) -> Path:
    """The file to read after `current`, which has ended: the next rotated one, else `path` itself."""
    if current == path or not current.exists():
        return path
    order = (current.stat().st_mtime_ns, current.stat().st_ino)
    newer = [
        (each.stat().st_mtime_ns, each.stat().st_ino, each)
        for each in _rotated(path)
        if (each.stat().st_mtime_ns, each.stat().st_ino) > order
    ]
    return min(newer)[2] if newer else path


def _rotated(path: Path) -> list[Path]:
    """The files beside `path` whose names begin with its name and a dot or hyphen."""
    try:
        beside = [*path.parent.iterdir()]
    except FileNotFoundError:
        return []
    starts = (f"{path.name}.", f"{path.name}-")
    skipped = (".raftlog-import", ".rejected", ".new", *_IS_COMPRESSED)
    return [each for each in beside if each.name.startswith(starts) and not each.name.endswith(skipped)]


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1


class Tail:
    """One file of those followed. `chunks` ends when the file was rotated and is read to its end."""

    def __init__(self, path: Path, name: Path, wait: WaitForMore) -> None:
        while True:  # a rotated file may be missing for a moment
            try:
                self._file = name.open("rb", buffering=0)
                break
            except FileNotFoundError:
                if wait(IDLE_S):
                    raise
                name = path
        self.inode = os.fstat(self._file.fileno()).st_ino
        self._path = path
        self._wait = wait
        self._read = 0

    def chunks(self) -> Iterator[bytes]:
        """The bytes of the file; an empty chunk each time when it has no more for now."""
        while True:
            has_ended = self._has_ended()
            count = 0
            while chunk := self._file.read(CHUNK_BYTES):
                count += len(chunk)
                self._read += len(chunk)
                yield chunk
            if count == 0 and has_ended:  # everything from before the rotation is read
                return
            if count == 0:
                yield b""
                if self._wait(IDLE_S):
                    return

    def _has_ended(self) -> bool:
        """Whether the path names another file now, or this file was cut."""
        inode = _inode(self._path)
        if inode == self.inode:
            return os.fstat(self._file.fileno()).st_size < self._read
        return inode != -1

    def latest_ms(self) -> int:
        """The time of the newest write to the file, in Unix milliseconds."""
        return round(os.fstat(self._file.fileno()).st_mtime * 1000)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
