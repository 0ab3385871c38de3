"""An export holds every record once and in order, survives being killed, and verify sees whatever is not so."""

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from raftlog.cluster.api.errors import Code
from raftlog.spark_export.columns.schema import COLUMNS
from raftlog.spark_export.errors import DataLossError, NotCheckedError, UsageError
from raftlog.spark_export.export.cluster_digest import cluster_digests
from raftlog.spark_export.export.engine import Engine
from raftlog.spark_export.export.export import ExportRange, export
from raftlog.spark_export.export.manifest import (
    DATA,
    NAME,
    PLAN,
    UNFINISHED,
    Layout,
    Plan,
    file_name,
    read_manifest,
    write_aside,
)
from raftlog.spark_export.export.parquet import write_range
from raftlog.spark_export.export.spark_engine import SparkEngine
from raftlog.spark_export.export.verify import verify
from raftlog.spark_export.fetch.ranges import Range
from tests.spark_export import logs
from tests.spark_export.export.exports import ARROW, LAST, LOG, ROWS, changed, check, told
from tests.spark_export.server import LOG_ID, Served, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

PART = next(entry.index for entry in LOG.entries if entry.index >= 200)  # an end of an entry
PER_FILE = 100


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A node that serves the log."""
    with serving(Served(LOG, entries_per_chunk=20)) as address:
        yield address


@pytest.fixture(scope="module")
def exported(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished export of the whole log, which no test changes."""
    folder = tmp_path_factory.mktemp("exported") / "whole"
    export(ARROW, ExportRange((url,), folder, layout=Layout(records_per_file=PER_FILE)))
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    """A copy of the export, to be spoilt."""
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def test_export_holds_every_record_once(exported: Path, url: str) -> None:
    """The files hold the rows of the log in order; the manifest counts them; verify proves log and state."""
    assert told(exported) == ROWS
    manifest = read_manifest(exported)
    user = sum(map(logs.is_user, ROWS))
    assert (manifest.first, manifest.last, manifest.log) == (1, LAST, LOG_ID)
    assert (manifest.records.total, manifest.records.user, manifest.records.internal) == (LAST, user, LAST - user)
    assert max(entry.rows for entry in manifest.files) <= PER_FILE
    assert manifest.position.next == {"0": LAST + 1}
    assert manifest.digests is not None
    assert not (exported / UNFINISHED).exists()
    report = check(exported, url)
    assert report.is_right, report.findings
    assert report.unproved == []
    assert report.rows == LAST
    assert report.state == manifest.digests.state
    assert report.state is not None
    assert report.state.count == LOG.machine.digest().count


def test_both_engines_write_the_same_files(spark: "SparkSession", url: str, tmp_path: Path) -> None:
    """Spark and one process write the same bytes, the same manifest and the same digests, and verify each other's."""
    engines: list[Engine] = [ARROW, SparkEngine(spark)]
    folders = [tmp_path / "arrow", tmp_path / "spark"]
    manifests = []
    for engine, folder in zip(engines, folders, strict=True):
        layout = Layout(partition_by="index", partition_records=150, records_per_file=PER_FILE)
        made = export(engine, ExportRange((url,), folder, layout=layout))
        manifests.append(msgspec.structs.replace(made, created_ms=0, updated_ms=0))
    assert manifests[0] == manifests[1]
    for entry in manifests[0].files:
        assert (folders[0] / entry.name).read_bytes() == (folders[1] / entry.name).read_bytes()
    reports = [check(folder, url, engine) for engine in engines for folder in folders]
    assert all(report.is_right for report in reports)
    assert len({(report.rows, report.log, report.state) for report in reports}) == 1
    counted = [engine.rows([folders[0] / entry.name for entry in manifests[0].files]).top_keys(3) for engine in engines]
    assert counted[0] == counted[1] != []


def test_part_of_a_log_is_verified_without_its_state(url: str, tmp_path: Path) -> None:
    """An export that begins later is proved row by row; that its state is not provable is said, not hidden."""
    folder = tmp_path / "part"
    export(ARROW, ExportRange((url,), folder, 50, PART))
    assert told(folder) == ROWS[49:PART]
    report = check(folder, url)
    assert report.is_right, report.findings
    assert ["not provable" in line for line in report.unproved] == [True]


def other(value: Any, name: str) -> Any:
    """A value of the same type that differs."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return "txn" if name == "operation" else value + "x"
        case bytes():
            return value + b"\0"
        case list():
            return [*value, value[0]] if value else [{"name": "", "value": b""}]
        case _:
            return value + timedelta(milliseconds=1)


def spoilt(folder: Path, spoil: Callable[[list[logs.Row]], list[logs.Row]]) -> None:
    """Rewrites the export's second file with other rows."""
    changed(folder / read_manifest(folder).files[1].name, spoil)


