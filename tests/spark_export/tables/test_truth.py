"""What the generator of the readings wrote is what every reader of the log gives, row by row."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from raftlog import NewRecord, SessionBook, SyncClient, Ticket, arrow
from raftlog.cluster.client import requests
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.spark_export import analytics
from raftlog.spark_export.commands import export as commands
from raftlog.spark_export.export.manifest import UNFINISHED, find_manifest
from raftlog.spark_export.export.spark_engine import open_log
from raftlog.spark_export.tables import duck
from tests.spark_export.readings import DDL, readings
from tests.support import HANG_S, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.timeout(300)]

Row = tuple[datetime | None, str, str, float | None, str | None, bytes]
EVENTS = "SELECT event_time, text(key), Station, Level, Remark, value FROM events ORDER BY index"


@dataclass(frozen=True)
class Imported:
    """A cluster that holds the readings, an export of it, and the truth."""

    urls: tuple[str, ...]
    folder: Path
    form: str
    truth: Any
    rows: list[Row]


def raftlog(*arguments: object) -> subprocess.CompletedProcess[str]:
    """One command as a process of its own."""
    command = [sys.executable, "-m", "raftlog.cluster.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)


@contextmanager
def killed_after(batches: int, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """An import under way: so many batches are in the log. Ends when it ends."""
    command = [sys.executable, "-m", "raftlog.cluster.cli.main", *map(str, arguments), "-o", "jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert all(process.stdout.readline() for _ in range(batches)), "it ended too early"
        yield process
        process.communicate(timeout=HANG_S)


@pytest.fixture(scope="module", params=["csv", pytest.param("json", marks=pytest.mark.extra)])
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    """Three nodes with the readings, and a request that came twice: a repetition in the log.

    For CSV the importer was killed amid its batches, and under its second run the leader.
    """
    form = str(request.param)
    folder = tmp_path_factory.mktemp("truth")
    path = folder / f"readings.{'csv' if form == 'csv' else 'ndjson'}"
    truth = readings.make(path, form=form)
    rows = [(row.measured, row.station, row.station, row.level, row.remark, row.value) for row in truth.rows]
    with LocalCluster(folder / "nodes") as cluster:
        cluster.restore()
        options = ("--time", "Measured", "--key", "Station", "--batch", 50, "-e", ",".join(cluster.urls))
        if form == "csv":
            with killed_after(12, "import", path, *options) as process:
                process.kill()
            with killed_after(3, "import", path, *options):
                cluster.kill(cluster.leader())
        done = raftlog("import", path, *options)
        assert done.returncode == 0, done.stderr
        cluster.restore()
        with SyncClient(cluster.urls) as client:
            session = client.open_session().session
            for _ in range(2):
                ticket = Ticket(SessionBook(session, next=2, settled=1), 1)
                client.call(requests.append([NewRecord(b"again")]), ticket=ticket)
        yield Imported(tuple(cluster.urls), folder / "out", form, truth, rows)
        cluster.kill(*cluster.running)


def in_duck(rows: arrow.LogRows) -> list[Row]:
    """The rows of the view of the file's columns."""
    with duck.opened(rows) as tables:
        _, found = tables.ask(EVENTS)
        return [(row[0] and row[0].astimezone(UTC), *row[1:]) for row in found]


def test_sql_and_arrow_of_the_cluster_give_the_truth(imported: Imported) -> None:
    """Each reading once, in order, with its own time or none, and its cells; a repetition is counted once."""
    rows = arrow.log(imported.urls)
    assert in_duck(rows) == imported.rows
    table = rows.table()
    appended = table.filter(pa.compute.equal(table.column("operation"), "append"))
    assert appended.column("value").to_pylist() == [row[-1] for row in imported.rows] + [b"again"]
    assert appended.column("client_time").to_pylist() == [row[0] for row in imported.rows] + [None]
    every = arrow.log(imported.urls, records="all").table().to_pylist()
    assert [row["value"] for row in every if row["result"] == "repeated"][-1] == b"again"


