"""`raftlog analyze` answers from a running cluster as from an export, and says in one line what it cannot answer."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner, Result

from raftlog.raft.codec.block import BlockRecord
from raftlog.spark_export.commands import analyze
from raftlog.statemachine.commands import Operation
from tests.spark_export import logs
from tests.spark_export.imports import add_import, appended, schema
from tests.spark_export.server import Served, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

LOG = logs.real(6, batch=True)
ROWS = list(logs.naive_rows(LOG.entries, LOG.effects))


@pytest.fixture
def served() -> Served:
    """The node's log and how it answers."""
    return Served(LOG)


def run(*arguments: object) -> Result:
    """One command of `raftlog analyze`."""
    app = typer.Typer()
    analyze.register(app)
    return CliRunner().invoke(app, ["analyze", *map(str, arguments)])


def rows_of(result: Result) -> list[dict[str, Any]]:
    """The rows that it printed as JSON."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_running_cluster_is_analyzed(spark: "SparkSession", url: str, tmp_path: Path) -> None:
    """Each command has rows for a log that holds something of everything; a report has a section for each answer."""
    (day,) = rows_of(run("windows", "--endpoints", url, "-o", "jsonl", "--operations", "put", "--window", "9000d"))
    assert day["records"] == sum(logs.is_user(row) and row["operation"] == "put" for row in ROWS)
    for arguments in (
        ("windows", "--gap", "1h", "--by", "key"),
        ("windows", "--window", "1h", "--slide", "30m"),
        ("joins", "--left", "line [34]", "--right", "line", "--within", "1h"),
    ):
        assert rows_of(run(*arguments, "--endpoints", url, "-o", "jsonl")), arguments
    page = tmp_path / "page.html"
    told = run("report", "--endpoints", url, "--html", page)
    assert told.stdout == f"wrote {page}\n"
    text = page.read_text(encoding="utf-8")
    for name in ("windows", "top-keys", "sessions"):
        assert f'<section id="{name}">' in text
    shown = run("report", "--endpoints", url)
    assert "Which keys have the most records?" in shown.stderr


def test_a_question_that_cannot_be_answered_is_a_usage_error(
    spark: "SparkSession", url: str, served: Served, tmp_path: Path
) -> None:
    """An invalid length of time, an unknown operation or column, no export, no place for the page: each is reported on
    one line, with its exit code. Errors that the options alone show are refused before any node is asked."""
    early = (
        (("windows", "--window", "soon"), "'soon' is no length of time: write 90s, 5m, 1h or 1d"),
        (("windows", "--gap", "0m"), "is no length of time"),
        (("windows", "--operations", "putt"), "there is no 'putt'; there are append, put"),
        (("windows", "--html", tmp_path / "no" / "page.html"), "cannot be written: there is no folder"),
        (("report", "--html", tmp_path), "is a directory"),
    )
    late = (
        (("windows", "--by", "colour"), "there is no column for colour; there are index"),
        (("joins", "--left", "(", "--right", "a"), "'(' is no regular expression"),
    )
    for arguments, match in (*early, *late):
        told = run(*arguments, "--endpoints", url)
        assert told.exit_code == 2, told.output
        assert match in " ".join(told.stderr.replace("│", " ").split())
        assert bool(served.asked) is ((arguments, match) in late)
    nothing = run("windows", tmp_path)
    assert (nothing.exit_code, len(nothing.stderr.strip().splitlines())) == (8, 1)


def test_columns_of_any_import_are_known(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """Of syslog, of an access log, and those inside nested JSON; of the newest import, or of the one that is named."""
    log = appended()
    rows = [b'{"after":{"status":"new","amount":9.5}}', b'{"after":{"status":"new","amount":0.5}}', b'{"after":null}']
    add_import(log, schema("json", ("after", "object"), source="raftlog"), rows)
    add_import(
        log,
        schema("access", source="access.log"),
        [b'1.2.3.4 - - [01/Jan/2026:00:00:00 +0000] "GET /a HTTP/1.1" 200 512 "-" "curl"'],
    )
    line = BlockRecord(Operation.APPEND, None, b"<34>Oct 11 22:14:15 here su[9]: no", argument=1_000)
    add_import(log, schema("syslog", source="messages"), [line, line])
    with serving(Served(log)) as url:
        options = ("--endpoints", url, "--window", "1d")
        changes = ("--by", "after.status", "--measure", "after.amount", "--source", "raftlog")
        found = {
            row["after.status"]: (row["records"], row["total"])
            for row in rows_of(run("windows", *changes, *options, "-o", "jsonl"))
        }
        assert found == {"new": (2, 10.0), None: (1, None)}
        (row,) = rows_of(run("windows", "--by", "app", "--measure", "priority", *options, "-o", "jsonl"))
        assert (row["app"], row["records"], row["total"], row["start"]) == ("su", 2, 68, "1970-01-01T00:00:00.000Z")
        only = ("--by", "app", "--measure", "priority", *options, "-o", "jsonl", "--operations")
        assert rows_of(run("windows", *only, "append, delete")) == [row], "the stored columns are puts"
        assert rows_of(run("windows", *only, "put")) == []
        (row,) = rows_of(
            run("windows", "--by", "path", "--measure", "sent", "--source", "access.log", *options, "-o", "jsonl")
        )
        assert (row["path"], row["total"]) == ("/a", 512)
        told = run("windows", "--by", "app", *options)
        assert (
            "the records and columns are those of the import messages; --source takes another: access.log, raftlog"
            in told.stderr
        )
        monkeypatch.delattr(analyze, "start_spark")  # which takes ten seconds, and is not needed for this answer
        told = run("windows", "--by", "app", "--source", "quakes", *options)
        assert (
            "--source quakes: the log has no import of that name; it has messages, access.log, raftlog" in told.stderr
        )
