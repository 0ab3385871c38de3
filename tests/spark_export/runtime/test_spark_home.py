"""Spark starts from a folder that leads its Python processes to the installed pyspark."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftlog.spark_export.runtime import java, spark_home

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


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_tasks_import_the_installed_pyspark(spark: "SparkSession") -> None:
    """A task's process has pyspark from where this one has it, and talks over a Unix socket."""

    def told(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        import pyspark

        for _ in batches:
            words = [pyspark.__file__, os.environ["PYTHON_UNIX_DOMAIN_ENABLED"].lower()]
            yield pa.record_batch([pa.array(words)], names=["word"])

    import pyspark

    words = [row.word for row in spark.range(1).mapInArrow(told, "word string").collect()]
    assert words == [pyspark.__file__, "true"]
