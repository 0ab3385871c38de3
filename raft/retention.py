"""How much of the log is kept: which records a policy lets go of, and which files of a node may then be deleted.

Two questions, and never one. *What may be read* is a fact of the cluster: the leader proposes a trim through the log,
by `trim_before`. *What is deleted* is each node's own affair: whole sealed segments below that fact which Raft does
not need either, by `may_go`. Time is that of entry headers. DESIGN section 4, "Compaction is not retention".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from raft.codec import IDX_ROW
from raft.journal import Segment, index_name, ledger_name, segment_name
from raft.operations import Files
from raft.types import Entry

HEADROOM: Final = 8
"""An eighth of the bytes is for what is written until a trim is applied everywhere, and the files are gone."""


class Piece(NamedTuple):
    """One segment with the files beside it."""

    last: int  # index of its last record: the end of an entry
    time_ms: int  # of its last entry
    size: int  # bytes that its files take on disk


@dataclass(frozen=True, slots=True)
class Policy:
    """How much is kept; 0 is no bound."""

    bytes: int = 0  # that the files of the log take at most, the one made ahead included
    age_ms: int = 0
    held_bytes: int = 0  # what a reader still wants stays while the files take no more than this

    @property
    def is_on(self) -> bool:
        """Whether anything is ever let go of."""
        return self.bytes > 0 or self.age_ms > 0


def trim_before(
    policy: Policy, pieces: Sequence[Piece], oldest: int, now_ms: int, coming: int, wanted: int | None = None
) -> int | None:
    """The index below which records may go by that policy, always the end of an entry + 1; None: nothing more may.

    `pieces` are all, in order; the last is appended to, and stays. `oldest` is what holds now, `now_ms` the time of the
    newest applied entry, `coming` the size of the file that is made ahead, `wanted` the lowest index that a consumer
    group has still to read (None: nobody waits).
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

    `oldest` is what may be read, `needed` the first index that Raft may still ask of this log, `snapshots` the indexes
    of those on this disk, newest first. Two of them must cover what goes: one may turn out to be damaged, and then the
    log must begin right behind the other (pitfall 57).
    """
    return min(oldest - 1, needed - 1, snapshots[1]) if len(snapshots) > 1 else 0


def trailing_end(pieces: Sequence[Piece], before: int, index: int, bytes_kept: int) -> int:
    """An end of an entry, at most `index`, behind which the files take at least `bytes_kept`: the newest such end
    between two of these pieces, or `before`, the end before them all."""
    ends = [before, *[piece.last for piece in pieces[:-1]]]
    size = 0
    for piece, end in zip(reversed(pieces), reversed(ends), strict=True):
        size += piece.size
        if size >= bytes_kept and end <= index:
            return end
    return before


def bytes_on_disk(entry: Entry, effects_bytes: int) -> int:
    """What an entry adds to the files of a piece: itself, a row of .idx for each record, its frame in the ledger."""
    return entry.size + IDX_ROW.size * entry.count + effects_bytes


def piece_of(files: Files, segment: Segment) -> Piece:
    """The piece of a segment as it is on disk now."""
    names = (segment_name(segment.first), index_name(segment.first), ledger_name(segment.first))
    size = sum([max(0, files.size(name)) for name in names])
    return Piece(segment.last.index, segment.last.time_ms, size)
