"""`raftlog.arrow` gives the rows of a cluster and of its export as the naive reader does, as often as it is asked."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from raftlog import arrow
from raftlog.cluster.api.errors import Code
from raftlog.cluster.api.text import how_to_install
from raftlog.spark_export.errors import DataLossError, NotCheckedError, UnreachableError, UsageError
from raftlog.spark_export.export.arrow_engine import ArrowEngine
from raftlog.spark_export.export.compaction import compact
from raftlog.spark_export.export.manifest import Layout
from tests.spark_export import logs
from tests.spark_export.export.exports import HALF, LAST, LAYOUTS, LOG, ROWS, run
from tests.spark_export.server import LOG_ID, Served
from tests.support import HANG_S

SHOWN = [logs.shown(row) for row in ROWS]
USER = [logs.shown(row) for row in ROWS if logs.is_user(row)]


@pytest.fixture
def served() -> Served:
    """The node's log and how it answers."""
    return Served(LOG, entries_per_chunk=20)


def test_a_cluster_is_read_as_the_naive_reader_does(url: str, served: Served) -> None:
    """User records alone by default, every index with `all`; the schema is that of the batches."""
    rows = arrow.log(url)
    assert (rows.log_id, rows.first, rows.last) == (LOG_ID, 1, LAST)
    assert rows.table().to_pylist() == USER
    whole = arrow.log([url], records="all")
    assert whole.table().to_pylist() == SHOWN
    assert whole.table().schema == whole.schema == arrow.SCHEMA


@pytest.mark.parametrize("records", ["user", "all"])
@pytest.mark.parametrize("kept", ["user", "all"])
@pytest.mark.parametrize("table", ["parquet", "delta"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_export_has_the_rows_of_its_cluster(
    url: str, served: Served, tmp_path: Path, name: str, table: str, kept: str, records: arrow.Records
) -> None:
    """Whatever its layout, and whichever records are in `log/`; in parts, and after its files were joined."""
    served.commit(HALF)
    layout: Layout = msgspec.structs.replace(LAYOUTS[name], records=kept, table=table)
    run(url, tmp_path, batch_records=40, layout=layout)
    served.committed = None
    run(url, tmp_path, batch_records=40)
    expected = USER if records == "user" else SHOWN
    assert arrow.export(tmp_path, records=records).table().to_pylist() == expected
    compact(ArrowEngine(1), tmp_path)
    rows = arrow.export(str(tmp_path), records=records)
    assert rows.table().to_pylist() == expected
    assert rows.table().schema == arrow.SCHEMA
    part = arrow.export(tmp_path, 31, 90, columns=["event_time", "index"], records=records)
    assert part.table().to_pylist() == [
        {"event_time": row["event_time"], "index": row["index"]} for row in expected if 31 <= row["index"] <= 90
    ]


def test_a_range_is_fixed_and_can_be_read_again(url: str, served: Served) -> None:
    """Later rows are not in the range; each stream begins at the start. Any Arrow library takes it, also pandas."""
    end = served.commit(HALF)
    rows = arrow.log(url, 5, columns=["index", "key"])
    served.committed = None
    expected = [{"index": row["index"], "key": row["key"]} for row in USER if 5 <= row["index"] <= end]
    assert rows.table().to_pylist() == expected
    assert pa.RecordBatchReader.from_stream(rows).read_all().to_pylist() == expected
    assert pa.table(rows).to_pylist() == expected
    assert rows.table().to_pandas()["index"].tolist() == [row["index"] for row in expected]
    assert arrow.log(url, LAST + 1).table().to_pylist() == []


def test_a_node_that_fails_on_the_way_loses_no_row(url: str, served: Served) -> None:
    """Bytes that fail a check, an answer cut short, and a node without a leader: the rows come once, in order."""
    served.faults = [lambda body: body[: len(body) // 2], lambda body: Code.NO_LEADER, lambda body: b"x" * len(body)]
    assert arrow.log(url).table().to_pylist() == USER
    served.faults = [lambda body: Code.NO_LEADER] * 9999
    with pytest.raises(UnreachableError, match="no node gave the log from index 1 on"):
        arrow.log(url, timeout_s=0.1).table()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"columns": ["index", "colour"]}, "there is no column 'colour'; the columns are index, term"),
        ({"columns": "index"}, r"columns is 'index'; give a list of names, as \['index'\]"),
        ({"records": "users"}, "records is 'users'; it may be user or all"),
        ({"last": 99_999}, "there are no records 1 to 99999: the .* has the indexes 1 to"),
        ({"first": 9, "last": 3}, "there are no records 9 to 3"),
        ({"first": 0}, "there are no records 0 to"),
    ],
)
def test_a_wrong_argument_is_named(url: str, tmp_path: Path, options: dict[str, Any], match: str) -> None:
    """The error names the argument and the possible values, for a cluster as for an export."""
    with pytest.raises(UsageError, match=match):
        arrow.log(url, **options)
    run(url, tmp_path, mode="once")
    with pytest.raises(UsageError, match=match):
        arrow.export(tmp_path, **options)


def test_rows_that_are_not_there_are_an_error(url: str, served: Served, tmp_path: Path) -> None:
    """A trimmed range, a folder without an export, an export that begins later: never fewer rows without a word."""
    with pytest.raises(NotCheckedError, match="holds no export"):
        arrow.export(tmp_path)
    served.oldest = LOG.entries[9].first
    with pytest.raises(DataLossError, match=f"index 1 is no longer kept: the log begins at index {served.oldest} now"):
        arrow.log(url, 1)
    assert arrow.log(url).table().to_pylist() == [row for row in USER if row["index"] >= served.oldest]
    run(url, tmp_path, mode="once")
    with pytest.raises(UsageError, match=f"begins at index {served.oldest}, not at 1"):
        arrow.export(tmp_path, 1)


def test_without_pyarrow_the_message_has_the_command(tmp_path: Path) -> None:
    """The package that lacks is named with what installs it."""
    program = "import sys; sys.modules['pyarrow'] = None\nfrom raftlog import arrow"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S)
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        f"ImportError: raftlog.arrow needs the package pyarrow, which is not installed: {how_to_install('arrow')}"
    )
