"""Spark starts from a folder that leads its Python processes to the installed pyspark, and says goodbye quietly."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from raftlog.spark_export.runtime import java, spark_home
from raftlog.spark_export.source import daemon

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of links go, outside a checkout; no SPARK_HOME is set."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(java, "_LOCK", tmp_path / "no-lock")
    return tmp_path


def test_folder_has_everything_but_the_zip(cache: Path) -> None:
    """What starts Spark and its jars are there, the zip of pyspark is not; a second start finds the same folder."""
    folder = spark_home.spark_home()
    assert folder is not None
    assert folder.parent == cache / "raftlog"
    assert (folder / "bin" / "spark-submit").exists()
    assert any((folder / "jars").glob("spark-core_*.jar"))
    assert not (folder / "python").exists()
    assert spark_home.spark_home() == folder
    assert list(folder.parent.iterdir()) == [folder]


def test_spark_home_of_the_user_stays(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SPARK_HOME that the user set stays."""
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert spark_home.spark_home() is None


def test_without_a_place_for_links_spark_finds_its_own(cache: Path) -> None:
    """A cache that cannot be written costs time, not the session, and leaves nothing behind."""
    (cache / "raftlog").touch()
    assert spark_home.spark_home() is None
    assert list(cache.iterdir()) == [cache / "raftlog"]


def test_worker_whose_jvm_is_gone_ends_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one error that means a closed JVM is an exit code; others are Spark's to report. A process that plans is made
    quiet if it runs Spark's own daemon, and nothing else is touched.
    """

    def says_goodbye(sock: object, authenticated: bool) -> int:
        raise BrokenPipeError

    def fails(sock: object, authenticated: bool) -> int:
        raise ConnectionResetError

    sock, _ = socket.socketpair()
    with sock, _:
        with pytest.raises(ConnectionResetError):
            daemon.quietly(fails)(sock, True)
        for name, is_quiet in (("pyspark.daemon", True), ("pyspark.worker", False)):
            main = ModuleType("__main__")
            main.__spec__ = ModuleSpec(name, None)
            main.__dict__["worker"] = says_goodbye
            monkeypatch.setitem(sys.modules, "__main__", main)
            daemon.hush()
            if is_quiet:
                assert main.worker(sock, True) == 1
            else:
                assert main.worker is says_goodbye


def test_objects_of_the_first_task_are_not_collected_again() -> None:
    """From the second task on only new objects are collected: cycles of a later task go, and modules cost nothing."""
    program = """
import gc, weakref
from raftlog.spark_export.source.daemon import quietly

class Knot: pass

def knotted(sock, authenticated):
    knot = Knot()
    knot.knot = knot
    seen.append(weakref.ref(knot))
    return 0

seen = []
worker = quietly(knotted)
for _ in range(2):
    worker(None, True)
    print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 1_000)
gc.collect()
print([each() for each in seen])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["True True", "True True", "[None, None]"]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_tasks_import_the_installed_pyspark(spark: "SparkSession") -> None:
    """A task's process has pyspark from where this one has it, was started by our daemon, and talks over a Unix
    socket."""

    def told(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import sys

        import pyarrow as pa
        import pyspark

        for _ in batches:
            main = sys.modules["__main__"].__spec__
            words = [
                pyspark.__file__,
                "" if main is None else main.name,
                os.environ["PYTHON_UNIX_DOMAIN_ENABLED"].lower(),
            ]
            yield pa.record_batch([pa.array(words)], names=["word"])

    import pyspark

    words = [row.word for row in spark.range(1).mapInArrow(told, "word string").collect()]
    assert words == [pyspark.__file__, "raftlog.spark_export.source.daemon", "true"]
