"""An export that follows the log holds every record once at every moment, wherever it is killed, in every layout."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest

from raftlog.raft.codec.block import BlockRecord
from raftlog.spark_export.errors import CannotWriteError, DataLossError, ExportError, NotCheckedError, UsageError
from raftlog.spark_export.export import batch
from raftlog.spark_export.export.compaction import compact
from raftlog.spark_export.export.destination import publish
from raftlog.spark_export.export.export import ExportRange, export
from raftlog.spark_export.export.manifest import DATA, NEXT, UNFINISHED, Layout, Manifest, find_manifest, read_manifest
from raftlog.spark_export.export.parquet import write_range
from raftlog.spark_export.fetch.ranges import Range
from raftlog.statemachine.commands import Operation
from tests.spark_export import logs
from tests.spark_export.export.exports import (
    ARROW,
    HALF,
    LAST,
    LAYOUTS,
    LOG,
    ROWS,
    Counting,
    run,
    seen,
    told,
)
from tests.spark_export.server import LOG_ID, Served, serving

T = TypeVar("T")


@pytest.mark.parametrize("name", LAYOUTS)
def test_batches_add_up_to_one_export(url: str, served: Served, tmp_path: Path, name: str) -> None:
    """Bounded batches, then the records committed since, then nothing: the rows are those of the log, each once. The
    digests of the parts are those of the whole, and the layout stays.
    """
    folder = tmp_path / "out"
    served.commit(HALF)
    first = run(url, folder, batch_records=70, layout=LAYOUTS[name])
    assert first.last == served.last
    assert seen(folder) == list(range(1, first.last + 1))
    served.committed = None
    manifest = run(url, folder, batch_records=70)
    assert told(folder) == ROWS
    assert seen(folder) == list(range(1, LAST + 1))
    assert manifest.layout == LAYOUTS[name]
    assert manifest.created_ms == first.created_ms
    assert manifest.records.user == sum(map(logs.is_user, ROWS))
    whole = run(url, tmp_path / "whole", "once")
    assert manifest.digests.log == whole.digests.log
    assert manifest.digests.state == whole.digests.state
    assert run(url, folder) == manifest
    assert not (folder / UNFINISHED).exists()


def test_folders_hold_the_records_of_their_names(tmp_path: Path) -> None:
    """By index: whole stretches. By day: the records of that day in UTC, cut where the day changes."""
    days = [0, 0, 1, 1, 1, 3]
    log = logs.Log()
    for day in days:
        if day:
            log.last = replace(log.last, time_ms=logs.START_MS + day * 86_400_000)
        log.plain([BlockRecord(Operation.APPEND, b"k", b"v")])
    with serving(Served(log)) as url:
        run(url, tmp_path / "day", layout=Layout(partition_by="day"))
        run(url, tmp_path / "index", layout=Layout(partition_by="index", partition_records=4))
    by_day = {path.parent.name for path in (tmp_path / "day" / DATA).glob("*/*.parquet")}
    assert by_day == {f"day={datetime.fromtimestamp(row['time'].timestamp(), UTC).date()}" for row in rows_of(log)}
    for path in (tmp_path / "index" / DATA).glob("*/*.parquet"):
        start = int(path.parent.name.removeprefix("index_from="))
        assert all(start <= index < start + 4 for index in pq.read_table(path, partitioning=None)["index"].to_pylist())


def rows_of(log: logs.Log) -> list[logs.Row]:
    """All rows."""
    return list(logs.naive_rows(log.entries, log.effects))


def test_follow_goes_on_as_the_log_grows(url: str, served: Served, tmp_path: Path) -> None:
    """It takes the present records, waits without a batch, takes new ones, and ends at --to-index."""
    served.commit(HALF)
    batches: list[int] = []

    def heard(manifest: Manifest) -> None:
        batches.append(manifest.last)
        if len(batches) == 1:
            served.commit(HALF + 3)
        elif len(batches) == 2:
            served.commit(len(LOG.entries) - 1)

    wanted = ExportRange((url,), tmp_path / "out", None, LAST, mode="follow", every_s=0.0)
    manifest = export(ARROW, wanted, None, heard)
    assert batches == [LOG.entries[HALF].index, LOG.entries[HALF + 3].index, LAST]
    assert manifest.last == LAST
    assert told(tmp_path / "out") == ROWS


def test_an_append_ends_when_internal_records_alone_are_left(url: str, served: Served, tmp_path: Path) -> None:
    """Its end is that of the log at its start. It waits for no user record, as an idle follow does."""
    is_internal = [not logs.is_user(ROWS[entry.index - 1]) for entry in LOG.entries]
    served.commit(is_internal.index(True, HALF))
    user = max(row["index"] for row in ROWS[: served.last] if logs.is_user(row))
    assert user < served.last
    assert run(url, tmp_path / "out", batch_records=user).last == served.last


def test_an_interrupted_follow_ends_with_a_whole_batch(url: str, served: Served, tmp_path: Path) -> None:
    """Stopped while it waits and while a batch is under way: the export is consistent, and the next run continues
    it.
    """
    served.commit(HALF)
    stop = threading.Event()
    engine = Counting()
    wanted = ExportRange((url,), tmp_path / "out", mode="follow", every_s=0.0, batch_records=50, stop=stop)
    export(engine, wanted, None, lambda manifest: stop.set() if manifest.last >= 100 else None)
    assert seen(tmp_path / "out") == list(range(1, 101))
    assert engine.jobs == 2
    stop.clear()

    class Waited(threading.Condition):
        """Stops the export once the node has nothing for it and lets it wait."""

        def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
            if timeout and not predicate():
                stop.set()
            return super().wait_for(predicate, timeout)

    served.grown = Waited()
    export(engine, wanted)
    assert seen(tmp_path / "out") == list(range(1, served.last + 1))


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_compaction_keeps_every_row_once(
    url: str, tmp_path: Path, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours become one file, up to the limit and within their folder; rows, digests and order stay. It also works
    where folders cannot change places in one step. A second compaction has nothing to do.
    """
    if not can_exchange:
        monkeypatch.setattr(publish, "_exchange", lambda one, other: False)
    folder = tmp_path / "out"
    layout = Layout(partition_by="index", partition_records=200, records_per_file=60)
    before = run(url, folder, batch_records=12, layout=layout, compact_files=0)
    had, has = compact(ARROW, folder)
    manifest = read_manifest(folder)
    assert (had, has) == (len(before.files), len(manifest.files))
    assert has < had / 3
    assert max(entry.rows for entry in manifest.files) <= 60
    assert told(folder) == ROWS
    assert seen(folder) == list(range(1, LAST + 1))
    assert manifest.digests == before.digests
    assert [entry.user for entry in manifest.files] == [
        sum(map(logs.is_user, ROWS[entry.first - 1 : entry.last])) for entry in manifest.files
    ]
    engine = Counting()
    assert compact(engine, folder) == (has, has)
    assert engine.jobs == 0
    publish.sweep_retired(folder, older_than_s=0)
    assert [path for path in (folder / UNFINISHED).glob("*") if path.name != "lock"] == []


