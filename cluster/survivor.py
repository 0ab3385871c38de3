"""What is left of a lost cluster: the state of a stopped node's folder with its whole log applied; nothing is changed.

**The log's tail is applied**, entries included that nobody knows to be committed. Every acknowledged write lies on a
majority, so the survivor may be the only one left that has it, and a node cannot tell it from one that was never
acknowledged; dropping both loses more. What comes in with it: writes whose outcome was `unknown`, and, on a node that
was cut off from a later leader, writes that were overwritten elsewhere and told `not_applied`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster.apply import UNKNOWN, last_user_index, log_entry
from cluster.disk_errors import FolderDamaged, FolderForeign, FormatUnknown, foreign
from cluster.disk_files import ShardFiles
from cluster.disk_look import Progress, WatchedFiles, held
from cluster.disk_open import IDENTITY, SHARD, Identity, parse_identity
from cluster.output import as_time
from cluster.restore import Seed
from cluster.snapshots import restore
from raft import divergence, repair
from raft.codec import Corrupt, UnknownVersion, decode_configuration, entry_mark
from raft.configuration import Configuration
from raft.formats import ForeignFile, Log
from raft.journal import Segment, segment_name
from raft.recovery import HardStateDamaged, Recovery, recover_hard_state, recover_log, scan
from raft.storage_ledger import Ledger
from raft.storage_open import intact_snapshots
from raft.storage_snapshots import SnapshotDamaged, StoredSnapshot, is_installing, read_chunks
from raft.types import GENESIS, Entry, EntryKind, HardState, Mark
from statemachine.machine import StateMachine
from statemachine.snapshot import CorruptSnapshot

MEND: Final = (
    "`raftlog disk check` says what is wrong; name the folders of other nodes that are left, or restore a backup"
)


@dataclass(frozen=True, slots=True)
class Survivor:
    """What a stopped node's folder holds."""

    folder: Path
    identity: Identity
    hard_state: HardState
    snapshot: StoredSnapshot | None  # what the state begins with
    segments: tuple[Segment, ...]  # what is applied to it
    last: Mark  # the newest entry
    committed: int  # this node knew that everything up to here was committed
    notices: tuple[str, ...]

    @property
    def log_id(self) -> str:
        """Of the lost cluster."""
        return self.identity.log_id


def look(folder: Path, progress: Progress | None = None) -> Survivor:
    """Reads a stopped node's folder. Raises DiskError: also where it is damaged, or a node runs on it."""
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


def _look(folder: Path, identity: Identity, files: ShardFiles) -> Survivor:
    log = Log(bytes.fromhex(identity.log_id))
    slot, notices = recover_hard_state(log, files)
    snapshots = intact_snapshots(files, log, notices, [])
    newest = snapshots[0] if snapshots else None
    if slot.floor:
        notices.append(
            f"its log was damaged, and kept up to index {slot.cut}: what it had acknowledged behind is not here"
            if slot.is_mending
            else "its log was damaged, and it had not healed from the others: what it had acknowledged may be missing"
        )
    alone = None  # the log was being dropped for this one: by an install, or by a repair
    if newest is not None and is_installing(files, newest.mark.index):
        alone = newest
    elif slot.is_mending:
        alone = repair.newest_below(snapshots, slot.cut)
    note = divergence.find(log, files)
    if note is not None:
        notices.append(f"its state differed from a majority's at point {note.point}: it is built anew from before that")
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
    ledger.recover(files, segments, [], last.index)  # effects are written of what was applied, so committed
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
    folder: Path, note: divergence.Note | None, snapshots: list[StoredSnapshot], first: int
) -> list[StoredSnapshot]:
    """Those of the snapshots that the state may begin with; `first` is where the log begins. Raises FolderDamaged."""
    if note is None:
        return snapshots
    try:
        return divergence.trusted(note, snapshots, first)
    except divergence.CannotRebuild as error:
        raise FolderDamaged(f"{folder}: {error}; {MEND}") from error


def best_of(survivors: Sequence[Survivor]) -> Survivor:
    """The one whose log is the newest, as in an election: term of the last entry, then its index.

    Raises FolderForeign where they are not of one cluster.
    """
    logs = {each.log_id: each.folder for each in survivors}
    if len(logs) > 1:
        whose = ", ".join(f"{folder} to log {log}" for log, folder in logs.items())
        raise FolderForeign(f"these folders are not of one cluster: {whose}; name those of one")
    return max(survivors, key=lambda each: (each.last.term, each.last.index))


def told(best: Survivor, survivors: Sequence[Survivor]) -> Iterator[str]:
    """What is taken and what may be lost, in sentences."""
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
        f"Lost, if there were any: writes after entry {last}. Whether the nodes that are gone had acknowledged some, "
        "nobody can know from these folders."
    )
    yield (
        "The new log begins behind that entry, with an id of its own: sessions end, and positions, Spark offsets and "
        "manifests of the old log are foreign to it. The old folder is not changed, and its history stays readable "
        f"there (raftlog disk dump {best.folder} records)."
    )


def seed_of(survivor: Survivor, progress: Progress | None = None) -> Seed:
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


def _applied(survivor: Survivor, files: ShardFiles, progress: Progress | None) -> Seed:
    stored = survivor.snapshot
    machine, last_user, mark, configuration = StateMachine(), 0, GENESIS, Configuration()
    if stored is not None:
        machine, last_user = restore(read_chunks(files, stored.folder))
        mark, configuration = stored.mark, stored.configuration
    begin, total = mark.index, survivor.last.index - mark.index
    for entry in _entries(files, survivor.segments, begin):
        decoded = log_entry(entry)
        last_user = last_user_index(decoded, machine.apply(decoded)) or last_user
        mark = entry_mark(entry)
        if entry.kind is EntryKind.CONFIGURATION:
            configuration = decode_configuration(entry.data)
        if progress is not None:
            progress(mark.index - begin, total)
    if mark != survivor.last:
        raise Corrupt(f"the entries end with {mark.index}, not with {survivor.last.index}")
    return Seed(survivor.log_id, mark, configuration, last_user, machine.state())


def _entries(files: ShardFiles, segments: Sequence[Segment], after: int) -> Iterator[Entry]:
    """The entries behind `after`, of what recovery found intact."""
    for segment in segments:
        if segment.last.index <= after:
            continue
        for found in scan(files, segment_name(segment.first), segment.header):
            entry = found.entry
            if entry is None or entry.index > segment.last.index:
                break
            if entry.index > after:
                yield entry
