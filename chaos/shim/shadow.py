"""Computes the part of a folder that survives a power cut, from its first content and the recorded calls.

It models a file system that keeps only the bytes that it must. Bytes of a file count once fdatasync or fsync of the
file has returned, as they were when that call began. Names in a folder count once fsync of the folder has returned.
After a failed sync its bytes stay in doubt for good (fsyncgate): only bytes that are written again can become durable.
Bytes in doubt are dropped, or torn: any sector of 512 bytes and any folder's names may be the old or the new ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from random import Random
from typing import Final

from raftlog.chaos.shim.trace import Call, CallKind

SECTOR: Final = 512


@dataclass(slots=True)
class _Change:
    """A write (of `data`, or zeros), or a new length of a file, that is not durable."""

    offset: int
    length: int
    data: bytes | None
    kind: CallKind
    is_lost: bool = False  # a sync that failed has covered it

    def apply(self, content: bytearray) -> None:
        end = self.offset + self.length
        match self.kind:
            case CallKind.FTRUNCATE:
                del content[self.length :]
                content.extend(bytes(self.length - len(content)))
            case CallKind.ALLOCATE:
                content.extend(bytes(max(0, end - len(content))))
            case _:
                content.extend(bytes(max(0, end - len(content))))
                content[self.offset : end] = bytes(self.length) if self.data is None else self.data


@dataclass(slots=True)
class _File:
    source: Path | None = None  # where its first content is, until it is needed
    content: bytearray | None = None  # the durable bytes
    changes: list[_Change] = field(default_factory=list)
    dropped: int = 0  # changes before those in the list
    begun: dict[tuple[int, int], int] = field(default_factory=dict)

    def durable(self) -> bytearray:
        if self.content is None:
            self.content = bytearray(self.source.read_bytes() if self.source is not None else b"")
        return self.content

    def begin(self, key: tuple[int, int]) -> None:
        self.begun[key] = self.dropped + len(self.changes)

    def end(self, key: tuple[int, int], *, is_durable: bool) -> None:
        count = self.begun.pop(key, 0) - self.dropped
        if not is_durable:
            for change in self.changes[: max(0, count)]:
                change.is_lost = True
        elif count > 0:
            for change in self.changes[:count]:
                if not change.is_lost:
                    change.apply(self.durable())
            del self.changes[:count]
            self.dropped += count

    def left(self, random: Random | None) -> bytes | Path:
        """What a loss of power leaves: a file that has it, or the bytes."""
        if self.content is None and not self.changes and self.source is not None:
            return self.source
        old = self.durable()
        if random is None or not self.changes:
            return bytes(old)
        new = bytearray(old)
        for change in self.changes:
            change.apply(new)
        torn = bytearray(new if random.random() < 0.5 else old)  # its length may be either
        share = random.random()
        for start in range(0, len(torn), SECTOR):
            end = min(start + SECTOR, len(torn))
            chosen = (new if random.random() < share else old)[start:end]
            torn[start:end] = chosen + bytes(end - start - len(chosen))
        return bytes(torn)


@dataclass(slots=True)
class _Folder:
    names: dict[str, _File | _Folder] = field(default_factory=dict)  # as processes see them
    durable: dict[str, _File | _Folder] = field(default_factory=dict)
    begun: dict[tuple[int, int], dict[str, _File | _Folder]] = field(default_factory=dict)

    def begin(self, key: tuple[int, int]) -> None:
        self.begun[key] = dict(self.names)

    def end(self, key: tuple[int, int], *, is_durable: bool) -> None:
        names = self.begun.pop(key, None)
        if names is not None and is_durable:
            self.durable = names


@dataclass(frozen=True, slots=True)
class Remains:
    """The bytes and files of a restored folder that its process had written and that were in doubt when the power
    went.
    """

    bytes_in_doubt: int
    files_in_doubt: int


class Shadow:
    """One folder: `first` holds its first content, `root` is its path for processes."""

    def __init__(self, first: Path, root: Path) -> None:
        self._root = str(root)
        self._top = _load(first)

    def replay(self, calls: Iterable[Call]) -> None:
        """Takes the calls in order; calls on other folders are ignored."""
        for call in calls:
            if call.path == self._root or call.path.startswith(f"{self._root}/"):
                self._apply(call)

    def write(self, to: Path, random: Random | None) -> Remains:
        """Makes `to` the folder that a loss of power leaves; earlier content is removed. `random`: torn."""
        shutil.rmtree(to, ignore_errors=True)
        changes = [change for file in _files(self._top) for change in file.changes]
        counted = Remains(sum(c.length for c in changes if c.data), sum(1 for f in _files(self._top) if f.changes))
        _write(self._top, to, random)
        return counted

    def _apply(self, call: Call) -> None:
        node = self._find(call.path)
        if call.kind in (CallKind.FSYNC, CallKind.FDATASYNC):
            if node is None:
                return
            key = (call.pid, call.serial)
            if not call.is_begin:
                node.end(key, is_durable=not call.error)
            elif not call.rule:
                node.begin(key)
            return
        if call.error or call.is_begin:
            return
        path = PurePosixPath(call.path)
        above = self._find(str(path.parent)) if call.path != self._root else None
        match call.kind:
            case CallKind.PWRITE | CallKind.WRITE | CallKind.FTRUNCATE | CallKind.ALLOCATE:
                if isinstance(node, _File):
                    node.changes.append(_Change(call.offset, call.length, call.data, call.kind))
            case CallKind.CREATE if isinstance(above, _Folder):
                above.names[path.name] = _File()
            case CallKind.MKDIR if isinstance(above, _Folder):
                above.names[path.name] = _Folder()
            case CallKind.UNLINK | CallKind.RMDIR if isinstance(above, _Folder):
                above.names.pop(path.name, None)
            case CallKind.RENAME if isinstance(above, _Folder) and node is not None:
                to = PurePosixPath(call.to)
                target = self._find(str(to.parent))
                del above.names[path.name]
                if isinstance(target, _Folder):
                    target.names[to.name] = node
            case _:
                pass  # in a folder that this shadow does not know

    def _find(self, path: str) -> _File | _Folder | None:
        node: _File | _Folder | None = self._top
        for name in PurePosixPath(path.removeprefix(self._root)).parts:
            if name == "/":
                continue
            node = node.names.get(name) if isinstance(node, _Folder) else None
        return node


def _load(path: Path) -> _Folder:
    folder = _Folder()
    for each in path.iterdir():
        folder.names[each.name] = _load(each) if each.is_dir() else _File(each)
    folder.durable = dict(folder.names)
    return folder


def _files(folder: _Folder) -> list[_File]:
    """Every file that has or had a name."""
    found: list[_File] = []
    for node in {id(node): node for node in [*folder.names.values(), *folder.durable.values()]}.values():
        found += _files(node) if isinstance(node, _Folder) else [node]
    return found


def _write(folder: _Folder, to: Path, random: Random | None) -> None:
    to.mkdir(parents=True)
    is_new = random is not None and random.random() < 0.5
    for name, node in (folder.names if is_new else folder.durable).items():
        if isinstance(node, _Folder):
            _write(node, to / name, random)
        elif isinstance(left := node.left(random), Path):
            shutil.copyfile(left, to / name)
        else:
            (to / name).write_bytes(left)
