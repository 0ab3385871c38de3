"""Reads the state of a lost cluster from a stopped node's folder, with its whole log applied; changes nothing.

`raftlog recover` calls it, and `raftlog format` asks whether a folder's cluster was ever led. **The log's tail is
applied**, even entries that this node does not know to be committed. Every acknowledged write is on a majority, and
this node may be the only one left that has it. It cannot distinguish such a write from one that was never acknowledged,
and dropping both would lose more. So two kinds of writes may come in:
writes whose outcome was `unknown`, and, if the node was cut off from a later leader, writes that were overwritten
elsewhere and answered `not_applied`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raftlog.cluster.api.text import as_time
from raftlog.cluster.files.errors import FolderDamaged, FolderForeign, FormatUnknown, foreign
from raftlog.cluster.files.folder import IDENTITY, SHARD, DiskIdentity, parse_identity
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.cluster.files.stopped_folder import OnBytesRead, WatchedFiles, held
from raftlog.cluster.offline.backup_file import Seed
from raftlog.cluster.records.entries import UNKNOWN, last_user_index, log_entry
from raftlog.cluster.records.snapshot_stream import restore
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import GENESIS, Entry, EntryKind, HardState, Mark
from raftlog.raft.wal import divergence, repair
from raftlog.raft.wal.formats import (
    LOG_FOLDER,
    SEGMENT_HEADER_SIZE,
    ForeignFile,
    LogIdentity,
    decode_segment_header,
    segment_firsts,
    segment_name,
)
from raftlog.raft.wal.journal import Segment
from raftlog.raft.wal.ledger import Ledger
from raftlog.raft.wal.opening import intact_snapshots
from raftlog.raft.wal.recovery import HardStateDamaged, Recovery, recover_hard_state, recover_log, scan
from raftlog.raft.wal.snapshot_files import SNAPSHOTS, SnapshotDamaged, StoredSnapshot, is_installing, read_chunks
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.snapshot import CorruptSnapshot

MEND: Final = "run `raftlog disk check`; name the folders of the other remaining nodes, or restore a backup"


@dataclass(frozen=True, slots=True)
class Survivor:
    """The content of a stopped node's folder."""

    folder: Path
    identity: DiskIdentity
    hard_state: HardState
    snapshot: StoredSnapshot | None  # the snapshot that the state begins with
    segments: tuple[Segment, ...]  # the log that is applied to it
    last: Mark  # the newest entry
    committed: int  # this node knew that entries up to here were committed
    notices: tuple[str, ...]

    @property
    def log_id(self) -> str:
        """The log id of the lost cluster."""
        return self.identity.log_id


def was_led(folder: Path, log: str) -> bool:
    """Whether that data folder shows that the log of that id was ever led: it has more than the first configuration.

    A node may run on it. A folder of the log that cannot be read counts as one that has more.
    """
    files = ShardFiles(folder / SHARD, read_only=True)
    try:
        if parse_identity((folder / IDENTITY).read_bytes()).log_id != log:
            return False
        if segment_firsts(files.names(LOG_FOLDER)) != [1] or files.names(SNAPSHOTS):
            return True
        name = segment_name(1)
        header = decode_segment_header(LogIdentity(bytes.fromhex(log)), files.read(name, 0, SEGMENT_HEADER_SIZE))
        return any(found.reason or (found.entry and found.entry.index > 1) for found in scan(files, name, header, 2))
    except FileNotFoundError:
        return False
    except (OSError, Corrupt, UnknownVersion, ForeignFile):
        return True
    finally:
        files.close()


def look(folder: Path, progress: OnBytesRead | None = None) -> Survivor:
    """Reads a stopped node's folder. Raises DiskError, also if it is damaged, or if a node runs on it."""
    with held(folder):
        try:
            identity = parse_identity((folder / IDENTITY).read_bytes())
            files = WatchedFiles(folder / SHARD, progress)
            try:
                return _look(folder, identity, files)
            finally:
                files.close()
        except ForeignFile as error:
            raise foreign(folder, error) from error
        except UnknownVersion as error:
            raise FormatUnknown(f"{folder}: {error}; use a version of raftlog that knows it") from error
        except (Corrupt, HardStateDamaged) as error:
            raise FolderDamaged(f"{folder}: {error}; {MEND}") from error


def _look(folder: Path, identity: DiskIdentity, files: ShardFiles) -> Survivor:
    log = LogIdentity(bytes.fromhex(identity.log_id))
    slot, notices = recover_hard_state(log, files)
    snapshots = intact_snapshots(files, log, notices, [])
    newest = snapshots[0] if snapshots else None
    if slot.floor:
        notices.append(
            f"its log was damaged, and kept up to index {slot.cut}: what it had acknowledged behind is not here"
            if slot.is_mending
            else "its log was damaged, and it had not healed from the others: what it had acknowledged may be missing"
        )
    alone = None  # the log was being replaced by this one: by an install, or by a repair
    if newest is not None and is_installing(files, newest.mark.index):
        alone = newest
    elif slot.is_mending:
        alone = repair.newest_below(snapshots, slot.cut)
    note = divergence.find(log, files)
    if note is not None:
        notices.append(
            f"its state differed from a majority's at point {note.point}: it is rebuilt from before that point"
        )
    if alone is not None:
        _trusted(folder, note, [alone], alone.mark.index + 1)
        mark = alone.mark
        return Survivor(folder, identity, slot.state, alone, (), mark, mark.index, tuple(notices))
    durable = newest.mark.index if newest is not None else 0
    recovery: Recovery = recover_log(log, files, slot, durable)
    if recovery.damage is not None:
        raise FolderDamaged(f"{folder}: {recovery.damage}; {MEND}", recovery.damage)
    segments = recovery.segments
    last = segments[-1].last
    ledger = Ledger(log)
    ledger.recover(files, segments, [], last.index)  # effects exist only for applied entries, so these are committed
    snapshots = _trusted(folder, note, snapshots, segments[0].first)
    chosen = next((each for each in snapshots if each.mark.index >= segments[0].previous.index), None)
    if chosen is None and segments[0].previous.index:
        first = segments[0].first
        raise FolderDamaged(f"{folder}: the log begins at {first} and no intact snapshot reaches that far; {MEND}")
    committed = max(durable, ledger.last)
    return Survivor(
        folder, identity, slot.state, chosen, tuple(segments), last, committed, (*notices, *recovery.notices)
    )


