"""Imports of many files, rejected lines and earlier versions' notes are exactly once, wherever they are killed."""

import dataclasses
import io
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.importer.formats.lines import InputError, InputFormat
from raftlog.cluster.importer.importer import ImportPlan, run
from raftlog.cluster.importer.session_file import CopyStep
from raftlog.cluster.importer.sources import FileSource
from tests.cluster.importer.jobs import Killed, finish, killer


def rows(client: SyncClient) -> list[tuple[bytes | None, bytes | None, int | None]]:
    """Key, value and client time of the imported records."""
    return [(each.key, each.value, each.client_time_ms) for each in client.log() if each.operation == "append"]


def test_rejected_lines_are_corrected_and_imported_once(tmp_path: Path, client: SyncClient) -> None:
    """They are read as the lines of the file were. A second start imports none of them again."""
    source, rejects = tmp_path / "in.csv", tmp_path / "in.csv.rejected"
    source.write_text("id,at\na,2026-01-31T12:00:00Z\n,2026-01-31T12:00:01Z\nc,2026-01-31T12:00:02Z\n")
    done = finish(ImportPlan(str(source), tmp_path / "n", rejects, key="id", time="at"), client)
    assert (done.records, done.rejected) == (2, 1)
    (row,) = map(json.loads, rejects.read_text().splitlines())
    assert (row["line"], row["reason"], row["value"]) == (
        3,
        "id has 0 bytes: a key must have 1 to 4096",
        ",2026-01-31T12:00:01Z",
    )
    rejects.write_text(json.dumps(row | {"value": "b" + row["value"]}) + "\n")
    again: dict[str, Any] = {"rejected_of": tmp_path / "n"}
    plan = ImportPlan(str(rejects), tmp_path / "rn", tmp_path / "rr", at=killer(CopyStep.ANSWERED, 1), **again)
    with pytest.raises(Killed):
        finish(plan, client)
    assert finish(ImportPlan(str(rejects), tmp_path / "rn", tmp_path / "rr", **again), client).result == "repeated"
    assert finish(ImportPlan(str(rejects), tmp_path / "rn", tmp_path / "rr", **again), client).result == ""
    assert [key for key, _, _ in rows(client)] == [b"a", b"c", b"b"]
    assert rows(client)[2][2] == 1_769_860_801_000


def syslog_line(when: datetime) -> str:
    """A line of RFC 3164, whose time has no year."""
    return f"{when:%b %d %H:%M:%S} host app: m\n"


def ms(when: datetime) -> int:
    """Unix milliseconds."""
    return round(when.timestamp() * 1000)


def aged(path: Path, when: datetime) -> None:
    """Sets the time of the newest write to the file."""
    os.utime(path, (when.timestamp(), when.timestamp()))


def test_a_time_without_a_year_gets_that_of_its_own_file(tmp_path: Path, client: SyncClient) -> None:
    """Files of different ages: the age of the first one says nothing about the others."""
    whens = [datetime(2024, 12, 30, 1, 2, 3, tzinfo=UTC), datetime(2025, 1, 9, 1, 2, 3, tzinfo=UTC)]
    names = [tmp_path / "logs" / "messages.1", tmp_path / "logs" / "messages.2"]
    (tmp_path / "logs").mkdir()
    for path, when in zip(names, whens, strict=True):
        path.write_text(syslog_line(when))
        aged(path, when)

    finish(ImportPlan(str(names[0]), tmp_path / "n", tmp_path / "r", more=(str(names[1]),)), client)
    assert [time for _, _, time in rows(client)] == [*map(ms, whens)]
    parts = FileSource(str(tmp_path / "logs"), format=InputFormat.SYSLOG).read(None)
    assert [record.time_ms for part in parts for record in part.records] == [*map(ms, whens)]


def test_a_noted_batch_of_times_without_a_year_is_sent_again_as_it_was(tmp_path: Path, client: SyncClient) -> None:
    """The file is written to after the kill. The noted batch keeps its years, later lines get theirs by the new age."""
    source, old = tmp_path / "messages", datetime(2024, 6, 10, 1, 2, 3, tzinfo=UTC)
    source.write_text(syslog_line(old) * 6)
    aged(source, old)
    newer = old.replace(year=2026)
    plan = ImportPlan(str(source), tmp_path / "n", tmp_path / "r", batch_lines=2)
    with pytest.raises(Killed):
        finish(dataclasses.replace(plan, at=killer(CopyStep.ANSWERED, 2)), client)
    aged(source, newer)
    results = [each.result for each in run(plan, client, io.BytesIO())]
    assert results == ["repeated", "applied"]
    assert [time for _, _, time in rows(client)] == [ms(old)] * 4 + [ms(newer)] * 2


