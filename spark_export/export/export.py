"""Exports the log to a folder: the whole log once, the new records only, or without end as it grows.

`raftlog export` writes one batch, all or nothing. `--append` adds the records that the export lacks, in bounded
batches, up to the end of the log at its start. `--follow` does the same without an end. Each batch is put in place as a
whole (`batch.py`). So an export that was killed or interrupted holds every record up to some index, and none after it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from raftlog.cluster.api.records import LogPageJson
from raftlog.spark_export.errors import DataLossError, UsageError
from raftlog.spark_export.export.batch import Progress, opened, write_batch
from raftlog.spark_export.export.cluster_digest import check_end
from raftlog.spark_export.export.destination.destination import Destination
from raftlog.spark_export.export.engine import Engine
from raftlog.spark_export.export.manifest import Layout, Manifest, Plan, find_manifest, read_plan
from raftlog.spark_export.export.place import Place
from raftlog.spark_export.fetch import door
from raftlog.spark_export.fetch.door import NodeRotation
from raftlog.spark_export.fetch.ranges import trimmed

Mode = Literal["once", "append", "follow"]

IDLE_WAIT_MS: Final = 1_000
"""How long a node is asked to wait for a record to come; so soon an export that follows hears of being interrupted."""


@dataclass(frozen=True, slots=True)
class ExportRange:
    """What to export: `first` None is the oldest index kept, `last` None the committed end (or none, when following).
    `layout` None is that of the export to go on with, else the default one."""

    endpoints: tuple[str, ...]
    folder: Place
    first: int | None = None
    last: int | None = None
    layout: Layout | None = None
    mode: Mode = "once"
    batch_records: int = 1_000_000  # most in one batch of an append or follow
    every_s: float = 5.0  # between batches that are smaller than that
    compact_files: int = 64  # so many small files are joined as one follows; 0: never
    patience_s: float = door.PATIENCE_S
    stop: threading.Event = field(default_factory=threading.Event)  # set: end after the batch under way

    @property
    def nodes(self) -> NodeRotation:
        """The nodes, to be asked for one thing."""
        return NodeRotation(self.endpoints, self.patience_s)


def export(
    engine: Engine,
    wanted: ExportRange,
    progress: Progress | None = None,
    in_place: Callable[[Manifest], None] = lambda _: None,
) -> Manifest:
    """Makes, finishes or goes on with the export; `in_place` hears of every such batch. Raises UsageError for a folder
    that holds something else, DataLossError for a range that is not kept, UnreachableError, CannotWriteError."""
    with opened(wanted.folder) as folder:
        page = door.bounds(wanted.nodes)
        _check(wanted, folder, page)
        if wanted.mode == "once":
            if folder.plan is None and wanted.last is not None:
                check_end(wanted.nodes, wanted.last)
            plan = folder.plan or _plan(wanted, folder, page, wanted.last or page.index)
            assert plan is not None, "there is no manifest yet, so nothing to do is an error"
            return write_batch(engine, folder, plan, wanted.endpoints, wanted.patience_s, progress)
        return _follow(engine, wanted, folder, page, progress, in_place)


def waiting(wanted: ExportRange) -> int:
    """How many records the export would write now; 0 if nothing waits. Raises UnreachableError and the errors of a
    damaged folder."""
    page = door.bounds(wanted.nodes)
    manifest, plan = find_manifest(wanted.folder), read_plan(wanted.folder)
    first = wanted.first or page.oldest if manifest is None else manifest.last + 1
    if plan is not None and (manifest is None or plan.last > manifest.last):
        first, last = plan.first, plan.last
    else:
        last = min(page.index, wanted.last or page.index)
    return max(0, last - first + 1)


def _check(wanted: ExportRange, folder: Destination, page: LogPageJson) -> None:
    """Whether what the folder holds can be gone on with, as it is wanted."""
    path, found = wanted.folder, folder.plan or folder.manifest
    if wanted.last is not None and wanted.last > page.index and wanted.mode != "follow":
        raise UsageError(f"--to-index {wanted.last} is not committed yet: the log ends at index {page.index}")
    if folder.manifest is not None and wanted.mode == "once":
        raise UsageError(
            f"{path} already holds a finished export: check it with `raftlog verify {path}`, go on with it with "
            f"--append or --follow, or name another one"
        )
    if found is None:
        return
    remove = f"remove {path} to begin again, or name another folder"
    what = "the unfinished export" if folder.manifest is None else "the export"
    if found.log != page.log:
        raise DataLossError(f"{what} in {path} is of log {found.log}, the endpoints serve {page.log}: {remove}")
    if found.last > page.index:
        raise DataLossError(
            f"{what} in {path} goes to index {found.last}, the log ends at {page.index}: the cluster lost what it "
            f"had; {remove}"
        )
    if wanted.layout not in (None, found.layout):
        raise UsageError(
            f"{what} in {path} has another layout ({_shown(found.layout)}): leave it as it is, or {remove}"
        )
    first = found.first if folder.manifest is None else folder.manifest.first
    if wanted.first not in (None, first):
        raise UsageError(f"{what} in {path} begins at index {first}; run it without --from to go on, or {remove}")
    if wanted.mode == "once" and wanted.last not in (None, found.last):
        raise UsageError(
            f"the unfinished export in {path} is of indexes {found.first} to {found.last}; run it without --from and "
            f"--to-index to finish it, or {remove}"
        )
    if wanted.last is not None and wanted.last < found.last:
        raise UsageError(f"{what} in {path} goes to index {found.last} already, beyond --to-index {wanted.last}")


def _shown(layout: Layout) -> str:
    return (
        f"--format {layout.table} --partition-by {layout.partition_by} --records {layout.records}, "
        f"{layout.records_per_file} records a file"
    )


def _plan(wanted: ExportRange, folder: Destination, page: LogPageJson, last: int) -> Plan | None:
    """The next batch: from where the export ends, to `last`. None: there is nothing to do."""
    first = _position(wanted, folder, page)
    if first > last:
        if folder.manifest is None and wanted.mode != "follow":
            raise UsageError(f"there is nothing to export in [{first}, {last}]: the log ends at index {page.index}")
        return None
    if first < page.oldest:
        raise trimmed(first, page.oldest)
    layout = folder.manifest.layout if folder.manifest is not None else wanted.layout or Layout()
    return Plan(page.log, first, last, layout)


def _follow(
    engine: Engine,
    wanted: ExportRange,
    folder: Destination,
    page: LogPageJson,
    progress: Progress | None,
    in_place: Callable[[Manifest], None],
) -> Manifest:
    """Batch after batch: to the end that the log has now, or until it is stopped or `last` is reached."""
    from raftlog.spark_export.export.compaction import compact_if_many

    limit = wanted.last if wanted.mode == "follow" or wanted.last is not None else page.index
    done = 0
    rotation = wanted.nodes
    while not wanted.stop.is_set():
        position = _position(wanted, folder, page)
        end = page.index if limit is None else min(page.index, limit)
        plan = folder.plan or _plan(wanted, folder, page, min(end, position + wanted.batch_records - 1))
        if plan is not None:
            began = time.monotonic()
            total = done + end - plan.first + 1

            def tell(written: int, _: int, done: int = done, total: int = total) -> None:
                if progress is not None:
                    progress(done + written, total)

            manifest = write_batch(engine, folder, plan, wanted.endpoints, wanted.patience_s, tell)
            done += plan.last - plan.first + 1
            in_place(manifest)
            if wanted.compact_files:
                compact_if_many(engine, folder, wanted.compact_files)
            if plan.last - plan.first + 1 < wanted.batch_records and plan.last < (limit or plan.last + 1):
                wanted.stop.wait(max(0.0, began + wanted.every_s - time.monotonic()))
        if limit is not None and folder.manifest is not None and folder.manifest.last >= limit:
            break
        page = _grown(wanted, folder, page, rotation, limit)
    if folder.manifest is None:
        raise UsageError(f"there is nothing in {wanted.folder} yet: it was interrupted before the first batch")
    return folder.manifest


def _position(wanted: ExportRange, folder: Destination, page: LogPageJson) -> int:
    """The index with which the next batch begins."""
    if folder.manifest is not None:
        return folder.manifest.last + 1
    return page.oldest if wanted.first is None else wanted.first


def _grown(
    wanted: ExportRange, folder: Destination, page: LogPageJson, rotation: NodeRotation, limit: int | None
) -> LogPageJson:
    """Waits until the log has a user's record that the export lacks, or its committed end reaches `limit`.

    Returns the log as it is when the export is stopped. Internal records alone do not end the wait: an idle export
    stays idle.
    """
    while not wanted.stop.is_set():
        position = _position(wanted, folder, page)
        page = door.bounds_after(rotation, position - 1, IDLE_WAIT_MS)
        _check(wanted, folder, page)
        if page.last_user_index >= position or (limit is not None and page.index >= limit):
            return page
    return page
