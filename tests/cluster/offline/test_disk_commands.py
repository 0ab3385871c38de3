"""`raftlog disk check` and `raftlog disk dump` as commands: what they print, their exit codes, whom they let in."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from raftlog.cluster.cli.commands import build
from raftlog.cluster.files.errors import FolderLocked, FolderMissing
from raftlog.cluster.files.folder import IDENTITY, encode_identity
from raftlog.cluster.offline.check import check_folder
from raftlog.raft.wal.formats import SEGMENT_HEADER_SIZE
from tests.cluster.files.disk_folder import IDENTITY as OWN, LOG, SEGMENT_BYTES, flip, segment, start


@pytest.fixture
def run() -> Callable[..., Result]:
    """`raftlog disk …` in this process."""
    app = build()
    return lambda *arguments: CliRunner().invoke(app, ["disk", *map(str, arguments)])


def test_the_command_and_its_exit_codes(folder: Path, run: Callable[..., Result]) -> None:
    """0 intact, 1 damaged, 8 newer, and a JSON object with every finding."""
    assert run("check", folder).exit_code == 0
    assert json.loads(run("check", folder, "--json").stdout)["starts"] is True
    path = segment(folder, 1)
    flip(path, SEGMENT_HEADER_SIZE + 70)
    result = run("check", folder)
    assert result.exit_code == 1
    assert f"{LOG}/{path.name}: damaged at byte" in result.stderr
    told = json.loads(run("check", folder, "-o", "json").stdout)
    assert told["state"] == "damaged"
    assert [(f["position"], f["index"]) for f in told["findings"] if f["state"] == "damaged"] == [(80, 19)]
    flip(path, SEGMENT_HEADER_SIZE + 70)
    (folder / IDENTITY).write_bytes(encode_identity(replace(OWN, version=2)))
    assert run("check", folder).exit_code == 8


def test_a_folder_that_cannot_be_checked_is_8(folder: Path, tmp_path: Path, run: Callable[..., Result]) -> None:
    """No folder, a folder of folders (named), no data folder, and a node that runs: each in one line."""
    for path, says in (
        (tmp_path / "none", "no such folder"),
        (tmp_path, "it holds those of node-1"),
        (folder / LOG, "no data folder"),
    ):
        with pytest.raises(FolderMissing, match=says):
            check_folder(path)
        assert run("check", path).exit_code == 8
        assert run("dump", path).exit_code == 8
    assert run("check").exit_code == 2
    descriptor = os.open(folder / IDENTITY, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(FolderLocked, match="stop that node first"):
        check_folder(folder)
    assert run("check", folder).exit_code == 8
    assert run("dump", folder).exit_code == 8
    assert run("dump", folder, "--force-read").exit_code == 0
    os.close(descriptor)


def test_a_node_cannot_start_while_it_is_looked_at(folder: Path) -> None:
    """The lock is held to the end, so a check never reads what a start is writing."""
    tried: list[str] = []

    def progress(done: int, total: int) -> None:
        assert 0 < done <= total + SEGMENT_BYTES
        if not tried:
            try:
                start(folder)
            except FolderLocked as error:
                tried.append(str(error))

    check_folder(folder, progress)
    assert tried
    start(folder)


def rows(result: Result) -> Iterator[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return map(json.loads, result.stdout.splitlines())


def test_dump_prints_everything(folder: Path, run: Callable[..., Result]) -> None:
    """Entries, records, marks, segments, hard state and snapshots; ranges and limits by index."""
    entries = list(rows(run("dump", folder, "-o", "jsonl")))
    assert [entry["index"] for entry in entries] == [1, *range(3, 82, 2)]
    assert all(one["crc"] == two["previous_crc"] for one, two in pairwise(entries))
    some = list(rows(run("dump", folder, "records", "--from", "20", "--to", "24", "-o", "jsonl")))
    assert [(row["index"], row["operation"], row["result"]) for row in some] == [
        (index, "append", "applied") for index in range(20, 24)
    ]
    assert len(list(rows(run("dump", folder, "records", "--limit", "5", "-o", "jsonl")))) == 5
    assert {row["term"] for row in rows(run("dump", folder, "state", "-o", "jsonl"))} == {2}
    assert [row["first"] for row in rows(run("dump", folder, "segments", "-o", "jsonl"))] == [1, 20, 38, 56, 74]
    assert [row["first"] for row in rows(run("dump", folder, "segments", "--from", "40", "-o", "jsonl"))] == [
        38,
        56,
        74,
    ]
    assert [row["index"] for row in rows(run("dump", folder, "snapshots", "-o", "jsonl"))] == [21, 57]
    assert [row["index"] for row in rows(run("dump", folder, "marks", "-o", "jsonl"))][-1] == 81
    assert json.loads(run("dump", folder, "state", "--json").stdout)[0]["boot"] == 1
    assert run("dump", folder, "nonsense").exit_code == 2
    assert "records" in run("dump", folder, "nonsense").stderr


def test_dump_goes_on_behind_damage(folder: Path, run: Callable[..., Result]) -> None:
    """What can be read is printed, and the end says with 1 what could not."""
    flip(segment(folder, 1), SEGMENT_HEADER_SIZE + 70)
    flip(folder / "shard-0/hard_state", 40)
    result = run("dump", folder, "-o", "jsonl")
    assert result.exit_code == 1
    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == [
        *[1, *range(3, 20, 2)],
        *range(39, 82, 2),
    ]
    assert "at byte 80: data of entry 21 fails its CRC" in result.stderr
    assert run("dump", folder, "state").exit_code == 1
    (folder / IDENTITY).unlink()
    assert run("dump", folder).exit_code == 8
