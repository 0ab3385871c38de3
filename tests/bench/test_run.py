"""The whole bench, short: the shape of its results, never a time."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.comparison.report import Report
from bench.instruments import machine
from bench.studies import growth


@pytest.mark.serial
def test_a_short_run_has_every_piece_of_its_results(tmp_path: Path) -> None:
    """Commits from within and followers of three real nodes, without peers or load generators: figures, goals, all
    three files; every record delivered."""
    if machine.filesystem_of(tmp_path) == "tmpfs":
        pytest.skip("the temporary folder is in memory")
    save = tmp_path / "results" / "run.json"
    words = [
        "--only",
        "commits,followers",
        "--no-peers",
        "--connections",
        "8",
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--followers",
        "6",
        "--rate",
        "40",
        "--data",
        str(tmp_path),
        "--save",
        str(save),
    ]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    report = msgspec.json.decode(save.read_bytes(), type=Report)
    (figure,) = report.figures
    assert (figure.contender, figure.load, figure.connections, figure.bad) == ("raftlog", "commit in process", 8, 0)
    assert figure.runs[0].requests > 0
    assert figure.memory_mib > 0
    assert report.followers is not None
    assert (report.followers.written, report.followers.missing, report.followers.bad_writes) == (80, 0, 0)
    assert report.followers.delivered == 6 * 80
    assert not report.failed
    assert {goal.what: goal.is_met for goal in report.goals}["followers: every record delivered"] is True
    text = save.with_suffix(".md").read_text()
    assert "commit in process" in text.lower()


def test_growth_is_summed_up_in_a_few_words() -> None:
    """Flat means four fifths of the rate at the far end; a busy machine says nothing."""
    near = growth.Point(10_000, 1_000.0, 5.0, 50.0, 100.0, 0, 0.5)
    far = growth.Point(10_000_000, 850.0, 5.0, 50.0, 100.0, 0, 3.2)
    assert growth.verdict([near, far], is_quiet=True).startswith("flat: 0.85")
    assert "restart 3.2 s" in growth.verdict([near, far], is_quiet=True)
    slow = msgspec.structs.replace(far, per_second=700.0)
    assert growth.verdict([near, slow], is_quiet=True).startswith("NOT flat")
    assert growth.verdict([near, far], is_quiet=False) == "growth: the machine was busy"
    assert growth.last_verdict(Path("nowhere.json")) == ""
