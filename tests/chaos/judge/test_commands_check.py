"""`raftlog chaos check`: verdicts as exit codes, and nothing that goes wrong looks like one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from raftlog.chaos.commands import check
from raftlog.chaos.judge.history import History
from tests.house.rules import ROOT
from tests.support import HANG_S

app = typer.Typer()
check.register(app)
Rows = list[tuple[Any, ...]]

WRITTEN: Rows = [(1, "invoke", "write", 1), (1, "ok", "write", 1), (2, "invoke", "read", None)]
GOOD: Rows = [*WRITTEN, (2, "ok", "read", 1)]
BAD: Rows = [*WRITTEN, (2, "ok", "read", None)]


def saved(path: Path, rows: Rows) -> Path:
    """The rows (process, type, f, value) as a file."""
    history = History()
    for process, kind, f, value in rows:
        if kind == "invoke":
            history.invoke(process, f, None, value)
        else:
            history.complete(process, kind, value)
    history.write(path)
    return path


def run(*words: object) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(app, ["chaos", "check", *map(str, words)])


def test_exit_codes_are_the_verdict(tmp_path: Path) -> None:
    """0 valid, 1 invalid, and the word comes first."""
    good = run(saved(tmp_path / "good", GOOD), "--model", "register")
    assert (good.exit_code, good.output.split(":")[0]) == (0, "valid")
    bad = run(saved(tmp_path / "bad", BAD), "--model", "register")
    assert (bad.exit_code, bad.output.split(":")[0]) == (1, "invalid")
    assert "fits nowhere" in bad.output
    assert "lines 3 and 4" in bad.output


def test_unknown_is_6(tmp_path: Path) -> None:
    """At the limit of states: the report says so."""
    rows: Rows = [(process, "invoke", "append", "ab"[process % 2]) for process in range(20)]
    rows += [(process, "ok", "append", None) for process in range(20)]
    rows += [(99, "invoke", "put", "x"), (99, "ok", "put", None), (99, "invoke", "get", None), (99, "ok", "get", "y")]
    result = run(saved(tmp_path / "hard", rows), "-m", "kv-append", "--states", "1000")
    assert result.exit_code == 6
    assert "unknown" in result.output
    assert "1,000 states" in result.output


def test_an_invalid_start_value_is_a_usage_error(tmp_path: Path) -> None:
    """`--init` is JSON; other text, or a value that the model does not know, is a usage error."""
    path = saved(tmp_path / "h", [(1, "invoke", "read", None), (1, "ok", "read", 5)])
    assert run(path, "-m", "register", "--init", "5").exit_code == 0
    assert run(path, "-m", "register").exit_code == 1
    assert run(path, "-m", "register", "--init", "{").exit_code == 2
    assert run(path, "-m", "kv-append", "--init", "5").exit_code == 2


@pytest.mark.parametrize(
    "words", [["--model", "queue"], [], ["-m", "register", "--timeout", "0"], ["-m", "set", "--x"]]
)
def test_usage_errors_are_2(tmp_path: Path, words: list[str]) -> None:
    """An unknown model, no model, a limit out of range, an unknown option."""
    assert run(saved(tmp_path / "h", GOOD), *words).exit_code == 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "No such file"),
        (b"", "no event"),
        (b'{"process":1,"type":"invoke","f":"read","key":null,"value":null}\nx\n', "line 2"),
        (b'{"process":1,"type":"invoke","f":"fly","key":null,"value":null}\n', "line 1"),
        (b'{"process":1,"type":"ok","f":"read","key":null,"value":null}\n', "line 1"),
    ],
)
def test_a_history_that_cannot_be_judged_is_8(tmp_path: Path, data: bytes | None, why: str) -> None:
    """A file that is not there, is empty, is broken, or has a function that the model has not."""
    if data is not None:
        (tmp_path / "h").write_bytes(data)
    result = run(tmp_path / "h", "-m", "register")
    assert result.exit_code == 8
    assert why in result.output


@pytest.mark.parametrize("error", [RuntimeError("oops"), MemoryError(), RecursionError(), KeyboardInterrupt()])
def test_an_error_inside_is_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """A bug in the checker, too little memory, Ctrl-C: never 1, which would be a verdict."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(check, "judge", fail)
    result = run(saved(tmp_path / "h", GOOD), "-m", "register")
    assert result.exit_code == 8
    assert "no verdict" in result.output


def test_json(tmp_path: Path) -> None:
    """One object with verdict, problems, and per bad key the longest order and what fits nowhere."""
    result = run(saved(tmp_path / "h", BAD), "-m", "register", "--json")
    assert result.exit_code == 1
    told = json.loads(result.output)
    assert (told["verdict"], told["operations"], len(told["problems"])) == ("invalid", 2, 1)
    (key,) = told["keys"]
    assert [each["f"] for each in key["prefix"]] == ["write"]
    assert key["impossible"]["lines"] == [3, 4]


def test_markup_in_a_history_is_text(tmp_path: Path) -> None:
    """Values that look like rich markup are shown as they are."""
    rows: Rows = [(1, "invoke", "write", "[red]x[/]"), (1, "ok", "write", None), (1, "invoke", "read", None)]
    result = run(saved(tmp_path / "h", [*rows, (1, "ok", "read", "[/nope]")]), "-m", "register")
    assert result.exit_code == 1
    assert "[/nope]" in result.output


@pytest.mark.serial
def test_the_installed_command(tmp_path: Path) -> None:
    """Through the entry point, as a process: exit code 1, nothing on standard error."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "raftlog.cluster.cli.main",
            "chaos",
            "check",
            saved(tmp_path / "h", BAD),
            "-m",
            "register",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("invalid")
