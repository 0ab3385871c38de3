"""What an export puts in place at once holds the files of its manifest and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raftlog.spark_export.export.destination.folder import Folder
from raftlog.spark_export.export.destination.publish import _sweep
from raftlog.spark_export.export.manifest import FileEntry


def test_a_folder_that_appears_as_a_whole_has_the_wanted_files_alone(tmp_path: Path) -> None:
    """Files of a task that was tried twice, and checksums of the engine, go; those that are wanted stay."""
    data = tmp_path / "log"
    for name in ("a/one.parquet", "a/one-again.parquet", "a/.one.parquet.crc", "two.parquet", "_SUCCESS"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).touch()
    wanted = tuple(FileEntry(name, 1, 1, 1, 1, 0, "", 0, 0) for name in ("log/a/one.parquet", "log/two.parquet"))
    _sweep(data, wanted)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in data.rglob("*") if path.is_file()) == [
        entry.name for entry in wanted
    ]


def test_a_file_that_cannot_be_linked_is_copied_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hard links a compaction copies what it keeps. The copy takes the place of the only other one."""
    synced: list[int] = []

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "one.parquet").write_bytes(b"rows")
    folder = Folder(tmp_path)
    folder.take([FileEntry("log/one.parquet", 1, 1, 1, 1, 0, "", 0, 0)])
    copy = folder.aside / folder.run / "log" / "one.parquet"
    assert copy.read_bytes() == b"rows"
    assert copy.stat().st_ino in synced
