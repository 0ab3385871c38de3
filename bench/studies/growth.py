"""Measures how cost grows with entries, keys, size of values, nodes and connections: `python -m bench growth`.

Each curve runs raftlog alone and changes one thing. The default is short; `--full` goes to 10 M entries and 20 M keys.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import track

from bench.comparison import report
from bench.contenders.raftlog import Raftlog
from bench.instruments import conditions, machine
from bench.instruments.options import named
from bench.loads import wrk

CURVES = ("entries", "keys", "values", "nodes", "connections")
SHORT = {
    "entries": (10_000, 100_000, 300_000),
    "keys": (1, 10_000, 100_000),
    "values": (16, 4_096, 1 << 18),
    "nodes": (3, 5),
    "connections": (1, 64, 1_024),
}
FULL = {
    "entries": (10_000, 100_000, 1_000_000, 10_000_000),
    "keys": (1, 100_000, 1_000_000, 10_000_000, 20_000_000),
    "values": (16, 256, 4_096, 1 << 16, 1 << 20),
    "nodes": (3, 5, 7),
    "connections": (1, 4, 16, 64, 256, 1_024),
}
FLAT_SHARE = 0.8
"""Cost is called flat if the rate at the far end is at least this much of that at the near one."""
RESTART_S = 5.0
_BATCH = 1_000
PUTS = 100
AGAIN_S = 30.0
"""Longest time in seconds to repeat a load's transaction without a leader. Its keys are its own, so a repeat does no
harm.
"""
_START_S = 600.0
"""Longest time in seconds to wait for a start: it loads the keys of the newest snapshot, and replays the others."""
_VALUE = b"x" * 256


class Point(msgspec.Struct, frozen=True):
    """One place on a curve, medians of the rounds.

    `restart_s`: from the start of all nodes until all serve. `save_s`: what the newest snapshot of a node took to save,
    beside whatever went on; of the node that took longest. None where the curve does not look at that.
    """

    x: int
    per_second: float
    p99_ms: float
    cpu_us_per_operation: float
    memory_mib: float
    bad: int
    restart_s: float | None = None
    save_s: float | None = None


class Grown(msgspec.Struct, frozen=True):
    """One run, as it is saved."""

    when: str
    conditions: conditions.Conditions
    curves: dict[str, list[Point]]


def _point(ours: Raftlog, x: int, load: wrk.Load, count: int, rounds: int, seconds: int, folder: Path) -> Point:
    before = machine.cpu_seconds(ours.pids)
    runs = [wrk.run(load, connections=count, seconds=seconds, folder=folder) for _ in range(rounds)]
    cpu = machine.cpu_seconds(ours.pids) - before
    done = max(1, sum(run.requests for run in runs))
    return Point(
        x,
        round(median(run.per_second for run in runs), 1),
        round(median(run.p99_ms for run in runs), 2),
        round(cpu / done * 1e6, 1),
        round(machine.memory_mib(ours.pids), 1),
        sum(run.bad for run in runs),
    )


def _restart(ours: Raftlog) -> float:
    """All nodes stopped and started again: seconds until all serve."""
    ours.cluster.stop()
    began = time.monotonic()
    ours.start(_START_S)
    return round(time.monotonic() - began, 2)


def _save(ours: Raftlog) -> float | None:
    """What the newest snapshot of each node took to save, in seconds: the longest. None if no node has saved one."""
    took: list[float] = []
    for node in ours.cluster.nodes:
        lines = ours.cluster.log_file(node).read_bytes().splitlines()
        saved = [msgspec.json.decode(line) for line in lines if b'"snapshot_saved"' in line]
        took += [line["seconds"] for line in saved[-1:]]
    return max(took, default=None)


def _fill_log(ours: Raftlog, records: int) -> None:
    body = msgspec.msgpack.encode([_VALUE] * _BATCH)
    ours.ask_all("POST", "/v1/log", [body] * (records // _BATCH), "application/msgpack")


def puts(first: int, end: int, value_bytes: int = 32) -> Iterator[bytes]:
    """Transactions that put keys first..end-1."""
    for start in range(first, end, PUTS):
        puts = [
            {"operation": "put", "key": f"key-{number:08d}", "value": "v" * value_bytes}
            for number in range(start, min(end, start + PUTS))
        ]
        yield msgspec.json.encode({"then": puts})


def load_keys(ours: Raftlog, first: int, end: int, console: Console) -> None:
    """Puts keys first..end-1."""
    total = -(-(end - first) // PUTS)
    bodies = track(puts(first, end), f"{end:,} keys", total, console=console)
    ours.ask_all("POST", "/v1/kv/txn", bodies, "application/json", again_s=AGAIN_S)


def curve(
    name: str, steps: tuple[int, ...], folder: Path, rounds: int, seconds: int, console: Console
) -> Iterator[Point]:
    """The points of one curve, each measured when it is reached."""
    if name == "nodes":
        for nodes in steps:
            ours = Raftlog(folder / f"nodes-{nodes}", nodes)
            try:
                ours.start()
                yield _point(ours, nodes, ours.write(_VALUE), 64, rounds, seconds, folder)
            finally:
                ours.stop()
        return
    ours = Raftlog(folder / name)
    try:
        ours.start()
        reached = 0
        for step in steps:
            load, count = ours.write(_VALUE), 64
            restart = save = None
            if name == "entries":
                reached = int(msgspec.json.decode(ours.ask("GET", "/v1/status"))["applied"])
                _fill_log(ours, max(0, step - reached))
                restart = _restart(ours)
                load = ours.write(_VALUE)
            elif name == "keys":
                load_keys(ours, reached, step, console)
                reached = step
                load = wrk.Load(f"{ours.url}/v1/kv/key-00000000", "PUT", b"v" * 32)
            elif name == "values":
                load, count = ours.write(b"x" * step), 16
            else:
                count = step
            point = _point(ours, step, load, count, rounds, seconds, folder)
            if name == "keys":
                save, restart = _save(ours), _restart(ours)
            yield msgspec.structs.replace(point, restart_s=restart, save_s=save)
    finally:
        ours.stop()


def last_verdict(path: Path) -> str:
    """What the last growth run, if there is one, says of its goals, in a few words."""
    try:
        grown = msgspec.json.decode(path.read_bytes(), type=Grown)
    except (OSError, msgspec.DecodeError):
        return ""
    return verdict(grown.curves.get("entries", []), is_quiet=grown.conditions.is_quiet)


def verdict(points: list[Point], *, is_quiet: bool) -> str:
    """Of the curve over entries: whether the rate stayed, and how long a restart took at its end."""
    if len(points) < 2:
        return ""
    if not is_quiet:
        return "growth: the machine was busy"
    first, last = points[0], points[-1]
    share = last.per_second / max(first.per_second, 1e-9)
    flat = "flat" if share >= FLAT_SHARE else "NOT flat"
    restart = "" if last.restart_s is None else f"; restart {last.restart_s:.1f} s (≤ {RESTART_S:g})"
    return f"{flat}: {share:.2f} of the rate from {first.x:,} to {last.x:,} entries{restart}"


def _or_nothing(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


def markdown(grown: Grown) -> str:
    """The curves as tables."""
    quiet = "" if grown.conditions.is_quiet else " (BUSY: the figures say little)"
    lines = ["# How cost grows", "", f"{grown.when}; machine {grown.conditions.busy_before:.0%} busy before{quiet}."]
    for name, points in grown.curves.items():
        lines += ["", f"## {name.capitalize()}", ""]
        lines += ["| " + name + " | ops/s | p99 ms | CPU µs/op | MiB | bad | restart s | save s |", "| --- " * 8 + "|"]
        lines += [
            f"| {point.x:,} | {point.per_second:,.0f} | {point.p99_ms:.2f} | {point.cpu_us_per_operation:.1f} | "
            f"{point.memory_mib:,.0f} | {point.bad} | {_or_nothing(point.restart_s)} | {_or_nothing(point.save_s)} |"
            for point in points
        ]
    return "\n".join(lines) + "\n"


def main(
    only: Annotated[str, typer.Option(help=f"curves, by commas: {', '.join(CURVES)}; all unless said")] = "",
    full: Annotated[bool, typer.Option("--full", help="to 10 M entries and 20 M keys; 40 GB of disk")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="runs of each point")] = 3,
    seconds: Annotated[int, typer.Option(min=1, help="length of one run")] = 2,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data")] = None,
    save: Annotated[Path, typer.Option(help="where the results go; .md beside it")] = Path("bench/results/growth.json"),
) -> None:
    """How the cost of a write grows with entries, keys, values, nodes, connections. About 3 minutes; --full longer."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    chosen = named("--only", only, CURVES)
    curves: dict[str, list[Point]] = {}
    with tempfile.TemporaryDirectory(prefix="raftlog-growth-", dir=data) as place:
        seen = conditions.look(Path(place), console)

        for name in chosen:
            for point in curve(name, (FULL if full else SHORT)[name], Path(place), rounds, seconds, console):
                curves.setdefault(name, []).append(point)
                console.print(
                    f"  {name} {point.x:,}: {point.per_second:,.0f} ops/s, p99 {point.p99_ms:.1f} ms, "
                    f"{point.cpu_us_per_operation:.0f} µs/op, {point.memory_mib:,.0f} MiB"
                    + ("" if point.restart_s is None else f", restart {point.restart_s:.1f} s")
                    + ("" if point.save_s is None else f", a snapshot {point.save_s:.1f} s")
                )
    grown = Grown(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), seen, curves)
    report.save_json(grown, save)
    save.with_suffix(".md").write_text(markdown(grown), encoding="utf-8")
    console.print(f"saved to {save} and {save.with_suffix('.md')}")
