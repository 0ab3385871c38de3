"""Puts complete files in place, so that a reader of `log/` sees every row once at any moment.

Before the first step, `.unfinished/next.json` lists the work. Each step may be repeated, so the next run finishes the
work of a run that was killed anywhere in this module.

- The files of `internal/` come before those of `log/` to which they belong, and go after them.
- The first batch: `log/` appears by one rename.
- A later one: its files are renamed into `log/` in the order of their indexes.
- A compaction: a folder with the new files and links to all others is exchanged with `log/`. One step does that where
  the file system can (`renameat2`). Elsewhere two renames do, and `log/` is missing between them.
- A Delta table: no reader uses the files until a commit names them in the table's log (`delta.py`).
"""

import ctypes
import os
import shutil
import time
from pathlib import Path
from typing import Final

from raftlog.spark_export.errors import CannotWriteError, ExportError
from raftlog.spark_export.export.manifest import (
    DATA,
    INTERNAL,
    NAME,
    NEXT,
    PLAN,
    UNFINISHED,
    FileEntry,
    Manifest,
    NextStep,
    sync_folder,
    write_aside,
)

RETIRED: Final = "retired-"
RETIRED_S: Final = 60.0
"""So long a folder that a compaction replaced stays, for readers that are listing it; then a later run removes it."""

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2  # linux/fs.h


def publish(folder: Path, following: NextStep) -> Manifest:
    """Puts in place what lies in the run's folder, and writes the manifest. Raises CannotWriteError, ExportError."""
    aside = folder / UNFINISHED
    try:
        if following.manifest.layout.table == "delta":
            from raftlog.spark_export.export.delta import commit

            move(folder, following)
            commit(folder, following.manifest, following.added)
        elif following.replaces:
            _replace(folder, following)
        else:
            move(folder, following)
    except OSError as error:
        raise CannotWriteError(
            f"{error.filename or folder} cannot be written: {error.strerror}; fix it and run the same command again"
        ) from error
    write_aside(folder / NAME, following.manifest)
    (aside / PLAN).unlink(missing_ok=True)
    (aside / NEXT).unlink()
    shutil.rmtree(aside / following.run, ignore_errors=True)
    return following.manifest


def move(folder: Path, following: NextStep) -> None:
    """Renames the run's files into `log/`, in order; where there is no `log/` yet, all of them at once."""
    data, source = folder / DATA, folder / UNFINISHED / following.run
    _move_internal(folder, following)
    if not data.exists():
        _sweep(source / DATA, following.added)
        for each in {source / DATA, *((source / entry.name).parent for entry in following.added)}:
            sync_folder(each)
        (source / DATA).rename(data)
        sync_folder(folder)
    changed = set()
    for entry in following.added:
        target = folder / entry.name
        if not target.exists():
            if not (source / entry.name).exists():
                raise ExportError(
                    f"{target} is gone, and so is what it was made from: remove {folder / UNFINISHED} and "
                    f"run the export again"
                )
            target.parent.mkdir(exist_ok=True)
            (source / entry.name).rename(target)
            changed |= {target.parent, data}
    for each in changed:
        sync_folder(each)


def _move_internal(folder: Path, following: NextStep) -> None:
    source = folder / UNFINISHED / following.run
    changed = set()
    for entry in following.added:
        if entry.internal is not None and not (target := folder / entry.internal.name).exists():
            changed |= {target.parent, folder / INTERNAL}
            target.parent.mkdir(parents=True, exist_ok=True)
            (source / entry.internal.name).rename(target)
    for each in changed:
        sync_folder(each)


def _sweep(data: Path, wanted: tuple[FileEntry, ...]) -> None:
    """Leaves only these files in a folder that is to appear as a whole."""
    names = {entry.name for entry in wanted}
    for path in data.glob("**/*"):
        if not path.is_dir() and path.relative_to(data.parent).as_posix() not in names:
            path.unlink()


def _replace(folder: Path, following: NextStep) -> None:
    data, run = folder / DATA, folder / UNFINISHED / following.run
    _move_internal(folder, following)
    if not (folder / following.added[0].name).exists():
        for each in (run / DATA, *(path for path in (run / DATA).iterdir() if path.is_dir())):
            sync_folder(each)
        if data.exists() and not _exchange(run / DATA, data):
            data.rename(run / "old")
        if not data.exists():
            (run / DATA).rename(data)
        sync_folder(folder)
    kept = {entry.internal.name for entry in following.manifest.files if entry.internal is not None}
    for path in (folder / INTERNAL).glob("**/*.parquet"):
        if path.relative_to(folder).as_posix() not in kept:
            path.unlink()
    if run.exists():
        run.rename(folder / UNFINISHED / f"{RETIRED}{time.time_ns()}")


def _exchange(one: Path, other: Path) -> bool:
    """Two folders change places in one step; False where the system or the file system cannot do that."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def sweep_retired(folder: Path, *, older_than_s: float = RETIRED_S) -> None:
    """Removes the files that compactions replaced, once no reader can still be listing them."""
    for path in (folder / UNFINISHED).glob(f"{RETIRED}*"):
        if time.time_ns() - int(path.name.removeprefix(RETIRED)) > older_than_s * 1e9:
            shutil.rmtree(path, ignore_errors=True)
