"""An export of user records has them alone in `log/`, and is proved with the others in `internal/`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftlog.spark_export.export.compaction import compact
from raftlog.spark_export.export.manifest import DATA, INTERNAL, UNFINISHED, Layout, contradictions, read_manifest
from tests.spark_export import logs
from tests.spark_export.export.exports import (
    ARROW,
    EVERY,
    HALF,
    LAST,
    LAYOUTS,
    LOG,
    ROWS,
    changed,
    check,
    killed_everywhere,
    run,
)
from tests.spark_export.server import Served, serving

pytestmark = pytest.mark.timeout(300)

USER = [row for row in ROWS if logs.is_user(row)]
OTHER = [row for row in ROWS if not logs.is_user(row)]
SPLIT = Layout(records_per_file=60, records="user")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished export of user records, which no test changes."""
    folder = tmp_path_factory.mktemp("exported") / "user"
    with serving(Served(LOG, entries_per_chunk=20)) as url:
        run(url, folder, mode="once", layout=SPLIT)
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    """A copy of the export, to be spoilt."""
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def rows_in(folder: Path) -> list[logs.Row]:
    """The rows of all files below a folder, in the order of their indexes."""
    tables = [pq.read_table(path, partitioning=None) for path in sorted(folder.glob("**/*.parquet"))]
    return sorted((row for table in tables for row in table.to_pylist()), key=lambda row: row["index"])


@pytest.mark.parametrize("table", ["parquet", "delta"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_log_holds_each_user_record_once(url: str, served: Served, tmp_path: Path, name: str, table: str) -> None:
    """A repetition is no event: the natural query counts every put once. Batch by batch, compacted, and proved."""
    assert any(row["result"] == "repeated" and row["operation"] == "put" for row in OTHER)
    layout = msgspec.structs.replace(LAYOUTS[name], records="user", table=table)
    served.commit(HALF)
    run(url, tmp_path, batch_records=40, layout=layout)
    served.committed = None
    manifest = run(url, tmp_path, batch_records=40)
    had, has = compact(ARROW, tmp_path)
    assert has < had
    assert contradictions(read_manifest(tmp_path)) == []
    if table == "parquet":
        assert rows_in(tmp_path / DATA) == USER
    else:
        from deltalake import DeltaTable

        delta = DeltaTable(str(tmp_path / DATA))
        found = pa.table(delta.to_pyarrow_table())
        assert sorted(found.column("index").to_pylist()) == [row["index"] for row in USER]
        assert delta.metadata().partition_columns == ([layout.column] if layout.column else [])
    assert rows_in(tmp_path / INTERNAL) == OTHER
    assert (manifest.records.total, manifest.records.user) == (LAST, len(USER))
    assert run(url, tmp_path) == read_manifest(tmp_path), "there is nothing to add"
    report = check(tmp_path, url)
    assert report.findings == []
    assert report.rows == LAST
    assert report.state == manifest.digests.state


@EVERY
@pytest.mark.parametrize("what", ["first", "later", "compaction"])
def test_killed_at_every_step_no_record_is_lost_or_doubled(
    url: str, served: Served, tmp_path: Path, what: str, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment `log/` has the user records up to some index, once; the next run finishes the work."""

    def prepare(step: int) -> None:
        if what != "first":
            served.commit(HALF)
            run(url, tmp_path / str(step), layout=SPLIT, batch_records=25)
        served.committed = HALF if what == "compaction" else None

    def work(step: int) -> object:
        folder = tmp_path / str(step)
        return compact(ARROW, folder) if what == "compaction" else run(url, folder, layout=SPLIT)

    def check_step(step: int) -> None:
        folder = tmp_path / str(step)
        seen = rows_in(folder / DATA)
        assert seen == USER[: len(seen)], (what, step)
        served.committed = None
        run(url, folder, layout=SPLIT)
        assert rows_in(folder / DATA) == USER, (what, step)
        assert rows_in(folder / INTERNAL) == OTHER, (what, step)
        assert check(folder, url).findings == [], (what, step)
        left = [path.name for path in folder.glob(f"{UNFINISHED}/*") if not path.name.startswith("retired-")]
        assert left in ([], ["lock"]), (what, step)

    killed_everywhere(monkeypatch, stride, prepare, work, check_step)


def moved(folder: Path, source: str, target: str) -> None:
    """Moves one record from `log/` to `internal/`, or back."""
    taken: list[logs.Row] = []

    def take(rows: list[logs.Row]) -> list[logs.Row]:
        taken.append(rows[-1])
        return rows[:-1]

    changed(folder / source, take)
    changed(folder / target, lambda rows: sorted([*rows, *taken], key=lambda row: row["index"]))


def test_what_is_wrong_with_user_records_is_found(copy: Path, url: str) -> None:
    """Records that are lacking, altered, out of order or in the other folder, in `log/` and in `internal/`."""
    entry = next(entry for entry in read_manifest(copy).files if entry.internal and entry.internal.rows > 1)
    assert entry.internal is not None
    files = {name: (copy / name).read_bytes() for name in entry.names}
    indexes = pq.read_table(copy / entry.name).column("index").to_pylist()
    internal = pq.read_table(copy / entry.internal.name).column("index").to_pylist()

    def found(spoil: Callable[[], object]) -> list[str]:
        spoil()
        findings = check(copy, url).findings
        for name, data in files.items():
            (copy / name).write_bytes(data)
        return findings

    lacking = found(lambda: changed(copy / entry.name, lambda rows: rows[1:]))
    assert f"missing: index {indexes[0]}" in lacking
    lacking = found(lambda: changed(copy / entry.internal.name, lambda rows: rows[1:]))  # type: ignore[union-attr]
    assert f"missing: index {internal[0]}" in lacking
    altered = found(lambda: changed(copy / entry.name, lambda rows: [rows[0] | {"value": b"other"}, *rows[1:]]))
    assert f"altered: index {indexes[0]}" in altered
    reversed_ = found(lambda: changed(copy / entry.name, lambda rows: rows[::-1]))
    assert any(finding.startswith(f"order: the rows of {entry.name}") for finding in reversed_)
    inside = found(lambda: moved(copy, entry.internal.name, entry.name))  # type: ignore[union-attr]
    assert f"duplicated: {entry.name} has {entry.rows + 1} rows, {entry.rows} due" in inside
    outside = found(lambda: moved(copy, entry.name, entry.internal.name))  # type: ignore[union-attr]
    assert f"missing: {entry.name} has {entry.rows - 1} rows, {entry.rows} due" in outside
    gone = found((copy / entry.internal.name).unlink)
    assert f"missing: file {entry.internal.name} is not there, indexes {entry.first} to {entry.last}" in gone
    assert check(copy, url).findings == []