def test_a_time_that_fails_later_is_counted_and_strict_stops_there(tmp_path: Path, client: SyncClient) -> None:
    """With `strict` all lines before it are in; after it is corrected, the same import continues."""
    source = tmp_path / "in.csv"
    lines = ["at,n", *(f"2026-01-31T12:00:{n:02d}Z,{n}" for n in range(8))]
    lines[6] = "soon,5"
    source.write_text("\n".join(lines))
    done = finish(ImportPlan(str(source), tmp_path / "n", tmp_path / "r", time="at", batch_lines=3), client)
    assert (done.records, done.without_time, done.rejected) == (8, 1, 0)
    strict: dict[str, Any] = {"time": "at", "batch_lines": 3, "strict": True}
    with pytest.raises(InputError, match=r"in\.csv: line 7: no time in at.*--strict"):
        finish(ImportPlan(str(source), tmp_path / "n2", tmp_path / "r2", **strict), client)
    assert len(rows(client)) == 8 + 5
    source.write_text("\n".join(lines).replace("soon", "2026-01-31T12:00:05Z"))
    done = finish(ImportPlan(str(source), tmp_path / "n2", tmp_path / "r2", **strict), client)
    assert (done.records, done.without_time) == (8, 0)
    assert [value for _, value, _ in rows(client)[8:]] == source.read_bytes().splitlines()[1:]


def test_a_doubt_stops_before_anything_is_written(tmp_path: Path, client: SyncClient) -> None:
    """No session, no schema, no note, no rejected lines."""
    source = tmp_path / "in.csv"
    source.write_text("DateTime,n\nat noon,1\n")
    before = len(list(client.log(internal=True)))
    with pytest.raises(InputError, match=r"in\.csv: line 2: DateTime 'at noon' is not a time; give --time-format"):
        finish(ImportPlan(str(source), tmp_path / "n", tmp_path / "r", time="DateTime"), client)
    assert len(list(client.log(internal=True))) == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.csv"]


@pytest.mark.parametrize(
    ("second", "has", "options"),
    [
        ("3,4\n5,6\n", r"line 1 looks like data.*--no-header", {}),
        ("x\n1\n", r"line 1 has not the 2 columns x, y, but 1: x\. .*--no-header", {"columns": ("p", "q")}),
        ("y,x\n4,3\n", r"line 1 has not the 2 columns x, y, but 2: y, x\. ", {"columns": ("p", "q")}),
    ],
    ids=["no line of names", "fewer than --columns", "another order than --columns"],
)
def test_a_file_whose_first_line_is_doubtful_stops_the_import_before_it_writes(
    tmp_path: Path, second: str, has: str, options: dict[str, Any], client: SyncClient
) -> None:
    """The error names the file and the choices; once it is corrected, the same command imports all."""
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text(second)
    (tmp_path / "c.csv").touch()
    options = {**options, "header": True} if options else {}
    names = [str(tmp_path / name) for name in ("a.csv", "c.csv", "b.csv")]
    told: list[str] = []
    plan = ImportPlan(names[0], tmp_path / "n", tmp_path / "r", more=tuple(names[1:]), tell=told.append, **options)
    with pytest.raises(InputError, match=rf"1 of 3 files cannot.*nothing is written(.|\n)*b\.csv: {has}"):
        finish(plan, client)
    assert rows(client) == []
    (tmp_path / "b.csv").write_text("x, y\n3,4\n")
    assert finish(plan, client).records == 2
    assert any("c.csv: the file is empty" in each for each in told)


def test_a_first_line_that_changed_since_it_was_looked_at_stops_the_import(tmp_path: Path, client: SyncClient) -> None:
    """What came before it is in the log, and no line is lost: once it is put back, the import goes on."""
    for name, row in (("a.csv", "1,2"), ("b.csv", "3,4")):
        (tmp_path / name).write_text(f"x,y\n{row}\n")

    def change(step: CopyStep) -> None:
        if step is CopyStep.ANSWERED:
            (tmp_path / "b.csv").write_text("y,x\n4,3\n")

    plan = ImportPlan(str(tmp_path / "a.csv"), tmp_path / "n", tmp_path / "r", more=(str(tmp_path / "b.csv"),))
    with pytest.raises(InputError, match=r"b\.csv: line 1 has not the 2 columns x, y, but 2: y, x\."):
        finish(dataclasses.replace(plan, at=change), client)
    assert [value for _, value, _ in rows(client)] == [b"1,2"]
    (tmp_path / "b.csv").write_text("x,y\n3,4\n")
    assert finish(plan, client).records == 2
