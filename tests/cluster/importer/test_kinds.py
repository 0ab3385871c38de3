"""Files of several formats in one import: each is looked at first, and each kind has its own schema, exactly once."""

import io
import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.importer import importer, inputs
from raftlog.cluster.importer.formats import schema
from raftlog.cluster.importer.formats.lines import InputError, InputFormat
from raftlog.cluster.importer.importer import ImportPlan
from raftlog.cluster.importer.session_file import CopyStep
from tests.cluster.importer.fake_log import is_done
from tests.cluster.importer.jobs import Killed, finish, killer
from tests.cluster.importer.test_files import rows

MIXED = {
    "a.log": "one\ntwo\nthree\n",
    "b.csv": "x,y\n1,2\n3,4\n5,6\n",
    "c.ndjson": '{"x": 1}\n{"x": 2}\n',
    "d.csv": "x,y\n7,8.5\n",
    "e.csv": "z\n9\n",
}
VALUES = [b"one", b"two", b"three", b"1,2", b"3,4", b"5,6", b'{"x": 1}', b'{"x": 2}', b"7,8.5", b"9"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of several formats."""
    (tmp_path / "in").mkdir()
    for name, text in MIXED.items():
        (tmp_path / "in" / name).write_text(text)
    return tmp_path / "in"


def plan_of(folder: Path, **more: Any) -> ImportPlan:
    """The plan of an import of that folder."""
    return ImportPlan(str(folder), folder.parent / "n", folder.parent / "r", **more)


def schemas(client: SyncClient) -> dict[int, schema.Schema]:
    """Every schema in the log, by its session."""
    found = client.range(schema.PREFIX, schema.PREFIX[:-1] + b"0")
    return {int(each.key.removeprefix(schema.PREFIX)): schema.decode(each.value or b"") for each in found}


def columns(found: schema.Schema) -> list[tuple[str, str]]:
    """Names and types of its columns."""
    return [(column.name, column.type) for column in found.columns]


@pytest.mark.parametrize("step", [*CopyStep])
@pytest.mark.parametrize("time", [1, 2, 3])
def test_files_of_several_formats_are_exactly_once_through_kills(
    folder: Path, step: CopyStep, time: int, client: SyncClient
) -> None:
    """In the order of their names. Each record has the session of a schema with its own columns."""
    for _ in range(2):
        try:
            finish(plan_of(folder, batch_lines=2, at=killer(step, time)), client)
        except Killed:
            continue
    if not is_done(folder.parent / "n"):
        finish(plan_of(folder, batch_lines=2), client)
    assert is_done(folder.parent / "n")
    assert [value for _, value, _ in rows(client)] == VALUES
    kinds = schemas(client)
    found = [kinds[each.session or 0] for each in client.log() if each.operation == "append"]
    expected = ["a.log"] * 3 + ["b.csv"] * 3 + ["c.ndjson"] * 2 + ["b.csv", "e.csv"]
    assert [each.source for each in found] == expected
    types = [("x", "integer"), ("y", "number")]  # that of all its files, not of the first
    assert [columns(each) for each in found if each.source == "b.csv"] == [types] * 4


def test_files_of_one_format_have_one_schema_named_after_the_folder(folder: Path, client: SyncClient) -> None:
    """A file with no rows, and one in which a column has no value, change no types. An empty one is no kind."""
    for each in folder.iterdir():
        each.unlink()
    for name, text in (
        ("a", "at,n\n"),
        ("b", "at,n\n2026-01-31T12:00:00Z,1\n"),
        ("c", ""),
        ("d", "at,n\n2026-01-31T12:00:01Z,\n"),
    ):
        (folder / f"{name}.csv").write_text(text)

    assert finish(plan_of(folder, time="at"), client).records == 2
    (found,) = schemas(client).values()
    assert (found.source, columns(found)) == ("in", [("at", "string"), ("n", "integer")])
    assert [ms for _, _, ms in rows(client)] == [1_769_860_800_000, 1_769_860_801_000]


def test_binary_files_are_refused_by_name_before_anything_is_written(folder: Path, client: SyncClient) -> None:
    """A photo and a database; also with a format that keeps any bytes, unless the file is named by itself."""
    (folder / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF\n\x00\x01")
    (folder / "small.csv").write_bytes(b"\xff\x01\x02,\xfe\n\x03,\x04\n")  # no NUL, and no UTF-8
    before = len(list(client.log(internal=True)))
    for format in (None, InputFormat.LINES):
        with pytest.raises(InputError, match="2 of 7 files cannot be imported") as refused:
            finish(plan_of(folder, format=format), client)
        assert all(f"{name} is not text" in str(refused.value) for name in ("photo.jpg", "small.csv"))
        assert f" name the others: {folder}/a.log {folder}/b.csv " in str(refused.value)
    assert len(list(client.log(internal=True))) == before
    assert not (folder.parent / "n").exists()
    with pytest.raises(InputError, match=r"photo\.jpg is not text; .*--format lines keeps any bytes"):
        finish(plan_of(folder / "photo.jpg"), client)
    assert finish(plan_of(folder / "photo.jpg", format=InputFormat.LINES), client).records == 2


def test_text_with_control_characters_is_text(tmp_path: Path) -> None:
    """Colours, form feeds and the separators of FIX in UTF-8 are no reason to refuse."""
    (tmp_path / "a.log").write_bytes("\x1b[31mred\x1b[0m é\n\x0c8=FIX\x01 9\n".encode())
    (tmp_path / "b.log").write_bytes(b"caf\xe9 \x1b[0m\n")
    assert [each.format for each in importer.listed(plan_of(tmp_path), io.BytesIO())] == ["lines", "lines"]


def test_hidden_files_links_and_sockets_in_a_folder_are_left_out_and_counted(folder: Path) -> None:
    """A link may lead outside, to a file that is taken already, or back to the folder. A named path is imported."""
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("[core] token=secret\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "f.log").write_text("f\n")
    (folder / "sub" / "loop").symlink_to("..")
    (folder / "sub" / "link.log").symlink_to("../a.log")
    (folder / ".hidden.log").write_text("h\n")
    (folder / "old.rejected").write_text("{}\n")
    (folder / "old.raftlog-import").write_text("{}\n")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(folder)  # the path of a socket is short
        listener.bind("s")
        os.chdir(here)
    told: list[str] = []
    found = inputs.expand([str(folder)], told.append)
    assert [os.path.relpath(each, folder) for each in found] == [*MIXED, "sub/f.log"]
    (sentence,) = told
    assert sorted(sentence.partition(": left out: ")[2].partition(";")[0].split("), ")) == [
        "hidden files and folders (2",
        "notes of imports (2",
        "sockets, pipes and devices (1",
        "symbolic links (2)",
    ]
    named = [str(folder / ".git"), str(folder / ".hidden.log"), str(folder / "sub/link.log")]
    assert inputs.expand(named) == [str(folder / ".git" / "config"), *named[1:]]
    (folder / "only").mkdir()
    (folder / "only" / ".x").touch()
    with pytest.raises(InputError, match=r"no file to import; left out: hidden files and folders \(1\)"):
        inputs.expand([str(folder / "only")])


def test_a_file_is_taken_once_however_it_is_named(folder: Path) -> None:
    """Twice, by a link, by a pattern that goes in circles, and by its folder."""
    (folder / "loop").symlink_to(".")
    (folder / "z.log").symlink_to("a.log")
    a = str(folder / "a.log")
    assert inputs.expand([a, f"{folder}/./a.log", str(folder / "z.log")]) == [a]
    assert inputs.expand([f"{folder}/**/*.log"]) == [a]
    assert inputs.expand([a, str(folder)]) == [str(folder / name) for name in MIXED]


def test_a_folder_that_cannot_be_read_stops_the_import(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its files would be missing without a word."""
    (folder / "secret").mkdir()
    scandir: Callable[[Any], Any] = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="secret"):
        inputs.expand([str(folder)])


