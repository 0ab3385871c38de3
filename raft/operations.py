"""What can be done to the files of a log, as values: `raft.journal` decides, a driver carries them out in order.

Names are relative to the folder of one shard.
"""

from __future__ import annotations

from typing import NamedTuple


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
    """Give a file a new name."""

    name: str
    to: str


class Delete(NamedTuple):
    """Remove a file; nothing to do where it does not exist."""

    name: str


class SyncFolder(NamedTuple):
    """fsync of a folder: its names are durable."""

    name: str


Operation = Write | Zero | Sync | Allocate | Create | Truncate | Rename | Delete | SyncFolder
