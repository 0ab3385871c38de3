"""`raftlog chaos run`, `list` and `report`: what they refuse, and how; no cluster starts here."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from raftlog.chaos.commands import check, run as run_commands
from raftlog.chaos.deploy import toxiproxy_server
from raftlog.chaos.nemesis import FAMILIES, NEMESES
from raftlog.chaos.record.folder import history_file, sentence
from raftlog.chaos.runs import failover
from raftlog.chaos.runs.judgement import judge_run
from raftlog.chaos.runs.result import save
from raftlog.chaos.runs.scenarios import (
    ALWAYS,
    LONG_S,
    POWER_CUTS,
    SCENARIOS,
    always_of,
    needs_of,
    nemeses_of,
    scenario_of,
)
from tests.chaos.record.runs import busy, made

app = typer.Typer()
check.register(app)


def run(*words: object) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(app, ["chaos", *map(str, words)], env={"COLUMNS": "300"})


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["run", "chess"], "there is no scenario 'chess'"),
        (["run", "--nemesis", "kill-one+fire"], "there is no nemesis 'fire'"),
        (["run", "--nodes", "4"], "3, 5 or 7"),
        (["run", "--seconds", "60", "--minutes", "1"], "not both"),
        (["run", "--seconds", "1"], "is not in the range x>=5"),
        (["run", "--seed", "x"], "is not a valid int"),
        (
            ["run", "smoke", "--seconds", "6", "--seed", "3"],
            "a verdict of smoke needs 3 faults, and seed 3 has 0 in 6 s",
        ),
    ],
)
def test_usage_errors_are_2(words: list[str], why: str) -> None:
    """Unknown scenario, unknown nemesis, a size that is not tried, contradicting lengths: named, with what there is."""
    result = run(*words)
    assert result.exit_code == 2
    assert why in " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def test_a_run_without_toxiproxy_is_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to get it, and no folder is made."""
    monkeypatch.setattr(toxiproxy_server, "_candidates", lambda: iter(()))
    result = run("run", "smoke", "--out", tmp_path / "out")
    assert result.exit_code == 8
    assert "make setup" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.toxiproxy
def test_a_port_that_is_taken_is_8(tmp_path: Path, toxiproxy_path: Path) -> None:
    """The message names the port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("run", "smoke", "--base-port", port, "--out", tmp_path)
    assert result.exit_code == 8
    assert f"127.0.0.1:{port}" in result.output


@pytest.mark.parametrize(
    "error",
    [RuntimeError("oops"), KeyboardInterrupt(), ExceptionGroup("several", [ExceptionGroup("of", [KeyError("x")])])],
)
def test_an_error_inside_is_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """A bug in the harness, Ctrl-C, a task that failed: never 1, which would be a verdict."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(run_commands, "_run", fail)
    result = run("run", "smoke", "--out", tmp_path)
    assert result.exit_code == 8
    assert "error:" in result.output


def test_list_names_everything() -> None:
    """Every scenario and every nemesis, each once."""
    result = run("list")
    assert result.exit_code == 0
    words = [line.split()[0] for line in result.output.splitlines() if line.strip()]
    assert [word for word in words if word in SCENARIOS] == list(SCENARIOS)
    assert [word for word in words if word in NEMESES] == list(NEMESES)
    assert len(NEMESES) == sum(len(family) for family in FAMILIES.values()) >= 12


