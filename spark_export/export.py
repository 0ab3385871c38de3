"""Exports a range of the log to a folder of Parquet files: planned once, written by tasks, published at once.

    DIR/manifest.json                    written last: where it is, the export is whole
    DIR/log/index-FIRST-LAST.parquet     one file per range of indexes
    DIR/.unfinished/plan.json, log/      while it is being made; another run goes on with the same plan

Everything is written aside and renamed, the whole of `log/` by one rename, so that a reader of `log/` sees all or
nothing, also one that knows nothing of manifests.
"""

import fcntl
import importlib.metadata
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from cluster.wire import Position
from spark_export import door
from spark_export.cluster_digest import Digests, check_end, cluster_digests
from spark_export.errors import DataLossError, ExportError, UsageError
from spark_export.manifest import (
    DATA,
    NAME,
    UNFINISHED,
    FileEntry,
    Manifest,
    Plan,
    Records,
    columns,
    range_of,
    read_plan,
    sync_folder,
    write_aside,
)
from spark_export.offsets import RECORDS_PER_PARTITION, split
from spark_export.reader import Range, trimmed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]
"""Told (records written, records in all) a few times a second."""

_SMALL: Final = 20_000  # records: fewer go into one file, more into at least two, so that two cores have work
_TOLD_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to export: `first` None is the oldest index kept, `last` None the committed end."""

    endpoints: tuple[str, ...]
    folder: Path
    first: int | None = None
    last: int | None = None
    records_per_file: int = RECORDS_PER_PARTITION
    patience_s: float = door.PATIENCE_S


def export(spark: "SparkSession", wanted: Wanted, progress: Progress | None = None) -> Manifest:
    """Makes or finishes the export. Raises UsageError for a folder that holds something else, DataLossError for a range
    that is not kept, UnreachableError."""
    folder = wanted.folder
    with _locked(folder):
        plan = _plan(wanted)
        aside = folder / UNFINISHED
        with ThreadPoolExecutor(1) as asking:
            digests = asking.submit(_digests, wanted, plan)
            if (folder / DATA).exists():  # published by a run that was killed before its manifest was
                data = folder / DATA
            else:
                data = aside / DATA
                data.mkdir(exist_ok=True)
            _sweep(data, plan)
            files = _write(spark, wanted, plan, data, progress)
            manifest = _manifest(plan, files, digests)
        if data.parent != folder:
            sync_folder(data)
            data.rename(folder / DATA)
            sync_folder(folder)
        write_aside(folder / NAME, manifest)
        shutil.rmtree(aside)
    return manifest


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder, made if need be, checked to be empty or an unfinished export, and ours alone."""
    if (folder / NAME).exists():
        raise UsageError(
            f"{folder} already holds a finished export: check it with `raftlog verify {folder}`, or name another one"
        )
    aside = folder / UNFINISHED
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder")
    if folder.exists() and not aside.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty and holds no unfinished export: name a new or an empty folder")
    try:
        aside.mkdir(parents=True, exist_ok=True)
        lock = (aside / "lock").open("w")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"another export into {folder} is running") from error
        yield


def _plan(wanted: Wanted) -> Plan:
    """The plan found in the folder, if it fits, else a new one."""
    page = door.bounds(wanted.endpoints, patience_s=wanted.patience_s)
    found = read_plan(wanted.folder)
    if found is not None:
        remove = f"remove {wanted.folder} to begin anew, or name another folder"
        if found.log != page.log:
            raise DataLossError(
                f"the unfinished export in {wanted.folder} is of log {found.log}, the endpoints serve {page.log}: "
                f"{remove}"
            )
        if wanted.first not in (None, found.first) or wanted.last not in (None, found.last):
            raise UsageError(
                f"the unfinished export in {wanted.folder} is of indexes {found.first} to {found.last}; run it without "
                f"--from and --to-index to finish it, or {remove}"
            )
        if found.last > page.index:
            raise DataLossError(
                f"the unfinished export in {wanted.folder} goes to index {found.last}, the log ends at {page.index}: "
                f"the cluster lost what it had; {remove}"
            )
        return found
    first = page.oldest if wanted.first is None else wanted.first
    last = page.index if wanted.last is None else wanted.last
    if last > page.index:
        raise UsageError(f"--to-index {last} is not committed yet: the log ends at index {page.index}")
    if first > last:
        raise UsageError(f"there is nothing to export in [{first}, {last}]: the log ends at index {page.index}")
    if first < page.oldest:
        raise trimmed(first, page.oldest)
    if wanted.last is not None:
        check_end(wanted.endpoints, last, patience_s=wanted.patience_s)
    plan = Plan(page.log, first, last, wanted.records_per_file)
    write_aside(wanted.folder / UNFINISHED / "plan.json", plan)
    return plan


