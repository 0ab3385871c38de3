"""A disk in memory that executes journal operations and can lose power: unsynced writes are lost, kept or torn.

Names are durable in the order they were changed once their folder is synced; before, a crash keeps any number of the
first changes. Bytes are durable once their file is synced; before, a crash keeps any of the 512-byte sectors of any
write.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from random import Random

from raft.operations import (
    Allocate,
    Create,
    Delete,
    Operation,
    Rename,
    Sync,
    SyncFolder,
    Truncate,
    Write,
    Zero,
)

SECTOR = 512


class _Inode:
    """One file: what the disk has, what a reader sees, and the writes between the two."""

    def __init__(self, content: bytes = b"") -> None:
        self.durable = bytearray(content)
        self.seen = bytearray(content)
        self.pending: list[tuple[int, bytes]] = []  # position -1: truncate to the length of the data

    def write(self, position: int, data: bytes) -> None:
        self.pending.append((position, data))
        _put(self.seen, position, data)

    def truncate(self, size: int) -> None:
        self.pending.append((-size - 1, b""))
        _put(self.seen, -size - 1, b"")

    def sync(self) -> None:
        for position, data in self.pending:
            _put(self.durable, position, data)
        self.pending.clear()

    def fail_sync(self) -> None:
        """As the kernel does it: the pages count as clean, though they never reached the disk."""
        self.pending.clear()

    def crash(self, random: Random) -> None:
        for position, data in self.pending:
            if position < 0:
                if random.random() < 0.5:
                    _put(self.durable, position, data)
                continue
            fate = random.choice(("lost", "kept", "torn", "torn"))
            start = position
            while start < position + len(data):
                stop = min(position + len(data), (start // SECTOR + 1) * SECTOR)
                if fate == "kept" or (fate == "torn" and random.random() < 0.5):
                    _put(self.durable, start, data[start - position : stop - position])
                start = stop
        self.pending.clear()
        self.seen = bytearray(self.durable)


def _put(content: bytearray, position: int, data: bytes) -> None:
    if position < 0:
        size = -position - 1
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


class MemoryFiles:
    """Files by relative name: `raft.recovery.Files`, and `execute`."""

    def __init__(self, content: dict[str, bytes] | None = None) -> None:
        self._durable = {name: _Inode(data) for name, data in (content or {}).items()}
        self._seen = dict(self._durable)
        self._renames: list[tuple[str, _Inode | None]] = []  # changes of names not yet durable

    def copy(self) -> MemoryFiles:
        """The same disk once more."""
        return deepcopy(self)

    # -- reading

    def names(self, folder: str) -> list[str]:
        return sorted(name.partition("/")[2] for name in self._seen if name.startswith(f"{folder}/"))

    def size(self, name: str) -> int:
        return len(self._seen[name].seen) if name in self._seen else -1

    def read(self, name: str, position: int, size: int) -> bytes:
        return bytes(self._seen[name].seen[position : position + size]) if name in self._seen else b""

    def content(self) -> dict[str, bytes]:
        """Every file as a reader sees it."""
        return {name: bytes(inode.seen) for name, inode in self._seen.items()}

    # -- writing

    def execute(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            match operation:
                case Write(name, position, data):
                    assert name in self._seen, f"a write to {name}, which does not exist"
                    self._seen[name].write(position, data)
                case Zero(name, start, end):
                    self._seen[name].write(start, bytes(end - start))
                case Sync(name):
                    self._seen[name].sync()
                case Create(name, data):
                    if name in self._seen:
                        self._seen[name].truncate(0)
                    else:
                        self._name(name, _Inode())
                    self._seen[name].write(0, data)
                case Allocate(name, size):
                    if self.size(name) < size:
                        self._name(name, _Inode(bytes(size)))
                case Truncate(name, size):
                    if name in self._seen:
                        self._seen[name].truncate(size)
                case Rename(name, to):
                    inode = self._seen[name]
                    self._name(to, inode)
                    self._name(name, None)
                case Delete(name):
                    if name in self._seen:
                        self._name(name, None)
                case SyncFolder(folder):
                    assert not folder or folder == "log"
                    self._settle(len(self._renames))

    def _name(self, name: str, inode: _Inode | None) -> None:
        self._renames.append((name, inode))
        if inode is None:
            del self._seen[name]
        else:
            self._seen[name] = inode

    def _settle(self, count: int) -> None:
        for name, inode in self._renames[:count]:
            if inode is None:
                self._durable.pop(name, None)
            else:
                self._durable[name] = inode
        del self._renames[:count]

    def fail_sync(self, name: str) -> None:
        """What a failed fdatasync leaves: readers see what was written, the disk has it not, and no sync will help."""
        self._seen[name].fail_sync()

    def crash(self, random: Random) -> MemoryFiles:
        """What is found after a loss of power at this moment. This disk is not usable any more."""
        self._settle(random.randint(0, len(self._renames)))
        for inode in self._durable.values():
            inode.crash(random)
        return MemoryFiles({name: bytes(inode.durable) for name, inode in self._durable.items()})

    def kill(self) -> MemoryFiles:
        """What is found after the process was killed: everything it wrote, synced or not."""
        return MemoryFiles(self.content())
