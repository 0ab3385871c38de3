"""Tests reading beside a node: sealed segments come from its files, damaged ones and the rest over HTTP."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.folder import DiskIdentity, format_node
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.types import HardState
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.fetch import local_log
from raftlog.spark_export.fetch.options import parse_options
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.fetch.reader import read
from raftlog.spark_export.source.source import LogPartition, LogReader, LogStreamReader
from raftlog.spark_export.source.views import default_schema, view
from raftlog.statemachine.commands import Operation
from tests.cluster.files.disk_folder import LOG, SEGMENT_BYTES, flip, segment
from tests.cluster.files.disk_lab import batch
from tests.spark_export import logs
from tests.spark_export.server import LOG_ID, Served, serving

SIDES = (".seg", ".idx", ".ledger")


def written() -> logs.RealLog:
    """Requests of every kind, then a run of plain appends of one record, then of several."""
    log = logs.real(14, batch=False)
    for number in range(150):
        records = [BlockRecord(Operation.APPEND, b"k", b"v%d" % each) for each in range(1 if number < 120 else 3)]
        log.commit(encode_block(records, plain=True))
    return log


WRITTEN = written()
ROWS = list(logs.naive_rows(WRITTEN.entries, WRITTEN.effects))
END = WRITTEN.last.index + 1


async def _write(folder: Path) -> None:
    format_node(folder, DiskIdentity(LOG_ID, 1, "0" * 32), WRITTEN.entries[0], segment_bytes=SEGMENT_BYTES)
    disk, _ = Disk.open(folder, segment_bytes=SEGMENT_BYTES)
    await disk.write_effects(WRITTEN.effects[:1])
    await disk.carry_out(batch(hard_state=HardState(2, 1)))
    for entry, effects in list(zip(WRITTEN.entries, WRITTEN.effects, strict=True))[1:]:
        await disk.carry_out(batch(entry))
        await disk.write_effects([effects])
    await disk.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a node that wrote WRITTEN, with many sealed segments."""
    folder = tmp_path_factory.mktemp("local") / "node-1"
    asyncio.run(_write(folder))
    return folder


def firsts(folder: Path) -> list[int]:
    """The first index of each segment."""
    return sorted(int(path.stem) for path in (folder / LOG).glob("*.seg"))


def rows_of(*folders: Path, start: int = 1, stop: int = END) -> tuple[list[logs.Row], list[str]]:
    """The rows of [start, stop), and what the node was asked for meanwhile."""
    node = Served(WRITTEN)
    with serving(node) as url:
        wanted = Range((url,), LOG_ID, start, stop, patience_s=1, folders=tuple(map(str, folders)))
        return [row for each in read(wanted) for row in each.to_pylist()], node.asked


