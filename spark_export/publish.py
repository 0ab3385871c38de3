"""Puts whole files in place, so that whoever reads `log/` sees every row once at any moment, and then says so.

What is to be done lies in `.unfinished/next.json` before the first step, and every step may be done again: a run that
was killed anywhere in here is finished by the next one.

- The first batch: `log/` appears by one rename.
- A later one: its files are renamed into `log/` in the order of their indexes.
- A compaction: a folder with the new files and links to all others changes places with `log/`, in one step where the
  file system can do that (`renameat2`), else in two, between which there is no `log/`.
- A Delta table: the files are where nobody looks for them until its log names them, by one commit (`delta.py`).
"""

import ctypes
import os
import shutil
import time
from pathlib import Path
from typing import Final

from spark_export.errors import CannotWriteError, ExportError
from spark_export.manifest import (
    DATA,
    NAME,
    NEXT,
    PLAN,
    UNFINISHED,
    FileEntry,
    Manifest,
    Next,
    sync_folder,
    write_aside,
)

RETIRED: Final = "retired-"
RETIRED_S: Final = 60.0
"""So long a folder that a compaction replaced stays, for readers that are listing it; then a later run removes it."""

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2  # linux/fs.h


def publish(folder: Path, following: Next) -> Manifest:
    """Puts in place what lies in the run's folder, and writes the manifest. Raises CannotWriteError, ExportError."""
    aside = folder / UNFINISHED
    try:
        if following.manifest.layout.table == "delta":
            from spark_export.delta import commit

            move(folder, following)
            commit(folder, following)
        elif following.replaces:
            _replace(folder, following)
        else:
            move(folder, following)
    except OSError as error:
        raise CannotWriteError(
            f"{error.filename or folder} cannot be written: {error.strerror}; mend it and run the same command again"
        ) from error
    write_aside(folder / NAME, following.manifest)
    (aside / PLAN).unlink(missing_ok=True)
    (aside / NEXT).unlink()
    shutil.rmtree(aside / following.run, ignore_errors=True)
    return following.manifest


def move(folder: Path, following: Next) -> None:
    """Renames the run's files into `log/`, in order; where there is no `log/` yet, all of them at once."""
    data, source = folder / DATA, folder / UNFINISHED / following.run
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


def _sweep(data: Path, wanted: tuple[FileEntry, ...]) -> None:
    """Leaves only these files in a folder that is to appear as a whole."""
    names = {entry.name for entry in wanted}
    for path in data.glob("**/*"):
        if not path.is_dir() and path.relative_to(data.parent).as_posix() not in names:
            path.unlink()


def _replace(folder: Path, following: Next) -> None:
    data, run = folder / DATA, folder / UNFINISHED / following.run
    if not (folder / following.added[0].name).exists():
        for each in (run / DATA, *(path for path in (run / DATA).iterdir() if path.is_dir())):
            sync_folder(each)
        if data.exists() and not _exchange(run / DATA, data):
            data.rename(run / "old")
        if not data.exists():
            (run / DATA).rename(data)
        sync_folder(folder)
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
    """Removes what compactions replaced, once nobody can still be listing it."""
    for path in (folder / UNFINISHED).glob(f"{RETIRED}*"):
        if time.time_ns() - int(path.name.removeprefix(RETIRED)) > older_than_s * 1e9:
            shutil.rmtree(path, ignore_errors=True)