def _digests(wanted: Wanted, plan: Plan) -> Digests:
    """What the cluster says of the range: asked at once, while it remembers the state, and kept with the plan."""
    if plan.digests is not None:
        return plan.digests
    digests = cluster_digests(wanted.endpoints, plan.log, plan.first, plan.last, patience_s=wanted.patience_s)
    write_aside(wanted.folder / UNFINISHED / "plan.json", msgspec.structs.replace(plan, digests=digests))
    return digests


def _sweep(data: Path, plan: Plan) -> None:
    """Removes what a killed run left half-written, and files of another plan."""
    ranges = set(_ranges(plan))
    for path in data.iterdir():
        found = range_of(path.name)
        if found is None or (found[0], found[1] + 1) not in ranges:
            path.unlink()


def _ranges(plan: Plan) -> list[tuple[int, int]]:
    count = plan.last - plan.first + 1
    return split(
        plan.first, plan.last + 1, at_least=1 if count < _SMALL else 2, records_max=plan.records_per_file
    )  # fmt: skip


def _write(spark: "SparkSession", wanted: Wanted, plan: Plan, data: Path, progress: Progress | None) -> list[FileEntry]:
    """One task per file; the driver sees only what is in each."""
    ranges = _ranges(plan)
    data = data.resolve()
    endpoints, log_id, patience_s = wanted.endpoints, plan.log, wanted.patience_s

    def write(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        from spark_export.parquet import write_range

        for batch in batches:
            for number in batch.column(0).to_pylist():
                start, stop = ranges[number]
                entry = write_range(Range(endpoints, log_id, start, stop, number, patience_s), data)
                yield pa.record_batch([pa.array([msgspec.json.encode(entry)], pa.binary())], names=["entry"])

    numbers = spark.range(0, len(ranges), 1, len(ranges))
    with _watched(data, plan, progress):
        rows = numbers.mapInArrow(write, "entry binary").collect()
    files = sorted((msgspec.json.decode(row["entry"], type=FileEntry) for row in rows), key=lambda entry: entry.first)
    if [(entry.first, entry.last + 1) for entry in files] != ranges:
        raise ExportError(f"Spark's tasks wrote other files than planned: {[entry.name for entry in files]}")
    return files


@contextmanager
def _watched(data: Path, plan: Plan, progress: Progress | None) -> Iterator[None]:
    """Tells how many records are in finished files while the tasks run."""
    if progress is None:
        yield
        return
    total = plan.last - plan.first + 1
    over = threading.Event()

    def written() -> int:
        ranges = (range_of(path.name) for path in data.iterdir())
        return sum(last - first + 1 for first, last in filter(None, ranges))

    def tell() -> None:
        while not over.wait(_TOLD_EVERY_S):
            progress(written(), total)

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        yield
        progress(total, total)
    finally:
        over.set()
        teller.join()


def _manifest(plan: Plan, files: list[FileEntry], digests: "Future[Digests]") -> Manifest:
    total = sum(entry.rows for entry in files)
    user = sum(entry.user for entry in files)
    return Manifest(
        plan.log,
        Position(plan.log, {"0": plan.last + 1}),
        plan.first,
        plan.last,
        Records(total, user, total - user),
        min(entry.time_min_ms for entry in files),
        max(entry.time_max_ms for entry in files),
        files,
        columns(),
        digests.result(),
        time.time_ns() // 1_000_000,
        f"raftlog {importlib.metadata.version('raftlog')}",
    )
