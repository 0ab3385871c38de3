"""Finds and reads the segments that a leader's snapshot replaced on this disk.

The backfill takes them from here, and need not fetch them. `raftlog.raft.wal.kept_log` says how they are kept.
Everything here runs in the filling thread, in slices of time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.raft.types import Mark
from raftlog.raft.wal import kept_log
from raftlog.raft.wal.formats import LogIdentity
from raftlog.raft.wal.journal import Segment
from raftlog.raft.wal.operations import DeleteFolder
from raftlog.raft.wal.reading import RawSlice


class KeptSegment(NamedTuple):
    """A kept segment with applied entries before the log's beginning."""

    before: Mark  # the end before its first entry
    last: Mark  # the end of its newest applied entry, at most the beginning of the log
    segment: Segment | None  # if it may be moved back as it is: it ends where the log begins, and has its footers

    @property
    def first(self) -> int:
        """Its first index."""
        return self.before.index + 1


class KeptSegments:
    """The kept segments of one shard."""

    __slots__ = ("_files", "_last", "_log", "may_exist")

    def __init__(self, files: ShardFiles, log: LogIdentity) -> None:
        self._files, self._log = files, log
        self._last: dict[int, Mark] = {}  # by first index: the end of the newest applied entry, once it is known
        self.may_exist = bool(files.names(kept_log.KEPT))  # true again after each snapshot from a leader

    def find(self, top: Mark, oldest: int) -> Generator[None, None, KeptSegment | None]:
        """Finds the newest one that begins at or before `top`, the end before the log; None if there is none.

        Deletes those without records from `oldest` on. Passes over those without an applied entry, and damaged ones.
        """
        files = self._files
        files.close()  # the files of these names may be other ones now
        firsts = kept_log.kept_firsts(files)
        for first in kept_log.trimmed(firsts, oldest):
            self._delete(first)
            firsts.remove(first)
        for first in reversed([first for first in firsts if first <= top.index]):
            if (header := kept_log.read_header(self._log, files, first)) is None:
                continue
            if (segment := kept_log.whole_segment(self._log, files, header, top)) is not None:
                return KeptSegment(header.previous, top, segment)
            last = self._last.pop(first, None)
            if last is None or last.index > top.index:
                last = None
                for _, last in kept_log.pieces(files, header, top.index):  # noqa: B007 - the last one is wanted
                    yield
            if last is not None and (last.index < top.index or last == top):
                self._last[first] = last
                return KeptSegment(header.previous, last, None)
        return None

    def pieces(self, kept: KeptSegment) -> Generator[RawSlice, None, None]:
        """The applied entries of that segment with their effects."""
        self._last.pop(kept.first, None)  # if they are damaged by now, the next search finds where they end
        header = kept_log.read_header(self._log, self._files, kept.first)
        if header is not None:
            for raw, _ in kept_log.pieces(self._files, header, kept.last.index):
                yield raw

    def delete(self, kept: KeptSegment) -> None:
        """Deletes one whose entries are in the log again."""
        self._delete(kept.first)

    def _delete(self, first: int) -> None:
        self._last.pop(first, None)
        self._files.execute(kept_log.delete_kept(first))

    def delete_all(self) -> None:
        """Deletes all of them: the log reaches back to the oldest index that may be read."""
        self._last.clear()
        self._files.close()
        self._files.execute([DeleteFolder(kept_log.KEPT)])
        self.may_exist = False


class Search:
    """One search: each step reads a piece of a segment."""

    def __init__(self, walk: Generator[None, None, KeptSegment | None]) -> None:
        self._walk = walk
        self.found: KeptSegment | None = None

    def step(self) -> bool:
        """Does one step. Returns whether the search is over. Raises OSError."""
        try:
            next(self._walk)
        except StopIteration as stop:
            self.found = stop.value
            return True
        return False
