"""One node's disk: the production's decisions about files, executed in memory one operation at a time.

The disk outlives its process. `raftlog.raft.wal.storage` decides what a batch writes, `raftlog.raft.wal.opening` how a
folder is opened, and the bytes are those of the server. Beside the files the disk keeps a view of the durable entries
for the checks, without decoding any file. Every opening is compared with the view: all synced entries are there, no
entry is there that was not written, and every refusal has a fault that explains it.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.chaos.sim.disk.view import SilentlyWrong, View
from raftlog.cluster.files.errors import DiskFenced, NoSpace
from raftlog.cluster.files.findings import in_one_go
from raftlog.cluster.files.reserve import Reserve
from raftlog.cluster.files.shard_files import needed
from raftlog.raft.codec.checks import UnknownVersion
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.configuration import Configuration
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import GENESIS, Entry, EntryKind, HardState, NodeId
from raftlog.raft.wal.divergence import NOTE, CannotRebuild
from raftlog.raft.wal.formats import HARD_STATE, LOG_FOLDER, ForeignFile, LogIdentity, segment_firsts, segment_name
from raftlog.raft.wal.opening import OpenedShard, ShardDamaged, make_log, open_shard
from raftlog.raft.wal.operations import Delete, DeleteFolder, FileOperation, Rename, Sync, Write
from raftlog.raft.wal.reading import WalReader
from raftlog.raft.wal.recovery import Damaged, HardStateDamaged
from raftlog.raft.wal.snapshot_files import Pieces, StoredSnapshot, list_snapshots, read_chunks
from raftlog.raft.wal.storage import StepKind, Storage, WorkStep

TAIL_BYTES_MAX = 64 << 10
SEGMENT_BYTES = 16_384

Hit = tuple[str, str]
"""A file, and the damage as text."""


def first_entry(configuration: Configuration) -> Entry:
    """The entry at index 1, which names the first members."""
    data = encode_configuration(configuration)
    return seal_entry(GENESIS, term=1, kind=EntryKind.CONFIGURATION, count=1, time_ms=0, clock_ms=0, data=data)


class DiskRefused(Exception):
    """The folder cannot be opened: the node stops loudly. The message names the file and the index."""


@dataclass(frozen=True, slots=True)
class Image:
    """A copy of a whole disk, to go back to."""

    files: MemoryFiles
    view: View
    damaged: dict[str, str]


class SimSpace:
    """The reserve of a disk: a number beside its files (`raftlog.cluster.files.reserve.Space`)."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def size(self) -> int:
        return self._disk.files.reserved

    def free(self) -> int:
        return self._disk.files.free

    def resize(self, size: int) -> None:
        files = self._disk.files
        files.take("reserve", size - files.reserved)
        files.reserved = size


@dataclass(slots=True)
class DiskProcess:
    """What one process has open on its disk, and what goes with it."""

    failed: DiskFenced | None = None
    storage: Storage | None = None
    reader: WalReader | None = None
    received: Pieces | None = None  # a snapshot that is being written aside
    is_busy: bool = False
    met: set[str] = field(default_factory=set)  # damaged files that a reader met
    fail: list[str] = field(default_factory=list)  # kinds of operations that are to fail


