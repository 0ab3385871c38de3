"""How soon writes go on when a leader is lost: killed, which its closed links tell, or silent (paused, or cut off).

The time is from the beginning of the fault to the first write that any client is told to be done in a later term; no
answer of the old leader counts. Clients are bound, one to each node with several writes under way, so that some ask the
next leader from its first moment on; between two losses all nodes are back and writes flow.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from chaos.availability import quantile
from chaos.deployment import Deployment
from chaos.nemesis import NEMESES, Field
from chaos.observer import Observer
from chaos.runner import FaultRun, Run, Teller, heal_fault, told_of
from chaos.schedule import Planned
from cluster.client import Policy

KINDS: Final[Mapping[str, str]] = {
    "kill-leader": "killed",
    "pause-leader": "silent",
    "partition-leader": "silent",
}
GOALS_S: Final[Mapping[str, tuple[float, float]]] = {"killed": (0.150, 1.0), "silent": (0.600, 1.8)}
"""Median and 99th percentile (the issue's)."""

FLOW: Final = 30
"""Writes acknowledged between two losses."""

LOST_S: Final = 20.0
CALM_S: Final = (0.3, 0.8)
POLICY: Final = Policy(back_off_first_ms=5, back_off_max_ms=20)
"""A client that asks often: its own patience is not what is measured."""


def plan(seed: int, times: int) -> tuple[Planned, ...]:
    """That many losses of each outcome, killed and silent, in turns; silent ones are half pauses, half cuts."""
    chance = random.Random(f"{seed}/failover")
    names = [
        name for number in range(times) for name in ("kill-leader", ("pause-leader", "partition-leader")[number % 2])
    ]
    return tuple(
        Planned(
            number=number, nemesis=name, lane=NEMESES[name].lane, at_s=0.0, lasts_s=0.0, draw=chance.getrandbits(32)
        )
        for number, name in enumerate(names, start=1)
    )


async def lose_leaders(run: Run, deployment: Deployment, observer: Observer, tell: Teller) -> None:
    """Runs the load, and loses one leader after the other as planned."""
    async with asyncio.TaskGroup() as group:
        for each in run.workloads:
            group.create_task(each.run())
        for fault in run.faults:
            tell(told_of(run, "running", observer))
            await _lose(run, fault, deployment)
        run.load_ns = run.arena.now_ns()
        run.arena.stopping.set()


async def _lose(run: Run, fault: FaultRun, deployment: Deployment) -> None:
    arena = run.arena
    await asyncio.to_thread(deployment.cluster.wait_ready)
    chance = random.Random(fault.planned.draw)
    await asyncio.sleep(chance.uniform(*CALM_S))
    goal = len(arena.progress) + FLOW
    await _until(lambda: len(arena.progress) >= goal)
    term = max(told for _, told in arena.progress[-FLOW:])
    here = Field(deployment, fault.planned.number, chance)
    fault.began_ns = arena.now_ns()
    try:
        injected = await asyncio.to_thread(NEMESES[fault.planned.nemesis].inject, here)
    except Exception as error:
        fault.outcome, fault.note, fault.healed_ns = "indeterminate", str(error), arena.now_ns()
        here.forget()
        return
    fault.outcome, fault.target, fault.proof = "installed", injected.target, injected.proof
    since_ns = injected.since_ns - arena.began_ns
    fault.began_ns = since_ns
    await _until(lambda: _first_after(arena.progress, since_ns, term) is not None)
    first = _first_after(arena.progress, since_ns, term)
    if first is None:
        fault.note = f"no write in a later term within {LOST_S:g} s"
    else:
        run.losses.setdefault(fault.planned.nemesis, []).append((first - since_ns) / 1e9)
    await heal_fault(fault, injected.heal)
    fault.healed_ns = arena.now_ns()


def _first_after(progress: Sequence[tuple[int, int]], since_ns: int, term: int) -> int | None:
    """When the first write after that moment was told to be done in a later term; the list is in order of time."""
    first: int | None = None
    for at_ns, told in reversed(progress):
        if at_ns <= since_ns:
            break
        if told > term:
            first = at_ns
    return first


async def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LOST_S
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.002)


def summary(losses: Mapping[str, Sequence[float]]) -> list[dict[str, float | int | str | bool]]:
    """Per outcome, and per kind: number, median, 99th percentile, longest, in seconds; whether the goal was reached."""
    rows: list[dict[str, float | int | str | bool]] = []
    for outcome, (median_s, p99_s) in GOALS_S.items():
        took = [each for kind, of in KINDS.items() if of == outcome for each in losses.get(kind, ())]
        if took:
            row = _row(outcome, took)
            row["within_goal"] = bool(row["p50_s"] <= median_s and row["p99_s"] <= p99_s)  # type: ignore[operator]
            rows.append(row)
    return rows + [_row(kind, losses[kind]) for kind in KINDS if losses.get(kind)]


def _row(name: str, took: Sequence[float]) -> dict[str, float | int | str | bool]:
    shares = (("p50_s", 0.5), ("p90_s", 0.9), ("p99_s", 0.99), ("max_s", 1.0))
    return {"loss": name, "count": len(took), **{key: round(quantile(took, share), 4) for key, share in shares}}