def _trusted(
    folder: Path, note: divergence.DivergenceNote | None, snapshots: list[StoredSnapshot], first: int
) -> list[StoredSnapshot]:
    """The snapshots that the state may begin with; `first` is the first index of the log. Raises FolderDamaged."""
    if note is None:
        return snapshots
    try:
        return divergence.trusted(note, snapshots, first)
    except divergence.CannotRebuild as error:
        raise FolderDamaged(f"{folder}: {error}; {MEND}") from error


def best_of(survivors: Sequence[Survivor]) -> Survivor:
    """The survivor with the newest log, as in an election: term of the last entry, then its index.

    Raises FolderForeign if they are not of one cluster.
    """
    logs = {each.log_id: each.folder for each in survivors}
    if len(logs) > 1:
        whose = ", ".join(f"{folder} to log {log}" for log, folder in logs.items())
        raise FolderForeign(f"these folders are not of one cluster: {whose}; name those of one")
    return max(survivors, key=lambda each: (each.last.term, each.last.index))


def describe(best: Survivor, survivors: Sequence[Survivor]) -> Iterator[str]:
    """The recovered entries and the possible losses, in sentences."""
    for each in survivors:
        mark = each.last
        yield (
            f"{each.folder}: node {each.identity.node} of log {each.log_id}, term {each.hard_state.term}: last entry "
            f"{mark.index} of term {mark.term}, {as_time(mark.time_ms)}; known committed: {each.committed}"
        )
        for notice in each.notices:
            yield f"  {notice}"
    last, committed = best.last.index, best.committed
    yield f"Taken: {best.folder}, its log up to entry {last}."
    if last > committed:
        yield (
            f"Entries {committed + 1} to {last} are taken too, although this node does not know that they were "
            "committed: writes among them may have ended as unknown, or not_applied if a later leader overwrote them."
        )
    yield (
        f"Lost, if there were any: writes after entry {last}. These folders cannot show whether the lost nodes "
        "had acknowledged some."
    )
    yield (
        "The new log begins behind that entry, with an id of its own: sessions end, and positions, Spark offsets and "
        "manifests of the old log are foreign to it. The old folder is not changed, and its history stays readable "
        f"there (raftlog disk dump {best.folder} records)."
    )


def seed_of(survivor: Survivor, progress: OnBytesRead | None = None) -> Seed:
    """The state with the whole log applied. Raises FolderDamaged or FormatUnknown."""
    folder = survivor.folder
    files = ShardFiles(folder / SHARD, read_only=True)
    with held(folder):
        try:
            return _applied(survivor, files, progress)
        except (Corrupt, CorruptSnapshot, SnapshotDamaged) as error:
            raise FolderDamaged(f"{folder}: {error}; {MEND}") from error
        except UNKNOWN as error:
            raise FormatUnknown(f"{folder}: {error}; use a version of raftlog that knows it") from error
        finally:
            files.close()


def _applied(survivor: Survivor, files: ShardFiles, progress: OnBytesRead | None) -> Seed:
    stored = survivor.snapshot
    machine, last_user, mark, configuration = StateMachine(), 0, GENESIS, Configuration()
    if stored is not None:
        machine, last_user = restore(read_chunks(files, stored.folder))
        mark, configuration = stored.mark, stored.configuration
    begin, total = mark.index, survivor.last.index - mark.index
    for entry in _entries(files, survivor.segments, begin):
        decoded = log_entry(entry)
        last_user = last_user_index(decoded, machine.apply(decoded)) or last_user
        mark = entry.mark
        if entry.kind is EntryKind.CONFIGURATION:
            configuration = decode_configuration(entry.data)
        if progress is not None:
            progress(mark.index - begin, total)
    if mark != survivor.last:
        raise Corrupt(f"the entries end with {mark.index}, not with {survivor.last.index}")
    return Seed(survivor.log_id, mark, configuration, last_user, machine.state())


def _entries(files: ShardFiles, segments: Sequence[Segment], after: int) -> Iterator[Entry]:
    """The entries after `after`, of those that recovery found intact."""
    for segment in segments:
        if segment.last.index <= after:
            continue
        for found in scan(files, segment_name(segment.first), segment.header):
            entry = found.entry
            if entry is None or entry.index > segment.last.index:
                break
            if entry.index > after:
                yield entry
