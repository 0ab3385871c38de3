"""Runs the jobs that the Spark bench times, over any DataFrame; also alone, as a script for another version of Spark.

    python bench/spark/jobs.py kafka '{"servers": …, "topic": …, "heap": …, …}'

runs the jobs over a Kafka topic: one for each line of its input that has a job's name. It answers each with a line of
JSON. It imports only pyspark, so it runs in the rival's own environment.
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
"""Default number of rounds that run without being counted: the JVM first compiles its hot code."""


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
    )
    query.awaitTermination()


def rows_to_write(spark: SparkSession, records: int) -> DataFrame:
    """The rows that the sinks write, in two tasks: a thousand keys, and values of about 100 bytes."""
    value = "concat('value ', id, ' ', repeat('x', 85)) AS value"
    return spark.range(0, records, 1, 2).selectExpr("cast(id % 1000 AS string) AS key", value)


def seconds(job: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def java_options(heap: str) -> str:
    """A heap of fixed size: a growing one costs a third, and not on both sides alike."""
    return f"-Xms{heap} -XX:+AlwaysPreTouch"


def sink(rows: DataFrame, servers: str) -> None:
    """Every row is written to a topic of its own, as Spark's Kafka sink does by default."""
    rows.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", "sink").save()


def _kafka(wanted: dict[str, Any]) -> dict[str, Callable[[], object]]:
    from pyspark.sql import SparkSession

    jars, heap = wanted["jars"], wanted["heap"]
    spark: SparkSession = (
        SparkSession.builder.appName("bench")
        .master(wanted["master"])
        .config("spark.driver.extraClassPath", f"{jars}/*")
        .config("spark.driver.memory", heap)
        .config("spark.driver.extraJavaOptions", java_options(heap))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    options = {
        "kafka.bootstrap.servers": wanted["servers"],
        "subscribe": wanted["topic"],
        "startingOffsets": "earliest",
        "kafka.max.poll.records": "5000",
    }
    folder = Path(wanted["folder"])
    table = spark.read.format("kafka").options(**options).load()
    stream = spark.readStream.format("kafka").options(**options).load()
    return {
        "no-op": lambda: no_op(table),
        "hash": lambda: hashed(table),
        "parquet": lambda: parquet_into(folder / "parquet")(table),
        "stream no-op": lambda: stream_no_op(stream, folder / "checkpoint"),
        "sink": lambda: sink(rows_to_write(spark, wanted["records"]), wanted["servers"]),
    }


def _serve(wanted: dict[str, Any]) -> None:
    """Runs the requested jobs until the input ends; Spark's own output goes to standard error."""
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        known = _kafka(wanted)
        print(json.dumps({"jobs": list(known)}), file=answers, flush=True)
        for line in sys.stdin:
            try:
                known[line.strip()]()
                answer: dict[str, str] = {}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] != ["kafka"]:
        sys.exit(__doc__)
    _serve(json.loads(sys.argv[2]))
