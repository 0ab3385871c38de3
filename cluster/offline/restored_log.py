"""Writes the log of a backup into a data folder, and the entry behind it that names the members of the new cluster.

`raftlog.cluster.offline.restore` calls it for each folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from raftlog.cluster.api.encoding import to_b64
from raftlog.cluster.config.cluster_file import ClusterFile, term_of
from raftlog.cluster.disk.older_segments import SegmentFill, name_segment
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.cluster.offline.backup_file import Seed
from raftlog.cluster.offline.backup_folder import BackupLog
from raftlog.cluster.records.backup_manifest import before_first
from raftlog.cluster.records.entries import log_entry
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import EntryKind, Mark
from raftlog.raft.wal.formats import LogIdentity
from raftlog.raft.wal.reading import RawSlice, entries_in
from raftlog.statemachine.effects import encode_effects
from raftlog.statemachine.machine import StateMachine


def with_first_entry(cluster: ClusterFile, log: BackupLog) -> ClusterFile:
    """The cluster file with the entry at index 1 of that log, if it is there: the disk of a node that is formatted
    again must begin with that very entry, and the file's own members are not those of then."""
    entry = next(entries_in(next(log.pieces()).segment))
    first = to_b64(entry.header + entry.data) if entry.index == 1 else ""
    return msgspec.structs.replace(cluster, cluster=msgspec.structs.replace(cluster.cluster, first=first))


def with_members(seed: Seed, cluster: ClusterFile, configuration: Configuration) -> tuple[Seed, RawSlice]:
    """The state after one more entry, which names the new members; and that entry. It is equal on every machine."""
    mark, time_ms = seed.mark, cluster.cluster.time_ms
    entry = seal_entry(
        mark,
        term=max(mark.term + 1, term_of(time_ms)),
        kind=EntryKind.CONFIGURATION,
        count=1,
        time_ms=max(mark.time_ms, time_ms),
        clock_ms=mark.clock_ms,
        data=encode_configuration(configuration),
    )
    machine = StateMachine.of(seed.state)
    frame = encode_effects(machine.apply(log_entry(entry)))
    piece = RawSlice(b"", entry.header + entry.data, frame, 0, entry.first, entry.index + 1)
    return replace(seed, mark=entry.mark, state=machine.state()), piece


def write_log(
    files: ShardFiles, identity: LogIdentity, end: Mark, pieces: Iterable[RawSlice], segment_bytes: int
) -> None:
    """Writes segments that hold these entries, up to `end`, and checks each entry again. Raises PieceWrong, OSError."""
    fill: SegmentFill | None = None
    for piece in pieces:
        if fill is None or fill.bytes + len(piece.segment) > segment_bytes:
            before = before_first(next(entries_in(piece.segment)))
            if fill is not None:
                before = _finished(files, fill)
            fill = SegmentFill(files, identity, end, is_alone=True)
            fill.begin(before)
        fill.take(piece)
        fill.step()
    assert fill is not None, "the last entry names the members"
    _finished(files, fill)


def _finished(files: ShardFiles, fill: SegmentFill) -> Mark:
    """Ends a segment with what it has, and names its files. Returns its end."""
    fill.top = fill.end
    files.execute(name_segment(fill.finish().first))
    return fill.top