@pytest.mark.parametrize(
    "name", [name if at % 5 == 0 else pytest.param(name, marks=pytest.mark.long) for at, name in enumerate(COLUMNS)]
)
def test_one_altered_column_is_found(copy: Path, url: str, name: str) -> None:
    """One value of any one column, altered in one row: the log digest differs, and the row is named."""

    altered = []

    def spoil(rows: list[logs.Row]) -> list[logs.Row]:
        row = next(row for row in rows if row[name] is not None)
        altered.append(row["index"])
        row[name] = other(row[name], name)
        return rows

    spoilt(copy, spoil)
    report = check(copy, url)
    assert any("the log digest of the rows is" in finding for finding in report.findings), report.findings
    named = f"missing: index {altered[0]}" if name == "index" else f"altered: index {altered[0]}"
    assert named in report.findings, report.findings


def test_every_column_set_to_null_changes_the_digest(copy: Path, url: str) -> None:
    """A removed value differs from a null: the mask shows it, also where two nulls swap places."""

    def spoil(rows: list[logs.Row]) -> list[logs.Row]:
        row = next(row for row in rows if row["key"] is not None and row["value"] == b"" and row["headers"] is None)
        row["key"], row["value"] = None, row["key"]
        return rows

    spoilt(copy, spoil)
    assert not check(copy, url).is_right


def removed(rows: list[logs.Row]) -> list[logs.Row]:
    """Without one row."""
    return rows[:30] + rows[31:]


def doubled(rows: list[logs.Row]) -> list[logs.Row]:
    """With one row twice."""
    return rows[:31] + rows[30:]


def replaced(rows: list[logs.Row]) -> list[logs.Row]:
    """One row twice, in the place of the one after it."""
    return [*rows[:31], rows[30], *rows[32:]]


def swapped(rows: list[logs.Row]) -> list[logs.Row]:
    """Two rows in each other's place."""
    return [*rows[:30], rows[31], rows[30], *rows[32:]]


def exchanged(rows: list[logs.Row]) -> list[logs.Row]:
    """Two rows with each other's index: everything in order but the contents."""
    rows[30]["index"], rows[31]["index"] = rows[31]["index"], rows[30]["index"]
    return [*rows[:30], rows[31], rows[30], *rows[32:]]


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (removed, ["missing: log/index", r"missing: index {31}", "altered: the log digest"]),
        (doubled, ["duplicated: log/index", "duplicated: index {31}", "altered: the log digest"]),
        (replaced, ["order: ", "missing: index {32}", "duplicated: index {31}"]),
        (swapped, ["order: the rows of log/index"]),
        (exchanged, ["altered: the log digest", "altered: index {31}", "altered: index {32}"]),
    ],
)
def test_a_row_out_of_place_is_found(copy: Path, url: str, spoil: Callable[..., Any], found: list[str]) -> None:
    """A row removed, doubled, put in another's place, swapped: each is found and named for what it is."""
    first = read_manifest(copy).files[1].first
    spoilt(copy, spoil)
    report = check(copy, url)
    for start in found:
        wanted = start.format(*range(first - 1, first + 40)) if "{" in start else start
        assert any(finding.startswith(wanted) for finding in report.findings), report.findings
    assert any("SHA-256" in finding for finding in report.findings)


def test_files_and_manifest_out_of_place_are_found(copy: Path, url: str) -> None:
    """A file damaged, lacking, too many; a manifest that disagrees with itself."""
    entries = read_manifest(copy).files
    path = copy / entries[0].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert any("SHA-256" in finding for finding in check(copy, url).findings)
    path.unlink()
    findings = check(copy, url).findings
    assert f"missing: file {entries[0].name} is not there, indexes 1 to {entries[0].last}" in findings
    assert "missing: index 1" in findings
    path.write_bytes(whole)
    (copy / "log" / "more.parquet").write_bytes(whole)
    assert check(copy, url).findings == ["duplicated: file log/more.parquet is not in the manifest"]
    (copy / "log" / "more.parquet").unlink()
    (copy / "log" / file_name(1, 9)).write_bytes(whole)
    findings = check(copy, url).findings
    assert f"duplicated: file log/{file_name(1, 9)} is not in the manifest" in findings
    assert "duplicated: index 1 is there 2 times" in findings
    (copy / "log" / file_name(1, 9)).unlink()
    manifest = json.loads((copy / NAME).read_text())
    manifest["records"]["user"] += 1
    (copy / NAME).write_text(json.dumps(manifest))
    assert any("do not add up" in finding for finding in check(copy, url).findings)