def test_a_pipe_among_several_files_is_refused(folder: Path) -> None:
    """It would be empty when it is read after it was looked at."""
    os.mkfifo(folder / "pipe")
    plan = ImportPlan(str(folder / "a.log"), folder / "n", folder / "r", more=(str(folder / "pipe"),))
    with pytest.raises(InputError, match="pipe is no regular file, so it can be read only once: import it by itself"):
        importer.listed(plan, io.BytesIO())


def test_rejected_lines_of_several_formats_are_read_each_as_its_file_was(
    folder: Path, tmp_path: Path, client: SyncClient
) -> None:
    """The rejected lines of CSV have columns, those of NDJSON fields; a start of it again imports none twice."""
    for each in folder.iterdir():
        each.unlink()
    (folder / "a.csv").write_text("id,n\na,1\n,2\n")
    (folder / "b.ndjson").write_text('{"id": "b"}\n{"id": ""}\n')
    (folder / "c.csv").write_text("id,n\n,3\n")
    assert finish(plan_of(folder, key="id"), client).rejected == 3
    path = folder.parent / "r"
    corrected = [
        each | {"value": '{"id": "y"}' if "{" in each["value"] else "x" + each["value"]}
        for each in map(json.loads, path.read_text().splitlines())
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in corrected))
    again = ImportPlan(str(path), tmp_path / "rn", tmp_path / "rr", rejected_of=folder.parent / "n", batch_lines=1)
    for step in (CopyStep.ANSWERED, CopyStep.BEGUN, CopyStep.NOTED):
        with pytest.raises(Killed):
            finish(replace(again, at=killer(step, 1)), client)
    finish(again, client)
    finish(again, client)
    assert [key for key, _, _ in rows(client)] == [b"a", b"b", b"x", b"x", b"y"]  # kind by kind


