"""The record of chaos runs: one line each, with what a reader needs to count it and to repeat it."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from raftlog.chaos.runs import results
from raftlog.chaos.sim.runs.results import NoCheckout

NOW = datetime(2026, 11, 21, 22, 5, tzinfo=UTC)


def fault(nemesis: str, outcome: str) -> dict[str, Any]:
    return {"nemesis": nemesis, "outcome": outcome}


RESULT: dict[str, Any] = {
    "command": "raftlog chaos run all --nodes 3 --seed 5 --nemesis files --seconds 60", "seed": 5, "nodes": 3,
    "seconds": 60.0, "verdict": "unknown", "problems": [],
    "missing": ["0 faults took effect, fewer than 1\n--- end of a log"],
    "happened": {"trims": 3, "starts": 0},
    "operations": 1234, "overlapping_max": 2, "leaders": [{"term": 1, "node": 1}, {"term": 2, "node": 3}],
    "faults": [fault("flip-log", "installed"), fault("flip-log", "installed"), fault("wiped-disk", "skipped"),
               fault("truncate", "indeterminate")],
}  # fmt: skip


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True)


def test_a_record_line_has_the_runs_results() -> None:
    """Verdict and why, numbers, the faults that took effect by kind, and the commit: in one line that JSON reads."""
    line = results.line_of(RESULT, commit="abc", is_clean_tree=True, now=NOW, load=17.26)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "at": "2026-11-21T22:05Z", "command": RESULT["command"], "seed": 5, "nodes": 3, "seconds": 60.0,
        "verdict": "unknown", "why": ["0 faults took effect, fewer than 1"], "operations": 1234, "planned": 4,
        "indeterminate": 1, "installed": {"flip-log": 2}, "overlapping": 2, "leaders": 2, "happened": {"trims": 3},
        "load": 17.3, "commit": "abc", "clean_tree": True,
    }  # fmt: skip


def test_runs_are_kept_behind_each_other_with_their_commit(tmp_path: Path) -> None:
    """Each run is one more line; the record itself does not make a tree unclean, a changed source does; without a
    checkout there is no place."""
    with pytest.raises(NoCheckout):
        results.keep(RESULT, NOW, tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / "docs").mkdir()
    for name in (results.RESULTS, "source.py"):
        (tmp_path / name).write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    results.keep(RESULT, NOW, tmp_path)
    results.keep(RESULT, NOW, tmp_path)
    (tmp_path / "source.py").write_text("changed")
    results.keep(RESULT, NOW, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / results.RESULTS).read_text().splitlines()]
    assert [line["clean_tree"] for line in lines] == [True, True, False]
    assert len({line["commit"] for line in lines}) == 1


def test_kills_under_a_stream_have_a_record_of_their_own(tmp_path: Path) -> None:
    """The counts are in their line as given, with time, load and commit; neither record makes the tree of the other
    unclean.
    """
    git(tmp_path, "init", "-q")
    (tmp_path / "docs").mkdir()
    for name in (results.RESULTS, results.KILLS):
        (tmp_path / name).write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    results.keep(RESULT, NOW, tmp_path)
    results.keep_kills({"verdict": "passed", "kills": {"worker": 3}}, NOW, tmp_path)
    results.keep_kills({"verdict": "failed: a row is missing", "kills": {}}, NOW, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / results.KILLS).read_text().splitlines()]
    assert [(line["at"], line["verdict"], line["clean_tree"]) for line in lines] == [
        ("2026-11-21T22:05Z", "passed", True),
        ("2026-11-21T22:05Z", "failed: a row is missing", True),
    ]
    assert lines[0]["kills"] == {"worker": 3}
    assert {"load", "commit"} <= lines[0].keys()