@pytest.mark.parametrize("piece_bytes", [1, 700, 4 << 20])
def test_sealed_segments_are_read_from_the_folder(
    whole: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly the rows of the range, for any ends and any cuts. The node is asked only for records of its newest
    segment, which may still change.
    """
    monkeypatch.setattr(local_log, "PIECE_BYTES", piece_bytes)
    newest = firsts(whole)[-1]
    assert len(firsts(whole)) > 5
    for start, stop in ((1, END), (1, 2), (40, 41), (5, 130), (newest - 30, newest), (newest - 1, END), (END - 2, END)):
        rows, asked = rows_of(whole, start=start, stop=stop)
        assert rows == [row for row in ROWS if start <= row["index"] < stop]
        assert bool(asked) == (stop > newest), asked
        assert all(f"from={max(start, newest)}&" in each for each in asked)


def test_every_cut_of_a_sealed_log_reads_the_same(whole: Path) -> None:
    """Split anywhere into two ranges, also within entries, it is the same rows."""
    newest = firsts(whole)[-1]
    expected = [row for row in ROWS if row["index"] < newest]
    for cut in range(1, newest, 5):
        assert rows_of(whole, stop=cut)[0] + rows_of(whole, start=cut, stop=newest)[0] == expected


def _without(kind: str) -> Callable[[Path], None]:
    return lambda folder: segment(folder, 2, kind).unlink()


def _cut(kind: str) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        path = segment(folder, 2, kind)
        path.write_bytes(path.read_bytes()[:-9])

    return cut


def _flipped(kind: str, part: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = segment(folder, 2, kind)
        flip(path, int(path.stat().st_size * part))

    return change


def _renamed(folder: Path) -> None:
    for kind in SIDES:
        shutil.copy(segment(folder, 3, kind), segment(folder, 2, kind))


FAULTS = [
    *(_without(kind) for kind in SIDES),
    _cut(".ledger"),
    *(_flipped(kind, part) for kind in SIDES for part in (0.0, 0.1, 0.4, 0.6)),
    _renamed,
    shutil.rmtree,
]


@pytest.mark.parametrize("fault", FAULTS, ids=range(len(FAULTS)))
def test_damaged_segments_of_the_folder_come_from_the_node(
    whole: Path, fault: Callable[[Path], None], tmp_path: Path
) -> None:
    """A file is gone, cut short, damaged or another one's: every row arrives all the same, once.

    Guard: `_found_here` of spark_export/fetch/reader.py, and what `locate` checks.
    """
    folder = Path(shutil.copytree(whole, tmp_path / "node"))
    fault(folder)
    rows, asked = rows_of(folder)
    assert rows == ROWS
    assert ("from=1&" in asked[0]) == (not folder.exists()), asked


def test_a_ledger_without_a_footer_is_not_read(whole: Path, tmp_path: Path) -> None:
    """A segment may hold entries that were never committed: only the footer of its ledger says that all were applied.

    Guard: `_footer` of spark_export/fetch/local_log.py.
    """
    folder = Path(shutil.copytree(whole, tmp_path / "node"))
    for path in (folder / LOG).glob("*.ledger"):
        data = path.read_bytes()
        path.write_bytes(data[: data.rindex(b"RLFX") + 40])
    rows, asked = rows_of(folder)
    assert rows == ROWS
    assert "from=1&" in asked[0]


def test_another_log_in_the_folder_is_not_read(whole: Path) -> None:
    """Indexes of one log mean nothing in another: the id in every file is that of the range, or it is left alone."""
    assert list(local_log.slabs((str(whole),), "f" * 32, 1, END)) == []
    assert list(local_log.slabs((str(whole),), LOG_ID, END, END + 5)) == []
    assert next(local_log.slabs(("/nowhere", str(whole)), LOG_ID, 1, END)).first == 1


def test_batches_and_streams_hand_the_folders_to_their_tasks(whole: Path) -> None:
    """The option reaches every range that is planned."""
    with serving(Served(WRITTEN)) as url:
        given = {"endpoints": url, "localFolders": str(whole), "minPartitions": "2"}
        options = parse_options(given)
        planned = LogReader(options, view(options, default_schema(given))).partitions()
        options = parse_options(given, streaming=True)
        stream = LogStreamReader(options, view(options, default_schema(given)))
        offsets = [{"log": LOG_ID, "next": {"0": index}} for index in (5, 105)]
        planned += stream.partitions(*offsets)
        assert [each.wanted.folders for each in planned if isinstance(each, LogPartition)] == [(str(whole),)] * 4


def test_folders_are_named_as_absolute_paths() -> None:
    """Tasks have another current folder than the program that names them."""
    options = {"endpoints": "http://h:1", "localFolders": " /data/node-1, /data/node-2 "}
    assert parse_options(options).folders == ("/data/node-1", "/data/node-2")
    assert parse_options({"endpoints": "http://h:1"}).folders == ()
    for wrong in ("data/node-1", "/a,b", ","):
        with pytest.raises(UsageError, match="localFolders"):
            parse_options(options | {"localFolders": wrong})