class SimDisk:
    """The data folder of one node, formatted as `raftlog format` does: its files, the damage that was done to them, and
    what the process that runs has open."""

    def __init__(
        self,
        node: NodeId,
        log: LogIdentity,
        first: Entry,
        *,
        incarnation: str,
        random: Random,
        segment_bytes: int = SEGMENT_BYTES,
        torn_percent: int = 90,
    ) -> None:
        self.node, self.log, self.first, self.random = node, log, first, random
        self.segment_bytes = segment_bytes
        self._torn_percent = torn_percent
        self.old_hard_state = b""  # the file as it was before the newest change
        self.refused = ""  # why the last opening failed
        self.slow_us = 0  # how much longer a sync takes: the replica's to obey
        self.watch: Callable[[int, FileOperation], None] | None = None  # sees what a process renames and deletes
        self.format(incarnation)

    def forget(self) -> None:
        """The process is gone, and what it knew."""
        self.process = DiskProcess()

    def format(self, incarnation: str, floor: int = 0) -> None:
        """A new folder, in place of whatever was there; with that floor, as `make_log` has it."""
        self.forget()
        self.incarnation = incarnation
        self.files = MemoryFiles(torn_percent=self._torn_percent)
        self.reserve = Reserve(SimSpace(self), self.segment_bytes)
        state = HardState(self.first.term, floor=floor)
        self.files.execute(make_log(self.log, self.first, state, self.segment_bytes))
        self.view = View([self.first], [self.first.index], 1, state, floor=floor)  # the durable entries, for the checks
        self.damaged: dict[str, str] = {}  # file -> damage that was not repaired; "" is the whole disk
        self.was_hit = False  # since a start found nothing wrong
        self.is_half_repaired = False  # the newest start with damage did not come to its end

    # -- a process begins and ends

    def open(self) -> OpenedShard:
        """Opens the folder as a starting node does. Raises DiskRefused, or DiskFenced where the disk fails."""
        return in_one_go(self.opening())

    def opening(self) -> Generator[str, None, OpenedShard]:
        """As `open`, giving the name of each operation before it is executed; the end of it has the `OpenedShard`."""
        self.forget()
        self.reserve = Reserve(SimSpace(self), self.segment_bytes)
        self.refused = ""
        self.is_half_repaired = self.was_hit
        steps = open_shard(
            self.log, self.files, _nothing, self.node, segment_bytes=self.segment_bytes, tail_bytes_max=TAIL_BYTES_MAX
        )
        while True:
            try:
                operations = next(steps)
            except StopIteration as stop:
                opened: OpenedShard = stop.value
                break
            except (CannotRebuild, HardStateDamaged, ShardDamaged, UnknownVersion, ForeignFile) as error:
                raise self._refuse(error) from error
            except OSError as error:
                raise self.fence(error) from error
            yield from self.execute(StepKind.HARD_STATE, operations)
        try:
            self.view.compare(opened, self.files, was_hit=self.was_hit)
        except SilentlyWrong as error:
            raise SilentlyWrong(f"node {self.node} {error}; {self.damaged}") from None
        self._repaired(opened)
        self.is_half_repaired = False
        self.process.reader = WalReader(opened.journal, opened.ledger, self.files, _nothing)
        self.process.storage = Storage(opened.journal, opened.ledger, self.files, self.process.reader)
        return opened

    def _repaired(self, opened: OpenedShard) -> None:
        """A start repaired some damage: it writes the hard state, the .idx files and the newest ledger again, reads the
        newest segment whole and cuts it, and sets damaged snapshots aside. All other damage stays: it does not look
        into a sealed ledger whose footer is intact."""
        newest = segment_name(opened.journal.active.first)
        again = (HARD_STATE, newest, newest.replace(".seg", ".ledger"))
        for name in list(self.damaged):
            if name in again or name.endswith(".idx") or name not in self.files.nodes:
                del self.damaged[name]
        self.files.whole.discard(HARD_STATE)
        self.was_hit = self.is_hurt

    def _refuse(self, error: Exception) -> DiskRefused:
        self.refused = f"node {self.node}: {error}"
        if not self.is_hurt and not self.was_hit:
            raise SilentlyWrong(f"refused though nothing had happened to the disk: {self.refused}") from error
        return DiskRefused(self.refused)

    def is_damaged(self, areas: Sequence[str]) -> bool:
        """Whether files of these areas ("snapshot", "ledger") hold damage that was done to them."""
        is_snapshot, is_ledger = "snapshot" in areas, "ledger" in areas
        return any(
            (is_snapshot and name.startswith("snapshots/")) or (is_ledger and name.endswith(".ledger"))
            for name in self.damaged
        )

    def crash(self, power: bool) -> None:
        """Ends the process. A kill leaves the page cache; a power cut takes unsynced writes, or tears them."""
        self.forget()
        if power:
            self.files.lose_power(self.random)

    # -- operations

    def check(self) -> None:
        """Raises DiskFenced once anything has failed."""
        if self.process.failed is not None:
            raise self.process.failed

    def running(self) -> Storage:
        assert self.process.storage is not None, "the disk was not opened"
        return self.process.storage

    def steps(self, steps: Iterator[WorkStep]) -> Generator[str, None, None]:
        for part, operations in steps:
            yield from self.execute(part, operations)

    def execute(self, part: int, operations: Sequence[FileOperation]) -> Generator[str, None, None]:
        for operation in operations:
            yield type(operation).__name__
            self.carry_out_one(part, operation)

    def carry_out_one(self, part: int, operation: FileOperation) -> None:
        try:
            if self.process.fail:
                self._may_fail(operation)
            try:
                self.files.carry_out(operation)
            except OSError as error:
                self._carry_out_again(operation, error)
            if self.damaged:
                self.carried_out(operation)
            if self.watch is not None and type(operation) in (Delete, Rename) and self.process.storage is not None:
                self.watch(part, operation)
        except OSError as error:
            is_full = error.errno == errno.ENOSPC
            if self.process.storage is not None and not self.process.storage.is_final(part, is_full=is_full):
                raise NoSpace(f"node {self.node}: {error}") from error
            raise self.fence(error) from error

    def _carry_out_again(self, operation: FileOperation, error: OSError) -> None:
        while error.errno == errno.ENOSPC and self.reserve.give(needed(operation)):
            try:
                return self.files.carry_out(operation)
            except OSError as again:
                error = again
        raise error

    def _may_fail(self, operation: FileOperation) -> None:
        kind = "sync" if type(operation).__name__.startswith("Sync") else "write"
        if self.must_fail(kind):
            if type(operation) is Sync:
                self.files.fail_sync(operation.name)
            raise OSError(errno.EIO, f"the {kind} fails", operation.name)

    def fence(self, error: Exception) -> DiskFenced:
        """Nothing is written any more, for that error."""
        self.process.failed = DiskFenced(f"node {self.node}: {error}")
        return self.process.failed

    def flush(self) -> Generator[str, None, None]:
        """Brings rows and effects to their files. Raises DiskFenced or NoSpace."""
        self.check()
        yield from self.steps(self.running().flush())

    # -- what must be durable

    def carry_out(self, batch: SyncBatch) -> Iterator[str]:
        """Makes a batch durable, one operation after each name given. Raises DiskFenced, NoSpace, ImpossibleBatch."""
        self.check()
        storage, view = self.running(), self.view
        self.process.is_busy = True
        keep = -1  # entries that a cut keeps
        try:
            for part, operations in storage.carry_out(batch):
                if part == StepKind.CUT:
                    if keep < 0:
                        assert batch.cut_after is not None
                        keep = bisect_right(view.ends, batch.cut_after)
                        view.synced = min(view.synced, keep)
                elif keep >= 0:
                    del view.entries[keep:], view.ends[keep:]
                    keep = -1
                if part == StepKind.ENTRIES:
                    yield from self._write_entries(batch.entries, operations)
                elif part == StepKind.HARD_STATE:
                    view.coming = storage.journal.slot.state
                    self.old_hard_state = bytes(self.files.nodes[HARD_STATE].seen)
                    yield from self.execute(part, operations)
                    view.hard_state_synced(view.coming)
                else:
                    yield from self.execute(part, operations)
            if keep >= 0:
                del view.entries[keep:], view.ends[keep:]
        except Damaged as error:
            raise self.fence(error) from error
        finally:
            self.process.is_busy = False

    def _write_entries(self, entries: Sequence[Entry], operations: Sequence[FileOperation]) -> Iterator[str]:
        """One write and one sync for each segment; the view follows."""
        view = self.view
        given = 0
        for operation in operations:
            yield type(operation).__name__
            self.carry_out_one(StepKind.ENTRIES, operation)
            if type(operation) is Write and operation.name.endswith(".seg"):
                # a write to a segment: as many of the entries as fit into it, durable marks aside
                size = len(operation.data)
                while given < len(entries) and size >= entries[given].size:
                    entry = entries[given]
                    size -= entry.size
                    view.entries.append(entry)
                    view.ends.append(entry.index)
                    given += 1
            elif type(operation) is Sync and operation.name.endswith(".seg"):
                view.entries_synced()

    def finish(self, frames: Iterable[tuple[int, bytes]] = ()) -> Generator[str, None, None]:
        """What may follow the promise: rows, effects (index and frame of entries applied), the second slot, footers of
        sealed segments. Never raises: an error fences the disk, and the next batch says so."""
        storage = self.running()
        storage.frames.extend(frames)
        if self.process.failed is not None:
            return
        self.process.is_busy = True
        try:
            yield from self.steps(storage.finish())
            if storage.is_finish_due:
                yield from self.steps(storage.finish_sealed(self.files))
        except (DiskFenced, NoSpace):
            pass
        finally:
            self.process.is_busy = False

    def mark(self) -> Generator[str, None, None]:
        """A durable mark behind the newest entry: after a short idle time, and at a clean stop."""
        self.check()
        self.process.is_busy = True
        try:
            yield from self.steps(self.running().mark())
        finally:
            self.process.is_busy = False

    @property
    def is_marked(self) -> bool:
        """Whether a durable mark stands behind the newest entry, and every effect is written."""
        storage = self.running()
        return storage.journal.marked == storage.journal.last.index and not storage.has_frames

    # -- reading

    def reader(self) -> WalReader:
        """Reads the log of the process that runs on this disk."""
        assert self.process.reader is not None, "the disk was not opened"
        return self.process.reader

    def must_fail(self, kind: str) -> bool:
        """Whether the next operation of that kind is to fail: see `fail_next`."""
        if kind not in self.process.fail:
            return False
        self.process.fail.remove(kind)
        return True

    def fail_next(self, kind: str) -> None:
        """The next "read", "write" or "sync" of this process fails with EIO."""
        assert kind in ("read", "write", "sync"), kind
        self.process.fail.append(kind)

    def chunks(self, snapshot: StoredSnapshot) -> Iterator[bytes]:
        return read_chunks(self.files, snapshot.folder)

    def snapshots(self) -> list[int]:
        return list_snapshots(self.files)

    # -- trouble

    def hit(self, hit: Hit | None) -> str:
        """Records damage that was done, and returns it as text."""
        if hit is None:
            return ""
        name, what = hit
        self.damaged[name] = what
        self.was_hit = True
        if name == HARD_STATE:
            self.files.whole.add(name)  # a torn slot beside a damaged one is beyond what two slots promise
        return what

    def copy(self) -> Image:
        return Image(self.files.copy(), self.view.copy(), dict(self.damaged))

    def roll_back(self, image: Image) -> None:
        """Puts the disk back to an earlier image. No process runs on it."""
        self.forget()
        self.files, self.view, self.damaged = image.files.copy(), image.view.copy(), dict(image.damaged)
        self.files.is_full = False
        self.was_hit = bool(self.damaged)

    def wipe(self) -> None:
        """Everything is gone: a node that starts on it must refuse."""
        self.forget()
        self.files = MemoryFiles(torn_percent=self._torn_percent)
        self.damaged = {"": "the disk was wiped"}
        self.was_hit = True

    @property
    def is_hurt(self) -> bool:
        """Whether damage may keep a node from starting. Only a log that begins at 1 can make effects again."""
        harmless = (".idx", ".ledger") if self.first_index == 1 else (".idx",)
        return any(not name.endswith(harmless) and name != HARD_STATE for name in self.damaged)

    @property
    def has_note(self) -> bool:
        """Whether a process left a note that its state was wrong."""
        return NOTE in self.damaged

    @property
    def segment_firsts(self) -> list[int]:
        """The first index of each segment, sorted."""
        return segment_firsts(self.files.names(LOG_FOLDER))  # others are spare, or being fetched

    @property
    def first_index(self) -> int:
        return min(self.segment_firsts, default=0)

    def carried_out(self, operation: FileOperation) -> None:
        """Damage is gone with its file: after a cut, a compaction, an installation or a repair."""
        if isinstance(operation, Delete | DeleteFolder | Rename):
            self.damaged.pop(operation.name, None)
            for name in [name for name in self.damaged if name.startswith(f"{operation.name}/")]:
                del self.damaged[name]


def _nothing() -> None:
    """Files in memory need not be closed."""
