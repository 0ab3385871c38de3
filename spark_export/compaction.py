"""Joins the small files that a followed export leaves behind, without a reader of `log/` seeing any row twice.

Neighbours in one folder become files of up to `records_per_file` records. Tasks write them, from files whose checksums
are looked at again; then the whole of `log/` changes places with a folder of the new files and links to the others
(`publish.py`). A Delta table compacts itself, by one commit.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from spark_export.batch import Folder, opened
from spark_export.errors import NotCheckedError, UsageError
from spark_export.manifest import FileEntry, Manifest, Next

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


_entry: Final = msgspec.json.Decoder(FileEntry).decode


def compact(spark: "SparkSession", path: Path) -> tuple[int, int]:
    """Compacts the export in a folder; how many files it had and has. Raises UsageError where there is none."""
    if not path.is_dir():
        raise NotCheckedError(f"{path} holds no export: there is no such folder")
    with opened(path) as folder:
        if folder.manifest is None:
            raise UsageError(f"{path} holds no finished batch of an export: there is nothing to compact")
        return compact_folder(spark, folder)


def compact_if_many(spark: "SparkSession", folder: Folder, files_max: int) -> None:
    """Compacts once so many files could be fewer."""
    manifest = folder.manifest
    assert manifest is not None
    if manifest.layout.table == "delta":
        from spark_export import delta

        small = manifest.layout.records_per_file // 2
        if len([rows for rows in delta.file_rows(folder.path) if rows < small]) >= files_max:
            delta.compact(folder.path)
    elif sum(map(len, _bins(manifest))) >= files_max:
        compact_folder(spark, folder)


def compact_folder(spark: "SparkSession", folder: Folder) -> tuple[int, int]:
    """Compacts; how many files there were and are."""
    manifest = folder.manifest
    assert manifest is not None
    if manifest.layout.table == "delta":
        from spark_export import delta

        before = len(delta.files(folder.path, manifest))
        delta.compact(folder.path)
        return before, len(delta.files(folder.path, manifest))
    bins = _bins(manifest)
    if not bins:
        return len(manifest.files), len(manifest.files)
    folder.begin()
    for path in folder.data.glob("**/*"):  # whatever a killed compaction made is made anew
        if not path.is_dir():
            path.unlink()
    joined = _join(spark, folder, manifest, bins)
    gone = {entry.name for each in bins for entry in each}
    kept = [entry for entry in manifest.files if entry.name not in gone]
    for entry in kept:
        target = folder.aside / folder.run / entry.name
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(folder.path / entry.name, target)
    files = tuple(sorted([*kept, *joined], key=lambda entry: entry.first))
    folder.place(Next(msgspec.structs.replace(manifest, files=files), folder.run, tuple(joined), replaces=True))
    return len(manifest.files), len(files)


def _bins(manifest: Manifest) -> list[list[FileEntry]]:
    """Rows of neighbours in one folder that fit into one file together; files that stay alone are left out."""
    bins: list[list[FileEntry]] = [[]]
    rows = 0
    for entry in manifest.files:
        same_folder = bins[-1] and Path(bins[-1][0].name).parent == Path(entry.name).parent
        if not same_folder or rows + entry.rows > manifest.layout.records_per_file:
            bins.append([])
            rows = 0
        bins[-1].append(entry)
        rows += entry.rows
    return [each for each in bins if len(each) > 1]


def _join(spark: "SparkSession", folder: Folder, manifest: Manifest, bins: list[list[FileEntry]]) -> list[FileEntry]:
    export, data, log_id = folder.path.resolve(), folder.data.resolve(), manifest.log

    def write(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        from spark_export.parquet import join_files

        for batch in batches:
            for number in batch.column(0).to_pylist():
                entry = join_files(bins[number], export, data, log_id)
                yield pa.record_batch([pa.array([msgspec.json.encode(entry)], pa.binary())], names=["entry"])

    rows = spark.range(0, len(bins), 1, len(bins)).mapInArrow(write, "entry binary").collect()
    return [_entry(row["entry"]) for row in rows]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except PermissionError:  # a file system without hard links
        shutil.copyfile(source, target)
