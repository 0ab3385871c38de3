"""Reads entries from a simulated disk, and compares them with those that were written."""

from __future__ import annotations

import errno
from bisect import bisect_right

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.disk.view import SilentlyWrong
from raftlog.raft.types import Entry
from raftlog.raft.wal.recovery import Damaged


def read_entries(disk: SimDisk, after: int, to: int, bytes_max: int) -> tuple[Entry, ...]:
    """As `Reader.entries`. Raises Damaged, OSError for a read that fails, or SilentlyWrong."""
    if disk.must_fail("read"):
        raise OSError(errno.EIO, "the read fails")
    try:
        entries = disk.reader().entries(after, to, bytes_max)
    except Damaged as error:
        disk.process.met.add(error.damage.file)
        raise
    view = disk.view
    start = bisect_right(view.ends, after)
    if entries != tuple(view.entries[start : start + len(entries)]) and after >= view.base.index:
        raise SilentlyWrong(f"node {disk.node} read something else than was written after {after}: {entries}")
    return entries