def test_many_small_files_are_joined_as_it_follows(url: str, tmp_path: Path) -> None:
    """With a limit on small files there are never many more of them."""
    most: list[int] = []
    wanted = ExportRange((url,), tmp_path / "out", mode="append", every_s=0.0, batch_records=10, compact_files=8)
    export(ARROW, wanted, None, lambda manifest: most.append(len(manifest.files)))
    assert max(most) <= 9
    assert told(tmp_path / "out") == ROWS


def test_damage_is_not_compacted_away(url: str, tmp_path: Path) -> None:
    """A file that differs from its written content is not joined with others under a new checksum."""
    folder = tmp_path / "out"
    manifest = run(url, folder, batch_records=50)
    path = folder / manifest.files[2].name
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table, path)
    with pytest.raises(ExportError, match="is not the file that the export wrote"):
        compact(ARROW, folder)


def test_two_attempts_at_one_range_leave_one_file(url: str, tmp_path: Path) -> None:
    """A task runs twice at once: the second takes the file of the first, byte for byte as reported."""
    (first,) = write_range(Range((url,), LOG_ID, 1, 51), tmp_path)
    (path,) = tmp_path.iterdir()
    number = path.stat().st_ino
    hidden = tmp_path / "hidden"
    path.rename(hidden)
    stopped: list[Path] = []

    def late(aside: Any, target: Any) -> None:
        stopped.append(Path(target))
        hidden.rename(target)
        raise FileExistsError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", late)
        (second,) = write_range(Range((url,), LOG_ID, 1, 51), tmp_path)
    assert stopped == [path]
    assert second == first
    assert path.stat().st_ino == number
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_full_disk_ends_the_export_without_leftovers(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that finds no room is an error that says so; the half file goes; the next run is whole."""
    (tmp_path / "data").mkdir()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CannotWriteError, match="No space left on device; free disk space"):
            write_range(Range((url,), LOG_ID, 1, 51), tmp_path / "data")
        assert list((tmp_path / "data").iterdir()) == []
        with pytest.raises(CannotWriteError, match="No space left"):
            run(url, tmp_path / "out")
    run(url, tmp_path / "out")
    assert told(tmp_path / "out") == ROWS


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"mode": "once"}, UsageError, "already holds a finished export: .* --append or --follow"),
        ({"first": 5}, UsageError, "begins at index 1; run it without --from"),
        ({"last": 3}, UsageError, "goes to index 200 already, beyond --to-index 3"),
        ({"last": 99_999}, UsageError, "not committed yet"),
        ({"layout": Layout(partition_by="day")}, UsageError, "has another layout"),
    ],
)
def test_an_export_with_other_options_is_not_continued(
    url: str, served: Served, tmp_path: Path, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    """An export is gone on with as it was begun, or not at all; nothing in the folder changes."""
    folder = tmp_path / "out"
    stop = threading.Event()
    wanted = ExportRange((url,), folder, mode="append", batch_records=200, stop=stop)
    export(ARROW, wanted, None, lambda manifest: stop.set())
    before = find_manifest(folder)
    with pytest.raises(error, match=match):
        run(url, folder, **options)
    assert find_manifest(folder) == before


def test_another_log_or_a_shorter_one_is_refused(url: str, served: Served, tmp_path: Path) -> None:
    """A cluster that was replaced, lost its end, or trimmed what the export lacks is never followed silently."""
    served.commit(HALF)
    folder = tmp_path / "out"
    run(url, folder)
    served.commit(HALF - 1)
    with pytest.raises(DataLossError, match="the cluster lost what it had"):
        run(url, folder)
    served.committed, served.oldest = None, LAST - 5
    with pytest.raises(DataLossError, match="no longer kept"):
        run(url, folder)
    served.oldest, served.log_id = 1, "f" * 32
    with pytest.raises(DataLossError, match="the endpoints serve ffff"):
        run(url, folder)


def test_a_folder_without_an_export_is_refused(url: str, tmp_path: Path) -> None:
    """A file, a folder under a file, one without an export: each is named."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file: name a folder"):
        run(url, tmp_path / "file")
    with pytest.raises(CannotWriteError, match="cannot be written: Not a directory"):
        run(url, tmp_path / "file" / "below")
    with pytest.raises(NotCheckedError, match="holds no export"):
        compact(ARROW, tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="nothing to compact"):
        compact(ARROW, tmp_path / "empty")
    with batch.opened(tmp_path / "busy"), pytest.raises(UsageError, match=r"another export into .* is running"):
        run(url, tmp_path / "busy")
    (tmp_path / "damaged" / UNFINISHED).mkdir(parents=True)
    (tmp_path / "damaged" / UNFINISHED / NEXT).write_text("{")
    with pytest.raises(UsageError, match=r"next\.json is damaged"):
        run(url, tmp_path / "damaged")


def test_every_batch_is_in_order_for_readers_of_the_folder(url: str, tmp_path: Path) -> None:
    """While the files of a batch are put in place one after the other, a reader sees the log up to some index."""
    states: list[list[int]] = []
    folder = tmp_path / "out"
    layout = Layout(records_per_file=20)
    run(url, folder, last=100, layout=layout)
    rename = os.rename

    def watching(source: Any, target: Any, **options: Any) -> None:
        rename(source, target, **options)
        states.append(seen(folder))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", watching)
        run(url, folder)
    assert all(state == list(range(1, len(state) + 1)) for state in states)
    assert all(len(one) <= len(other) for one, other in pairwise(states))
    assert len({len(state) for state in states}) > 5
