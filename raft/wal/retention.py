"""Decides how much of the log is kept: which records a policy drops, and which files a node may then delete.

Two questions are kept apart. *Which records may be read* is a fact of the cluster: the leader proposes a trim through
the log, by `trim_before`. *Deletion* is each node's own affair: by `may_go`, a node deletes whole sealed segments below
that index that Raft does not need either. Time is that of entry headers. docs/promises.md: compaction is not retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from raftlog.raft.wal.formats import index_name, ledger_name
from raftlog.raft.wal.journal import Segment
from raftlog.raft.wal.operations import Files

HEADROOM: Final = 8
"""An eighth of the bytes is for entries written until a trim is applied everywhere and the files are gone."""


class SegmentFiles(NamedTuple):
    """One segment with the files beside it."""

    last: int  # index of its last record: the end of an entry
    time_ms: int  # of its last entry
    size: int  # bytes that its files take on disk


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How much is kept; 0 is no bound."""

    bytes: int = 0  # that the files of the log take at most, the one made ahead included
    age_ms: int = 0
    held_bytes: int = 0  # what a reader still wants stays while the files take no more than this

    @property
    def is_on(self) -> bool:
        """Whether anything is ever let go of."""
        return self.bytes > 0 or self.age_ms > 0


def trim_before(
    policy: RetentionPolicy,
    pieces: Sequence[SegmentFiles],
    oldest: int,
    now_ms: int,
    coming: int,
    wanted: int | None = None,
) -> int | None:
    """The index below which records may go by that policy, always the end of an entry + 1; None: nothing more may.

    `pieces` are all, in order; the last is appended to, and stays. `oldest` is the present oldest index, `now_ms` the
    time of the newest applied entry, `coming` the size of the file that is made ahead. `wanted` is the lowest index
    that a consumer group has still to read (None: no group waits).
    """
    kept = [piece for piece in pieces if piece.last >= oldest]
    total = sum([piece.size for piece in kept]) + coming
    before: int | None = None
    for piece in kept[:-1]:
        is_over = 0 < policy.bytes - policy.bytes // HEADROOM < total
        is_old = policy.age_ms > 0 and piece.time_ms < now_ms - policy.age_ms
        is_held = wanted is not None and piece.last >= wanted and total <= policy.held_bytes
        if is_held or not (is_over or is_old):
            break
        total -= piece.size
        before = piece.last + 1
    return before


def may_go(oldest: int, needed: int, snapshots: Sequence[int]) -> int:
    """The end up to which this node may delete whole segments; 0: none.

    `oldest` is the first readable index, `needed` the first index that Raft may still ask of this log. `snapshots` are
    the indexes of the snapshots on this disk, newest first. Two of them must cover deleted segments. One may be
    damaged, and then the log must begin right behind the other (pitfall 57: a log deleted beyond its snapshot).
    """
    return min(oldest - 1, needed - 1, snapshots[1]) if len(snapshots) > 1 else 0


def trailing_end(pieces: Sequence[SegmentFiles], before: int, index: int, bytes_kept: int) -> int:
    """An end of an entry, at most `index`, behind which the files take at least `bytes_kept`.

    It is the newest such end between two of these pieces, or `before`, the end before them all.
    """
    ends = [before, *[piece.last for piece in pieces[:-1]]]
    size = 0
    for piece, end in zip(reversed(pieces), reversed(ends), strict=True):
        size += piece.size
        if size >= bytes_kept and end <= index:
            return end
    return before


def piece_of(files: Files, segment: Segment) -> SegmentFiles:
    """The piece of a segment as it is on disk now."""
    names = (segment.name, index_name(segment.first), ledger_name(segment.first))
    size = sum([max(0, files.size(name)) for name in names])
    return SegmentFiles(segment.last.index, segment.last.time_ms, size)
