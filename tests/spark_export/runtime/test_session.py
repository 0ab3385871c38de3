"""The session that all tests of this folder share is as clean after a test that failed as after one that passed."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.rules import ROOT
from tests.support import HANG_S, wait_until

pytestmark = [pytest.mark.serial, pytest.mark.spark]

INNER = """
import pytest

pytestmark = pytest.mark.spark


def start(spark):
    return spark.readStream.format("rate").load().writeStream.format("noop").start()


def test_that_fails_amid_its_queries(spark):
    start(spark), start(spark)
    assert len(spark.streams.active) == 2
    raise RuntimeError("amid its queries")


def test_that_finds_no_query(spark):
    assert spark.streams.active == []
"""


@pytest.mark.usefixtures("java_home")
def test_a_failing_test_leaves_no_query_running(tmp_path: Path) -> None:
    """A test fails while two streaming queries run; the test after it, in the same session, finds none."""
    file = tmp_path / "test_inner.py"
    file.write_text(INNER)
    plugins = ["-p", "tests.conftest", "-p", "tests.spark_export.conftest"]
    arguments = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), *plugins, str(file)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout[-3000:]
    assert "amid its queries" in done.stdout


LATE = """
def main(infile, outfile):
    infile.read()  # until the reader has closed its end
    outfile.write(b"late")
"""


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize(("module", "said"), [("raftlog.spark_export.runtime.daemon", 0), ("pyspark.daemon", 1)])
def test_a_worker_whose_reader_has_gone_prints_no_trace(
    module: str, said: int, is_early: bool, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The reader closes its socket before the worker's first word or its last one; pyspark's own daemon prints a trace
    of both."""
    (tmp_path / "pyspark_late.py").write_text(LATE)
    sockets = tmp_path_factory.mktemp("s")  # the path of a socket has at most 108 bytes
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(sockets),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    command = [sys.executable, "-m", module, "pyspark_late"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as daemon:
        assert daemon.stdin
        assert daemon.stdout
        assert daemon.stderr
        workers = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
        address = daemon.stdout.read(struct.unpack(">i", daemon.stdout.read(4))[0]).decode()
        with socket.socket(socket.AF_UNIX) as reader:
            reader.settimeout(HANG_S)
            if is_early:
                os.kill(daemon.pid, signal.SIGSTOP)
            reader.connect(address)
            if not is_early:
                reader.recv(4)
        os.kill(daemon.pid, signal.SIGCONT)
        with socket.socket(socket.AF_UNIX) as second:  # once it has a worker, the first one has had its own
            second.settimeout(HANG_S)
            second.connect(address)
            second.recv(4)
            wait_until(lambda: len(workers.read_text().split()) == 1, HANG_S, what="the end of the first worker")
            os.kill(int(workers.read_text()), signal.SIGKILL)
        daemon.stdin.close()
        assert daemon.stderr.read().count(b"BrokenPipeError") == said


WRONG = """
from raftlog.spark_export.runtime.job import session

spark = session()
try:
    spark.range(1).select("gone").collect()
except Exception as error:
    print(type(error).__name__, str(error).partition(chr(10))[0])
try:
    spark.range(1).selectExpr("1 / 0 as one").collect()
except Exception as error:
    print(type(error).__name__, str(error).partition(chr(10))[0])
spark.stop()
"""


PLANNER_GONE = re.compile(r"Traceback \(most recent call last\):\n(?:  .*\n)*(?:BrokenPipeError: .*\n)?")
"""The report, perhaps cut short, of a worker that Spark asks while it plans, and leaves as the session stops. Spark
starts these by pyspark's own daemon always: no setting names another for them."""


@pytest.mark.usefixtures("java_home")
def test_an_error_of_a_query_begins_with_one_sentence() -> None:
    """Standard error has no warning of the incubator module and no JSON trace; the exception has the sentence."""
    done = subprocess.run(
        [sys.executable, "-c", WRONG], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert PLANNER_GONE.sub("", done.stderr) == ""
    first, second = done.stdout.splitlines()
    assert first.startswith("AnalysisException [UNRESOLVED_COLUMN")
    assert second.startswith("ArithmeticException [DIVIDE_BY_ZERO]")
