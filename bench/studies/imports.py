"""Measures the rate of `raftlog import` beside Kafka's console producer: `python -m bench imports`.

Plain lines, and CSV with times and keys. The kinds, the numbers of nodes and Kafka take turns in each round, with the
shipped defaults. Every import writes to a fresh cluster, and its result is checked: all records, none rejected, all
with a time where there is one. Importer and nodes share the machine. The rate is that of the whole command, with the
start of its process. Kafka's producer sends the same lines to one broker without sync; it reads no columns or times.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.instruments.tools import MissingTool
from bench.spark.kafka import Kafka
from raftlog.cluster.node.local_cluster import LocalCluster

GOAL_PER_S = 100_000
OURS, KAFKA = {"1 node": 1, "3 nodes": 3}, "Kafka, 1 node"
KINDS: dict[str, tuple[str, ...]] = {"lines": (), "csv": ("--time", "at", "--key", "kind")}
_IMPORT = (sys.executable, "-m", "raftlog.cluster.cli.main", "import")


def rows(kind: str, records: int) -> Iterator[str]:
    """The lines of the input: about 75 bytes each."""
    if kind == "csv":
        yield "at,latitude,longitude,depth,magnitude,kind,place\n"
    for number in range(records):
        if kind == "lines":
            yield f"a line of some text that a service wrote, number {number}, and a bit more of it\n"
        else:
            clock = f"{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}.{number % 100:02d}"
            degrees = f"{number % 180 - 90}.{number % 9999:04d},{number % 360 - 180}.{number % 9999:04d}"
            day, depth = f"2016/01/{1 + number % 28:02d}", f"{number % 70}.5"
            yield f'{day} {clock},{degrees},{depth},1.{number % 10},ml,"{number % 50} km, X"\n'


def measure(path: Path, kind: str, records: int, nodes: int) -> float:
    """Imports the file into a fresh cluster; returns records per second. Raises RuntimeError if not all are in."""
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder) / "cluster", nodes) as cluster:
        cluster.start()
        cluster.wait_ready()
        cluster.leader()
        command = [*_IMPORT, str(path), *KINDS[kind], "-o", "json", "-e", ",".join(cluster.urls)]
        started = time.monotonic()
        done = subprocess.run(
            [*command, "--state", f"{folder}/state", "--rejects", f"{folder}/rejects"], capture_output=True, check=False
        )
        seconds = time.monotonic() - started
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
    told = json.loads(done.stdout)
    if (told["records"], told["rejected"], told["without_time"]) != (records, 0, 0):
        raise RuntimeError(f"{records} records were to be imported, not {told}")
    return records / seconds


def _path(folder: str, kind: str) -> Path:
    return Path(folder, kind).with_suffix(".csv" if kind == "csv" else ".txt")


def _kafka(tools: Path, stack: ExitStack, console: Console) -> Callable[[Path, int], float] | None:
    """A function that sends a file by Kafka's console producer, and returns lines per second; None without Kafka."""
    kafka = Kafka(tools)
    try:
        kafka.get_broker()
        servers = stack.enter_context(kafka.broker(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "data"))
    except MissingTool as error:
        console.print(f"without Kafka: {error}", soft_wrap=True)
        return None
    topics = (f"topic-{number}" for number in count())

    def send(path: Path, lines: int) -> float:
        topic = next(topics)
        seconds = kafka.console(servers, topic, path)
        if (found := kafka.count(servers, topic)) != lines:
            raise RuntimeError(f"Kafka has {found} of {lines} lines")
        return lines / seconds

    return send


def main(
    records: Annotated[int, typer.Option(help="Records of each import.", min=1)] = 500_000,
    rounds: Annotated[int, typer.Option(help="Rounds, of which the medians are shown.", min=1)] = 3,
    kafka: Annotated[bool, typer.Option(help="Run Kafka's console producer beside.")] = True,
    tools: Annotated[Path, typer.Option(help="Where what Maven gives is kept.")] = Path(".tools/kafka"),
) -> None:
    """Print the records per second of imports, beside the goal and Kafka's console producer."""
    console = Console()
    rates: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for kind in KINDS:
            _path(folder, kind).write_text("".join(rows(kind, records)))
        send = _kafka(tools, stack, console) if kafka else None
        for _ in range(rounds):
            for kind in KINDS:
                path = _path(folder, kind)
                for name, nodes in OURS.items():
                    rates.setdefault((kind, name), []).append(measure(path, kind, records, nodes))
                if send is not None:
                    rates.setdefault((kind, KAFKA), []).append(send(path, records + (kind == "csv")))
    for (kind, name), found in rates.items():
        median = statistics.median(found)
        told = f"{kind:6} {name:13} {median:10,.0f} records/s (from {min(found):,.0f} to {max(found):,.0f})"
        if name != KAFKA:
            told += f"; goal {GOAL_PER_S:,}: {'met' if median >= GOAL_PER_S else 'missed'}"
            if beside := rates.get((kind, KAFKA)):
                ratio = statistics.median(ours / theirs for ours, theirs in zip(found, beside, strict=True))
                told += f"; {ratio:.2f} times Kafka's"
        console.print(told, soft_wrap=True)
