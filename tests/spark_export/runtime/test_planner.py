"""Planners of streaming queries are forks, with all that a new process would have got, and end with their clients."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog.spark_export.runtime import java, planner
from tests.support import HANG_S, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOLD = """
import json, os, sys
if __name__ == "__main__":
    print(json.dumps({"word": os.environ.get("WORD"), "folder": os.getcwd(), "arguments": sys.argv[1:],
                      "was_imported": "email" in sys.modules, "pid": os.getpid()}), flush=True)
    sys.stdin.readline()
"""
"""Stands in for Spark's module: says what it got, and waits for a line."""

SERVER = """
from pathlib import Path
from raftlog.spark_export.runtime import planner
planner.MODULE, planner._SOURCE = "told", ("email",)
planner.main(Path({path!r}))
"""

DEADLINE_S = 30.0

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """In a folder of its own that is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="planner-"))
    yield folder / "socket"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def server(socket_path: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The process that forks, with the stand-in."""
    (tmp_path / "told.py").write_text(TOLD)
    with subprocess.Popen(
        [sys.executable, "-c", SERVER.format(path=str(socket_path))], stdin=subprocess.PIPE, text=True, cwd=tmp_path
    ) as started:
        wait_until(socket_path.exists, deadline_s=DEADLINE_S)
        yield started
        started.kill()


@pytest.fixture
def start(tmp_path: Path, socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts what Spark would start to plan a query."""
    monkeypatch.setattr(planner, "MODULE", "told")
    monkeypatch.setattr(planner, "_socket", lambda: str(socket_path))
    monkeypatch.setattr(java, "cache", lambda: tmp_path / "cache")
    monkeypatch.setenv(planner.SOCKET, "")
    script = planner.python()
    assert Path(script).parent.parent == tmp_path / "cache"
    assert os.environ[planner.SOCKET] == str(socket_path)
    with contextlib.ExitStack() as stack:

        def started(**environment: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [script, "-m", "told", "and more"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
                env={**os.environ, **environment},
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield started


def told(process: subprocess.Popen[str]) -> dict[str, object]:
    """What the stand-in says that it got."""
    assert process.stdout is not None
    found: dict[str, object] = json.loads(process.stdout.readline())
    return found


def is_there(process: object) -> bool:
    """Whether a process with that number runs."""
    return Path(f"/proc/{process}").exists()


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="planners are forked on Linux alone")


def test_planner_is_a_fork_with_what_a_process_would_get(
    server: subprocess.Popen[str], start: Start, tmp_path: Path
) -> None:
    """Environment, folder, arguments and standard files are the client's, also a large environment; imports were done
    before. Client and planner end together, and the next one is a new fork."""
    for word in ("this", "long" * 30_000):
        process = start(WORD=word)
        got = told(process)
        assert got["word"] == word
        assert (got["folder"], got["arguments"]) == (str(tmp_path), ["and more"])
        assert got["was_imported"]
        assert got["pid"] != process.pid
        process.communicate("\n", timeout=HANG_S)
        wait_until(lambda got=got: not is_there(got["pid"]), deadline_s=DEADLINE_S)  # type: ignore[misc]


def test_planner_ends_when_its_client_is_killed(server: subprocess.Popen[str], start: Start) -> None:
    """As the JVM ends it."""
    process = start()
    pid = told(process)["pid"]
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: not is_there(pid), deadline_s=DEADLINE_S)


@pytest.mark.parametrize("is_ended", [False, True], ids=["input", "signal"])
def test_process_that_forks_removes_its_folder_at_its_end(
    server: subprocess.Popen[str], start: Start, socket_path: Path, is_ended: bool
) -> None:
    """It ends with its input, as when the driver is gone, or by a signal. A planner under way stays."""
    process = start()
    pid = told(process)["pid"]
    assert server.stdin is not None
    if is_ended:
        server.send_signal(signal.SIGTERM)
    else:
        server.stdin.close()
    assert server.wait(30) == 0
    assert not socket_path.parent.exists()
    assert is_there(pid)
    process.communicate("\n", timeout=HANG_S)


@pytest.mark.parametrize("is_left", [False, True])
def test_without_that_process_python_runs(start: Start, tmp_path: Path, socket_path: Path, is_left: bool) -> None:
    """Where its socket is gone, or nothing answers there."""
    (tmp_path / "told.py").write_text(TOLD)
    if is_left:
        import socket

        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(socket_path))
    process = start(WORD="this")
    got = told(process)
    assert (got["word"], got["arguments"], got["was_imported"]) == ("this", ["and more"], False)
    assert got["pid"] == process.pid
    process.communicate("\n", timeout=HANG_S)


def test_without_a_place_for_the_script_python_is_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be written costs time, not the session."""
    (tmp_path / "cache").touch()
    monkeypatch.setattr(java, "cache", lambda: tmp_path / "cache")
    assert planner.python() == sys.executable


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_streaming_query_is_planned_by_a_fork(spark: "SparkSession", tmp_path: Path) -> None:
    """Of the process that the session started, of which Spark knows nothing."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader

    class Reader(DataSourceStreamReader):
        def __init__(self, told: str) -> None:
            Path(told).write_text(Path("/proc/self/cmdline").read_text())

        def initialOffset(self) -> dict[str, Any]:
            return {"next": 0}

        def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
            return start

        def read(self, partition: object) -> Iterator[tuple[int]]:
            return iter(())

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "tells"

        def schema(self) -> str:
            return "number int"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Reader(self.options["told"])

    spark.dataSource.register(Source)
    stream = spark.readStream.format("tells").option("told", str(tmp_path / "told")).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_until((tmp_path / "told").exists, deadline_s=DEADLINE_S)
    finally:
        query.stop()
    assert planner.__name__ in (tmp_path / "told").read_text().split("\0")
