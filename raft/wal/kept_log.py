"""Keeps the log that a leader's snapshot replaces, so that the node can put it back in front of its new log.

A log on disk has no gap. So a node that gets a snapshot begins its log again after it, although its own older records
may still be read, and perhaps no other node has them any more. Those segments move to a folder beside the log. The node
fetches only the records between them and the snapshot from its peers (`raftlog.cluster.replica.upkeep.backfill`), and
then moves them back. docs/decisions/0012.

    kept/<first:020d>.seg, .idx, .ledger   as they were in log/, each until it is moved back or trimmed
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.types import Mark
from raftlog.raft.wal.formats import (
    FRAME_HEADER_SIZE,
    LEDGER_MAGIC,
    LOG_FOLDER,
    SEGMENT_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    ForeignFile,
    LogIdentity,
    SegmentHeader,
    check_side_header,
    decode_frame_header,
    decode_segment_header,
    index_name,
    intact_frame,
    ledger_name,
    segment_firsts,
    segment_name,
)
from raftlog.raft.wal.journal import Segment
from raftlog.raft.wal.ledger import read_footer
from raftlog.raft.wal.operations import Delete, FileOperation, Files, MakeFolder, Rename, SyncFolder
from raftlog.raft.wal.reading import RawSlice
from raftlog.raft.wal.recovery import Window, read_index_footer, scan

KEPT: Final = "kept"
PIECE_BYTES: Final = 16 << 10
"""About how many bytes of entries a piece of a kept segment has: about a millisecond of work, if they are small."""


def keep_segments(firsts: list[int]) -> list[FileOperation]:
    """Moves segments out of the log, each with the files beside it."""
    return _durable([Rename(name, _kept(name)) for first in firsts for name in _names(first)])


def keep_log(files: Files, mark: Mark) -> list[FileOperation]:
    """Moves every segment of the log that begins at or before `mark` out of it, and deletes all other files there.

    It finishes an install that a crash cut off: some files may have been moved already.
    """
    moves: list[FileOperation] = []
    for name in files.names(LOG_FOLDER):
        path, stem = f"{LOG_FOLDER}/{name}", name.rpartition(".")[0]
        is_kept = stem.isdigit() and int(stem) <= mark.index
        moves.append(Rename(path, _kept(path)) if is_kept else Delete(path))
    return _durable(moves)


def give_back(first: int) -> list[FileOperation]:
    """Moves a segment back into the log. Its entries come last, so that a segment in the log has all its files."""
    segment, *beside = _names(first)
    return [
        *[Rename(_kept(name), name) for name in beside],
        SyncFolder(LOG_FOLDER),
        Rename(_kept(segment), segment),
        SyncFolder(LOG_FOLDER),
        SyncFolder(KEPT),
    ]


def keep_again(files: Files) -> list[FileOperation]:
    """Moves files out of the log whose segment is kept: a crash came before that was moved back."""
    firsts = [first for first in kept_firsts(files) if files.size(segment_name(first)) < 0]
    names = [name for first in firsts for name in _names(first)[1:] if files.size(name) >= 0]
    return _durable([Rename(name, _kept(name)) for name in names]) if names else []


def delete_kept(first: int) -> list[FileOperation]:
    """Deletes a kept segment."""
    return [Delete(_kept(name)) for name in _names(first)]


def kept_firsts(files: Files) -> list[int]:
    """The first index of each kept segment, sorted."""
    return segment_firsts(KeptFiles(files).names(LOG_FOLDER))


def trimmed(firsts: list[int], oldest: int) -> list[int]:
    """Those of the kept segments that hold only records below `oldest`."""
    return [first for first, following in pairwise(firsts) if following <= oldest]


class KeptFiles:
    """Reads kept files by the names that they had in the log."""

    __slots__ = ("_files",)

    def __init__(self, files: Files) -> None:
        self._files = files

    def names(self, folder: str) -> list[str]:
        return self._files.names(_kept(folder))

    def size(self, name: str) -> int:
        return self._files.size(_kept(name))

    def read(self, name: str, position: int, size: int) -> bytes:
        return self._files.read(_kept(name), position, size)


def read_header(log: LogIdentity, files: Files, first: int) -> SegmentHeader | None:
    """The header of a kept segment; None if its files are damaged, or of another log."""
    kept = KeptFiles(files)
    try:
        header = decode_segment_header(log, kept.read(segment_name(first), 0, SEGMENT_HEADER_SIZE))
        check_side_header(log, LEDGER_MAGIC, header.previous, kept.read(ledger_name(first), 0, SIDE_HEADER_SIZE))
    except (Corrupt, UnknownVersion, ForeignFile):
        return None
    return header if header.first == first and kept.size(segment_name(first)) >= header.size else None


def whole_segment(log: LogIdentity, files: Files, header: SegmentHeader, end: Mark) -> Segment | None:
    """The kept segment of that header, if it ends with `end` and its files have their footers."""
    kept, segment = KeptFiles(files), Segment(header.previous, header.size, header.previous)
    try:
        read_index_footer(log, kept, segment, end)
    except (Corrupt, UnknownVersion):
        return None
    footer = read_footer(kept, ledger_name(header.first))
    return segment if footer is not None and footer.last == end.index else None


def pieces(files: Files, header: SegmentHeader, to: int) -> Iterator[tuple[RawSlice, Mark]]:
    """The entries of a kept segment that were applied, up to index `to`, with their effects.

    Yields about PIECE_BYTES at a time, and the end of the newest entry in them. Ends where an entry or its effects are
    damaged or missing.
    """
    kept, name = KeptFiles(files), ledger_name(header.first)
    ledger, at = Window(kept, name, kept.size(name)), SIDE_HEADER_SIZE
    entries: list[bytes] = []
    frames: list[bytes] = []
    size, begin, end, base = 0, header.first, header.previous, SEGMENT_HEADER_SIZE
    try:
        for found in scan(kept, segment_name(header.first), header, stop_after=to):
            entry = found.entry
            if entry is None:
                break
            frame = _frame(ledger, at, entry.index)
            if not entries:
                base = found.position
            at += len(frame)
            entries += (entry.header, entry.data)
            frames.append(frame)
            size, end = size + entry.size, entry.mark
            if size >= PIECE_BYTES:
                yield RawSlice(b"", b"".join(entries), b"".join(frames), base, begin, end.index + 1), end
                entries, frames, size, begin = [], [], 0, end.index + 1
    except (Corrupt, UnknownVersion):
        pass  # entries that were not applied, or that this version cannot read
    if entries:
        yield RawSlice(b"", b"".join(entries), b"".join(frames), base, begin, end.index + 1), end


def _frame(ledger: Window, at: int, index: int) -> bytes:
    """The effects of the entry that ends at `index`. Raises Corrupt or UnknownVersion."""
    _, size, _ = decode_frame_header(*ledger.at(at, FRAME_HEADER_SIZE))
    return intact_frame(*ledger.at(at, FRAME_HEADER_SIZE + size), index)


def _durable(moves: list[FileOperation]) -> list[FileOperation]:
    """These moves between the two folders, and what makes them durable."""
    return [MakeFolder(KEPT), *moves, SyncFolder(""), SyncFolder(KEPT), SyncFolder(LOG_FOLDER)]


def _names(first: int) -> list[str]:
    return [segment_name(first), index_name(first), ledger_name(first)]


def _kept(name: str) -> str:
    return KEPT + name[len(LOG_FOLDER) :]
