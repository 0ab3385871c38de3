"""Writes one batch of an export: a range of the log, planned once, written by tasks, and put in place as a whole.

    DIR/manifest.json              the content of the export; all files that it names are in place
    DIR/log/…                      the rows: Parquet files, or a Delta table
    DIR/internal/…                 of an export of user records: the rows of the others
    DIR/.unfinished/plan.json      the plan of the batch under way; a later run continues with the same plan
    DIR/.unfinished/run-…/log/…    its files; a new run takes over the whole files of killed runs
    DIR/.unfinished/next.json      from this file on the batch counts: `publish.py`

Each run has a folder of its own, so that tasks of a killed driver that still run somewhere write into the void.
"""

import fcntl
import importlib.metadata
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from raftlog.cluster.api.values import Position
from raftlog.spark_export.errors import CannotWriteError, ExportError, UsageError
from raftlog.spark_export.export.cluster_digest import Digests, cluster_digests, followed
from raftlog.spark_export.export.engine import Engine
from raftlog.spark_export.export.manifest import (
    DATA,
    NAME,
    NEXT,
    PLAN,
    UNFINISHED,
    FileEntry,
    Manifest,
    Next,
    Plan,
    Records,
    columns,
    find_manifest,
    range_of,
    read_next,
    read_plan,
    write_aside,
)
from raftlog.spark_export.export.publish import publish, sweep_retired
from raftlog.spark_export.fetch.offsets import split
from raftlog.spark_export.fetch.ranges import Range

Progress = Callable[[int, int], None]
"""Receives (records written, records in all) a few times a second."""

_SMALL: Final = 20_000  # records: fewer go into one file, more into at least two, so that two cores have work
_TOLD_EVERY_S: Final = 0.2
_RUN: Final = "run-"
_entries: Final = msgspec.json.Decoder(list[FileEntry]).decode


class Folder:
    """An export's folder, locked for this process while it is open, with the finished and unfinished files known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.aside = path / UNFINISHED
        self.run = f"{_RUN}{uuid.uuid4().hex}"
        self.manifest: Manifest | None = None
        self.plan: Plan | None = None

    @property
    def data(self) -> Path:
        """Where this run's tasks write."""
        return self.aside / self.run / DATA

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

    def begin(self) -> None:
        """Makes this run's folder, with the files that killed runs left."""
        self.data.mkdir(parents=True, exist_ok=True)
        for other in sorted(self.aside.glob(f"{_RUN}*")):
            if other.name == self.run:
                continue
            for path in sorted(other.glob("**/*.parquet")):
                target = self.data.parent / path.relative_to(other)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
            shutil.rmtree(other, ignore_errors=True)

    def tidy(self) -> None:
        """Leaves nothing beside a finished export, unless it is needed yet."""
        if self.manifest is not None and self.plan is None and not any(self.aside.glob(f"{_RUN}*")):
            (self.aside / "lock").unlink(missing_ok=True)
            if not any(self.aside.iterdir()):
                self.aside.rmdir()

    def place(self, following: Next) -> Manifest:
        """Makes it count, and puts it in place."""
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


def write_batch(
    engine: Engine,
    folder: Folder,
    plan: Plan,
    endpoints: tuple[str, ...],
    patience_s: float,
    progress: Progress | None = None,
) -> Manifest:
    """Writes the planned batch and puts it in place; the new manifest holds the earlier content and this batch."""
    if plan != folder.plan:
        write_aside(folder.aside / PLAN, plan)
        folder.plan = plan
    with ThreadPoolExecutor(1) as asking:
        digests = asking.submit(_digests, folder, plan, endpoints, patience_s)
        folder.begin()
        _sweep(folder.data.parent, plan)
        files = _write(engine, folder, plan, endpoints, patience_s, progress)
        following = Next(_manifest(folder.manifest, plan, files, digests), folder.run, tuple(files))
    return folder.place(following)


def _digests(folder: Folder, plan: Plan, endpoints: tuple[str, ...], patience_s: float) -> Digests:
    """What the cluster says of the range: asked at once, while it remembers the state, and kept with the plan."""
    if plan.digests is not None:
        return plan.digests
    digests = cluster_digests(endpoints, plan.log, plan.first, plan.last, patience_s=patience_s)
    write_aside(folder.aside / PLAN, msgspec.structs.replace(plan, digests=digests))
    return digests


def _sweep(run: Path, plan: Plan) -> None:
    """Removes what a killed run left half-written, and files of another plan."""
    for path in run.glob("**/*"):
        found = range_of(path.name)
        if not path.is_dir() and (found is None or found[0] < plan.first or found[1] > plan.last):
            path.unlink()


def _ranges(plan: Plan) -> list[tuple[int, int]]:
    count = plan.last - plan.first + 1
    return split(
        plan.first, plan.last + 1, at_least=1 if count < _SMALL else 2, records_max=plan.layout.records_per_file
    )


def _write(
    engine: Engine,
    folder: Folder,
    plan: Plan,
    endpoints: tuple[str, ...],
    patience_s: float,
    progress: Progress | None,
) -> list[FileEntry]:
    """Writes the ranges, one task each; this process receives only the list of files."""
    ranges = _ranges(plan)
    data = folder.data.resolve()
    log_id, layout = plan.log, plan.layout

    def write(number: int) -> bytes:
        from raftlog.spark_export.export.parquet import write_range

        start, stop = ranges[number]
        return msgspec.json.encode(write_range(Range(endpoints, log_id, start, stop, number, patience_s), data, layout))

    with _watched(data, plan, progress):
        results = engine.run(write, len(ranges))
    found = [entry for result in results for entry in _entries(result)]
    files = sorted(found, key=lambda entry: entry.first)
    due = plan.first
    for entry in files:
        if entry.first != due:
            break
        due = entry.last + 1
    if due != plan.last + 1:
        raise ExportError(f"the tasks wrote other files than planned: {[entry.name for entry in files]}")
    return files


@contextmanager
def _watched(data: Path, plan: Plan, progress: Progress | None) -> Iterator[None]:
    """Reports how many records are in finished files while the tasks run."""
    if progress is None:
        yield
        return
    total = plan.last - plan.first + 1
    over = threading.Event()

    def written() -> int:
        ranges = (range_of(path.name) for path in data.glob("**/*.parquet"))
        return sum(last - first + 1 for first, last in filter(None, ranges))

    def tell() -> None:
        while not over.wait(_TOLD_EVERY_S):
            progress(written(), total)

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
    progress(total, total)  # reported by one thread at a time, and last


def _manifest(before: Manifest | None, plan: Plan, files: list[FileEntry], asked: "Future[Digests]") -> Manifest:
    total, user = sum(entry.count for entry in files), sum(entry.user for entry in files)
    now_ms = time.time_ns() // 1_000_000
    digests, first, created_ms = asked.result(), plan.first, now_ms
    time_min_ms = min(entry.time_min_ms for entry in files)
    listed = files if plan.layout.table == "parquet" else []
    if before is not None:
        digests, first, created_ms = followed(before.digests, digests), before.first, before.created_ms
        total, user = total + before.records.total, user + before.records.user
        time_min_ms = min(time_min_ms, before.time_min_ms)
        listed = [*before.files, *listed]
    return Manifest(
        plan.log,
        Position(plan.log, {"0": plan.last + 1}),
        first,
        plan.last,
        Records(total, user, total - user),
        time_min_ms,
        max(entry.time_max_ms for entry in files),
        tuple(listed),
        columns(),
        digests,
        plan.layout if before is None else before.layout,
        created_ms,
        now_ms,
        f"raftlog {importlib.metadata.version('raftlog')}",
    )
