"""Following a file: nothing is lost or read twice when it is rotated, also if the importer is killed meanwhile."""

import io
import os
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.importer import following
from raftlog.cluster.importer.files import InputFiles
from raftlog.cluster.importer.formats.lines import InputFormat
from raftlog.cluster.importer.importer import ImportPlan, run
from raftlog.cluster.importer.session_file import CopyStep, SessionFileError, read_state
from tests.cluster.importer.jobs import Killed, killer, values


def plan_of(path: Path, **more: Any) -> ImportPlan:
    """An import that follows the file."""
    folder = path.parent.parent
    return ImportPlan(str(path), folder / "note", folder / "rejected", format=InputFormat.LINES, follow=True, **more)


def write(path: Path, *lines: str) -> None:
    """Appends lines to the file."""
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def follow(plan: ImportPlan, client: SyncClient, until: int) -> None:
    """Imports until so many records are acknowledged."""
    steps = run(plan, client, io.BytesIO())
    for progress in steps:
        if progress.records >= until:
            break
    steps.close()  # type: ignore[attr-defined]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file, in a folder of its own."""
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "app.log"


def test_a_rotated_file_is_read_to_its_end_first(path: Path, client: SyncClient) -> None:
    """Lines come before, during and after a rotation. A line without its end is not taken early."""
    write(path, "1", "2")
    steps = run(plan_of(path), client, io.BytesIO())
    assert next(steps).records == 2
    write(path, "3")
    path.rename(path.with_name("app.log.1"))
    write(path.with_name("app.log.1"), "4")
    path.write_text("5\n6")
    while (progress := next(steps)).records < 5:
        pass
    assert (progress.records, progress.files) == (5, 2)
    write(path, "")
    while progress.records < 6:
        progress = next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert values(client) == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("step", [CopyStep.READ, CopyStep.NOTED, CopyStep.ANSWERED])
@pytest.mark.parametrize("rotations", [0, 1, 2])
def test_killed_and_rotated_it_goes_on_exactly_once(
    path: Path, step: CopyStep, rotations: int, client: SyncClient
) -> None:
    """The importer is killed in its second batch. While it is dead, the file is rotated, twice even."""
    write(path, *map(str, range(6)))
    with pytest.raises(Killed):
        list(run(plan_of(path, batch_lines=3, at=killer(step, 2)), client, io.BytesIO()))
    expected = 6
    for number in range(rotations):
        write(path, str(expected))
        for old in range(number, -1, -1):
            name = path if old == 0 else path.with_name(f"app.log.{old}")
            name.rename(path.with_name(f"app.log.{old + 1}"))
        write(path, str(expected + 1))
        expected += 2
    follow(plan_of(path, batch_lines=3), client, expected)
    assert values(client) == [b"%d" % number for number in range(expected)]


@pytest.mark.parametrize("left", range(5))
def test_a_file_that_was_cut_by_any_number_of_bytes_has_ended(path: Path, left: int) -> None:
    """Also by one byte alone: what follows is another text."""
    path.write_bytes(b"1111\n")
    tail = following.Tail(path, path, lambda _: True)
    assert b"".join(tail.chunks()) == b"1111\n"
    assert not tail._has_ended()
    path.write_bytes(b"1111\n"[:left])
    assert tail._has_ended()
    tail.close()


def test_a_file_that_was_cut_begins_again(path: Path, client: SyncClient) -> None:
    """As logrotate does with copytruncate."""
    write(path, "1111", "2222")
    steps = run(plan_of(path), client, io.BytesIO())
    assert next(steps).records == 2
    path.write_text("3\n")
    while next(steps).records < 3:
        pass
    steps.close()  # type: ignore[attr-defined]
    assert values(client) == [b"1111", b"2222", b"3"]


