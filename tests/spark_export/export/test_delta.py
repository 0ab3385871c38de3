"""The Delta table holds every row once wherever the exporter is killed; test_records.py has its layouts."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from raftlog.cluster.api.text import how_to_install
from raftlog.spark_export.export import delta
from raftlog.spark_export.export.manifest import DATA, Layout, find_manifest
from tests.spark_export.export.exports import EVERY, LAST, Killed, killed_everywhere, run
from tests.spark_export.server import Served


def test_delta_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without deltalake the error names the extra."""
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(delta.DeltaMissingError, match=re.escape(how_to_install("spark", "delta"))):
        delta.require()


class _Manifest(msgspec.Struct, frozen=True):
    last: int
    files: tuple[str, ...] = ()


@pytest.mark.parametrize("winner", ["own", "other", "none"])
def test_a_commit_to_a_store_counts_only_if_the_table_has_it(monkeypatch: pytest.MonkeyPatch, winner: str) -> None:
    """Of two runs with the same batch one commits; the other must not write a manifest over it."""
    own, other = _Manifest(9), _Manifest(9, ("another",))
    monkeypatch.setattr(delta, "require", lambda: None)
    monkeypatch.setattr(delta, "commit", lambda *_: None)
    monkeypatch.setattr(delta, "committed", lambda *_: {"own": own, "other": other, "none": None}[winner])
    place: Any = None
    made: Any = own
    assert delta.commit_alone(place, None, made, []) == (winner == "own")


def delta_indexes(folder: Path) -> list[int]:
    """What a Delta reader finds."""
    from deltalake import DeltaTable

    table = pa.table(DeltaTable(str(folder / DATA)).to_pyarrow_table())
    return sorted(table.column("index").to_pylist())


@EVERY
@pytest.mark.parametrize("what", ["first", "later"])
def test_delta_killed_at_every_step(
    url: str, served: Served, tmp_path: Path, what: str, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export is killed at each change of the file system, and between the table's commit and the manifest. The
    transaction id shows whether the batch is committed, so that no row is lost or doubled.
    """
    layout = Layout(table="delta", records_per_file=60)
    commit = delta.commit

    def prepare(step: int) -> None:
        if what == "later":
            served.commit(20)
            run(url, tmp_path / str(step), layout=layout)
        served.committed = None

    def check_step(step: int) -> None:
        run(url, tmp_path / str(step), layout=layout)
        assert delta_indexes(tmp_path / str(step)) == list(range(1, LAST + 1)), (what, step)

    killed_everywhere(
        monkeypatch, stride, prepare, lambda step: run(url, tmp_path / str(step), layout=layout), check_step
    )
    folder = tmp_path / "committed"

    def killed(*batch: Any) -> None:
        commit(*batch)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(delta, "commit", killed)
        with pytest.raises(Killed):
            run(url, folder, layout=layout)
    assert find_manifest(folder) is None
    run(url, folder, layout=layout)
    assert delta_indexes(folder) == list(range(1, LAST + 1))
