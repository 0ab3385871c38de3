"""A folder in memory with a page cache: executes `raft.wal.operations`, can lose power, be killed, fill up and fail.

Bytes are durable once their file is synced; before, a power cut loses them, keeps them or tears them at the borders of
sectors (sometimes inside one: the new bytes up to somewhere, the old ones behind). Names are durable in the order in
which they were changed once a folder is synced; before, a power cut keeps any number of the first changes. A killed
process loses nothing: the page cache stays.

Each file is kept as one image, the bytes that a reader sees. For each unsynced write the bytes from before are kept, so
that a sync costs nothing. Only a failed sync makes a second image, because the cache then counts writes as clean that
never reached the disk.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

from raftlog.raft.wal import operations
from raftlog.raft.wal.formats import LOG_FOLDER
from raftlog.raft.wal.operations import FileOperation, Sync, Write

SECTOR = 512
ROOMY = 1 << 30
"""Free bytes of a disk without a size."""
NAME_BYTES = 64
"""Space that a name takes on a disk with a size: so an empty file does not fit on a full one."""


_Change = tuple[int, bytes | bytearray, bytes | None]
"""One unsynced write: its position, the bytes before (fewer where the file grew), the bytes now.

Where the last is None the file was cut at the position, and the second has the bytes that were behind it.
"""


class Inode:
    """The content of one file, whatever its name is."""

    __slots__ = ("changes", "disk", "lied", "seen", "wounds")

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.seen = bytearray(content)
        self.changes: list[_Change] = []
        self.disk: bytearray | None = None  # the durable bytes, where they are not `seen` less `changes`
        self.lied: bytearray | None = None  # what the disk has in truth since it answered a sync that it did not do
        self.wounds: list[tuple[int, bytes]] = []  # position of each damage, and the bytes before it

    def write(self, position: int, data: bytes) -> None:
        """The page cache takes it."""
        seen = self.seen
        size = len(seen)
        if position < size:
            end = position + len(data)
            self.changes.append((position, seen[position:end], data))
            seen[position:end] = data
            return
        if position > size:
            data = bytes(position - size) + data
        self.changes.append((size, b"", data))
        seen += data

    def cut(self, size: int) -> None:
        """A file made that long."""
        if size < len(self.seen):
            self.changes.append((size, self.seen[size:], None))
            del self.seen[size:]
        elif size > len(self.seen):
            self.write(len(self.seen), bytes(size - len(self.seen)))

    def sync(self) -> None:
        """All writes are durable, except those that an earlier sync failed to bring to the disk."""
        self.wounds = self._wounds_after(self.changes)
        if self.disk is not None:
            for change in self.changes:
                _redo(self.disk, change)
            if self.disk == self.seen:
                self.disk = None
        if self.lied is not None:
            for change in self.changes:
                _redo(self.lied, change)
            if self.lied == self.seen:
                self.lied = None
        self.changes.clear()

    def lie(self) -> None:
        """A sync is answered, but the disk has no write since the sync before. Later syncs bring later writes to the
        disk."""
        assert self.disk is None, "a sync that failed is another fault"
        if self.lied is None:
            self.lied = self.durable()
        self.changes.clear()

    def fail_sync(self) -> None:
        """As the kernel does it: the pages count as clean, though they never reached the disk."""
        self.disk = self.durable()
        self.changes.clear()

    def hit(self, position: int, data: bytes) -> None:
        """Damages bytes on the disk, and in every later read: no process has them in memory."""
        assert self.is_durable, "only bytes at rest are damaged"
        self.lied = None  # one fault at a time: by now the disk has done what it said
        end = position + len(data)
        self.wounds.append((position, bytes(self.seen[position:end])))
        self.seen[position:end] = data

    @property
    def is_mended(self) -> bool:
        """Whether every damaged byte was written again since, or reads as before the damage."""
        wounds = self._wounds_after(self.changes)
        return all(self.seen[position : position + len(before)] == before for position, before in wounds)

    def _wounds_after(self, changes: Iterable[_Change]) -> list[tuple[int, bytes]]:
        """The damage that is left after writes: they put other bytes in the place of the damaged ones."""
        wounds = self.wounds
        for start, _, new in changes if wounds else ():
            end = start + len(new) if new is not None else sys.maxsize
            wounds = [left for wound in wounds for left in _outside(wound, start, end)]
        return wounds

    @property
    def is_durable(self) -> bool:
        """Whether what a reader sees is what the disk has."""
        return not self.changes and self.disk is None

    def durable(self) -> bytearray:
        if self.disk is not None:
            return bytearray(self.disk)
        content = bytearray(self.seen)
        for position, old, new in reversed(self.changes):
            content[position : position + len(new or b"")] = old
        return content

    def lose_power(self, random: Random, torn_percent: int, *, is_whole: bool = False) -> None:
        """Unsynced writes may be lost: of each write nothing, all, or some sectors are left."""
        if self.is_durable and self.lied is None:
            return
        changes, content = self.changes, self.durable() if self.lied is None else self.lied
        whole: list[_Change] = []
        for change in changes:
            position, _, new = change
            if new is None or random.randrange(100) >= torn_percent:
                if random.randrange(2):
                    _redo(content, change)
                    whole.append(change)
            else:
                _tear(content, position, new, random, is_whole=is_whole)
        self.wounds = self._wounds_after(whole)
        self.seen, self.changes, self.disk, self.lied = content, [], None, None

    def copy(self) -> Inode:
        """The same once more."""
        twin = Inode(self.seen)
        twin.changes = list(self.changes)
        twin.wounds = list(self.wounds)
        twin.disk = None if self.disk is None else bytearray(self.disk)
        return twin


def _outside(wound: tuple[int, bytes], start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The parts of a wound before `start` and from `end` on."""
    position, before = wound
    if position < start:
        yield position, before[: start - position]
    if position + len(before) > end:
        yield max(position, end), before[max(0, end - position) :]


