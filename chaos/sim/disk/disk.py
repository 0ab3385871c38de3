"""One node's disk: the production's decisions about files, executed in memory one operation at a time.

The disk outlives its process. `raftlog.raft.wal.storage` decides what a batch writes, `raftlog.raft.wal.opening` how a
folder is opened, and the bytes are those of the server. Beside the files the disk keeps a view of the durable entries
for the checks, without decoding any file. Every opening is compared with the view: all synced entries are there, no
entry is there that was not written, and every refusal has a fault that explains it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from raftlog.chaos.sim.disk import faults, reading, snapshots as disk_snapshots
from raftlog.chaos.sim.disk.errors import DiskFailed, DiskFull, DiskRefused
from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.chaos.sim.disk.state import SEGMENT_BYTES, DiskState, SimSpace
from raftlog.chaos.sim.disk.view import SilentlyWrong, View
from raftlog.cluster.files.reserve import Reserve
from raftlog.raft.codec.checks import UnknownVersion
from raftlog.raft.configuration import Configuration
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import Entry, HardState, Mark, NodeId
from raftlog.raft.wal.divergence import CannotRebuild
from raftlog.raft.wal.formats import HARD_STATE, ForeignFile, LogIdentity
from raftlog.raft.wal.opening import OpenedShard, ShardDamaged, make_log, open_shard
from raftlog.raft.wal.operations import FileOperation, Sync, Write
from raftlog.raft.wal.reading import WalReader
from raftlog.raft.wal.recovery import Damaged, HardStateDamaged
from raftlog.raft.wal.snapshot_files import (
    StoredSnapshot,
    list_snapshots,
    open_snapshot,
    read_chunks,
    read_piece,
)
from raftlog.raft.wal.storage import StepKind, Storage

__all__ = ["DiskFailed", "DiskFull", "DiskRefused", "Image", "SilentlyWrong", "SimDisk"]

TAIL_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Image:
    """A copy of a whole disk, to go back to."""

    files: MemoryFiles
    view: View
    damaged: dict[str, str]


class SimDisk(DiskState):
    """The data folder of one node, formatted as `raftlog format` does."""

    __slots__ = ()

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
        super().__init__(
            node,
            log,
            first,
            incarnation=incarnation,
            random=random,
            segment_bytes=segment_bytes,
            torn_percent=torn_percent,
        )
        self.format(incarnation)

    def format(self, incarnation: str, floor: int = 0) -> None:
        """A new folder, in place of whatever was there; with that floor, as `make_log` has it."""
        self.forget()
        self.incarnation = incarnation
        self.files = MemoryFiles(torn_percent=self.files.torn_percent)
        state = HardState(self.first.term, floor=floor)
        self.files.execute(make_log(self.log, self.first, state, self.segment_bytes))
        self.view = View([self.first], [self.first.index], 1, state, floor=floor)
        self.damaged.clear()
        self.was_hit = self.is_half_repaired = False

    # -- a process begins and ends

    def open(self) -> OpenedShard:
        """Opens the folder as a starting node does. Raises DiskRefused, or DiskFailed where the disk fails."""
        steps = self.opening()
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                opened: OpenedShard = stop.value
                return opened

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
        faults.opened(self, opened)
        self.is_half_repaired = False
        self._reader = WalReader(opened.journal, opened.ledger, self.files, _nothing)
        self._storage = Storage(opened.journal, opened.ledger, self.files, self._reader)
        return opened

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

    # -- what must be durable

    def carry_out(self, batch: SyncBatch) -> Iterator[str]:
        """Makes a batch durable, one operation after each name given. Raises DiskFailed, DiskFull, ImpossibleBatch."""
        self.check()
        storage, view = self.running(), self.view
        self.is_busy = True
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
            self.is_busy = False

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
        if self.failed is not None:
            return
        self.is_busy = True
        try:
            yield from self.steps(storage.finish())
            if storage.is_finish_due:
                yield from self.steps(storage.finish_sealed(self.files))
        except (DiskFailed, DiskFull):
            pass
        finally:
            self.is_busy = False

    def mark(self) -> Generator[str, None, None]:
        """A durable mark behind the newest entry: after a short idle time, and at a clean stop."""
        self.check()
        self.is_busy = True
        try:
            yield from self.steps(self.running().mark())
        finally:
            self.is_busy = False

    @property
    def is_marked(self) -> bool:
        """Whether a durable mark stands behind the newest entry, and every effect is written."""
        storage = self.running()
        return storage.journal.marked == storage.journal.last.index and not storage.has_frames

    # -- snapshots (raftlog.chaos.sim.disk.snapshots), each in steps as `carry_out`

    def save_snapshot(
        self, mark: Mark, configuration: Configuration, configuration_index: int, chunks: Iterable[bytes]
    ) -> Iterator[str]:
        """Keeps the state after the entry of `mark`."""
        return disk_snapshots.save(self, mark, configuration, configuration_index, chunks)

    def snapshot_piece(self, index: int, term: int, offset: int, bytes_max: int) -> tuple[int, bytes]:
        """What a leader sends: how many bytes the snapshot has, and those from `offset` on; (0, b"") without it."""
        return read_piece(self.files, self.log, index, term, offset, bytes_max)

    def write_piece(self, index: int, offset: int, data: bytes) -> Iterator[str]:
        """Writes a received piece beside the log. Offset 0 begins a new snapshot."""
        return disk_snapshots.write_piece(self, index, offset, data)

    def install(self, index: int) -> Generator[str, None, StoredSnapshot]:
        """Makes the received snapshot the newest one, drops the whole log for it, and returns it."""
        received, stored = disk_snapshots.check_received(self, index)
        yield from disk_snapshots.install(self, received, stored.mark)
        return open_snapshot(self.files, self.log, index)

    # -- reading

    def read(self, after: int, to: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries after the end `after` up to `to`, from the files; () where they cannot be delivered."""
        return reading.read(self, after, to, bytes_max)

    def chunks(self, snapshot: StoredSnapshot) -> Iterator[bytes]:
        """The chunks of a snapshot. Raises SnapshotDamaged."""
        return read_chunks(self.files, snapshot.folder)

    # -- durable entries, for the checks

    @property
    def durable_hard_state(self) -> HardState:
        """The newest hard state that a power cut cannot take."""
        return self.view.hard_state

    @property
    def durable_last(self) -> int:
        """The end of the newest durable entry."""
        return self.view.durable_last

    @property
    def held(self) -> frozenset[tuple[int, int]]:
        return self.view.held

    @property
    def forgotten(self) -> frozenset[tuple[int, int]]:
        """The entries that it held before damage took some of them, until it has them again."""
        return self.view.forgotten

    @property
    def ends(self) -> list[int]:
        """The ends of all entries, those that are not synced too."""
        return self.view.ends

    def has(self, index: int, term: int) -> bool:
        """Whether the entry (index, term) is durable."""
        return self.view.has(index, term)

    def between(self, after: int, to: int) -> list[Entry]:
        """The entries after the end `after`, up to the end `to`."""
        return self.view.between(after, to)

    def snapshots(self) -> list[int]:
        """The indexes of the finished snapshots, newest first."""
        return list_snapshots(self.files)

    # -- trouble

    @property
    def full(self) -> bool:
        """Whether there is no room for another byte."""
        return self.files.is_full

    @full.setter
    def full(self, is_full: bool) -> None:
        self.files.is_full = is_full

    def flip_bit(self, area: str, random: Random) -> str:
        """Flips one bit of an area (`faults.AREAS`); the damage as text, or "" where none is allowed now."""
        return self.hit(faults.flip_bit(self, area, random))

    def misdirect(self, area: str, random: Random) -> str:
        """A block was written in another one's place."""
        return self.hit(faults.misdirect(self, area, random))

    def stale_block(self, area: str, random: Random) -> str:
        """A block has the bytes from before its newest write."""
        return self.hit(faults.stale_block(self, area, random))

    def hit(self, hit: faults.Hit | None) -> str:
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
        """A copy of the whole disk."""
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
        self.files = MemoryFiles(torn_percent=self.files.torn_percent)
        self.damaged = {"": "the disk was wiped"}
        self.was_hit = True


def _nothing() -> None:
    """Files in memory need not be closed."""
