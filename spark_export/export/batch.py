"""Writes one batch of an export: a range of the log, planned once, written by tasks, and put in place as a whole.

`destination/` has the two kinds of places: a folder of this machine or of all machines, and a prefix of a store.
"""

import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import msgspec

from raftlog.cluster.api.values import Position
from raftlog.spark_export.errors import ExportError
from raftlog.spark_export.export.cluster_digest import Digests, cluster_digests, followed
from raftlog.spark_export.export.destination import folder, store
from raftlog.spark_export.export.destination.destination import Destination
from raftlog.spark_export.export.engine import Engine
from raftlog.spark_export.export.manifest import FileEntry, Manifest, Plan, Records, columns, range_of
from raftlog.spark_export.export.place import Place, StorePlace
from raftlog.spark_export.fetch.offsets import split
from raftlog.spark_export.fetch.ranges import Range

Progress = Callable[[int, int], None]
"""Receives (records written, records in all) a few times a second."""

_SMALL: Final = 20_000  # records: fewer go into one file, more into at least two, so that two cores have work
_TOLD_EVERY_S: Final = 0.2
_entries: Final = msgspec.json.Decoder(list[FileEntry]).decode


def opened(path: Place) -> AbstractContextManager[Destination]:
    """The export there, begun if there is none. Raises UsageError, CannotWriteError."""
    return store.opened(path) if isinstance(path, StorePlace) else folder.opened(path)


def write_batch(
    engine: Engine,
    into: Destination,
    plan: Plan,
    endpoints: tuple[str, ...],
    patience_s: float,
    progress: Progress | None = None,
) -> Manifest:
    """Writes the planned batch and puts it in place; the new manifest holds the earlier content and this batch."""
    if plan != into.plan:
        into.keep(plan)
    with ThreadPoolExecutor(1) as asking:
        digests = asking.submit(_digests, into, plan, endpoints, patience_s)
        into.begin(plan)
        files = _write(engine, into, plan, endpoints, patience_s, progress)
        manifest = _manifest(into.manifest, plan, files, digests, isinstance(into.path, StorePlace))
    return into.place(manifest, files)


def _digests(into: Destination, plan: Plan, endpoints: tuple[str, ...], patience_s: float) -> Digests:
    """What the cluster says of the range: asked at once, while it remembers the state, and kept with the plan."""
    if plan.digests is not None:
        return plan.digests
    digests = cluster_digests(endpoints, plan.log, plan.first, plan.last, patience_s=patience_s)
    into.keep(msgspec.structs.replace(plan, digests=digests))
    return digests


def _ranges(plan: Plan) -> list[tuple[int, int]]:
    count = plan.last - plan.first + 1
    return split(
        plan.first, plan.last + 1, at_least=1 if count < _SMALL else 2, records_max=plan.layout.records_per_file
    )


def _write(
    engine: Engine,
    into: Destination,
    plan: Plan,
    endpoints: tuple[str, ...],
    patience_s: float,
    progress: Progress | None,
) -> list[FileEntry]:
    """Writes the ranges, one task each; this process receives only the list of files."""
    ranges = _ranges(plan)
    writer = into.writer()
    log_id, layout = plan.log, plan.layout

    def write(number: int) -> bytes:
        from raftlog.spark_export.export.parquet import write_range

        wanted = Range(endpoints, log_id, *ranges[number], number, patience_s)
        return msgspec.json.encode(writer(lambda data: write_range(wanted, data, layout)))

    with _watched(into, plan, progress):
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
def _watched(into: Destination, plan: Plan, progress: Progress | None) -> Iterator[None]:
    """Reports how many records are in finished files while the tasks run."""
    if progress is None:
        yield
        return
    total = plan.last - plan.first + 1
    over = threading.Event()

    def written() -> int:
        ranges = (range_of(name) for name in into.written())
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


def _manifest(
    before: Manifest | None, plan: Plan, files: list[FileEntry], asked: "Future[Digests]", is_in_store: bool
) -> Manifest:
    total, user = sum(entry.count for entry in files), sum(entry.user for entry in files)
    now_ms = time.time_ns() // 1_000_000
    digests, first, created_ms = asked.result(), plan.first, now_ms
    time_min_ms = min(entry.time_min_ms for entry in files)
    listed = files if plan.layout.table == "parquet" or is_in_store else []
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
