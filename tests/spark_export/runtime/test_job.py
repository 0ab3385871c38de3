"""Tests that the session has its promised defaults, names missing packages, and listens on loopback only."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftlog.spark_export.runtime import job
from tests.support import HANG_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Another Python, without Spark's settings of this one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=False, env=environment
    )


def test_package_is_light_until_a_session_is_asked_for() -> None:
    """`import spark_export` and `spark_export.session` import no Spark; other names are AttributeErrors."""
    told = python(
        "import sys; from raftlog import spark_export; spark_export.session; "
        "print(hasattr(spark_export, 'nothing'), 'pyspark' in sys.modules)"
    )
    assert told.stdout == "False False\n", told.stderr


@pytest.mark.long
def test_low_latency_is_asked_for_by_name(spark: "SparkSession") -> None:
    """Without it the preset is off; with it its settings hold, and the class that it names is in this Spark."""
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    assert spark.conf.get(manager, None) is None
    try:
        job.session(low_latency=True)
        assert {name: spark.conf.get(name) for name in job.LOW_LATENCY} == job.LOW_LATENCY
        assert spark._jvm is not None
        assert spark._jvm.java.lang.Class.forName(job.LOW_LATENCY[manager]) is not None
    finally:
        for name in job.LOW_LATENCY:
            spark.conf.unset(name)


@pytest.mark.long
def test_java_that_ends_at_once_is_named(java_home: Path) -> None:
    """A runtime that does not take its options: which one, and what may be wrong, instead of a gateway's error."""
    told = python("from spark_export import session; session(java_options='-Xss1')")
    assert told.returncode == 1
    last = told.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"raftlog.spark_export.runtime.job.NoJavaError: the Java runtime in {java_home} ended before Spark ran"
    ), last


LISTENING = """
import json, os, subprocess
from pathlib import Path
from pyspark.sql.streaming import StreamingQueryListener
from spark_export import session


class Silent(StreamingQueryListener):
    def onQueryStarted(self, event): ...
    def onQueryProgress(self, event): ...
    def onQueryTerminated(self, event): ...


spark = session(spark__ui__enabled="true")
spark.streams.addListener(Silent())
spark.range(2).mapInArrow(lambda batches: batches, "id bigint").collect()
parents = {}
for stat in Path("/proc").glob("[0-9]*/stat"):
    try:
        parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        pass
family = {os.getpid()}
while more := {child for child, parent in parents.items() if parent in family} - family:
    family |= more
sockets = {}
for process in family:
    for link in Path(f"/proc/{process}/fd").glob("*"):
        try:
            sockets[os.readlink(link)] = process
        except OSError:
            pass
found = []
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            found.append([fields[1].partition(":")[0], sockets[f"socket:[{fields[9]}]"]])
print(json.dumps({"listens": found, "processes": len(family)}))
spark.stop()
"""
LOOPBACK = ("0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F")
"""127.0.0.1 and ::1 as the kernel's tables write them."""


@pytest.mark.long
def test_nothing_listens_beyond_loopback(java_home: Path) -> None:
    """The driver, its JVM with the web page on, the callback server of a listener and the Python workers: all that they
    listen on, read from the kernel's tables, is loopback's."""
    told = python(LISTENING)
    assert told.returncode == 0, told.stderr
    seen = json.loads(told.stdout.splitlines()[-1])
    assert seen["processes"] >= 3
    assert len(seen["listens"]) >= 4
    assert [address for address, _ in seen["listens"] if address not in LOOPBACK] == []
