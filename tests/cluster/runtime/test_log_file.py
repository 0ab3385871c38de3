"""The node's own log: which requests have a line, rotation by size, and a disk that the log has filled."""

import asyncio
import errno
import json
import os
import re
from pathlib import Path

import pytest
import structlog

from raftlog.cluster.http import request_log
from raftlog.cluster.http.request_log import RequestLog
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.runtime.log_file import LogSink
from tests.support import hang_s, wait_until

LINE = b'{"event":"a line of the log"}\n'


@pytest.fixture
def stderr(capfd: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """Standard error is put back after a test has taken its place."""
    return capfd


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_the_file_is_rotated_by_size_and_so_many_are_kept(
    tmp_path: Path, stderr: pytest.CaptureFixture[str], kept: int
) -> None:
    """No file is larger than the limit, the newest lines are in the file itself, and what standard error is given from
    anywhere is there, too."""
    sink, path = LogSink(), tmp_path / "node.log"
    path.write_bytes(LINE)  # of the process before
    sink.open(path, 10 * len(LINE), kept)
    for number in range(95):
        sink.write(b'{"event":"line number %05d"}\n' % number)
    os.write(2, b"a traceback\n")
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["node.log", *(f"node.log.{number}" for number in range(1, kept + 1))]
    assert all(file.stat().st_size <= 10 * len(LINE) for file in files)
    lines = b"".join(file.read_bytes() for file in reversed(files)).splitlines()
    assert lines[-2:] == [b'{"event":"line number 00094"}', b"a traceback"]
    assert [int(line[-7:-2]) for line in lines[:-1]] == list(range(95 - len(lines) + 1, 95))
    assert sink.lost == 0


def test_lines_that_a_full_disk_does_not_take_are_lost_and_counted(
    tmp_path: Path, stderr: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is raised; when there is room again the log says how many lines are missing, and no line is glued to the
    part of one that was written."""
    sink, path, write = LogSink(), tmp_path / "node.log", os.write
    sink.open(path, 1 << 20, 1)
    sink.write(LINE)
    room = 10

    def full(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "no space left on device")
        room, part = 0, data[:room]
        return write(descriptor, part)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        sink.write(LINE * 2)
        sink.write(LINE)
    assert sink.lost == 3
    sink.write(LINE)
    assert path.read_bytes() == LINE + LINE[:10] + b"\n" + (
        b'{"event":"log_lines_lost","lines":3,"level":"warning"}\n' + LINE
    )
    sink.write(LINE)
    assert path.read_bytes().endswith(LINE * 2)


def test_a_file_that_cannot_be_rotated_does_not_grow_without_end(
    tmp_path: Path, stderr: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that may not be written: at twice the limit lines are lost rather than written."""
    sink, path = LogSink(), tmp_path / "node.log"
    sink.open(path, 10 * len(LINE), 1)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(Path, "replace", refuse)
    for _ in range(50):
        sink.write(LINE)
    assert path.stat().st_size <= 20 * len(LINE)
    assert sink.lost == 30


def test_a_node_goes_on_where_its_log_fills_the_disk(tmp_path: Path) -> None:
    """Every line of the log of this node meets a full disk: it starts, serves, and its metrics count the lines."""
    with LocalCluster(tmp_path / "cluster", 1, settings={"log.file": "/dev/full", "http.access_log": True}) as cluster:
        cluster.restore()
        lost = 0.0
        for _ in range(20):
            assert cluster.ask(1, "/v1/kv/none")[0] == 404

        def is_counted() -> bool:
            nonlocal lost
            lost = float(re.findall(rb"raftlog_log_lines_lost_total ([0-9.]+)", cluster.ask(1, "/metrics")[1])[0])
            return lost >= 20

        wait_until(is_counted, what="the lost lines are counted")
        assert cluster.stop_node(1) == 0


def test_a_node_whose_log_file_cannot_be_opened_starts_and_says_so(tmp_path: Path) -> None:
    """The log goes to standard error then, which `raftlog up` keeps in a file as well."""
    settings = {"log.file": "no-such-folder/node.log"}
    with LocalCluster(tmp_path / "cluster", 1, settings=settings) as cluster:
        cluster.restore()
        assert '"event":"log_file_not_opened"' in cluster.tail(1)


def test_the_log_of_raftlog_up_is_rotated_while_the_node_runs(tmp_path: Path) -> None:
    """With every request in it, the log of a node takes no more room than its files may have."""
    settings = {"http.access_log": True, "log.file_bytes_max": 20_000, "log.files_kept": 2}
    with LocalCluster(tmp_path / "cluster", 1, settings=settings) as cluster:
        cluster.restore()

        def sizes() -> list[int]:
            cluster.ask(1, "/v1/kv/" + "k" * 2_000)
            return [file.stat().st_size for file in cluster.folder.glob("node-1.log*")]

        wait_until(lambda: len(sizes()) == 3, what="two renamed files")
        assert all(size <= 20_000 for size in sizes())


async def test_only_failed_and_slow_requests_have_a_line_by_default(
    stderr: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was answered, refused for its content or asked to wait has no line; failed and slow ones have. The
    number of lines a second is bounded: the next line counts the others.
    """
    monkeypatch.setattr(request_log, "LINES_A_SECOND", 3)
    structlog.reset_defaults()
    from raftlog.cluster.runtime import logging

    logging.configure("info", "json")
    try:
        log = RequestLog(1, 100, 1_000, has_all=False)
        log.add("PUT", "/v1/kv/a", 200, 0.9, "1", "")
        log.add("GET", "/v1/kv/a", 404, 0.1, "2", "not_found")
        log.add("GET", "/v1/log?wait=5000", 200, 5.0, "3", "", waits=True)
        log.add("PUT", "/v1/kv/slow", 200, 1.0, "4", "")
        for number in range(5, 10):
            log.add("PUT", "/v1/kv/a", 503, 0.1, str(number), "no_leader")
        monkeypatch.setattr(log, "_room_until", 0.0)
        log.add("PUT", "/v1/kv/a", 503, 0.1, "10", "no_leader")
        await asyncio.wait_for(log.close(), hang_s())
    finally:
        structlog.reset_defaults()
    lines = [json.loads(line) for line in stderr.readouterr().err.splitlines()]
    assert [line["request_id"] for line in lines] == ["4", "5", "6", "10"]
    assert sum(line.get("dropped", 0) for line in lines) == 3
