"""Opens, reads, writes, syncs and deletes the files of one shard, as journal operations ask.

The disk, the tools for stopped nodes and the scrubber use it. One object belongs to one thread. An operation that finds
no disk space is tried again as long as the reserve gives some (`raftlog.cluster.files.reserve`). Other errors of the
operating system stay OSError; the caller decides what they mean.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from raftlog.cluster.files.errors import is_full
from raftlog.cluster.runtime.clock import monotonic
from raftlog.cluster.runtime.file_errors import PRIVATE_FILE, PRIVATE_FOLDER, sync_folder
from raftlog.raft.wal.operations import (
    Allocate,
    Create,
    Delete,
    DeleteFolder,
    FileOperation,
    MakeFolder,
    Rename,
    Sync,
    SyncFolder,
    Truncate,
    Write,
    Zero,
)

OPEN_FILES_MAX: Final = 16
ZEROS: Final = bytes(1 << 20)


class ShortWrite(OSError):
    """The operating system wrote fewer bytes than asked, and gave no reason."""

    def __init__(self, name: str, written: int, size: int) -> None:
        super().__init__(errno.EIO, f"{written} of {size} bytes were written", name)


class ShardFiles:
    """The files below one folder, by relative name. Keeps the last few open."""

    __slots__ = ("_flags", "_give", "_open", "root", "sync_seconds", "syncs")

    def __init__(
        self, root: Path, *, read_only: bool = False, give: Callable[[int], bool] = lambda size: False
    ) -> None:
        """`give` frees about so many bytes of disk space, and returns whether it did: `Reserve.give`."""
        self.root, self._give = root, give
        self._open: OrderedDict[str, int] = OrderedDict()
        self._flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        self.syncs, self.sync_seconds = 0, 0.0

    # -- reading (raftlog.raft.wal.operations.Files)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; [] where it does not exist."""
        try:
            return sorted(os.listdir(self.root / folder))
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int:
        """Bytes in a file; -1 where it does not exist."""
        try:
            return os.stat(self.root / name).st_size
        except FileNotFoundError:
            return -1

    def read(self, name: str, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file, none where it does not exist."""
        try:
            descriptor = self._descriptor(name)
        except FileNotFoundError:
            return b""
        data = os.pread(descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]  # a read may be short before the end of the file
        got = len(data)
        while got < size and (data := os.pread(descriptor, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    # -- writing

    def execute(self, operations: Iterable[FileOperation]) -> None:
        """Carries out operations in order. Raises OSError at the first that fails."""
        for operation in operations:
            try:
                self._carry_out(operation)
            except OSError as error:
                self._carry_out_again(operation, error)

    def _carry_out_again(self, operation: FileOperation, error: OSError) -> None:
        """Tries again while the reserve gives space. Not a sync: the kernel may have dropped the pages (fsyncgate)."""
        while not isinstance(operation, Sync | SyncFolder) and is_full(error) and self._give(needed(operation)):
            try:
                self._carry_out(operation)
            except OSError as again:
                error = again
            else:
                return
        raise error

    def _carry_out(self, operation: FileOperation) -> None:
        match operation:
            case Write(name, position, data):
                self.write(name, position, data)
            case Sync(name):
                self.sync(name)
            case Zero(name, start, end):
                for position in range(start, end, len(ZEROS)):
                    self.write(name, position, ZEROS[: end - position])
            case Create(name, data):
                self.close(name)
                flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self._keep(name, os.open(self.root / name, flags, PRIVATE_FILE))
                self.write(name, 0, data)
            case Allocate(name, size):
                if self.size(name) < size:
                    Allocation(self.root / name, size).finish()
            case Truncate(name, size):
                if self.size(name) >= 0:
                    os.ftruncate(self._descriptor(name), size)
            case Rename(name, to):
                self.close(to)
                self._close_below(name)
                if (descriptor := self._open.pop(name, None)) is not None:
                    self._keep(to, descriptor)
                os.rename(self.root / name, self.root / to)
            case Delete(name):
                self.close(name)
                (self.root / name).unlink(missing_ok=True)
            case SyncFolder(name):
                sync_folder(self.root / name)
            case MakeFolder(name):
                (self.root / name).mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            case DeleteFolder(name):
                self._close_below(name)
                if (folder := self.root / name).exists():
                    shutil.rmtree(folder)

    def write(self, name: str, position: int, data: bytes) -> None:
        """Writes with one pwrite, if the operating system takes it whole. Raises OSError."""
        descriptor = self._descriptor(name)
        if (written := os.pwrite(descriptor, data, position)) != len(data):
            write_rest(descriptor, name, data, position, written)

    def sync(self, name: str) -> None:
        """fdatasync of a file. Counts it, and the time that it took."""
        started = monotonic()
        os.fdatasync(self._descriptor(name))
        self.syncs += 1
        self.sync_seconds += monotonic() - started

    def close(self, name: str | None = None) -> None:
        """Closes one file, or all of them."""
        for known in [name] if name is not None else list(self._open):
            if (descriptor := self._open.pop(known, None)) is not None:
                os.close(descriptor)

    def _close_below(self, folder: str) -> None:
        for known in [known for known in self._open if known.startswith(f"{folder}/")]:
            self.close(known)

    def _descriptor(self, name: str) -> int:
        if (descriptor := self._open.get(name)) is not None:
            self._open.move_to_end(name)
            return descriptor
        return self._keep(name, os.open(self.root / name, self._flags))

    def _keep(self, name: str, descriptor: int) -> int:
        while len(self._open) >= OPEN_FILES_MAX:
            os.close(self._open.popitem(last=False)[1])
        self._open[name] = descriptor
        return descriptor


def needed(operation: FileOperation) -> int:
    """About how many bytes of disk space an operation needs; a folder, or a longer list of names, takes a few."""
    match operation:
        case Write(_, _, data) | Create(_, data):
            return len(data)
        case Allocate(_, size):
            return size
    return 0


class Allocation:
    """A new file whose disk space is reserved at once. It reads as zeros.

    Where `step` has really written the zeros, fdatasync of a later write takes half as long. The caller may finish the
    file after any step.
    """

    __slots__ = ("_descriptor", "_path", "_size", "position")

    def __init__(self, path: Path, size: int) -> None:
        """Raises OSError, at once where there is not enough space; the file is removed then."""
        self._path, self._size, self.position = path, size, 0
        path.unlink(missing_ok=True)  # a file that was renamed meanwhile must not be written
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            os.posix_fallocate(self._descriptor, 0, size)
        except OSError:
            self.abandon()
            raise

    def step(self, size: int) -> None:
        """Writes `size` bytes of zeros more, at most len(ZEROS), and syncs them. Raises OSError; the file is removed
        then."""
        part = ZEROS[: min(size, self._size - self.position)]
        try:
            if (written := os.pwrite(self._descriptor, part, self.position)) != len(part):
                write_rest(self._descriptor, str(self._path), part, self.position, written)
            os.fsync(self._descriptor)
        except OSError:
            self.abandon()
            raise
        self.position += len(part)

    def finish(self) -> None:
        """Syncs and closes the file. Raises OSError; the file is removed then."""
        try:
            os.fsync(self._descriptor)
        except OSError:
            self.abandon()
            raise
        os.close(self._descriptor)

    def abandon(self) -> None:
        """Closes and removes the unfinished file."""
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)


def write_rest(descriptor: int, name: str, data: bytes, position: int, written: int) -> None:
    """Writes the rest of `data`, of which the operating system took `written` bytes. A file system that fills takes the
    part that fits, and names the reason only when it is asked for the rest. Raises OSError."""
    view = memoryview(data)
    while written < len(data):
        if not (more := os.pwrite(descriptor, view[written:], position + written)):
            raise ShortWrite(name, written, len(data))
        written += more


def write_new(path: Path, data: bytes) -> None:
    """Writes a new file and syncs it; its name is durable only after `sync_folder`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        if (written := os.write(descriptor, data)) != len(data):
            write_rest(descriptor, str(path), data, 0, written)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
