"""`raftlog import` prints its decisions and its progress, and writes nothing with --dry-run."""

import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.cli import import_postgres, importing
from raftlog.cluster.cli.frame.output import Format, Printer, Row
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.importer import file_source
from tests.cluster.cli.test_cli import Running

QUAKES = 'DateTime,Magnitude,Place\n2016/01/01 00:30:04.91,1.30,"Geysers, California"\n2016/01/01 00:38:24,2,Hawaii\n'


@pytest.fixture
def quakes(tmp_path: Path) -> Path:
    """The file."""
    path = tmp_path / "quakes.csv"
    path.write_text(QUAKES)
    return path


def test_a_dry_run_prints_records_and_decisions_and_writes_nothing(cli: Running, quakes: Path) -> None:
    """As they would be stored: time, key, headers and value."""
    told = cli.run("import", str(quakes), "--dry-run", "--time", "DateTime", "--headers", "Magnitude", "-o", "json")
    assert told.exit_code == 0, told.stderr
    first, second = json.loads(told.stdout)
    assert (first["line"], first["time_ms"], first["headers"]) == (2, 1_451_608_204_910, [["Magnitude", "1.30"]])
    assert second["value"] == "2016/01/01 00:38:24,2,Hawaii"
    assert "format csv" in told.stderr
    assert "time: DateTime, '%Y/%m/%d %H:%M:%S.%f', values without a zone: UTC" in told.stderr
    assert [path.name for path in quakes.parent.iterdir() if path.is_file()] == ["quakes.csv"]
    with SyncClient(cli.url) as client:
        assert list(client.log()) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--rejected", "--key", "Place"], "give no such option"),
        (["--from-line", "2", "other.csv"], "of one file"),
        (["--time", "Place"], "line 2: Place 'Geysers, California' is not a time; give --time-format"),
        (["--time-format", "%Q", "--time", "DateTime"], "%Q is not known"),
        (["--follow", "other.csv"], "one import for each"),
        (["--time-zone", ""], "--time-zone is empty: give a value, or leave it out"),
        (["--columns", ""], "--columns is empty: give a value, or leave it out"),
        ([""], "name the files to import, or - for standard input"),
        (["--state", "/no/such/state"], "/no/such/state cannot be written: there is no folder /no/such; name another"),
        (["--state", "/proc/state"], "/proc/state cannot be written: /proc takes no new files; name another"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    cli: Running, quakes: Path, more: list[str], message: str
) -> None:
    """And so is a doubt: before anything is in the log."""
    told = cli.run("import", str(quakes), *more)
    assert told.exit_code in (1, 2)
    assert message in told.stderr
    with SyncClient(cli.url) as client:
        assert list(client.log()) == []


def test_rejected_lines_by_their_option(cli: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second command needs no options of the first. An error at their file names it."""
    source = tmp_path / "in.csv"
    source.write_text("id,n\na,1\n,2\n")
    rejects = tmp_path / "in.csv.rejected"
    with monkeypatch.context() as full:
        full.setattr(file_source, "sync_folder", lambda _: os.write(-1, b""))
        assert f"raftlog: {rejects}: " in cli.run("import", str(source), "--key", "id").stderr
    assert cli.run("import", str(source), "--key", "id").exit_code == 0
    rejects.write_text(rejects.read_text().replace('",2"', '"b,2"'))
    told = cli.run("import", str(source), "--rejected", "-o", "json")
    assert (told.exit_code, json.loads(told.stdout)["records"]) == (0, 1), told.stderr
    with SyncClient(cli.url) as client:
        assert [record.key for record in client.log() if record.operation == "append"] == [b"a", b"b"]


def test_progress_in_a_pipe_is_a_line_with_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before 10 s, then every 10 s; the time left is of this run's rate, also after an earlier run."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(sys, "stderr", told := io.StringIO())
    show = importing.lines_of_progress()
    for now, share in ((1.0, 0.5), (9.0, 0.55), (10.0, 0.6), (15.0, 0.65), (20.0, 0.7)):
        show(int(now * 1000), 1000, share)
    assert told.getvalue().splitlines() == [
        "10,000 records, 1,000/s, 60 %, about 40 s left",
        "20,000 records, 1,000/s, 70 %, about 30 s left",
    ]


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ([], "the same command continues"),
        (["--again"], "the same command without --again continues"),
        (["--again", "--from-line", "2"], "the same command without --again and --from-line continues"),
    ],
)
def test_an_interrupted_import_names_the_command_that_continues(
    cli: Running, quakes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], how: str
) -> None:
    """With --again the same one would begin again. The named one goes on; an import that waits in vain names it too."""
    with monkeypatch.context() as patch:

        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        patch.setattr(importing, "_progress_row", interrupted)
        told = cli.run("import", str(quakes), "--batch", "1", *options)
        assert (told.exit_code, how in told.stderr) == (130, True)
        patch.setattr(import_postgres, "printed", interrupted)
        told = cli.run("import-postgres", "host=x", "--state", str(tmp_path / "pg"), *options[:1])
        assert how.replace(" and --from-line", "") in told.stderr
    done = cli.run("import", str(quakes), "--batch", "1", "-o", "json")
    assert (done.exit_code, json.loads(done.stdout)["records"]) == (0, 2), done.stderr
    monkeypatch.setattr(importing, "IMPORT_DEADLINE_S", 0.3)
    cli.url = "http://127.0.0.1:1"
    told = cli.run("import", str(quakes), "--batch", "1", "--deadline", "0.3")
    assert (told.exit_code, "the log has 2 records of " in told.stderr) == (5, True), told.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["import-postgres", "host=x password=secret"], "put it into PGPASSWORD"),
        (["import-postgres", "postgresql://ann:secret@x/shop"], "every user of this machine can see"),
        (["import-postgres", "secret"], "not a connection string"),
        (["import-postgres", "@none"], "none cannot be read"),
        (["import-postgres", "@broken"], "not a connection string"),
        (["import"], "name the files to import"),
    ],
)
def test_a_wrong_source_is_refused_without_its_password(
    cli: Running, quakes: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    """On the command line every user of the machine sees it; in a message, each reader of the log."""
    monkeypatch.chdir(quakes.parent)
    Path("broken").write_text("secret")
    found = cli.run(*arguments)
    assert found.exit_code in (1, 2)
    assert told in found.stderr
    assert "secret" not in found.stderr + found.stdout


@pytest.mark.parametrize("format", Format)
def test_sigterm_ends_an_import_as_ctrl_c_does_in_every_format(format: Format) -> None:
    """A supervisor's stop says how to continue; without a handler the process would end without a word."""

    def unheard(*_: object) -> None:
        raise AssertionError("the process would have ended")

    def rows() -> Iterator[Row]:
        yield {"records": 1}
        signal.raise_signal(signal.SIGTERM)

    made: Any = SimpleNamespace(printer=Printer(format, "auto", io.BytesIO()))
    before = signal.signal(signal.SIGTERM, unheard)
    try:
        with pytest.raises(KeyboardInterrupt):
            importing.printed(made, rows(), importing.IMPORTED)
    finally:
        signal.signal(signal.SIGTERM, before)
