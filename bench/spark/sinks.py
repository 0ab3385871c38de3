"""Measures how fast Spark writes into the log, beside Spark's Kafka sink: `python -m bench.spark.sinks`.

The same rows go into three nodes with the shipped defaults, exactly once and synced, and into one broker of Kafka,
which does neither. Each round writes them with both, each from a Spark of its own that runs all the time. The number of
records is checked.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.instruments.tools import MissingTool
from bench.spark import jobs
from bench.spark.kafka import Kafka
from raftlog import arrow
from raftlog.cluster.node.local_cluster import LocalCluster

MASTER, HEAP, NODES = "local[2,4]", "1g", 3
OURS, KAFKA = f"raftlog, {NODES} nodes", "Kafka, 1 node"


def ours(stack: ExitStack, folder: Path, records: int) -> Callable[[], None]:
    """A function that writes the rows into a cluster, which runs meanwhile, by the sink."""
    from raftlog.spark_export.runtime.job import session

    nodes = stack.enter_context(LocalCluster(folder / "nodes", NODES))
    nodes.restore()
    spark = session("bench", master=MASTER, java_options=jobs.java_options(HEAP), spark__driver__memory=HEAP)
    stack.callback(spark.stop)

    def write() -> None:
        before = arrow.log(nodes.urls).last
        jobs.rows_to_write(spark, records).write.format("raftlog").option("endpoints", ",".join(nodes.urls)).mode(
            "append"
        ).save()
        table = arrow.log(nodes.urls, before + 1, columns=["operation"]).table()
        if (found := table["operation"].to_pylist().count("append")) != records:
            raise RuntimeError(f"the log has {found} of {records} rows")

    return write


def main(
    records: Annotated[int, typer.Option(help="Rows of each write.", min=1)] = 200_000,
    rounds: Annotated[int, typer.Option(help="Rounds that are counted, after two that are not.", min=1)] = 5,
    kafka: Annotated[bool, typer.Option(help="Run Spark's Kafka sink beside.")] = True,
    tools: Annotated[Path, typer.Option(help="Where what Maven gives is kept.")] = Path(".tools/kafka"),
) -> None:
    """Print the rows per second of both sinks, and their ratio."""
    console = Console()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        writers = {OURS: ours(stack, folder, records)}
        if kafka:
            try:
                rival = Kafka(tools)
                rival.get()
                servers = stack.enter_context(rival.broker(folder / "kafka"))
                known = rival.jobs(servers, folder / "out", heap=HEAP, master=MASTER, records=records)
                writers[KAFKA] = stack.enter_context(known)["sink"]
            except MissingTool as error:
                console.print(f"without Kafka: {error}", soft_wrap=True)
        rates: dict[str, list[float]] = {name: [] for name in writers}
        for number in range(rounds + jobs.WARM_UP):
            for name, write in writers.items():
                seconds = jobs.seconds(partial(write))
                if number >= jobs.WARM_UP:
                    rates[name].append(records / seconds)
    for name, found in rates.items():
        line = f"{name:18} {statistics.median(found):10,.0f} rows/s (from {min(found):,.0f} to {max(found):,.0f})"
        console.print(line, soft_wrap=True)
    if KAFKA in rates:
        ratio = statistics.median(mine / theirs for mine, theirs in zip(rates[OURS], rates[KAFKA], strict=True))
        console.print(f"ratio of the rounds, median: {ratio:.2f}; {time.strftime('%Y-%m-%d')}", soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
