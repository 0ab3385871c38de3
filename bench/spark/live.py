"""Measures Spark beside a cluster under writes: how soon it sees a committed record, and the cost to writers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.instruments import machine
from bench.loads import openloop
from raftlog import NewRecord, SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 100
EVERY_S = 0.2
READER_START_S = 180.0
READER_END_S = 60.0


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from a client's acknowledgement to the end of the micro-batch in which the driver holds the rows."""

    batches: int
    p50_ms: float
    p99_ms: float


class Held(msgspec.Struct, frozen=True):
    """An open loop of writes without and with Spark reading at nice 19."""

    alone: openloop.Offered
    beside: openloop.Offered
    passes: int  # how often Spark read the whole log meanwhile
    same_leader: bool

    @property
    def share(self) -> float:
        """The rate beside Spark, of the rate alone."""
        return self.beside.per_second / self.alone.per_second


def latency(spark: SparkSession, folder: Path, seconds: float) -> Latency:
    """A stream with the low-latency preset over three nodes that get BATCH records every EVERY_S."""
    acknowledged: dict[int, float] = {}
    seen: list[tuple[int, float]] = []

    def look(frame: DataFrame, batch: int) -> None:
        rows = frame.select("index", "value").collect()
        if rows:
            seen.append((max(row["index"] for row in rows), time.time()))

    with LocalCluster(folder / "nodes") as nodes:
        nodes.restore()
        with SyncClient(nodes.urls) as client:
            client.append_many([NewRecord(b"x")])
            options = {"endpoints": ",".join(nodes.urls), "startingOffsets": "latest"}
            stream = spark.readStream.format("raftlog").options(**options).load()
            checkpoint = str(folder / "checkpoint")
            query = stream.writeStream.foreachBatch(look).option("checkpointLocation", checkpoint).start()
            try:
                until = time.monotonic() + 60
                while not seen and time.monotonic() < until:  # it runs, and is warm, once it has seen something
                    client.append(b"x" * 100)
                    time.sleep(EVERY_S)
                    _check(query)
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    answer = client.append_many([NewRecord(b"v" * 100, key=b"key-%07d" % n) for n in range(BATCH)])
                    acknowledged[answer.index] = time.time()
                    time.sleep(EVERY_S)
                last, until = max(acknowledged), time.monotonic() + 60
                while (not seen or seen[-1][0] < last) and time.monotonic() < until:
                    time.sleep(0.05)
                    _check(query)
            finally:
                query.stop()
    taken = []
    for index, at in acknowledged.items():
        visible = next((when for newest, when in seen if newest >= index), None)
        if visible is None:
            raise RuntimeError(f"index {index} was acknowledged and never seen")
        taken.append((visible - at) * 1000)
    taken.sort()
    return Latency(len(taken), round(taken[len(taken) // 2], 1), round(taken[int(len(taken) * 0.99)], 1))


def _check(query: Any) -> None:
    if (error := query.exception()) is not None:
        raise RuntimeError(f"the query ended: {str(error).splitlines()[0]}")


def held(folder: Path, seconds: float, rate: int) -> Held:
    """Writes offered at `rate` for so long, first alone, then while Spark, at nice 19, reads the log over and over."""
    with LocalCluster(folder / "nodes") as nodes:
        nodes.restore()

        def offer() -> openloop.Offered:
            url = f"{nodes.url(nodes.leader())}/v1/log"
            return asyncio.run(openloop.offer(url, rate=rate, seconds=seconds, connections=64, body=b"x" * 140))

        leader, alone = nodes.leader(), offer()
        status = nodes.status(leader)
        with _reading(nodes.urls) as passes:
            before = passes()
            beside = offer()
            read = passes() - before
        after = nodes.status(nodes.leader())
        same = nodes.leader() == leader and status is not None and after is not None and status.term == after.term
    return Held(alone, beside, read, same)


@contextmanager
def _reading(urls: list[str]) -> Iterator[Any]:
    """Spark in a process of its own, nice 19; gives a function that says how often it has read the log."""
    command = [sys.executable, "-m", "bench.spark.live", ",".join(urls)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, start_new_session=True
    )
    machine.put_last(process.pid)
    count = [0]

    def follow() -> None:
        assert process.stdout is not None
        for _ in process.stdout:
            count[0] += 1

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        until = time.monotonic() + READER_START_S
        while not count[0] and process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        if not count[0]:
            raise RuntimeError("Spark did not read the log once: is there a Java runtime, and do the nodes answer?")
        yield lambda: count[0]
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(READER_END_S)
        except subprocess.TimeoutExpired:  # in the middle of a pass, on a busy machine
            process.kill()
            process.wait()
        reader.join()


def main(urls: str) -> None:
    """Reads the log over and over, with one line for each time, until its input ends."""
    from bench.spark.jobs import hashed
    from raftlog.spark_export.runtime.job import session

    spark = session("bench reader")
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    while not ended.is_set():
        hashed(spark.read.format("raftlog").option("endpoints", urls).option("minPartitions", 2).load())
        print("read", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
