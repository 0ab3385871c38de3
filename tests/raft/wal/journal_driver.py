"""Drives journal and recovery over a disk in memory as the server does, one operation at a time, and makes entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.types import GENESIS, Entry, EntryKind, HardState, Mark
from raftlog.raft.wal.formats import LogIdentity, segment_name
from raftlog.raft.wal.journal import Journal
from raftlog.raft.wal.opening import count_boot, make_log
from raftlog.raft.wal.operations import FileOperation
from raftlog.raft.wal.recovery import Recovery, rebuild_index, recover_hard_state, recover_log, scan

LOG = LogIdentity(bytes(range(16)))
SEGMENT_BYTES = 4_096
CONFIGURATION = Configuration((Member(1, "ab" * 16, "127.0.0.1:7001", "http://127.0.0.1:8001"),), (1,))


def first_entry(configuration: Configuration, time_ms: int = 1_000) -> Entry:
    """The entry that begins a log."""
    data = encode_configuration(configuration)
    kind = EntryKind.CONFIGURATION
    return seal_entry(GENESIS, term=1, kind=kind, count=1, time_ms=time_ms, clock_ms=0, data=data)


FIRST = first_entry(CONFIGURATION)


class PowerCut(Exception):
    """The disk executed as many operations as it should."""


def make_entries(previous: Mark, term: int, sizes: Iterable[int], records: int = 1) -> list[Entry]:
    """Entries that follow `previous`, each one block of `records` records whose values have the next size together."""
    entries: list[Entry] = []
    for size in sizes:
        value = bytes((previous.index + i) % 255 + 1 for i in range(size // records))
        data = encode_block([BlockRecord(1, None, value)] * records, plain=True)
        entry = seal_entry(
            previous,
            term=term,
            kind=EntryKind.COMMANDS,
            count=records,
            time_ms=1_000 + previous.index,
            clock_ms=previous.index,
            data=data,
        )
        entries.append(entry)
        previous = entry.mark
    return entries


def after_power_cut(files: MemoryFiles, random: Random) -> MemoryFiles:
    """The files after a loss of power at this moment; `files` stay as they are."""
    left = files.copy()
    left.lose_power(random)
    return left


def after_kill(files: MemoryFiles) -> MemoryFiles:
    """The files after the process was killed: everything it wrote, synced or not."""
    return MemoryFiles(files.content())


def new_files() -> MemoryFiles:
    """The folder of one shard as `raftlog format` leaves it."""
    files = MemoryFiles()
    files.execute(make_log(LOG, FIRST, HardState(term=1), SEGMENT_BYTES))
    return files


class Driver:
    """A node's storage. `budget`: how many operations are executed before the power is cut."""

    def __init__(self, files: MemoryFiles, budget: int = 1 << 30) -> None:
        self.files = files
        self.budget = budget
        self.executed = 0
        self.is_damage_seen = False
        slot, self.notices = recover_hard_state(LOG, files)
        self.recovery: Recovery = recover_log(LOG, files, slot)
        if self.recovery.damage is not None:
            return
        self.execute(self.recovery.operations)
        for segment in self.recovery.rebuild:
            self.execute(rebuild_index(LOG, files, segment))
        slot, operations = count_boot(LOG, slot, self.recovery.segments[-1].last.term)
        self.execute(operations)
        self.journal = Journal(LOG, self.recovery.segments, slot, SEGMENT_BYTES, self.recovery.marked)
        self.execute(self.journal.mark())

    def execute(self, operations: Iterable[FileOperation]) -> None:
        for operation in operations:
            if self.executed == self.budget:
                raise PowerCut
            self.executed += 1
            self.files.execute([operation])

    def keep(self, state: HardState) -> None:
        """Make the hard state durable."""
        for operations in self.journal.set_hard_state(state):
            self.execute(operations)

    def append(self, entries: Sequence[Entry]) -> None:
        """Make entries durable; then their rows."""
        self.journal.check(entries)
        self.execute(self.journal.spares(entries))
        operations, placed = self.journal.append(entries)
        self.execute(operations)
        self.execute(self.journal.index_writes(placed))

    def cut(self, kept: Entry) -> None:
        """Drop everything after an entry."""
        end = next(end for entry, end in self.read() if entry.index == kept.index)
        for operations in self.journal.cut(kept.mark, end):
            self.execute(operations)

    def read(self) -> list[tuple[Entry, int]]:
        """Every entry in the files, and where it ends in its segment; `is_damage_seen` where one cannot be read."""
        found: list[tuple[Entry, int]] = []
        for segment in self.journal.segments:
            scanned = scan(self.files, segment_name(segment.first), segment.header)
            found += [(each.entry, each.position + each.entry.size) for each in scanned if each.entry is not None]
            if (found[-1][0].index if found else 0) != segment.last.index:
                self.is_damage_seen = True
                break
        return found

    def entries(self) -> list[Entry]:
        """Every entry in the files."""
        return [entry for entry, _ in self.read()]


def written_log() -> tuple[Driver, list[Entry]]:
    """A log of four batches over two segments, all of it synced; the last batch is behind the newest mark."""
    driver = Driver(new_files())
    entries = [FIRST]
    for sizes in ((100, 300), (50,), (1_500, 1_500), (700, 20), (333,)):
        batch = make_entries(entries[-1].mark, 2, sizes)
        driver.append(batch)
        entries += batch
    return driver, entries
