"""The commands end with the exit code that says what became of them, and one line that says why."""

import importlib.metadata
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from raftlog.cluster.api.errors import Code
from raftlog.spark_export.commands import frame
from raftlog.spark_export.commands.export import register
from raftlog.spark_export.errors import NotCheckedError
from raftlog.spark_export.export.manifest import UNFINISHED, read_manifest
from raftlog.spark_export.runtime import job
from raftlog.spark_export.runtime.java import JavaNotFoundError
from tests.spark_export import logs
from tests.spark_export.conftest import SPARK
from tests.spark_export.server import Served
from tests.support import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

LOG = logs.real(6, batch=True)
ROWS = list(logs.naive_rows(LOG.entries, LOG.effects))


@pytest.fixture
def served() -> Served:
    """The node's log and how it answers."""
    return Served(LOG)


def run(*arguments: object, finds: Any = None) -> Result:
    """One command."""
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, list(map(str, arguments)), obj=finds)


def test_ctrl_c_while_spark_starts_ends_once_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyspark forgets the Java process of a start that is interrupted, and that process never ends."""
    steps = []

    def start(master: str | None) -> str:
        signal.raise_signal(signal.SIGINT)
        steps.append("started")
        return "spark"

    monkeypatch.setattr(job, "session", start)
    with pytest.raises(KeyboardInterrupt):
        frame.start_spark(None)
    assert steps == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


ENGINES = pytest.mark.parametrize("engine", ["arrow", SPARK])


@ENGINES
def test_export_verify_analyze(spark: "SparkSession", url: str, tmp_path: Path, engine: str) -> None:
    """The whole way: export with a summary, verify online and offline, records by key; a second export is refused."""
    folder = tmp_path / "out"
    done = run("export", "--engine", engine, "--to", folder, "--endpoints", url, "--summary-json", "--top-keys", 2)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["first"], summary["last"], summary["records"]) == (1, len(ROWS), len(ROWS))
    assert summary["user"] == sum(map(logs.is_user, ROWS))
    assert pq.read_table(folder / "log", partitioning=None).num_rows == summary["user"], "repetitions are no events"
    counts = {key["key"]: key["count"] for key in summary["top_keys"]}
    assert list(counts.values()) == sorted(counts.values(), reverse=True)
    assert counts["once"] == sum(row["key"] == b"once" and logs.is_user(row) for row in ROWS)

    verified = run("verify", "--engine", engine, folder, finds=lambda given: ((url,), "a test"))
    assert verified.exit_code == 0, verified.output
    assert "every column as the cluster has it; they fold to the state's digest" in verified.stdout
    offline = run("verify", "--engine", engine, folder, "--offline", "--summary-json")
    assert (offline.exit_code, json.loads(offline.stdout)["source"]) == (0, "the manifest")
    assert "compared with the digests in the manifest: a deliberate change" in run("verify", folder, "--offline").stdout
    shown = run("analyze", "windows", folder, "-o", "jsonl", "--by", "key", "--window", "9000d")
    keys = {row["key"]: row["records"] for row in map(json.loads, shown.stdout.splitlines())}
    assert {name: keys[name] for name in counts} == counts

    again = run("export", "--to", folder, "--endpoints", url)
    assert (again.exit_code, again.stdout) == (2, "")
    assert "already holds a finished export" in again.stderr
    more = run("export", "--to", folder, "--endpoints", url, "--append", "--summary-json")
    assert (more.exit_code, json.loads(more.stdout)["added"]) == (0, 0)

    path = folder / read_manifest(folder).files[0].name
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.slice(1), path)
    spoilt = run("verify", "--engine", engine, folder, "--endpoints", url)
    assert spoilt.exit_code == 7
    assert f"missing: index {table.column('index')[0].as_py()}" in spoilt.stdout


def test_a_check_that_cannot_be_made_has_its_own_exit_code(url: str, served: Served, tmp_path: Path) -> None:
    """No export, half an export, a cluster that is gone, that is another, or that no longer keeps the range: none of
    them is a verdict on the files."""
    assert run("verify", tmp_path, "--endpoints", url).exit_code == 8
    folder = tmp_path / "out"
    assert run("export", "--to", folder, "--endpoints", url).exit_code == 0
    gone = run("verify", folder, "--endpoints", f"127.0.0.1:{free_port()}", "--timeout", "0.1")
    assert gone.exit_code == 5
    assert "no node gave" in gone.stderr
    served.log_id, asked = "f" * 32, len(served.asked)
    other = run("verify", folder, "--endpoints", url)
    assert other.exit_code == 8
    assert "another cluster's" in other.stderr
    assert "--offline" in other.stderr
    assert not any("min_index" in each for each in served.asked[asked:]), "another log may never have that index"
    served.digest = Code.COMPACTED
    assert run("verify", folder, "--endpoints", url).exit_code == 8
    (folder / "manifest.json").unlink()
    (folder / UNFINISHED).mkdir()
    half = run("verify", folder, "--endpoints", url)
    assert half.exit_code == 8
    assert "not finished: run the same `raftlog export" in half.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "match"),
    [
        (("--endpoints", "nowhere"), 2, "nowhere"),
        (("--to-index", "99999"), 2, "not committed yet"),
        (("--to-index", "0"), 2, "Invalid value"),
        (("--from", "3", "--oldest"), 1, "no longer kept"),
        (("--append", "--follow"), 2, "--follow and --append are two things"),
        (("--partition-by", "hour"), 2, "Invalid value"),
        (("--engine", "arrow", "--master", "local"), 2, "--master is of Spark"),
        (("--engine", "flink"), 2, "Invalid value"),
        (("--master", "sparkle"), 2, "--master 'sparkle' is none of Spark's"),
    ],
)
def test_wrong_options(
    url: str, served: Served, tmp_path: Path, arguments: tuple[str, ...], code: int, match: str
) -> None:
    """Each is reported on one line, with its exit code, and leaves nothing in the folder that would be in the way."""
    if "--oldest" in arguments:
        arguments = arguments[:-1]
        served.oldest = 9
    endpoints = () if "--endpoints" in arguments else ("--endpoints", url)
    done = run("export", "--to", tmp_path / "out", *endpoints, *arguments)
    assert done.exit_code == code
    assert match in done.stderr
    served.oldest = 1
    assert run("export", "--to", tmp_path / "out", "--endpoints", url).exit_code == 0


def test_the_folder_must_be_named() -> None:
    """Without --to there is nothing to export to; the help names every option and the compact command."""
    assert "--to is missing" in run("export").stderr
    shown = run("export", "--help").stdout
    assert all(word in shown for word in ("--follow", "--append", "--format", "--partition-by", "compact"))


@ENGINES
def test_delta_and_compact(spark: "SparkSession", url: str, tmp_path: Path, engine: str) -> None:
    """A Delta table by day in batches, verified, compacted, verified; one row taken out of it is found and named."""
    from deltalake import DeltaTable

    folder = tmp_path / "out"
    done = run(
        "export",
        "--to",
        folder,
        "--endpoints",
        url,
        "--append",
        "--format",
        "delta",
        "--partition-by",
        "day",
        "--batch-records",
        20,
        "--summary-json",
        "--engine",
        engine,
    )
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["records"], summary["format"], summary["partition_by"]) == (len(ROWS), "delta", "day")
    assert summary["files"] == -(-len(ROWS) // 20)
    assert run("verify", folder, "--endpoints", url).exit_code == 0
    compacted = run("export", "compact", "--engine", engine, folder, "--summary-json")
    assert json.loads(compacted.stdout) == {"folder": str(folder), "files_before": summary["files"], "files": 1}
    assert run("verify", folder, "--endpoints", url).exit_code == 0
    DeltaTable(str(folder / "log")).delete("index = 31")
    spoilt = run("verify", "--engine", engine, folder, "--endpoints", url)
    assert spoilt.exit_code == 7
    assert "missing: index 31" in spoilt.stdout
    assert run("export", "compact", tmp_path / "none").exit_code == 8


@ENGINES
def test_a_task_error_is_shown_unchanged(
    spark: "SparkSession", url: str, served: Served, tmp_path: Path, engine: str
) -> None:
    """What a task on an executor met is one line, not a Java stack trace, and has its exit code."""
    served.faults = [lambda body: Code.NO_LEADER] * 9999
    done = run("export", "--engine", engine, "--to", tmp_path / "out", "--endpoints", url, "--timeout", "0.1")
    assert done.exit_code == 5
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no node gave the log from index 1 on" in done.stderr
    served.faults = []
    assert run("export", "--to", tmp_path / "out", "--endpoints", url).exit_code == 0


@pytest.mark.parametrize(("most", "is_spark"), [(len(ROWS), False), (len(ROWS) - 1, True)])
def test_auto_takes_spark_for_more_records_than_the_limit(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, is_spark: bool
) -> None:
    """At the limit one process does it all; one record more asks for a session of Spark, in each of the commands."""
    folder = tmp_path / "out"
    assert run("export", "--to", folder, "--endpoints", url).exit_code == 0
    started = []

    def started_at(master: str | None) -> Any:
        started.append(master)
        raise NotCheckedError("no Spark in this test")

    monkeypatch.setattr(frame, "start_spark", started_at)
    limit = ("--arrow-records-max", most)
    codes = [
        run("export", "--to", tmp_path / "more", "--endpoints", url, *limit).exit_code,
        run("verify", folder, "--endpoints", url, *limit).exit_code,
        run("export", "compact", folder, *limit).exit_code,
    ]
    assert codes == ([8, 8, 8] if is_spark else [0, 0, 0])
    assert len(started) == (3 if is_spark else 0)
    assert run("verify", folder, "--endpoints", url, "--master", "local").exit_code == 8, "a master is Spark's"


def test_a_missing_spark_package_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: "SparkSession"
) -> None:
    """No Java, or a package of a version that Spark does not work with: named, with the fix, before Spark starts."""

    def no_java() -> Path:
        raise JavaNotFoundError("Spark needs a Java runtime: run `make setup`")

    with monkeypatch.context() as patch:
        patch.setattr(job, "java_home", no_java)
        lacking = run("export", "--engine", "spark", "--to", tmp_path / "out", "--endpoints", url)
        assert (lacking.exit_code, "make setup" in lacking.stderr) == (8, True)
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.1.1" if name == "pandas" else version(name))
    lacking = run("verify", "--engine", "spark", tmp_path / "out", "--endpoints", url)
    assert lacking.exit_code == 8
    lacking = run("export", "--engine", "spark", "--to", tmp_path / "out", "--endpoints", url)
    assert lacking.exit_code == 8
    assert "pandas 3.1.1 does not work with Spark here, >=2.2,<3 does" in lacking.stderr
