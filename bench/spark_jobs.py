"""The jobs that the Spark bench times, over any DataFrame: alone a script, for a Spark of another version beside ours.

    python bench/spark_jobs.py kafka '{"servers": …, "topic": …, "heap": …, …}'

runs them over a Kafka topic, one for each line with a job's name on its input, and answers each with a line of JSON. It
needs nothing but pyspark, so that it runs in the rival's own environment.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_UP = 2
"""Rounds that are run and not counted, unless told otherwise: the JVM compiles what is hot."""


def no_op(frame: DataFrame) -> None:
    """Every row of every column is made, and thrown away."""
    frame.write.format("noop").mode("overwrite").save()


def hashed(frame: DataFrame) -> None:
    """Every byte of every column is looked at."""
    from pyspark.sql import functions as F

    frame.agg(F.bit_xor(F.xxhash64(*frame.columns))).collect()


def parquet_into(folder: Path) -> Callable[[DataFrame], None]:
    """Every row is written."""

    def job(frame: DataFrame) -> None:
        frame.write.mode("overwrite").parquet(str(folder))

    return job


def stream_no_op(stream: DataFrame, folder: Path) -> None:
    """As no_op, as a streaming query that ends when it has read all; start and checkpoint count."""
    shutil.rmtree(folder, ignore_errors=True)
    query = (
        stream.writeStream.format("noop").trigger(availableNow=True).option("checkpointLocation", str(folder)).start()
    )  # fmt: skip
    query.awaitTermination()


def seconds(job: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def java_options(heap: str) -> str:
    """A heap of fixed size: a growing one costs a third, and not on both sides alike."""
    return f"-Xms{heap} -XX:+AlwaysPreTouch"


def _kafka(wanted: dict[str, Any]) -> dict[str, Callable[[], object]]:
    from pyspark.sql import SparkSession

    jars, heap = wanted["jars"], wanted["heap"]
    spark: SparkSession = (
        SparkSession.builder.appName("bench").master(wanted["master"])
        .config("spark.driver.extraClassPath", f"{jars}/*")
        .config("spark.driver.memory", heap)
        .config("spark.driver.extraJavaOptions", java_options(heap))
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )  # fmt: skip
    spark.sparkContext.setLogLevel("ERROR")
    options = {
        "kafka.bootstrap.servers": wanted["servers"], "subscribe": wanted["topic"], "startingOffsets": "earliest",
        "kafka.max.poll.records": "5000",
    }  # fmt: skip
    folder = Path(wanted["folder"])
    table = spark.read.format("kafka").options(**options).load()
    stream = spark.readStream.format("kafka").options(**options).load()
    return {
        "no-op": lambda: no_op(table),
        "hash": lambda: hashed(table),
        "parquet": lambda: parquet_into(folder / "parquet")(table),
        "stream no-op": lambda: stream_no_op(stream, folder / "checkpoint"),
    }


def _serve(wanted: dict[str, Any]) -> None:
    """Runs what is asked for until the input ends; what Spark prints goes elsewhere."""
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        known = _kafka(wanted)
        print(json.dumps({"jobs": list(known)}), file=answers, flush=True)
        for line in sys.stdin:
            try:
                known[line.strip()]()
                told: dict[str, str] = {}
            except Exception as error:
                told = {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"}
            print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] != ["kafka"]:
        sys.exit(__doc__)
    _serve(json.loads(sys.argv[2]))