class LookedAt:
    """The file of a tail; `look` is called before each read of it."""

    def __init__(self, file: Any, look: Callable[[], None]) -> None:
        self._file, self._look = file, look

    def read(self, size: int) -> bytes:
        self._look()
        data: bytes = self._file.read(size)
        return data

    def fileno(self) -> int:
        self._look()
        number: int = self._file.fileno()
        return number

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("apart", range(3))
@pytest.mark.parametrize("first", range(1, 10))
def test_a_line_written_before_a_rotation_is_read_wherever_the_reader_stands(
    path: Path, monkeypatch: pytest.MonkeyPatch, first: int, apart: int
) -> None:
    """The writer adds a line, renames the file and begins the next, each before some look of the reader at the files:
    also between its last read and its look at the name."""
    write(path, "1")
    inode_of, looks = following._inode, 0
    acts: list[Callable[[], object]] = [
        lambda: write(path, "2"),
        lambda: path.rename(path.with_name("app.log.1")),
        lambda: write(path, "3"),
    ]

    def look() -> None:
        nonlocal looks
        looks += 1
        while acts and looks >= first + apart * (3 - len(acts)):
            acts.pop(0)()

    def look_at(each: Path) -> int:
        look()
        return inode_of(each)

    monkeypatch.setattr(following, "_inode", look_at)
    found = b""
    for _ in range(2):
        tail = following.Tail(path, path, lambda _: looks > 30)
        monkeypatch.setattr(tail, "_file", LookedAt(tail._file, look))
        found += b"".join(tail.chunks())
        tail.close()
    assert found == b"1\n2\n3\n"


class Script(threading.Event):
    """In place of the event that ends the waiting: each wait for more is the next step of a story."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self.steps = [*steps]

    def wait(self, timeout: float | None = None) -> bool:
        """Takes a step."""
        if self.steps:
            self.steps.pop(0)()
        else:
            self.set()
        return self.is_set()


def test_the_names_of_columns_alone_decide_nothing_until_the_waiting_is_ended(path: Path) -> None:
    """The types are those of the first row, whenever it comes. Without one the import waits until it is stopped."""
    stories: list[tuple[list[Callable[[], object]], list[str]]] = [
        ([lambda: None, lambda: write(path, "7,1.5")], ["integer", "number"]),
        ([], ["string", "string"]),
    ]
    for steps, types in stories:
        path.write_text("id,n\n")
        files = InputFiles(replace(plan_of(path), format=InputFormat.CSV), None, io.BytesIO())
        files._stopped = Script(*steps)
        with closing(files):
            found = files.next()
            assert found is not None
            found.close()
            assert [column.type for column in files.reading.types] == types


def test_a_time_without_a_year_gets_that_of_the_newest_write(path: Path, client: SyncClient) -> None:
    """The file is ten days old when the import begins. A line that is written then is of now, not of a year ago."""
    now = datetime.now(UTC).replace(microsecond=0)
    old = now - timedelta(days=10)
    write(path, f"{old:%b %d %H:%M:%S} host app: m")
    os.utime(path, (old.timestamp(), old.timestamp()))
    steps = run(replace(plan_of(path), format=InputFormat.SYSLOG), client, io.BytesIO())
    assert next(steps).records == 1
    write(path, f"{now:%b %d %H:%M:%S} host app: m")
    assert next(steps).records == 2
    steps.close()  # type: ignore[attr-defined]
    times = [record.client_time_ms for record in client.log() if record.operation == "append"]
    assert times == [round(when.timestamp() * 1000) for when in (old, now)]


def test_a_rotated_file_that_is_gone_is_refused_with_the_line(path: Path, client: SyncClient) -> None:
    """Nothing is skipped in silence: its rest may not be in the log."""
    write(path, "1", "2")
    follow(plan_of(path), client, 2)
    write(path, "3")
    note = read_state(path.parent.parent / "note")
    assert note is not None
    kept = path.open()  # so that the inode is not given to the next file
    path.unlink()
    write(path, "4")
    with pytest.raises(SessionFileError, match=r"was rotated and is gone.*--again"):
        next(run(plan_of(path), client, io.BytesIO()))
    kept.close()
    assert values(client) == [b"1", b"2"]


def test_waiting_for_a_file_ends_with_the_import(tmp_path: Path) -> None:
    """A file that is not there yet is waited for, and no thread stays behind."""
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(FileNotFoundError):
        following.Tail(tmp_path / "none", tmp_path / "none", stopped.wait)
