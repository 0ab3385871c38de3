"""What tests of followed exports share: a log, an export with its tasks run here, what readers see, simulated kills."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftlog.spark_export.export.arrow_engine import ArrowEngine
from raftlog.spark_export.export.cluster_digest import cluster_digests, range_digest
from raftlog.spark_export.export.destination import publish
from raftlog.spark_export.export.engine import Engine
from raftlog.spark_export.export.export import ExportRange, Mode, export
from raftlog.spark_export.export.manifest import DATA, Layout, Manifest, contradictions, read_manifest
from raftlog.spark_export.export.place import Place
from raftlog.spark_export.export.verify import Report, verify
from tests.spark_export import logs
from tests.spark_export.server import LOG_ID

ARROW: Final = ArrowEngine(1)
"""What an engine runs is the same in Spark, but for its fold of the state and its counts of keys."""
LOG = logs.real(24, batch=False)
ROWS = list(logs.naive_rows(LOG.entries, LOG.effects))
LAST = len(ROWS)
HALF = len(LOG.entries) // 2


class Counting(ArrowEngine):
    """An engine that counts its `jobs`."""

    def __init__(self) -> None:
        super().__init__(1)
        self.jobs = 0

    def run(self, task: Callable[[int], bytes], count: int) -> list[bytes]:
        """One job more."""
        self.jobs += 1
        return super().run(task, count)


def run(url: str, folder: Place, mode: Mode = "append", **options: Any) -> Manifest:
    """One export, its tasks in this process."""
    options.setdefault("every_s", 0.0)
    return export(ARROW, ExportRange((url,), folder, mode=mode, patience_s=5.0, **options))


def seen(folder: Path) -> list[int]:
    """The indexes that a reader without knowledge of manifests finds: all files in `log/`."""
    files = sorted((folder / DATA).glob("**/*"))
    tables = [pq.read_table(path, columns=["index"], partitioning=None) for path in files if path.is_file()]
    return sorted(index for table in tables for index in table.column("index").to_pylist())


def told(folder: Path) -> list[logs.Row]:
    """The rows of the files of the manifest, in its order."""
    manifest = read_manifest(folder)
    assert contradictions(manifest) == []
    files = [pq.read_table(folder / entry.name, partitioning=None) for entry in manifest.files]
    return [row for file in files for row in file.to_pylist()]


def changed(path: Path, spoil: Callable[[list[logs.Row]], list[logs.Row]]) -> None:
    """Rewrites a file with other rows."""
    table = pq.read_table(path, partitioning=None)
    pq.write_table(pa.Table.from_pylist(spoil(table.to_pylist()), table.schema), path)


LAYOUTS = {
    "flat": Layout(records_per_file=100),
    "index": Layout(partition_by="index", partition_records=150, records_per_file=100),
    "day": Layout(partition_by="day", records_per_file=100),
}


class Killed(BaseException):
    """Stands for a kill -9 at a certain step."""


STEPS = ("rename", "replace", "link", "unlink", "fsync", "mkdir", "rmdir")


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], int]:
    """From the `step`-th change of the file system on nothing happens any more: every further one raises."""
    count = 0

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count >= step:
                raise Killed
            return function(*arguments, **options)

        return changed

    for name in STEPS:
        monkeypatch.setattr(os, name, counting(getattr(os, name)))
    monkeypatch.setattr(publish, "_exchange", counting(publish._exchange))
    return lambda: count


def killed_everywhere(
    monkeypatch: pytest.MonkeyPatch,
    stride: int,
    prepare: Callable[[int], object],
    work: Callable[[int], object],
    check_step: Callable[[int], None],
) -> None:
    """Does the work again and again, killed at one step later each time, until it comes to its end; each is checked."""
    for step in range(1, 400, stride):
        prepare(step)
        is_over = False
        with monkeypatch.context() as patch, suppress(Killed):
            killed_at(patch, step)
            work(step)
            is_over = True
        check_step(step)
        if is_over:
            return
    raise AssertionError("it has more steps")


EVERY = pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.long), 5])
"""All steps take long; `make test` takes every fifth, and there are enough of them in each phase."""


def check(folder: Place, url: str, engine: Engine = ARROW) -> Report:
    """What verify says, given the cluster's digests."""
    manifest = read_manifest(folder)
    digests = cluster_digests((url,), LOG_ID, manifest.first, manifest.last)
    return verify(
        engine,
        folder,
        digests,
        "the cluster",
        range_digest=lambda first, last: range_digest((url,), LOG_ID, first, last),
    )
