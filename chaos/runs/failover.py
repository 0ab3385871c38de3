"""Measures the time until writes go on after a leader is lost: killed, paused or cut off.

The time runs from the beginning of the fault to the first write that any client learns was done in a later term.
Answers of the old leader do not count. Clients are bound, one to each node with several writes under way. So some
clients ask the next leader from its first moment on. Between two losses all nodes are back and writes flow.

Every loss is a line of `losses.jsonl` as soon as it is measured, so that an interrupted run can continue. Losses that
the file already has are counted and not repeated.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from raftlog.chaos.deploy.deployment import START_S, Deployment
from raftlog.chaos.nemesis import NEMESES, Field
from raftlog.chaos.record.times import quantiles
from raftlog.chaos.runs.runner import FaultRun, Run, Teller, heal_fault, progress_of
from raftlog.chaos.runs.schedule import PlannedFault
from raftlog.chaos.workloads.observer import Observer
from raftlog.cluster.client.decisions import Policy

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
CALM_S: Final = (0.1, 0.5)  # several heartbeats: the loss comes at any moment between two
LOSSES: Final = "losses.jsonl"
POLICY: Final = Policy(back_off_first_ms=5, back_off_max_ms=20)
"""A client that retries often: the measured time must not depend on its own back-off."""


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One leader lost, and how long it took until the next write was acknowledged."""

    number: int
    nemesis: str
    took_s: float | None  # None: no write within LOST_S
    term: int | None  # of that write
    placing_s: float  # of that time, at most so much passed until the harness had brought the fault about
    at_s: float  # since the run began
    load: float  # of the machine, over the last minute


_decode = msgspec.json.Decoder(Loss).decode


def losses_of(folder: Path) -> list[Loss]:
    """The losses that were measured in that folder so far. Raises ValueError naming a broken line."""
    path = folder / LOSSES
    if not path.exists():
        return []
    found: list[Loss] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            found.append(_decode(line))
        except msgspec.MsgspecError as error:
            raise ValueError(f"{path}: line {number}: {error}") from error
    return found


def plan(seed: int, times: int) -> tuple[PlannedFault, ...]:
    """That many losses of each outcome, killed and silent, in turns; silent ones are half pauses, half cuts."""
    chance = random.Random(f"{seed}/failover")
    names = [
        name for number in range(times) for name in ("kill-leader", ("pause-leader", "partition-leader")[number % 2])
    ]
    return tuple(
        PlannedFault(
            number=number, nemesis=name, lane=NEMESES[name].lane, at_s=0.0, lasts_s=0.0, draw=chance.getrandbits(32)
        )
        for number, name in enumerate(names, start=1)
    )


async def lose_leaders(run: Run, deployment: Deployment, observer: Observer, tell: Teller) -> None:
    """Runs the load, and loses one leader after the other as planned, but for those that are in the folder already."""
    before = {each.number: each for each in losses_of(run.folder)}
    for each in before.values():
        _count(run, each)
    async with asyncio.TaskGroup() as group:
        for workload in run.workloads:
            group.create_task(workload.run())
        for fault in run.faults:
            if fault.planned.number in before:
                fault.outcome, fault.note = "skipped", "measured before this run went on"
                continue
            tell(progress_of(run, _so_far(run), observer))
            loss = await _lose(run, fault, deployment)
            if loss is not None:
                _count(run, loss)
                with (run.folder / LOSSES).open("ab") as file:
                    file.write(msgspec.json.encode(loss) + b"\n")
        run.load_ns = run.arena.now_ns()
        run.arena.stopping.set()


def _count(run: Run, loss: Loss) -> None:
    run.losses.setdefault(loss.nemesis, []).append(LOST_S if loss.took_s is None else loss.took_s)


def _so_far(run: Run) -> str:
    """The results so far, for the line of progress."""
    parts = [f"{sum(map(len, run.losses.values()))} of {len(run.faults)} leaders lost"]
    parts += [f"{row['loss']} p50 {1000 * float(row['p50_s']):.0f} ms" for row in summary(run.losses) if "goal" in row]
    return ", ".join(parts) + ", running"


async def _lose(run: Run, fault: FaultRun, deployment: Deployment) -> Loss | None:
    arena, planned = run.arena, fault.planned
    await asyncio.to_thread(deployment.cluster.wait_ready, timeout_s=START_S)
    chance = random.Random(planned.draw)
    await asyncio.sleep(chance.uniform(*CALM_S))
    goal = len(arena.progress) + FLOW
    await _until(lambda: len(arena.progress) >= goal)
    term = max(write_term for _, write_term in arena.progress[-FLOW:])
    here = Field(deployment, planned.number, chance)
    fault.began_ns = arena.now_ns()
    try:
        injected = await asyncio.to_thread(NEMESES[planned.nemesis].inject, here)
    except Exception as error:
        fault.outcome, fault.note, fault.healed_ns = "indeterminate", str(error), arena.now_ns()
        here.forget()
        return None
    fault.outcome, fault.target, fault.proof = "installed", injected.target, injected.proof
    placed_ns = time.monotonic_ns()
    since_ns = injected.since_ns - arena.began_ns
    fault.began_ns = since_ns
    await _until(lambda: _first_after(arena.progress, since_ns, term) is not None)
    first = _first_after(arena.progress, since_ns, term)
    took_s, later = (None, None) if first is None else (round((first[0] - since_ns) / 1e9, 6), first[1])
    if first is None:
        fault.note = f"no write in a later term within {LOST_S:g} s"
    await heal_fault(fault, injected.heal)
    fault.healed_ns = arena.now_ns()
    return Loss(
        number=planned.number,
        nemesis=planned.nemesis,
        took_s=took_s,
        term=later,
        at_s=round(since_ns / 1e9, 3),
        placing_s=round((placed_ns - injected.since_ns) / 1e9, 6),
        load=round(os.getloadavg()[0], 2),
    )


def _first_after(progress: Sequence[tuple[int, int]], since_ns: int, term: int) -> tuple[int, int] | None:
    """The time and term of the first write after that moment that was done in a later term.

    `progress` is in order of time.
    """
    first: tuple[int, int] | None = None
    for at_ns, write_term in reversed(progress):
        if at_ns <= since_ns:
            break
        if write_term > term:
            first = at_ns, write_term
    return first


async def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LOST_S
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.002)


def summary(losses: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Per outcome, and per kind: number, median, 99th percentile, longest, in seconds; whether the goal was reached."""
    rows: list[dict[str, Any]] = []
    for outcome, (median_s, p99_s) in GOALS_S.items():
        took = [each for kind, of in KINDS.items() if of == outcome for each in losses.get(kind, ())]
        if took:
            row = _row(outcome, took)
            row["goal"] = f"median {1000 * median_s:.0f} ms, p99 {1000 * p99_s:.0f} ms"
            row["within_goal"] = bool(row["p50_s"] <= median_s and row["p99_s"] <= p99_s)
            rows.append(row)
    return rows + [_row(kind, losses[kind]) for kind in KINDS if losses.get(kind)]


def _row(name: str, took: Sequence[float]) -> dict[str, Any]:
    return {"loss": name, "count": len(took)} | {f"{key}_s": value for key, value in quantiles(took, 4).items()}
