"""Measures what a command of the shell costs: processor time of `raftlog get`, of the help and of completion.

`python -m bench.studies.commands` prints a table. Each command runs in turn with `python -c pass`, so that both see the
same machine; the ratio between the two is what can be compared between machines.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from raftlog.cluster.node.local_cluster import LocalCluster

TURNS: Final = 15
RAFTLOG: Final = (
    sys.executable,
    "-c",
    "from raftlog.cluster.cli.main import main; main()",
)  # as the console script does


class Cost(msgspec.Struct, frozen=True):
    """Of one command: median seconds of processor time, and its ratio to `python -c pass` in the same turns."""

    name: str
    cpu_s: float
    times_pass: float


def completing(line: str) -> dict[str, str]:
    """The environment in which bash asks for what may follow `line`."""
    words = line.split(" ")
    return {"_RAFTLOG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}


def cpu_s(words: Sequence[str], environment: Mapping[str, str], codes: Sequence[int] = (0,)) -> float:
    """Seconds of processor time of one process. Raises RuntimeError for an exit code that is not expected."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, env={**os.environ, **environment}, check=False
    )
    if done.returncode not in codes:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(url: str, turns: int = TURNS) -> list[Cost]:
    """The commands in turns, against the cluster there, which has the key `hello`."""
    commands: dict[str, tuple[Sequence[str], dict[str, str]]] = {
        "raftlog get hello": ((*RAFTLOG, "get", "hello", "-e", url), {}),
        "raftlog status": ((*RAFTLOG, "status", "-e", url), {}),
        "raftlog --help": ((*RAFTLOG, "--help"), {}),
        "completion of `raftlog g`": (RAFTLOG, completing("raftlog g")),
        "completion of `raftlog get --`": (RAFTLOG, completing("raftlog get --")),
    }
    seen: dict[str, list[float]] = {name: [] for name in commands}
    passes: list[float] = []
    for _ in range(turns):
        passes.append(cpu_s((sys.executable, "-c", "pass"), {}))
        for name, (words, environment) in commands.items():
            seen[name].append(cpu_s(words, environment))
    base = statistics.median(passes)
    costs = [Cost("python -c pass", base, 1.0)]
    return costs + [Cost(name, statistics.median(each), statistics.median(each) / base) for name, each in seen.items()]


def main(turns: Annotated[int, typer.Option(help="How often each command runs.", min=1)] = TURNS) -> None:
    """Print what commands cost, in processor time."""
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder) / "data", 1) as cluster:
        cluster.start()
        cluster.wait_ready()
        cpu_s((*RAFTLOG, "put", "hello", "world", "-e", cluster.urls[0]), {})
        for cost in measure(cluster.urls[0], turns):
            typer.echo(f"{cost.name:<32}{cost.cpu_s * 1_000:>7.0f} ms  {cost.times_pass:>5.1f} times `python -c pass`")


if __name__ == "__main__":
    typer.run(main)
