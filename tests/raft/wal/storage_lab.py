"""One shard's storage on a disk in memory: every step is carried out at once, and any byte can be changed behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.raft.configuration import Configuration
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import Entry
from raftlog.raft.wal.journal import Segment
from raftlog.raft.wal.opening import OpenedShard, open_shard
from raftlog.raft.wal.reading import WalReader
from raftlog.raft.wal.snapshot_files import SnapshotPlan
from raftlog.raft.wal.storage import Storage, WorkStep
from raftlog.statemachine.commands import Result
from raftlog.statemachine.effects import Effects, RequestEffect, encode_effects
from tests.raft.wal.journal_driver import CONFIGURATION, FIRST, LOG, SEGMENT_BYTES, make_entries, new_files


def frame_of(entry: Entry, rows: int = 2) -> bytes:
    """Effects of a plain entry, with that many rows so that there is something to damage."""
    return encode_effects(Effects(entry.index, 1, (RequestEffect(Result.APPLIED, 7),) * rows, False))


def noting(steps: Iterable[WorkStep], parts: list[int]) -> Iterator[WorkStep]:
    """The same steps; `parts` gets the part of each before it is carried out."""
    for part, operations in steps:
        parts.append(part)
        yield part, operations


class WatchedFiles:
    """Files that call `before` or `after` a read of the file of that name, once: the first, or `skipped` later."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.name = ""
        self.skipped = 0
        self.before: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None

    def names(self, folder: str) -> list[str]:
        """As the files themselves."""
        return self.files.names(folder)

    def size(self, name: str) -> int:
        """As the files themselves."""
        return self.files.size(name)

    def read(self, name: str, position: int, size: int) -> bytes:
        """As the files themselves, but for what happens around it."""
        if name == self.name:
            self.skipped -= 1
        if name != self.name or self.skipped >= 0:
            return self.files.read(name, position, size)
        before, self.before = self.before, None
        if before is not None:
            before()
        data = self.files.read(name, position, size)
        after, self.after = self.after, None
        if after is not None:
            after()
        return data


class Shard:
    """A shard that was opened; `entries` is its log as it was written."""

    def __init__(self, files: MemoryFiles | None = None, node: int = 1) -> None:
        self.files, self.node = files or new_files(), node
        self.watched = WatchedFiles(self.files)
        self.forgotten = 0
        self.entries = [FIRST]
        self.opened = self.open()

    def open(self) -> OpenedShard:
        """(Re)start from the files. Raises the errors of `open_shard`."""
        opening = open_shard(LOG, self.files, self._forget, self.node, segment_bytes=SEGMENT_BYTES)
        while True:
            try:
                self.files.execute(next(opening))
            except StopIteration as stop:
                self.opened = stop.value
                break
        self.journal, self.ledger = self.opened.journal, self.opened.ledger
        self.reader = WalReader(self.journal, self.ledger, self.watched, self._forget)
        self.storage = Storage(self.journal, self.ledger, self.files, self.reader)
        return self.opened

    def _forget(self) -> None:
        self.forgotten += 1

    def run(self, steps: Iterable[WorkStep]) -> None:
        """Carries out what `Storage` gives out. Then nothing is remembered of segments that are gone."""
        for _, operations in steps:
            self.files.execute(operations)
        assert self.ledger._parts.keys() <= {segment.first for segment in self.journal.segments}

    def append(self, *sizes: int, records: int = 1, applied: bool = True) -> list[Entry]:
        """Entries of these sizes, durable, each in a batch of its own, with rows and (if `applied`) effects."""
        new = make_entries(self.entries[-1].mark, 1, sizes, records)
        for entry in new:
            self.run(self.storage.carry_out(SyncBatch(None, None, (entry,), ())))
            self.run(self.storage.finish())
        self.entries += new
        if applied:
            self.apply(self.entries)
        return new

    def apply(self, entries: Sequence[Entry]) -> None:
        """Their effects; those that are there are not written again."""
        self.storage.frames.extend((entry.index, frame_of(entry)) for entry in entries)
        self.run(self.storage.finish())

    def roll(self) -> None:
        """Appends until a new segment begins, and ends the one before with its footers."""
        known = len(self.journal.segments)
        while len(self.journal.segments) == known:
            self.append(900)
        self.run(self.storage.finish_sealed(self.files))

    def save_snapshot(
        self, entry: Entry, chunks: Sequence[bytes] = (b"state", b"of it"), configuration: Configuration = CONFIGURATION
    ) -> str:
        """A snapshot of the state after that entry; its folder."""
        plan = SnapshotPlan(LOG, entry.index)
        self.files.execute(plan.begin())
        for chunk in chunks:
            self.files.execute(plan.add(chunk))
        self.files.execute(plan.finish(entry.mark, configuration, 1))
        return plan.folder

    @property
    def segment(self) -> Segment:
        """The oldest one."""
        return self.journal.segments[0]

    def position_of(self, entry: Entry) -> int:
        """Where in the oldest segment an entry is."""
        return bytes(self.files.nodes[f"log/{1:020d}.seg"].seen).index(entry.header)

    def damage(self, name: str, position: int, data: bytes | None = None) -> None:
        """Overwrites the bytes at that place; without `data` one bit is flipped."""
        seen = self.files.nodes[name].seen
        data = bytes([seen[position] ^ 4]) if data is None else data
        seen[position : position + len(data)] = data

    def cut_short(self, name: str, size: int) -> None:
        """The file has only that many bytes."""
        del self.files.nodes[name].seen[size:]