def test_a_killed_import_reads_the_rest_in_the_charset_that_it_began_with(tmp_path: Path, client: SyncClient) -> None:
    """Lines that are not UTF-8 were read as Windows-1252, although the format would keep any bytes."""
    source = tmp_path / "a.log"
    source.write_bytes(b"caf\xe9 1\ncaf\xe9 2\ncaf\xe9 3\n")
    given: dict[str, Any] = {"batch_lines": 1}
    with pytest.raises(Killed):
        finish(ImportPlan(str(source), tmp_path / "n", tmp_path / "r", at=killer(CopyStep.NOTED, 2), **given), client)
    finish(ImportPlan(str(source), tmp_path / "n", tmp_path / "r", **given), client)
    assert [value for _, value, _ in rows(client)] == ["café 1".encode(), "café 2".encode(), "café 3".encode()]


def test_the_end_of_an_import_lists_its_files(folder: Path, client: SyncClient) -> None:
    """With format and size, as --dry-run does; of one file there is no list."""
    told: list[str] = []
    finish(plan_of(folder, tell=told.append), client)
    assert told[-6] == "imported 5 files:"
    assert f"  {folder}/b.csv: csv, 16 bytes" in told[-5:]
    told.clear()
    again = ImportPlan(str(folder / "a.log"), folder.parent / "n2", folder.parent / "r2", tell=told.append)
    finish(again, client)
    assert not any("imported" in each for each in told)
    listed = importer.listed(plan_of(folder), io.BytesIO())
    assert [(Path(each.file).name, each.format, each.bytes) for each in listed] == [
        ("a.log", "lines", 14),
        ("b.csv", "csv", 16),
        ("c.ndjson", "ndjson", 18),
        ("d.csv", "csv", 10),
        ("e.csv", "csv", 4),
    ]
