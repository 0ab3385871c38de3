"""Watches that a file gets its name only once its bytes are on the disk: a fixture for whole files of tests.

After a power failure a file that was renamed before its sync has its name and not its bytes. No test can cut the power
under a process, but every test can look at the order of its calls. All code that writes aside and renames needs it:
session files, snapshots of tables, backups, manifests, exported files. Folders of nodes are left out: files that a
start makes again need no sync there, and the simulator cuts the power.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Stamp = tuple[int, int]
"""Size, and the time of the newest change, in nanoseconds."""


@pytest.fixture
def durable_renames(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test in which raftlog renames a file with bytes that were not synced, or folders of such files."""
    synced: dict[tuple[int, int], Stamp] = {}
    unsynced: list[str] = []

    def keep(sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def kept(file: Any) -> None:
            sync(file)
            found = os.fstat(file if isinstance(file, int) else file.fileno())
            synced[found.st_dev, found.st_ino] = _stamp(found)

        return kept

    def look(rename: Callable[..., None]) -> Callable[..., None]:
        def renamed(source: Any, *rest: Any, **more: Any) -> None:
            if _is_ours():
                for path in _files(Path(source)):
                    found = path.stat()
                    if found.st_size and synced.get((found.st_dev, found.st_ino)) != _stamp(found):
                        unsynced.append(str(path))
            rename(source, *rest, **more)

        return renamed

    monkeypatch.setattr(os, "fsync", keep(os.fsync))
    monkeypatch.setattr(os, "fdatasync", keep(os.fdatasync))
    monkeypatch.setattr(os, "rename", look(os.rename))
    monkeypatch.setattr(os, "replace", look(os.replace))
    yield
    assert not unsynced, f"renamed before the bytes were synced: {unsynced}"


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_size, found.st_mtime_ns


def _files(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path] if path.is_file() else []


def _is_ours() -> bool:
    """Whether raftlog calls, for another file than that of a node; not a test that plays the system around it."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pathlib"):
        frame = frame.f_back
    caller = str(frame.f_globals.get("__name__", ""))
    return caller.startswith("raftlog.") and not caller.startswith(("raftlog.cluster.files.", "raftlog.cluster.node."))
