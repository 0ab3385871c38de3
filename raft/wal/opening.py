"""Opens the folder of a shard: reads, chooses and repairs, and writes what must be there before the node sends.

Hard state, snapshots, log, ledgers, in this order; the boot is counted after the log was repaired, and before anything
is said. Where something that was durable is damaged, a repair is begun (`raftlog.raft.wal.repair`) and the folder is
opened again, as after a crash. `open_shard` gives out operations; the server executes them on files, the simulator in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.codec.mark import MARK_SIZE
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import GENESIS, Entry, HardState, LogStart, Mark, NodeId
from raftlog.raft.wal import divergence, repair
from raftlog.raft.wal.formats import (
    HARD_STATE,
    HARD_STATE_BYTES,
    LOG_FOLDER,
    SEGMENT_HEADER_SIZE,
    LogIdentity,
    Slot,
    index_name,
    ledger_name,
    term_runs,
)
from raftlog.raft.wal.journal import FIRST_SEGMENT_BYTES, SEGMENT_BYTES, Journal, Segment, begin_after, keep_slot
from raftlog.raft.wal.kept_log import KEPT, keep_again, keep_log
from raftlog.raft.wal.ledger import Ledger
from raftlog.raft.wal.operations import Allocate, DeleteFolder, FileOperation, Files, Sync, SyncFolder
from raftlog.raft.wal.reading import WalReader
from raftlog.raft.wal.recovery import Damage, Damaged, rebuild_index, recover_hard_state, recover_log
from raftlog.raft.wal.snapshot_files import (
    SNAPSHOTS,
    SnapshotDamaged,
    StoredSnapshot,
    drop_old,
    end_install,
    is_installing,
    list_snapshots,
    open_snapshot,
)

TAIL_BYTES_MAX: Final = 8 << 20


class ShardDamaged(ValueError):
    """The log cannot be used: this node may neither vote nor acknowledge. `damage` where it is in one place."""

    def __init__(self, message: str, damage: Damage | None = None) -> None:
        super().__init__(message)
        self.damage = damage


@dataclass(frozen=True, slots=True)
class OpenedShard:
    """The content of a shard when it was opened, all of it durable and intact, and the objects that work on it from now
    on.
    """

    hard_state: HardState  # the boot counter is that of this start
    log: LogStart
    configuration: Configuration  # the newest in the log
    configuration_index: int
    earlier: tuple[tuple[int, Configuration], ...]  # those before it and their indexes, back to the snapshot's
    snapshot: StoredSnapshot | None  # the newest intact one that the ledger reaches
    ledger_last: int  # newest entry with effects: replay makes those behind it
    committed: int  # newest entry that is known to be committed: by the snapshot, or by effects that replay makes again
    notices: tuple[str, ...]  # findings and repairs
    floor: int  # not 0: it lost entries to damage, and has no vote before it holds one of that term or a later one
    kept: tuple[int, int]  # term and index of the newest entry up to which it kept its promises, replaced ones too
    journal: Journal
    ledger: Ledger


def open_shard(
    log: LogIdentity,
    files: Files,
    forget: Callable[[], None],
    node: NodeId,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    tail_bytes_max: int = TAIL_BYTES_MAX,
) -> Generator[Sequence[FileOperation], None, OpenedShard]:
    """Reads the shard, repairs it as far as allowed, and counts this start. Execute what it yields before going on.

    A damaged log is cut and heals from its peers; where they cannot heal it nothing is written. Raises
    HardStateDamaged, ShardDamaged, CannotRebuild, UnknownVersion or ForeignFile.
    """
    so_far: list[str] = []
    cuts: list[int] = []
    while True:
        try:
            return (yield from _open(log, files, forget, node, segment_bytes, tail_bytes_max, so_far))
        except ShardDamaged as error:
            slot, _ = recover_hard_state(log, files)
            try:
                slot = repair.begin(log, files, slot, node, error.damage, intact_snapshots(files, log, [], []))
            except repair.Irreparable as reason:
                raise ShardDamaged(f"{error}; {reason}; nothing was changed", error.damage) from error
            if slot.cut in cuts:
                raise
            cuts.append(slot.cut)
            so_far.append(f"{error}; it is kept up to index {slot.cut}, and the rest comes from the other nodes")
            promise, repeat = keep_slot(log, slot)
            yield promise + repeat


def _open(
    log: LogIdentity,
    files: Files,
    forget: Callable[[], None],
    node: NodeId,
    segment_bytes: int,
    tail_bytes_max: int,
    so_far: list[str],
) -> Generator[Sequence[FileOperation], None, OpenedShard]:
    """As `open_shard`, but raises ShardDamaged where there is damage; `so_far` are the earlier notices."""
    slot, notices = recover_hard_state(log, files)
    notices += so_far
    damaged: list[int] = []
    snapshots = intact_snapshots(files, log, notices, damaged)
    for snapshot in snapshots[:1]:
        if is_installing(files, snapshot.mark.index):
            notices.append(f"the log was being replaced by {snapshot.folder}: that is finished now")
            yield [SyncFolder(SNAPSHOTS)]  # as below
            mark = snapshot.mark  # the install was cut off: it is finished
            yield [*keep_log(files, mark), *begin_after(log, mark, segment_bytes), *end_install(mark.index)]
    if moves := keep_again(files):
        yield moves
    if slot.cut:
        # A killed process may have left this in the page cache alone. A start that cuts the log, and then loses power,
        # must not find a hard state that knows of no cut and no floor.
        promise, repeat = keep_slot(log, slot)
        yield promise + repeat
    if slot.is_mending:
        base = repair.newest_below(snapshots, slot.cut)
        yield from repair.set_aside(files, slot, is_all=base is not None, notices=notices)
        if base is not None:
            yield begin_after(log, base.mark, segment_bytes)
    durable = snapshots[0].mark.index if snapshots else 0
    recovery = recover_log(log, files, slot, durable, tail_bytes_max)
    notices += recovery.notices
    if recovery.damage is not None:
        raise ShardDamaged(str(recovery.damage), recovery.damage)
    first, last_term = recovery.segments[0].first, recovery.segments[-1].last.term
    if last_term > slot.state.term:
        notices.append(
            f"the hard state is of term {slot.state.term}, and the log has entries of term {last_term}: the disk lost "
            "writes that it had called durable"
        )
        slot = repair.lost_term(files, slot, node, recovery, snapshots)
    note = divergence.find(log, files)
    if note is not None:
        snapshots = divergence.trusted(note, snapshots, first)
        durable = snapshots[0].mark.index if snapshots else 0  # of effects: later ones are made again
        notices.append(
            f"the state differed from a majority's at point {note.point}: it is rebuilt from index {durable}"
        )
    ledger = Ledger(log)
    ledger_operations = ledger.recover(files, recovery.segments, notices, durable)
    chosen = _choose(snapshots, first - 1, ledger.last, notices)
    if chosen is None and first > 1:
        raise ShardDamaged(f"the log begins at {first} and no snapshot reaches that far")
    yield recovery.operations
    for segment in recovery.rebuild:
        yield rebuild_index(log, files, segment)
    was_cut = slot.cut > 0
    if was_cut:  # effects prove that their entries were synced: those of cut entries are removed before the cut is over
        yield [*ledger_operations, Sync(ledger_name(recovery.segments[-1].first))]
    slot, operations = count_boot(log, slot, last_term)
    yield operations
    journal = Journal(log, recovery.segments, slot, segment_bytes, recovery.marked)
    yield journal.mark()
    yield [SyncFolder("")]
    for index in damaged:
        yield repair.set_snapshot_aside(files, index, notices)
    if note is not None:
        yield divergence.drop(note, files)
        if files.names(KEPT):
            notices.append(f"the older segments in {KEPT}/ were deleted: their effects may be wrong, too")
            yield [DeleteFolder(KEPT)]
    yield drop_old(files, None if chosen is None else chosen.mark.index)
    if not was_cut:
        yield ledger_operations
    if note is not None:
        yield divergence.done()
    *earlier, (index, configuration) = _configurations(journal, WalReader(journal, ledger, files, forget), chosen)
    runs = term_runs([segment.runs for segment in journal.segments])
    mark = chosen.mark if chosen is not None else GENESIS
    start = LogStart(journal.first, runs, journal.last, recovery.tail, mark, journal.segments[0].previous)
    return OpenedShard(
        slot.state,
        start,
        configuration,
        index,
        tuple(earlier),
        chosen,
        ledger.last,
        max(mark.index, recovery.applied),
        tuple(notices),
        slot.floor,
        slot.replaced.kept(journal.last),
        journal,
        ledger,
    )


def make_log(
    log: LogIdentity, entry: Entry, state: HardState, segment_bytes: int = SEGMENT_BYTES
) -> list[FileOperation]:
    """A new shard: its hard state in both slots, and a first segment that holds `entry`."""
    previous = Mark()
    size = max(min(segment_bytes, FIRST_SEGMENT_BYTES), SEGMENT_HEADER_SIZE + entry.size + 2 * MARK_SIZE)
    journal = Journal(log, [Segment(previous, size, previous)], Slot(0, state), segment_bytes)
    journal.check([entry])
    promise, repeat = journal.set_hard_state(state)
    operations, placed = journal.append([entry])
    return [
        Allocate(HARD_STATE, HARD_STATE_BYTES),
        *promise,
        *repeat,
        *begin_after(log, previous, size),
        *operations,
        *journal.index_writes(placed),
        *journal.mark(),
        Sync(index_name(1)),
        Sync(ledger_name(1)),
        SyncFolder(LOG_FOLDER),
    ]


def count_boot(log: LogIdentity, slot: Slot, last_term: int) -> tuple[Slot, list[FileOperation]]:
    """Both slots again, with one more boot and no cut under way: the cut was finished and synced before.

    The floor goes too, once the log has reached it: `last_term` is the term of the newest entry.
    """
    floor = slot.floor if last_term < slot.floor else 0
    state = replace(slot.state, boot=slot.state.boot + 1, floor=floor)
    slot = replace(slot, sequence=slot.sequence + 1, state=state, cut=0, is_mending=False)
    promise, repeat = keep_slot(log, slot)
    return slot, promise + repeat


def intact_snapshots(files: Files, log: LogIdentity, notices: list[str], damaged: list[int]) -> list[StoredSnapshot]:
    """Every intact snapshot, newest first; a damaged one is reported and skipped; `damaged` gets its index."""
    intact: list[StoredSnapshot] = []
    for index in list_snapshots(files):
        try:
            intact.append(open_snapshot(files, log, index))
        except SnapshotDamaged as error:
            notices.append(f"{error}: passed over for an older one, or for the log from its start")
            damaged.append(index)
    return intact


def _choose(
    snapshots: list[StoredSnapshot], before: int, ledger_last: int, notices: list[str]
) -> StoredSnapshot | None:
    """The newest snapshot that the ledger reaches: replay from an older one makes the effects that are missing.

    `before` is the end before the log: an older snapshot leaves a gap.
    """
    for snapshot in snapshots:
        if before <= snapshot.mark.index <= ledger_last:
            return snapshot
        notices.append(f"{snapshot.folder} is passed over: effects are intact only up to index {ledger_last}")
    return None


def _configurations(
    journal: Journal, reader: WalReader, snapshot: StoredSnapshot | None
) -> tuple[tuple[int, Configuration], ...]:
    """The configurations of the log with their indexes, from the one in force at the snapshot on.

    The newest may still be cut away; then the one before it is in force again (pitfall 41: a configuration that
    outlives its cut entry).
    """
    found: list[tuple[int, Configuration]] = []
    base = 0
    if snapshot is not None:
        found.append((snapshot.configuration_index, snapshot.configuration))
        base = snapshot.mark.index
    for segment in journal.segments:
        for index in segment.configurations:
            if index <= base:
                continue
            try:
                (entry,) = reader.entries(index - 1, index, 0)
            except Damaged as error:
                raise ShardDamaged(f"{error.damage}; it is a configuration", error.damage) from error
            found.append((index, decode_configuration(entry.data)))
    if not found:
        raise ShardDamaged("neither the log nor a snapshot has a configuration")
    return tuple(found)
