"""Runs the rounds: every contender once a round, so that a disturbance of the machine hits all of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console

from bench.instruments import machine
from bench.instruments.conditions import Others
from bench.instruments.figures import Figure, Run
from bench.instruments.tools import MissingTool


@dataclass(frozen=True, slots=True)
class Entrant:
    """One contender under one load: `run(connections, seconds)`, and whose processor time that costs.

    `scale`: what one request carries, in units of the axis.
    """

    name: str
    pids: Callable[[], list[int]]
    run: Callable[[int, int], Run]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Axis:
    """One load, and all contenders that run it, at these numbers of connections (or tasks, commits in flight) each."""

    load: str
    unit: str
    connections: Sequence[int]
    entrants: Sequence[Entrant]


FAILURES = (OSError, RuntimeError, MissingTool, subprocess.SubprocessError)
"""How a load fails that could not be made; anything else is a mistake of the bench's own."""
WARM_UP_S = 1
"""Every contender runs so long before the rounds, uncounted: caches, compilers (Java) and connections settle."""


def measure(
    axis: Axis, rounds: int, seconds: int, pids: Callable[[], list[int]], console: Console, failed: dict[str, str]
) -> list[Figure]:
    """Measures the axis, interleaved. A contender that fails is left out from then on, with the reason in `failed`.

    `pids`: the processes of all running contenders. Their use is subtracted, so the use by strangers remains.
    """
    figures: list[Figure] = []
    left = []
    for entrant in axis.entrants:
        try:
            entrant.run(axis.connections[0], WARM_UP_S)
        except FAILURES as error:
            _fail(entrant, axis, error, console, failed)
        else:
            left.append(entrant)
    for count in axis.connections:
        runs: dict[str, list[Run]] = {}
        cpu: dict[str, float] = {}
        memory: dict[str, float] = {}
        noise: dict[str, float] = {}
        for number in range(rounds):
            for entrant in list(left):
                others = Others(pids)
                before = machine.cpu_seconds(entrant.pids())
                try:
                    run = entrant.run(count, seconds)
                    spent = machine.cpu_seconds(entrant.pids()) - before
                except FAILURES as error:
                    _fail(entrant, axis, error, console, failed)
                    left.remove(entrant)
                    continue
                share = others.share()
                name = entrant.name
                runs.setdefault(name, []).append(run)
                cpu[name] = cpu.get(name, 0.0) + spent
                memory[name] = round(machine.memory_mib(entrant.pids()), 1)
                noise[name] = max(noise.get(name, 0.0), share)
                console.print(
                    f"  {axis.load}, c={count}, round {number + 1}/{rounds}: {name} "
                    f"{run.per_second * entrant.scale:,.0f} {axis.unit}, p99 {run.p99_ms:.1f} ms"
                    + (f", others {share:.0%}" if share > machine.BUSY_SHARE_MAX else "")
                    + (f", [red]{run.bad} bad[/]" if run.bad else "")
                )
        for entrant in left:
            name = entrant.name
            done = sum(run.requests for run in runs[name]) * entrant.scale
            each = round(cpu[name] / max(1, done) * 1e6, 2)
            figures.append(Figure(name, axis.load, count, runs[name], each, memory[name], entrant.scale, noise[name]))
    return figures


def _fail(entrant: Entrant, axis: Axis, error: Exception, console: Console, failed: dict[str, str]) -> None:
    failed[f"{entrant.name}, {axis.load}"] = " ".join(str(error).split())[:300]
    console.print(f"  {axis.load}: {entrant.name} failed and is left out: {error}", markup=False)
