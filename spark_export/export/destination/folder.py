"""Holds an export in a folder: a lock, the plan of the batch under way, and the files of killed runs.

    DIR/manifest.json              the content of the export; all files that it names are in place
    DIR/log/…                      the rows: Parquet files, or a Delta table
    DIR/internal/…                 of an export of user records: the rows of the others
    DIR/.unfinished/plan.json      the plan of the batch under way; a later run continues with the same plan
    DIR/.unfinished/run-…/log/…    its files; a new run takes over the whole files of killed runs
    DIR/.unfinished/next.json      from this file on the batch counts: `publish.py`

Each run has a folder of its own, so that tasks of a killed driver that still run somewhere write into the void.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from raftlog.spark_export.errors import CannotWriteError, UsageError
from raftlog.spark_export.export.destination.destination import Writer
from raftlog.spark_export.export.destination.publish import publish, sweep_retired
from raftlog.spark_export.export.manifest import (
    DATA,
    NAME,
    NEXT,
    PLAN,
    UNFINISHED,
    FileEntry,
    Manifest,
    NextStep,
    Plan,
    find_manifest,
    range_of,
    read_next,
    read_plan,
    write_aside,
)

_RUN: Final = "run-"


class Folder:
    """An export's folder, locked for this process while it is open, with the finished and unfinished files known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.aside = path / UNFINISHED
        self.run = f"{_RUN}{uuid.uuid4().hex}"
        self.manifest: Manifest | None = None
        self.plan: Plan | None = None

    @property
    def _data(self) -> Path:
        """Where this run's tasks write."""
        return self.aside / self.run / DATA

    def keep(self, plan: Plan) -> None:
        """Writes the plan down, so that another run goes on with the very same."""
        write_aside(self.aside / PLAN, plan)
        self.plan = plan

    def recover(self) -> None:
        """Finishes a batch whose files are whole, and takes over the files of runs that were killed before."""
        for path in (*self.path.glob(".*.tmp"), *self.aside.glob(".*.tmp")):
            path.unlink()  # a plan or manifest that was never whole
        following = read_next(self.path)
        if following is not None:
            publish(self.path, following)
        self.manifest = find_manifest(self.path)
        self.plan = read_plan(self.path)
        if self.plan is not None and self.manifest is not None and self.plan.last <= self.manifest.last:
            self.plan = None  # killed after its manifest was written and before it was removed
            (self.aside / PLAN).unlink()
        if self.plan is None:
            for run in self.aside.glob(f"{_RUN}*"):  # of a batch that is in place
                shutil.rmtree(run, ignore_errors=True)
        sweep_retired(self.path)

    def begin(self, plan: Plan | None) -> None:
        """Makes this run's folder, with the complete files of the plan that killed runs left. None: with none."""
        self._data.mkdir(parents=True, exist_ok=True)
        for other in sorted(self.aside.glob(f"{_RUN}*")):
            if other.name == self.run:
                continue
            for path in sorted(other.glob("**/*.parquet")):
                target = self._data.parent / path.relative_to(other)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
            shutil.rmtree(other, ignore_errors=True)
        for path in self._data.parent.glob("**/*"):  # half-written files, and those of another plan
            found = range_of(path.name)
            if not path.is_dir() and (plan is None or not found or found[0] < plan.first or found[1] > plan.last):
                path.unlink()

    def writer(self) -> Writer:
        """Tasks write beside `log/`, into the same folder from everywhere."""
        return partial(_written_into, self._data.resolve())

    def written(self) -> Iterator[str]:
        """The files that tasks have finished."""
        return (path.name for path in self._data.glob("**/*.parquet"))

    def take(self, kept: Iterable[FileEntry]) -> None:
        """Links these files of the export beside the new ones, which are to take the place of all."""
        for entry in kept:
            target = self.aside / self.run / entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(self.path / entry.name, target)
            except PermissionError:  # a file system without hard links
                shutil.copyfile(self.path / entry.name, target)
                with target.open("rb") as copy:
                    os.fsync(copy.fileno())

    def tidy(self) -> None:
        """Leaves nothing beside a finished export, unless it is needed yet."""
        if self.manifest is not None and self.plan is None and not any(self.aside.glob(f"{_RUN}*")):
            (self.aside / "lock").unlink(missing_ok=True)
            if not any(self.aside.iterdir()):
                self.aside.rmdir()

    def place(self, manifest: Manifest, added: Sequence[FileEntry], *, replaces: bool = False) -> Manifest:
        """Makes it count, and puts it in place."""
        following = NextStep(manifest, self.run, tuple(added), replaces)
        write_aside(self.aside / NEXT, following)
        self.manifest, self.plan = publish(self.path, following), None
        return self.manifest


@contextmanager
def opened(path: Path) -> Iterator[Folder]:
    """The folder: created if missing, checked for foreign files, recovered. Raises UsageError, CannotWriteError."""
    folder = Folder(path)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file: name a folder")
    try:
        if path.exists() and not folder.aside.exists() and not (path / NAME).exists() and any(path.iterdir()):
            raise UsageError(f"{path} is not empty and holds no export: name a new or an empty folder")
        folder.aside.mkdir(parents=True, exist_ok=True)
        with (folder.aside / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UsageError(f"another export into {path} is running") from error
            if os.fstat(lock.fileno()).st_nlink == 0:
                raise UsageError(f"another export into {path} has just ended: try again")
            folder.recover()
            try:
                yield folder
            finally:
                folder.tidy()
    except ConnectionError:
        raise  # of Spark's, not of the disk
    except OSError as error:
        raise CannotWriteError(f"{path} cannot be written: {error.strerror or error}") from error


def _written_into(data: Path, make: Callable[[Path], list[FileEntry]]) -> list[FileEntry]:
    return make(data)
