"""Planted bugs in real nodes come out invalid: the harness sees what it is there to see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from raftlog.chaos.commands import check, run as run_command
from raftlog.chaos.judge.verdicts import Verdict
from raftlog.chaos.runs import aftermath
from raftlog.chaos.runs.judgement import judge_run
from raftlog.chaos.runs.scenarios import always_of, nemeses_of, scenario_of
from raftlog.chaos.sim.mutants import MUTANTS
from tests.chaos.record.runs import busy, made

app = typer.Typer()
check.register(app)

EXPERIMENTS = {name: mutant.chaos for name, mutant in MUTANTS.items() if mutant.chaos}
"""Mutant -> what follows `raftlog chaos run`; with its `--mutant` and a seed the verdict is to be invalid."""
TRIES = 5
"""Runs with other seeds until a mutant must have been seen: which request meets which fault is chance."""


def run(mutant: str, seed: int, out: Path) -> Result:
    """`raftlog chaos run` with the mutant, in this process."""
    words = [*EXPERIMENTS[mutant].split(), "--seed", str(seed), "--mutant", mutant, "--out", str(out)]
    return CliRunner().invoke(app, ["chaos", "run", *words], env={"COLUMNS": "200"})


def test_each_run_is_one_that_there_is() -> None:
    """The tables name scenarios and nemeses that exist, and seconds in which each seed has enough faults."""
    assert EXPERIMENTS
    for words in map(str.split, EXPERIMENTS.values()):
        given = dict(zip(words[1::2], words[2::2], strict=True))
        scenario, nodes, seconds = scenario_of(words[0]), int(given["--nodes"]), float(given["--seconds"])
        names = tuple(given["--nemesis"].split("+")) if "--nemesis" in given else ()
        always = always_of(scenario, names, seconds)
        for seed in range(1, TRIES + 1):
            run_command._planned(scenario, nemeses_of(scenario, names, nodes, seconds), seed, seconds, always)


def test_a_mutant_that_does_not_fit_is_a_usage_error(tmp_path: Path) -> None:
    """No such mutant: exit code 2, before anything starts."""
    result = CliRunner().invoke(app, ["chaos", "run", "smoke", "--mutant", "rust", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "there is no mutant 'rust'" in re.sub(r"[\s│]+", " ", result.output)
    assert not (tmp_path / "out").exists()


def test_a_node_that_ends_by_an_error_of_its_own_is_a_finding(tmp_path: Path) -> None:
    """Its log shows it, also when it was restarted and all is well: invalid, with the error's last line."""
    (tmp_path / "node-1.log").write_text('{"event":"request"}\n{"event":"fenced","reason":"EIO"}\n')
    (tmp_path / "node-2.log").write_text(
        '{"event":"failed","exception":"Traceback\\n  x\\nInvariantBroken: one vote"}\n'
    )
    (tmp_path / "node-3.log").write_text('{"event":"failed","exce\n')
    told = aftermath.failures(tmp_path)
    assert told == [
        "node-2 ended by itself: InvariantBroken: one vote",
        'node-3 ended by itself: {"event":"failed","exce',
    ]
    finding = made(tmp_path, [])
    busy(finding)
    finding.aftermath.problems += told
    assert judge_run(finding).verdict is Verdict.INVALID


def test_two_leaders_of_one_term_are_a_finding(tmp_path: Path) -> None:
    """That holds for any histories."""
    told = made(tmp_path, [])
    busy(told)
    told.stretches[1].term = told.stretches[0].term
    assert judge_run(told).problems == ("nodes [1, 2] all said that they lead term 1",)
    assert judge_run(told).verdict is Verdict.INVALID


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.toxiproxy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", EXPERIMENTS)
def test_each_mutant_comes_out_invalid(mutant: str, tmp_path: Path, toxiproxy_path: Path) -> None:
    """In one of a few runs; those before it may see too little, and never an error of the harness."""
    codes = []
    for seed in range(1, TRIES + 1):
        result = run(mutant, seed, tmp_path)
        codes.append(result.exit_code)
        assert result.exit_code in (0, 1, 6), result.output
        if result.exit_code == 1:
            return
    pytest.fail(f"{mutant} was not seen: exit codes {codes}")
