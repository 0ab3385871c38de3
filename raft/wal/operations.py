"""Defines operations on the files of a shard, as values: `raft.wal.storage` decides, a driver executes them.

Names are relative to the folder of the shard. The deciding code reads the folder through `Files`.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol


class Write(NamedTuple):
    """Write `data` at `position` of an existing file."""

    name: str
    position: int
    data: bytes


class Zero(NamedTuple):
    """Write zeros from `start` to `end` of an existing file."""

    name: str
    start: int
    end: int


class Sync(NamedTuple):
    """fdatasync of a file."""

    name: str


class Allocate(NamedTuple):
    """Make a file of `size` zero bytes, written and synced; nothing to do where it is there with at least that size."""

    name: str
    size: int


class Create(NamedTuple):
    """Make a file that holds `data`, replacing one of that name."""

    name: str
    data: bytes


class Truncate(NamedTuple):
    """Make a file that long; nothing to do where it does not exist."""

    name: str
    size: int


class Rename(NamedTuple):
    """Give a file, or a folder with all that is in it, a new name."""

    name: str
    to: str


class Delete(NamedTuple):
    """Remove a file; nothing to do where it does not exist."""

    name: str


class SyncFolder(NamedTuple):
    """fsync of a folder: its names are durable."""

    name: str


class MakeFolder(NamedTuple):
    """Make a folder, and those above it; nothing to do where it is there."""

    name: str


class DeleteFolder(NamedTuple):
    """Remove a folder with all that is in it; nothing to do where it does not exist."""

    name: str


FileOperation = (
    Write | Zero | Sync | Allocate | Create | Truncate | Rename | Delete | SyncFolder | MakeFolder | DeleteFolder
)


class Files(Protocol):
    """Reading, as the driver offers it; paths are relative to the folder of one shard."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; [] where it does not exist."""

    def size(self, name: str) -> int:
        """Bytes in a file; -1 where it does not exist."""

    def read(self, name: str, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file, none where it does not exist."""


WINDOW: Final = 4 << 20
"""Bytes of a file that are read at once."""


def end_of_bytes(files: Files, name: str, start: int, end: int) -> int:
    """Behind the last byte between two positions that is not zero; `start` where all are."""
    last, position = start, start
    while position < end:
        window = files.read(name, position, min(WINDOW, end - position))
        if stripped := window.rstrip(b"\0"):
            last = position + len(stripped)
        position += WINDOW
    return last