def test_a_killed_export_goes_on_and_gives_the_truth(imported: Imported) -> None:
    """Killed amid its batches, the same command continues. SQL and Arrow of the export then say what the cluster does;
    verify proves it, with the repetition beside it."""
    where = ("--endpoints", ",".join(imported.urls))
    wanted = ("export", "--to", str(imported.folder), "--append", "--batch-records", "25", *where)
    command = [sys.executable, "-m", "raftlog.cluster.cli.main", *wanted]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: find_manifest(imported.folder), 60, what="a first batch is exported")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
    half = find_manifest(imported.folder)
    assert half is not None
    assert half.records.user < len(imported.rows)
    done = raftlog(*wanted)
    assert done.returncode == 0, done.stderr
    assert not (imported.folder / UNFINISHED / "plan.json").exists()
    rows = arrow.export(imported.folder)
    assert in_duck(rows) == imported.rows
    assert rows.table().to_pylist() == arrow.log(imported.urls, last=rows.last).table().to_pylist()
    whole = arrow.export(imported.folder, records="all").table().to_pylist()
    assert whole == arrow.log(imported.urls, last=rows.last, records="all").table().to_pylist()
    proved = raftlog("verify", imported.folder, *where)
    assert proved.returncode == 0, proved.stdout + proved.stderr
    compacted = raftlog("export", "compact", imported.folder)
    assert compacted.returncode == 0, compacted.stderr
    assert in_duck(arrow.export(imported.folder)) == imported.rows


def test_spark_gives_the_truth_of_the_cluster_and_of_its_export(
    spark: "SparkSession", imported: Imported, tmp_path: Path
) -> None:
    """By the schema that the import stored: of a batch read, and of an export with all records."""
    read = spark.read.format("raftlog").options(endpoints=",".join(imported.urls), endingOffsets="committed").load()
    where = ("--endpoints", ",".join(imported.urls))
    done = raftlog("export", "--to", tmp_path / "all", "--records", "all", *where)
    assert done.returncode == 0, done.stderr
    for log in (read, open_log(spark, tmp_path / "all")):
        schema = analytics.stored_schema(log)
        assert schema is not None
        own = analytics.events(log, schema=schema)
        got = [
            (
                row["event_time"] and row["event_time"].replace(tzinfo=UTC),
                bytes(row["key"]).decode(),
                row["Station"],
                row["Level"],
                row["Remark"],
                bytes(row["value"]),
            )
            for row in own.orderBy("index").collect()
        ]
        assert got == imported.rows


