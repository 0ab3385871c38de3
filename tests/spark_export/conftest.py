"""One Spark session for all tests of this folder: starting it takes longer than most of them."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog.spark_export.runtime.job import SparkMissingError, check_packages, session
from tests.spark_export.server import Served, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


FAST: dict[str, Any] = {
    "java_options": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark__sql__shuffle__partitions": "2",
    "spark__sql__adaptive__enabled": "false",
    "spark__sql__codegen__wholeStage": "false",
}
"""A session with few partitions and a JVM that starts fast."""


@pytest.fixture(scope="session")
def spark(java_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A fast session; skips (in CI: fails) without Spark."""
    try:
        check_packages()
    except SparkMissingError as error:
        pytest.skip(f"no Spark: {error}")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    started = session("raftlog tests", **FAST, spark__sql__warehouse__dir=str(tmp_path_factory.mktemp("warehouse")))
    yield started
    started.stop()


SPARK = pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.extra])
"""Both engines write the same bytes, which a test of its own shows: what else an export does, Arrow shows."""


@pytest.hookimpl(tryfirst=True)  # before tests/plugin.py makes them serial
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses the session needs Spark."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture
def url(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A node that serves what the test file's `served` says; no other cluster is known to the commands."""
    monkeypatch.delenv("RAFTLOG_ENDPOINTS", raising=False)
    with serving(served) as address:
        yield address


@pytest.fixture(autouse=True)
def no_query_goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails amid a streaming query leaves none to the tests after it, whose session is the same.

    The queries are stopped before the server that they read from: a query that looks for its server stops slowly.
    """
    if "url" in request.fixturenames:
        request.getfixturevalue("url")
    yield
    if "spark" in request.fixturenames:
        failed: list[Exception] = []
        for query in request.getfixturevalue("spark").streams.active:
            try:
                query.stop()
            except Exception as error:  # the others are stopped all the same
                failed.append(error)
        if failed:
            raise ExceptionGroup("streaming queries that do not stop", failed)


@pytest.fixture(params=[False, True], ids=["", "runs"])
def shortest_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test twice: once with entries at even distances taken run by run, however few they are."""
    if request.param:
        monkeypatch.setattr("raftlog.spark_export.columns.slab.RUN_ROWS", 1)
