"""Checks the snapshots of a shard, every byte: meta, the chain of the chunks, and what does not belong there."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.disk_findings import NEWER_CODE, Finding, State, Steps, in_one_go
from raft.codec import Corrupt, UnknownVersion, crc32c, decode_configuration
from raft.configuration import Configuration
from raft.formats import (
    CHUNK_HEADER_SIZE,
    ForeignFile,
    Log,
    SnapshotMeta,
    decode_chunk_header,
    decode_snapshot_meta,
)
from raft.operations import Files
from raft.storage_snapshots import SNAPSHOTS, snapshot_folder

PASSED_OVER = "nothing: a start passes over it for an older one, or for the log from its beginning; it may be removed"


@dataclass(slots=True)
class Snapshots:
    """What was found."""

    intact: list[int] = field(default_factory=list)  # newest first
    configurations: list[tuple[int, Configuration]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def look_at_snapshots(log: Log, files: Files) -> Snapshots:
    """Reads all of them."""
    found = Snapshots()
    tell = found.findings.append
    for name in files.names(SNAPSHOTS):
        path = f"{SNAPSHOTS}/{name}"
        if name.endswith(".new"):
            tell(Finding(path, State.UNFINISHED, "it was never finished", mend="nothing: the next start removes it"))
        elif not name.isdigit() or snapshot_folder(int(name)) != path:
            tell(Finding(path, State.UNKNOWN, "not a name of raftlog's: left alone"))
        else:
            in_one_go(looking_at_snapshot(log, files, int(name), found))
    found.intact.sort(reverse=True)
    return found


def looking_at_snapshot(log: Log, files: Files, index: int, found: Snapshots) -> Steps[None]:
    """Reads one of them, in steps, one for each chunk; `found` is told."""
    folder = snapshot_folder(index)
    tell = found.findings.append
    name = f"{folder}/meta"
    try:
        meta = decode_snapshot_meta(log, files.read(name, 0, max(0, files.size(name))))
        configuration = decode_configuration(meta.configuration)
    except Corrupt as error:
        state = State.DAMAGED if files.size(name) >= 0 else State.MISSING
        tell(Finding(name, state, str(error), 0, mend=PASSED_OVER))
        return
    except ForeignFile as error:
        tell(Finding(name, State.FOREIGN, str(error), 0, mend="move this snapshot to where it belongs, or away"))
        return
    except UnknownVersion as error:
        tell(Finding(name, State.NEWER, str(error), 0, mend=NEWER_CODE))
        return
    if meta.mark.index != index:
        what = f"it is a copy of the snapshot of index {meta.mark.index}"
        tell(Finding(name, State.FOREIGN, what, 0, mend=PASSED_OVER))
        return
    if (trouble := (yield from _looking_at_chunks(files, f"{folder}/chunks", meta))) is not None:
        tell(trouble)
        return
    what = f"the state after record {index} of term {meta.mark.term}: {meta.chunks} chunks of {meta.size} bytes"
    tell(Finding(folder, State.INTACT, what))
    found.intact.append(index)
    found.configurations.append((meta.configuration_index, configuration))
    for other in files.names(folder):
        if other not in ("meta", "chunks", "installing"):
            tell(Finding(f"{folder}/{other}", State.UNKNOWN, "not a name of raftlog's: left alone"))


def _looking_at_chunks(files: Files, name: str, meta: SnapshotMeta) -> Steps[Finding | None]:
    """What is wrong with the chunks, or None."""
    if files.size(name) < 0:
        return Finding(name, State.MISSING, "there is no such file", mend=PASSED_OVER)
    position = chunks = size = crc = 0
    while header := files.read(name, position, CHUNK_HEADER_SIZE):
        try:
            length, wanted = decode_chunk_header(header)
        except Corrupt as error:
            return Finding(name, State.DAMAGED, str(error), position, mend=PASSED_OVER)
        chunk = files.read(name, position + CHUNK_HEADER_SIZE, length)
        crc = crc32c(chunk, crc)
        if len(chunk) != length or crc != wanted:
            what = f"chunk {chunks + 1} of {meta.chunks} fails its CRC"
            return Finding(name, State.DAMAGED, what, position, mend=PASSED_OVER)
        position += CHUNK_HEADER_SIZE + length
        chunks += 1
        size += length
        yield
    if (chunks, size, crc) != (meta.chunks, meta.size, meta.last_crc):
        what = f"{chunks} chunks of {size} bytes, the meta file names {meta.chunks} of {meta.size}"
        return Finding(name, State.DAMAGED, what, position, mend=PASSED_OVER)
    return None