@pytest.mark.parametrize("imported", ["csv"], indirect=True)
def test_a_stream_into_the_log_and_back_gives_the_truth(
    spark: "SparkSession", imported: Imported, tmp_path: Path
) -> None:
    """A query reads the import in small batches, and appends the cells under another key. It is stopped amid them, and
    its last batch runs again: the source then reads each reading once, with its own time."""
    columns = "key BINARY, client_time TIMESTAMP, place BIGINT, Level DOUBLE, Remark STRING, line STRING"

    def run(until: int | None) -> None:
        stream = (
            spark.readStream.format("raftlog")
            .options(endpoints=",".join(imported.urls), importSource="readings.csv", maxEntriesPerTrigger="700")
            .load()
            .selectExpr(
                "concat('back ', Station) AS name",
                "client_time AS at",
                "index AS place",
                "Level",
                "Remark",
                "string(value) AS line",
            )
            .writeStream.format("raftlog")
            .options(endpoints=",".join(imported.urls), keyColumn="name", timeColumn="at", valueFormat="json")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        if until is None:
            stream.trigger(availableNow=True).start().awaitTermination(240)
            return
        query = stream.start()
        wait_until(lambda: len([*commits.glob("[0-9]*")]) >= until, 120, what="some batches are written")
        query.stop()

    commits = tmp_path / "checkpoint" / "commits"
    run(1)
    newest = max(int(each.name) for each in commits.glob("[0-9]*"))
    for each in (commits / f"{newest}", commits / f".{newest}.crc"):
        each.unlink()
    run(None)
    back = spark.read.format("raftlog").options(
        endpoints=",".join(imported.urls), valueFormat="json", keyPrefix="back ", operations="append"
    )
    got = [
        (
            row["client_time"] and row["client_time"].replace(tzinfo=UTC),
            bytes(row["key"]).decode()[5:],
            bytes(row["key"]).decode()[5:],
            row["Level"],
            row["Remark"],
            row["line"].encode(),
        )
        for row in back.schema(columns).load().orderBy("place").collect()
    ]
    assert got == imported.rows


def ask(*arguments: object) -> str:
    """What a command in this process prints, which uses the session of the tests."""
    app = typer.Typer()
    commands.register(app)
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.long
def test_the_analyses_know_the_columns_of_an_import(spark: "SparkSession", imported: Imported, tmp_path: Path) -> None:
    """Each question about the columns of the file has rows and a picture, without a word about their form."""
    where = ("--endpoints", ",".join(imported.urls))
    timed = [row for row in imported.rows if row[0] is not None]
    for name, *options in (
        ("windows", "--by", "Station", "--measure", "Level", "--window", "1h", "--slide", "30m"),
        ("windows", "--by", "Station", "--measure", "Level", "--gap", "1m"),
        ("joins", "--of", "Remark", "--left", "^ice", "--right", "^ok", "--within", "5m"),
        ("report", "--by", "Station", "--measure", "Level"),
    ):
        page = tmp_path / "page.html"
        assert ask("analyze", name, *options, *where, "--html", page) == f"wrote {page}\n"
        text = page.read_text(encoding="utf-8")
        assert "<svg" in text, (name, *options)
        assert f": {len(imported.rows) - len(timed)} of {len(imported.rows)}" in text
    shown = ask("analyze", "windows", "--by", "Station", "--measure", "Level", "--window", "1d", *where, "-o", "jsonl")
    got = {row["Station"]: row["records"] for row in map(json.loads, shown.splitlines())}
    assert got == Counter(row[2] for row in timed)


def test_what_is_wrong_with_own_columns_is_one_line(spark: "SparkSession", imported: Imported) -> None:
    """A time that cannot be read, a measure that is no number, missing columns: each message says how to correct it."""
    app = typer.Typer()
    commands.register(app)
    given = ("--value", imported.form, "--schema", DDL)
    for options, match in (
        (("--time", "Measured", *given), "--time Measured: no event has a time that can be read, as '2026/03/01 "),
        (("--measure", "Station"), "--measure Station is string, not a number; numbers are index, bytes, Level"),
        (("--by", "Colour"), "there is no column for Colour; there are index, event_time, key, value, bytes, Measured"),
        (("--value", "csv", "--schema", "a STRING b"), "is not 'NAME TYPE, …'"),
        (("--schema", DDL), "--schema needs --value json or --value csv"),
        (("--value", "raw", "--schema", DDL), "--schema says nothing of --value raw"),
        (("--time", "Measured", "--time-format", "%Q", *given), "has %Q; there are %Y"),
        *(((("--value", "csv"), "--value csv: the log has no stored schema of an import of CSV; give --schema")),)[
            : imported.form == "json"
        ],
    ):
        wanted = ["analyze", "windows", "--endpoints", ",".join(imported.urls), *options]
        done = CliRunner().invoke(app, wanted)
        assert done.exit_code == 2, (options, done.output)
        assert match in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    read = ("--time", "Measured", *given, "--time-format", readings.TIME_FORMAT, "--measure", "Level", "-o", "jsonl")
    shown = ask("analyze", "windows", "--endpoints", ",".join(imported.urls), "--window", "1d", *read)
    (row,) = map(json.loads, shown.splitlines())
    assert row["records"] == sum(each[0] is not None for each in imported.rows)
