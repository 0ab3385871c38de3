"""Joins the small files that a followed export leaves behind, without a reader of `log/` seeing any row twice.

Neighbouring files in one folder become files of up to `records_per_file` records. Tasks write the new files after they
have checked the checksums of the old ones. Then a folder with the new files and links to the others replaces the whole
of `log/` (`publish.py`). A Delta table is compacted by one commit of its own.
"""

from pathlib import Path
from typing import Final

import msgspec

from raftlog.spark_export.errors import NotCheckedError, UsageError
from raftlog.spark_export.export.batch import opened
from raftlog.spark_export.export.destination.destination import Destination
from raftlog.spark_export.export.engine import Engine
from raftlog.spark_export.export.manifest import FileEntry, Manifest
from raftlog.spark_export.export.place import Place

_entry: Final = msgspec.json.Decoder(FileEntry).decode


def compact(engine: Engine, path: Place) -> tuple[int, int]:
    """Compacts the export in a folder; how many files it had and has. Raises UsageError where there is none."""
    if isinstance(path, Path) and not path.is_dir():
        raise NotCheckedError(f"{path} holds no export: there is no such folder")
    with opened(path) as folder:
        if folder.manifest is None:
            raise UsageError(f"{path} holds no finished batch of an export: there is nothing to compact")
        return compact_folder(engine, folder)


def compact_if_many(engine: Engine, folder: Destination, files_max: int) -> None:
    """Compacts once so many files could be fewer."""
    manifest = folder.manifest
    assert manifest is not None
    if manifest.layout.table == "delta":
        from raftlog.spark_export.export import delta

        small = manifest.layout.records_per_file // 2
        if len([rows for rows in delta.file_rows(folder.path) if rows < small]) >= files_max:
            delta.compact(folder.path)
    elif sum(map(len, _bins(manifest))) >= files_max:
        compact_folder(engine, folder)


def compact_folder(engine: Engine, folder: Destination) -> tuple[int, int]:
    """Compacts; how many files there were and are."""
    manifest = folder.manifest
    assert manifest is not None
    if manifest.layout.table == "delta":
        from raftlog.spark_export.export import delta

        before = len(delta.files(folder.path, manifest))
        delta.compact(folder.path)
        return before, len(delta.files(folder.path, manifest))
    bins = _bins(manifest)
    if not bins:
        return len(manifest.files), len(manifest.files)
    folder.begin(None)  # the files of a killed compaction are written again
    joined = _join(engine, folder, manifest, bins)
    gone = {entry.name for each in bins for entry in each}
    kept = [entry for entry in manifest.files if entry.name not in gone]
    folder.take(kept)
    files = tuple(sorted([*kept, *joined], key=lambda entry: entry.first))
    folder.place(msgspec.structs.replace(manifest, files=files), joined, replaces=True)
    return len(manifest.files), len(files)


def _bins(manifest: Manifest) -> list[list[FileEntry]]:
    """Rows of neighbours in one folder that fit into one file together; files that stay alone are left out."""
    bins: list[list[FileEntry]] = [[]]
    rows = 0
    for entry in manifest.files:
        same_folder = bins[-1] and Path(bins[-1][0].name).parent == Path(entry.name).parent
        if not same_folder or rows + entry.count > manifest.layout.records_per_file:
            bins.append([])
            rows = 0
        bins[-1].append(entry)
        rows += entry.count
    return [each for each in bins if len(each) > 1]


def _join(engine: Engine, folder: Destination, manifest: Manifest, bins: list[list[FileEntry]]) -> list[FileEntry]:
    export, writer, log_id, layout = folder.path.resolve(), folder.writer(), manifest.log, manifest.layout

    def write(number: int) -> bytes:
        from raftlog.spark_export.export.parquet import join_files

        found = writer(lambda data: [join_files(bins[number], export, data, log_id, layout)])
        return msgspec.json.encode(found[0])

    return [_entry(result) for result in engine.run(write, len(bins))]
