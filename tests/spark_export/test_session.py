"""The session that all tests of this folder share is as clean after a test that failed as after one that passed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy_rules import ROOT

pytestmark = [pytest.mark.serial, pytest.mark.spark]

INNER = """
import pytest

pytestmark = pytest.mark.spark


def start(spark):
    return spark.readStream.format("rate").load().writeStream.format("noop").start()


def test_first(spark):
    start(spark), start(spark)
    assert len(spark.streams.active) == 2
    raise RuntimeError("amid its queries")


def test_second(spark):
    assert spark.streams.active == []
"""


@pytest.mark.usefixtures("java_home")
def test_a_failing_test_leaves_no_query_running(tmp_path: Path) -> None:
    """A test fails while two streaming queries run; the test after it, in the same session, finds none."""
    file = tmp_path / "test_inner.py"
    file.write_text(INNER)
    plugins = ["-p", "tests.conftest", "-p", "tests.spark_export.conftest"]
    arguments = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), *plugins, str(file)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout[-3000:]
    assert "amid its queries" in done.stdout
