"""Checks every byte of the snapshots of a shard: meta, the chain of the chunks, and files that do not belong there.

`raftlog disk check` and scrubbing call it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raftlog.cluster.files.findings import NEWER_CODE, FileHealth, Finding, Steps, in_one_go
from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.configuration import Configuration
from raftlog.raft.wal.formats import (
    CHUNK_HEADER_SIZE,
    ForeignFile,
    LogIdentity,
    SnapshotMeta,
    decode_chunk_header,
    decode_snapshot_meta,
)
from raftlog.raft.wal.operations import Files
from raftlog.raft.wal.snapshot_files import SNAPSHOTS, snapshot_folder

PASSED_OVER = "nothing: a start passes over it for an older one, or for the log from its beginning; it may be removed"


@dataclass(slots=True)
class SnapshotFindings:
    """The findings, and the intact snapshots."""

    intact: list[int] = field(default_factory=list)  # newest first
    configurations: list[tuple[int, Configuration]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def look_at_snapshots(log: LogIdentity, files: Files) -> SnapshotFindings:
    """Reads all snapshots."""
    found = SnapshotFindings()
    tell = found.findings.append
    for name in files.names(SNAPSHOTS):
        path = f"{SNAPSHOTS}/{name}"
        if name.endswith(".new"):
            tell(
                Finding(path, FileHealth.UNFINISHED, "it was never finished", mend="nothing: the next start removes it")
            )
        elif not name.isdigit() or snapshot_folder(int(name)) != path:
            tell(Finding(path, FileHealth.UNKNOWN, "not a file of raftlog: left alone"))
        else:
            in_one_go(looking_at_snapshot(log, files, int(name), found))
    found.intact.sort(reverse=True)
    return found


def looking_at_snapshot(log: LogIdentity, files: Files, index: int, found: SnapshotFindings) -> Steps[None]:
    """Reads one snapshot in steps, one for each chunk, and adds to `found`."""
    folder = snapshot_folder(index)
    tell = found.findings.append
    name = f"{folder}/meta"
    try:
        meta = decode_snapshot_meta(log, files.read(name, 0, max(0, files.size(name))))
        configuration = decode_configuration(meta.configuration)
    except Corrupt as error:
        state = FileHealth.DAMAGED if files.size(name) >= 0 else FileHealth.MISSING
        tell(Finding(name, state, str(error), 0, mend=PASSED_OVER))
        return
    except ForeignFile as error:
        tell(Finding(name, FileHealth.FOREIGN, str(error), 0, mend="move this snapshot to where it belongs, or away"))
        return
    except UnknownVersion as error:
        tell(Finding(name, FileHealth.NEWER, str(error), 0, mend=NEWER_CODE))
        return
    if meta.mark.index != index:
        what = f"it is a copy of the snapshot of index {meta.mark.index}"
        tell(Finding(name, FileHealth.FOREIGN, what, 0, mend=PASSED_OVER))
        return
    if (trouble := (yield from _looking_at_chunks(files, f"{folder}/chunks", meta))) is not None:
        tell(trouble)
        return
    what = f"the state after record {index} of term {meta.mark.term}: {meta.chunks} chunks of {meta.size} bytes"
    tell(Finding(folder, FileHealth.INTACT, what))
    found.intact.append(index)
    found.configurations.append((meta.configuration_index, configuration))
    for other in files.names(folder):
        if other not in ("meta", "chunks", "installing"):
            tell(Finding(f"{folder}/{other}", FileHealth.UNKNOWN, "not a file of raftlog: left alone"))


def _looking_at_chunks(files: Files, name: str, meta: SnapshotMeta) -> Steps[Finding | None]:
    """The finding about damaged chunks, or None."""
    if files.size(name) < 0:
        return Finding(name, FileHealth.MISSING, "there is no such file", mend=PASSED_OVER)
    position = chunks = size = crc = 0
    while header := files.read(name, position, CHUNK_HEADER_SIZE):
        try:
            length, wanted = decode_chunk_header(header)
        except Corrupt as error:
            return Finding(name, FileHealth.DAMAGED, str(error), position, mend=PASSED_OVER)
        chunk = files.read(name, position + CHUNK_HEADER_SIZE, length)
        crc = crc32c(chunk, crc)
        if len(chunk) != length or crc != wanted:
            what = f"chunk {chunks + 1} of {meta.chunks} fails its CRC"
            return Finding(name, FileHealth.DAMAGED, what, position, mend=PASSED_OVER)
        position += CHUNK_HEADER_SIZE + length
        chunks += 1
        size += length
        yield
    if (chunks, size, crc) != (meta.chunks, meta.size, meta.last_crc):
        what = f"{chunks} chunks of {size} bytes, the meta file names {meta.chunks} of {meta.size}"
        return Finding(name, FileHealth.DAMAGED, what, position, mend=PASSED_OVER)
    return None
