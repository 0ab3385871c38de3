"""The session that all tests of this folder share is as clean after a test that failed as after one that passed."""

import os
import re
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.rules import ROOT
from tests.support import HANG_S

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


@pytest.mark.parametrize(("module", "said"), [("raftlog.spark_export.runtime.daemon", 0), ("pyspark.daemon", 1)])
def test_a_worker_whose_reader_has_gone_prints_no_trace(
    module: str, said: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The reader closes its socket before the worker's last flush; pyspark's own daemon prints a trace of that."""
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
        length = struct.unpack(">i", daemon.stdout.read(4))[0]
        with socket.socket(socket.AF_UNIX) as reader:
            reader.settimeout(HANG_S)
            reader.connect(daemon.stdout.read(length).decode())
            worker = struct.unpack(">i", reader.recv(4))[0]
        ended = os.pidfd_open(worker)
        select.select([ended], [], [], HANG_S)
        os.close(ended)
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


PIPE_CLOSED = re.compile(
    r"Traceback \(most recent call last\):\n(?:  .*pyspark/daemon\.py.*\n(?:    .*\n)+)+"
    r"BrokenPipeError: \[Errno 32\] Broken pipe\n"
)
"""The report of a worker of PySpark whose pipe the JVM closed first, as it does while the session stops."""


@pytest.mark.usefixtures("java_home")
def test_an_error_of_a_query_begins_with_one_sentence() -> None:
    """Standard error has no warning of the incubator module and no JSON trace; the exception has the sentence."""
    done = subprocess.run(
        [sys.executable, "-c", WRONG], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert PIPE_CLOSED.sub("", done.stderr) == ""
    first, second = done.stdout.splitlines()
    assert first.startswith("AnalysisException [UNRESOLVED_COLUMN")
    assert second.startswith("ArithmeticException [DIVIDE_BY_ZERO]")
