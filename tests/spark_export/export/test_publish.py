"""What an export puts in place at once holds the files of its manifest and nothing else."""

from __future__ import annotations

from pathlib import Path

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