def test_verify_against_another_state_fails(exported: Path, url: str) -> None:
    """A right log digest does not excuse a wrong state digest, nor the other way round."""
    right = cluster_digests((url,), LOG_ID, 1, LAST)
    assert right.state is not None
    wrong = msgspec.structs.replace(right, state=msgspec.structs.replace(right.state, count=right.state.count + 1))
    assert any("fold to the state digest" in line for line in verify(ARROW, exported, wrong, "the cluster").findings)
    wrong = msgspec.structs.replace(right, log=msgspec.structs.replace(right.log, sum_high="1"))
    assert any("log digest" in line for line in verify(ARROW, exported, wrong, "the cluster").findings)
    assert verify(ARROW, exported, None, "the manifest").is_right
    forgotten = msgspec.structs.replace(right, state=None)
    report = verify(ARROW, exported, forgotten, "the cluster")
    assert report.is_right
    assert "no longer remembers" in report.unproved[0]


def test_an_unfinished_export_is_continued(url: str, tmp_path: Path) -> None:
    """After a kill at any moment the export is recognised, and another run continues with the same plan. Whole files
    are kept, half-written and foreign ones are not, and records behind the plan's end are not added.
    """
    folder = tmp_path / "killed"
    aside = folder / UNFINISHED / "run-1" / DATA
    aside.mkdir(parents=True)
    write_aside(folder / UNFINISHED / PLAN, Plan(LOG_ID, 1, PART, Layout(records_per_file=150)))
    middle = PART // 2
    (kept,) = write_range(Range((url,), LOG_ID, 1, middle + 1), aside)
    (aside / f".{file_name(middle + 1, PART)}.0.tmp").write_bytes(b"half")
    (aside / file_name(middle + 1, PART)).write_bytes(b"no Parquet")
    (aside / file_name(PART + 1, PART + 9)).write_bytes(b"of another plan")
    with pytest.raises(NotCheckedError, match="not finished: run the same"):
        read_manifest(folder)
    with pytest.raises(UsageError, match=f"is of indexes 1 to {PART}"):
        export(ARROW, ExportRange((url,), folder, None, LAST))
    before = (aside / file_name(1, middle)).stat().st_ino
    manifest = export(ARROW, ExportRange((url,), folder))
    assert manifest.files[0] == kept
    assert (folder / manifest.files[0].name).stat().st_ino == before
    assert told(folder) == ROWS[:PART]
    assert sorted(path.name for path in folder.rglob("*")) == sorted(
        ["log", NAME, *(Path(entry.name).name for entry in manifest.files)]
    )
    assert check(folder, url).is_right


@pytest.mark.parametrize(
    ("prepare", "wanted", "error", "match"),
    [
        (lambda folder: (folder / "mine.txt").write_text("x"), {}, UsageError, "not empty"),
        (lambda folder: None, {"last": 999_999}, UsageError, "not committed yet"),
        (lambda folder: None, {"first": 10, "last": 9}, UsageError, "nothing to export"),
        (lambda folder: (folder / NAME).write_text("{}"), {}, NotCheckedError, "no manifest of an export"),
        (lambda folder: _planned(folder, "f" * 32), {}, DataLossError, "is of log ffff"),
        (lambda folder: _planned(folder, LOG_ID, b"{"), {}, UsageError, "plan.json is damaged"),
    ],
)
def test_an_export_of_an_impossible_range_is_refused(
    url: str,
    tmp_path: Path,
    prepare: Callable[[Path], Any],
    wanted: dict[str, Any],
    error: type[Exception],
    match: str,
) -> None:
    """A folder that holds something else, ranges that are none, an unfinished export of another log: each is refused
    before anything is written."""
    prepare(tmp_path)
    with pytest.raises(error, match=match):
        export(ARROW, ExportRange((url,), tmp_path, **wanted))


def _planned(folder: Path, log: str, text: bytes | None = None) -> None:
    (folder / UNFINISHED).mkdir()
    path = folder / UNFINISHED / "plan.json"
    write_aside(path, Plan(log, 1, 10, Layout()))
    if text is not None:
        path.write_bytes(text)


def test_a_trimmed_log_is_not_exported_in_part(tmp_path: Path) -> None:
    """An export of trimmed records is refused; by default it begins at the oldest index."""
    with serving(Served(LOG, oldest=100)) as url:
        with pytest.raises(DataLossError, match="index 1 is no longer kept"):
            export(ARROW, ExportRange((url,), tmp_path / "a", 1))
        assert export(ARROW, ExportRange((url,), tmp_path / "b")).first == 100


def test_without_cluster_digests_no_manifest_is_written(tmp_path: Path) -> None:
    """The files that were read stay for the next run."""
    served = Served(LOG, digest=Code.BUSY)
    with serving(served) as url:
        with pytest.raises(Exception, match="busy"):
            export(ARROW, ExportRange((url,), tmp_path / "a", patience_s=0.1))
        assert not (tmp_path / "a" / NAME).exists()
        served.digest = None
        assert export(ARROW, ExportRange((url,), tmp_path / "a")).last == LAST
