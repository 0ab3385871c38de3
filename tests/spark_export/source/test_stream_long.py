"""What takes a minute to see: an idle query that leaves the log alone, and the source on a Spark cluster of its own."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from raftlog import NewRecord, SyncClient
from tests.spark_export import logs
from tests.spark_export.server import Served, serving
from tests.spark_export.source.stream_chaos import Supervised, logged, processes_of, same
from tests.spark_export.source.test_stream_chaos import local_cluster
from tests.support import free_ports, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.long, pytest.mark.timeout(1200)]

IDLE_S = 60.0
EXECUTOR = "CoarseGrainedExecutorBackend"


def test_an_idle_query_leaves_the_log_alone(
    spark: "SparkSession", tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """In a minute without writes: no micro-batch, and at most five records in the log."""
    with local_cluster(tmp_path / "nodes") as cluster:
        with SyncClient(cluster.urls) as client:
            client.append_many([NewRecord(b"line %d" % i) for i in range(100)])
        query = Supervised(spark, ",".join(cluster.urls), tmp_path)
        query.progresses(2)
        before, batches = logged(tuple(cluster.urls)), query.batches
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + IDLE_S, IDLE_S + 60, what="a minute", every_s=1)
        query.tend()
        after = logged(tuple(cluster.urls))
        assert query.batches == batches
        assert not query.ended
        assert len(after) - len(before) <= 5
        query.finish()
        same(query.rows(), after)
    record_property("measured", f"{len(after) - len(before)} records and no batch in {IDLE_S:g} s")


DRIVER = """
import json, sys
from pathlib import Path
from raftlog.spark_export.runtime.job import session
master, endpoints, folder = sys.argv[1:]
spark = session(master=master, spark__executor__memory="512m", spark__executor__cores="1", spark__cores__max="2")
options = {"endpoints": endpoints, "records": "all", "minPartitions": "6"}
rows = spark.read.format("raftlog").options(**options).load()
found = rows.selectExpr("count(*)", "sum(index)", "sum(octet_length(value))").collect()[0]
limited = options | {"maxEntriesPerTrigger": "60"}
stream = spark.readStream.format("raftlog").options(**limited).load().select("index", "value")
query = (stream.writeStream.format("parquet").option("path", folder + "/rows")
         .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start())
query.awaitTermination(600)
error = query.exception()
streamed = spark.read.parquet(folder + "/rows").selectExpr("count(*)", "sum(index)", "sum(octet_length(value))")
print(json.dumps({"batch": list(found), "stream": list(streamed.collect()[0]), "error": error and str(error)}))
spark.stop()
"""


@contextmanager
def spark_cluster(java_home: Path, folder: Path, workers: int = 2) -> Iterator[str]:
    """A standalone master and its workers from the pyspark package, on loopback; its URL."""
    home = Path(pyspark.__path__[0])
    ports = free_ports(2 * workers + 2)
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    master, page = f"spark://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}/json/"
    package = "org.apache.spark.deploy"
    own = ["--host", "127.0.0.1", "--port"]
    commands = [[f"{package}.master.Master", *own, str(ports[0]), "--webui-port", str(ports[1])]]
    commands += [
        [
            f"{package}.worker.Worker",
            *own,
            str(ports[2 + 2 * number]),
            "--webui-port",
            str(ports[3 + 2 * number]),
            "--cores",
            "1",
            "--memory",
            "600m",
            "--work-dir",
            str(folder / f"worker-{number}"),
            master,
        ]
        for number in range(workers)
    ]
    with ExitStack() as stack:
        log = stack.enter_context((folder / "spark.log").open("wb"))
        for command in commands:
            process = stack.enter_context(
                subprocess.Popen([str(home / "bin" / "spark-class"), *command], stdout=log, stderr=log, env=environment)
            )
            stack.callback(process.kill)

        def are_there() -> bool:
            try:
                with urllib.request.urlopen(page, timeout=5) as answer:
                    return bool(json.load(answer)["aliveworkers"] == workers)
            except (OSError, urllib.error.URLError):
                return False

        wait_until(are_there, 240, what=f"{workers} workers", every_s=0.2)
        yield master


def test_a_query_runs_on_a_spark_cluster_whose_executors_are_killed(java_home: Path, tmp_path: Path) -> None:
    """The same source on a standalone Spark cluster with two worker processes: batch and stream give every row once,
    and the tasks read from different nodes. Amid the stream an executor is killed, twice."""
    log = logs.mixed(51, 300, records_max=3)
    rows = list(logs.naive_rows(log.entries, log.effects))
    nodes = [Served(log) for _ in range(3)]
    with ExitStack() as stack:
        urls = ",".join(stack.enter_context(serving(node)) for node in nodes)
        master = stack.enter_context(spark_cluster(java_home, tmp_path))
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, master, urls, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(driver.kill)
        killed: set[int] = set()
        for batch in (0, 2):
            done = tmp_path / "rows" / "_spark_metadata" / str(batch)
            wait_until(done.exists, 600, what=f"batch {batch}")
            running = {pid for pid, _, line in processes_of(os.getpid()) if EXECUTOR in line} - killed
            assert len(killed) + len(running) >= 2
            killed.add(min(running))
            os.kill(min(running), signal.SIGKILL)
        told_text, trouble = driver.communicate(timeout=900)
        assert driver.returncode == 0, trouble[-4000:]
    told = json.loads(told_text.splitlines()[-1])
    expected = [len(rows), sum(row["index"] for row in rows), sum(len(row["value"] or b"") for row in rows)]
    assert told == {"batch": expected, "stream": expected, "error": None}
    assert all(any("format=raw" in each for each in node.asked) for node in nodes)