def _redo(content: bytearray, change: _Change) -> None:
    position, _, new = change
    if new is None:
        del content[position:]
    else:
        _put(content, position, new)


def _put(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _tear(content: bytearray, position: int, data: bytes, random: Random, *, is_whole: bool) -> None:
    """Some of the sectors of a write reach the disk, some do not, and one now and then does with its first bytes."""
    start, end = position, position + len(data)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        fate = random.randrange(8)
        if fate >= 4:
            upto = start + random.randrange(stop - start) if fate == 7 and not is_whole else stop
            _put(content, start, data[start - position : upto - position])
        start = stop


class DiskSpace:
    """The size of a disk, which several nodes may share: `size` bytes, of which other programs have `taken`."""

    def __init__(self, size: int, files: Sequence[MemoryFiles] = ()) -> None:
        self.size, self.files, self.taken = size, list(files), 0
        for each in files:
            each.space = self

    @property
    def free(self) -> int:
        """Bytes that are free."""
        return max(0, self.size - self.taken - sum([each.used for each in self.files]))


class MemoryFiles:
    """Files by relative name: `raftlog.raft.wal.operations.Files`, and `execute`. A copy has what readers see, and no
    lies."""

    def __init__(self, content: dict[str, bytes] | None = None, *, torn_percent: int = 50) -> None:
        self.nodes = {name: Inode(data) for name, data in (content or {}).items()}  # as a reader sees them
        # Names are durable as they were before the changes of `_after`; None: there are no such changes.
        self._before: dict[str, Inode] | None = None
        self._after: list[tuple[tuple[str, Inode | None], ...]] = []
        self.folders: set[str] = set()
        self.torn_percent = torn_percent
        self.is_full = False  # nothing can be allocated, no file can grow: another program takes what becomes free
        self.space: DiskSpace | None = None  # the disk, if it has a size
        self.reserved = 0  # bytes of the file `reserve`
        self.whole: set[str] = set()  # files whose sectors are written whole or not at all
        self.lie: Any = None  # `raftlog.chaos.sim.disk.lies.Lie`: of a sync to come, or one answered and not done

    # -- reading

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder, sorted."""
        prefix = f"{folder}/" if folder else ""
        found = {name[len(prefix) :].partition("/")[0] for name in self.nodes if name.startswith(prefix)}
        found |= {name[len(prefix) :].partition("/")[0] for name in self.folders if name.startswith(prefix)}
        return sorted(found - {""})

    def size(self, name: str) -> int:
        """Bytes in a file; -1 where it does not exist."""
        inode = self.nodes.get(name)
        return -1 if inode is None else len(inode.seen)

    def read(self, name: str, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file. The operating system refuses negative numbers."""
        assert position >= 0 <= size, (name, position, size)
        inode = self.nodes.get(name)
        return b"" if inode is None else bytes(inode.seen[position : position + size])

    @property
    def used(self) -> int:
        """Bytes that the files, their names and the reserve take."""
        names = NAME_BYTES * (len(self.nodes) + len(self.folders))
        return self.reserved + names + sum([len(inode.seen) for inode in self.nodes.values()])

    @property
    def free(self) -> int:
        """Bytes that are free on the disk."""
        if self.is_full:
            return 0
        return ROOMY if self.space is None else self.space.free

    def take(self, name: str, size: int) -> None:
        """Raises OSError where that many bytes do not fit."""
        if size > 0 and (self.is_full or self.space is not None) and size > self.free:
            raise OSError(errno.ENOSPC, "no space left", name)

    def content(self) -> dict[str, bytes]:
        return {name: bytes(inode.seen) for name, inode in self.nodes.items()}

    # -- writing

    def execute(self, operations: Iterable[FileOperation]) -> None:
        """Carries out operations in order. Raises OSError at the first that fails."""
        for operation in operations:
            self.carry_out(operation)

    def carry_out(self, operation: FileOperation) -> None:
        """Carries out one. Raises OSError: ENOSPC where there is no room, ENOENT where there is no such file."""
        if isinstance(operation, Write):
            inode = self._inode(operation.name)
            self.take(operation.name, operation.position + len(operation.data) - len(inode.seen))
            inode.write(operation.position, operation.data)
        elif isinstance(operation, Sync):
            inode = self._inode(operation.name)
            if self.lie is not None and self.lie.takes(operation.name, inode):
                inode.lie()
            else:
                inode.sync()
        else:
            self._carry_out_rare(operation)

    def _carry_out_rare(self, operation: FileOperation) -> None:
        match operation:
            case operations.Zero(name, start, end):
                self._inode(name).write(start, bytes(end - start))
            case operations.Create(name, data):
                self.take(name, NAME_BYTES + len(data) - (name in self.nodes) * (NAME_BYTES + self.size(name)))
                if name in self.nodes:
                    self.nodes[name].cut(0)
                else:
                    self._names((name, Inode()))
                if data:
                    self.nodes[name].write(0, data)
            case operations.Allocate(name, size):
                if self.size(name) < size:
                    self.take(name, NAME_BYTES + size)
                    self._names((name, Inode(bytes(size))))
            case operations.Truncate(name, size):
                if name in self.nodes:
                    self.nodes[name].cut(size)
            case operations.Rename(name, to):
                self._rename(name, to)
            case operations.Delete(name):
                if name in self.nodes:
                    self._names((name, None))
            case operations.SyncFolder():
                self._settle(len(self._after))
            case operations.MakeFolder(name):
                self.take(name, NAME_BYTES * (name not in self.folders))
                self.folders.add(name)
            case operations.DeleteFolder(name):
                self.folders.discard(name)
                for known in [known for known in self.nodes if known.startswith(f"{name}/")]:
                    self._names((known, None))

    def _inode(self, name: str) -> Inode:
        inode = self.nodes.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return inode

    def _rename(self, name: str, to: str) -> None:
        if name in self.nodes:
            self._names((to, self.nodes[name]), (name, None))
            return
        if name not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", name)
        self.folders.discard(name)
        self.folders.add(to)
        below = [(known, inode) for known, inode in self.nodes.items() if known.startswith(f"{name}/")]
        changes: list[tuple[str, Inode | None]] = [(to + known[len(name) :], inode) for known, inode in below]
        self._names(*changes, *((known, None) for known, _ in below))

    def _names(self, *changes: tuple[str, Inode | None]) -> None:
        """Names that change together: all of them are durable, or none."""
        if self._before is None:
            self._before = dict(self.nodes)
        self._after.append(changes)
        _rename_all(self.nodes, changes)

    def _settle(self, count: int) -> None:
        """The first `count` changes of names are durable."""
        if self._before is None:
            return
        if count == len(self._after):
            self._before = None
            self._after.clear()
            return
        for changes in self._after[:count]:
            _rename_all(self._before, changes)
        del self._after[:count]

    # -- trouble

    def fail_sync(self, name: str) -> None:
        """A failed fdatasync: readers see the writes, the disk does not have them, and no later sync brings them."""
        self._inode(name).fail_sync()

    def lose_power(self, random: Random) -> None:
        """From now on this is what the disk had at this moment."""
        lie, self.lie = self.lie, None
        has_come_out = lie is not None and lie.comes_out()
        if self._before is not None:
            self._settle(random.randint(0, len(self._after)))
        if self._before is not None:
            self.nodes, self._before = self._before, None
            self._after.clear()
        for name, inode in self.nodes.items():
            inode.lose_power(random, self.torn_percent, is_whole=name in self.whole)
        if lie is not None and has_come_out:
            lie.lost()
        self.folders = {folder for folder in self.folders if any(n.startswith(f"{folder}/") for n in self.nodes)}
        self.folders |= {name.rpartition("/")[0] for name in self.nodes if name.count("/") > 1}

    def copy(self) -> MemoryFiles:
        """The same disk once more, its page cache too."""
        twin = MemoryFiles(torn_percent=self.torn_percent)
        twins: dict[int, Inode] = {}

        def of(inode: Inode) -> Inode:
            return twins.setdefault(id(inode), inode.copy())

        twin.nodes = {name: of(inode) for name, inode in self.nodes.items()}
        if self._before is not None:
            twin._before = {name: of(inode) for name, inode in self._before.items()}
        twin._after = [tuple((name, inode and of(inode)) for name, inode in changes) for changes in self._after]
        twin.folders = set(self.folders)
        twin.whole = set(self.whole)
        twin.is_full, twin.reserved = self.is_full, self.reserved
        return twin


def _rename_all(nodes: dict[str, Inode], changes: Iterable[tuple[str, Inode | None]]) -> None:
    for name, inode in changes:
        if inode is None:
            nodes.pop(name, None)
        else:
            nodes[name] = inode


def is_segment(name: str) -> bool:
    """Whether that is a segment of the log: not one that is prepared, or fetched from a peer."""
    return name.startswith(LOG_FOLDER) and name.endswith(".seg") and name[len(LOG_FOLDER) + 1 : -4].isdigit()