def test_report_shows_a_run_again(tmp_path: Path) -> None:
    """With the exit code of its verdict, and the page written again; 8 if there is no run, or a line is broken."""
    made_run = made(tmp_path, [])
    busy(made_run)
    save(made_run, judge_run(made_run), ["raftlog", "chaos", "run"])
    result = run("report", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("valid: broken: kill-leader; at the longest no write")
    assert "30 operations" in result.output
    assert (tmp_path / "report.html").exists()
    history_file(tmp_path, "log").write_bytes(b'{"process":1,"type":"invoke","f":"append"}\n{}\n')
    result = run("report", tmp_path)
    assert result.exit_code == 8
    assert "line 2" in result.output
    assert run("report", tmp_path / "nowhere").exit_code == 8


def test_scenarios_fit_the_cluster() -> None:
    """Shapes that need five nodes are left out of a run with three; `--nemesis` takes families and names, once each."""
    scenario = scenario_of("all")
    names = [each.name for each in nemeses_of(scenario, (), 3, 60)]
    assert "partition-howard" not in names
    assert "partition-howard" in [each.name for each in nemeses_of(scenario, (), 5, 60)]
    chosen = [each.name for each in nemeses_of(scenario, ("kills", "kill-one", "pause-long"), 3, 60)]
    assert chosen == ["kill-one", "kill-leader", "kill-minority", "kill-all", "pause-long"]
    assert [each.name for each in nemeses_of(scenario_of("calm"), (), 3, 60)] == []


def test_a_scenario_has_the_faults_of_its_line_alone() -> None:
    """Guard: every family had power cuts, which took the time of its own faults, and the list did not name them."""
    for name, members in FAMILIES.items():
        own = {each.name for each in members}
        assert own == {each.name for each in nemeses_of(scenario_of(name), (), 7, 60)}
        assert set(SCENARIOS[name].always) == own & set(ALWAYS)
        assert all(each in SCENARIOS[name].says for each in own)
    short, long = ({each.name for each in nemeses_of(scenario_of("smoke"), (), 3, s)} for s in (LONG_S - 1, LONG_S))
    assert long - short == set(ALWAYS)
    assert all(name in SCENARIOS["smoke"].says for name in ALWAYS)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "failover"])
def test_a_run_asks_for_what_its_schedule_reaches(name: str) -> None:
    """A run of 20 s asks for no events of a minute, and one of a minute for all of them; never for a power cut that it
    does not have. Those of a minute have enough faults for a verdict, or say how long they need."""
    scenario = scenario_of(name)
    for seconds in (20.0, LONG_S):
        kinds = nemeses_of(scenario, (), 3, seconds)
        planned = run_commands._planned(scenario, kinds, 3, seconds, always_of(scenario, (), seconds))
        asked = needs_of(scenario, planned, seconds)
        names = {each.nemesis for each in planned}
        assert len(planned) >= asked.faults
        assert asked.events == (seconds >= LONG_S and "left-behind" in names)
        assert asked.power_cut == bool(names & set(POWER_CUTS))
    if name in ("all", "smoke"):
        assert (asked.events, asked.power_cut) == (1, True)
        assert str(asked) == (
            f"faults that take effect: {asked.faults} or more; snapshots installed, trims and segments backfilled: "
            "1 or more of each; a power cut of all nodes"
        )


def test_the_result_begins_with_one_sentence(tmp_path: Path) -> None:
    """What was broken, the longest time without a write, and whether something acknowledged was lost."""
    made_run = made(tmp_path, [])
    busy(made_run)
    result = save(made_run, judge_run(made_run), ["raftlog"])
    assert sentence(result) == (
        "broken: kill-leader; at the longest no write was acknowledged for 0.1 s; "
        "nothing that was acknowledged was lost"
    )
    few = result | {
        "verdict": "unknown",
        "missing": ["3 operations"],
        "faults": [result["faults"][0] | {"outcome": "skipped"}],
    }
    assert sentence(few).startswith("nothing was broken; ")
    assert sentence(few).endswith("nothing that was acknowledged was lost, but too little happened for a verdict")
    wrong = result | {"verdict": "invalid", "problems": ["a write is not in the log", "two leaders"]}
    assert sentence(wrong).endswith("the cluster broke a promise: a write is not in the log, and 1 more")
    unjudged = result | {"verdict": "unknown", "workloads": [result["workloads"][0] | {"verdict": "unknown"}]}
    assert sentence(unjudged).endswith("but not every answer could be judged")


def test_failover_is_planned_by_its_seed() -> None:
    """As many killed leaders as silent ones, half of these paused and half cut off; the same for the same seed."""
    planned = failover.plan(4, 10)
    assert planned == failover.plan(4, 10)
    names = [each.nemesis for each in planned]
    assert [names.count(name) for name in failover.KINDS] == [10, 5, 5]
    rows = failover.summary({"kill-leader": [0.1, 0.2, 0.3], "pause-leader": [0.5], "partition-leader": [2.0]})
    assert [(row["loss"], row["count"], row["p50_s"], row.get("within_goal")) for row in rows] == [
        ("killed", 3, 0.2, False),
        ("silent", 2, 2.0, False),
        ("kill-leader", 3, 0.2, None),
        ("pause-leader", 1, 0.5, None),
        ("partition-leader", 1, 2.0, None),
    ]
