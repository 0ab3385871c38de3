"""Measures the rate of `raftlog import` for plain lines, and for CSV with times and keys: `python -m bench imports`.

The kinds and the numbers of nodes take turns in each round, with the shipped defaults. Every import writes to a fresh
cluster, and its result is checked: all records, none rejected, all with a time where there is one. Importer and nodes
share the machine. The rate is that of the whole command, with the start of its process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from raftlog.cluster.node.local_cluster import LocalCluster

GOAL_PER_S = 100_000
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


def main(
    records: Annotated[int, typer.Option(help="Records of each import.", min=1)] = 500_000,
    rounds: Annotated[int, typer.Option(help="Rounds, of which the medians are shown.", min=1)] = 3,
) -> None:
    """Print the records per second of imports, beside the goal."""
    rates: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            Path(folder, kind).with_suffix(".csv" if kind == "csv" else ".txt").write_text("".join(rows(kind, records)))
        for _ in range(rounds):
            for nodes in (1, 3):
                for kind in KINDS:
                    path = Path(folder, kind).with_suffix(".csv" if kind == "csv" else ".txt")
                    rates.setdefault((kind, nodes), []).append(measure(path, kind, records, nodes))
    console = Console()
    for (kind, nodes), found in rates.items():
        median = statistics.median(found)
        verdict = "met" if median >= GOAL_PER_S else "missed"
        console.print(
            f"{kind:6} {nodes} node{'s' * (nodes > 1):1} {median:10,.0f} records/s "
            f"(from {min(found):,.0f} to {max(found):,.0f}); goal {GOAL_PER_S:,}: {verdict}",
            soft_wrap=True,
        )
