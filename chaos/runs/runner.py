"""Runs once: a cluster behind proxies, its load, its faults by schedule, and the final judgement.

Everything that waits is here, and nothing is judged: `raftlog.chaos.runs.judgement` does that from the `Run`. Toxiproxy
and processes are driven from threads, the clients from one event loop, so the order of a history is the order of time.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from raftlog.chaos.deploy import membership
from raftlog.chaos.deploy.deployment import NODE_COMMAND, Deployment
from raftlog.chaos.deploy.processes import waited_s
from raftlog.chaos.deploy.toxiproxy import ToxiproxyError
from raftlog.chaos.nemesis import NEMESES, FaultSkipped, Field
from raftlog.chaos.nemesis.fault import Need
from raftlog.chaos.record.times import Stretch
from raftlog.chaos.runs.aftermath import Aftermath, examine
from raftlog.chaos.runs.every_node import ENDS_S, bound_s, every_node_serves
from raftlog.chaos.runs.load import make_workload
from raftlog.chaos.runs.node_events import NodeEvent, NodeEvents
from raftlog.chaos.runs.scenarios import Scenario
from raftlog.chaos.runs.schedule import PlannedFault
from raftlog.chaos.workloads.log import Appends
from raftlog.chaos.workloads.observer import Observer
from raftlog.chaos.workloads.tracer import Tracer
from raftlog.chaos.workloads.workload import Arena, Workload
from raftlog.cluster.client.aio.client import Client

SETTINGS: Final[dict[str, Any]] = {"disk.segment_bytes": 16 << 20, "log.format": "json"}
HOUSEKEEPING: Final[dict[str, Any]] = {
    "disk.segment_bytes": 1 << 17,
    "limits.snapshot_log_bytes": 1 << 17,
    "limits.snapshot_log_percent": 1,
    "limits.trailing_log_bytes": 1 << 15,
    "limits.trailing_log_percent": 1,
}
"""Under the load of all workloads: a sealed segment each second, a snapshot every two. A follower that lacks a second
of the log gets the snapshot instead."""

RETENTION_BYTES: Final = "retention.bytes"
RETENTION_AGE: Final = "retention.age_ms"
CLOCK_SKEW: Final = "limits.clock_skew_ms"
AGE_MS: Final = 20_000
CLOCK_SKEW_MS: Final = 5_000
"""Settings of runs with wrong clocks and without another retention: records go by their age."""

KEPT_SEGMENTS: Final = 12
"""Size of the log that is kept for readers, in segments: about ten seconds of all workloads."""

TELL_EVERY_S: Final = 1.0
CLOSE_S: Final = 30.0
RESTORE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run is to do."""

    scenario: Scenario
    planned: Sequence[PlannedFault]
    nodes: int
    seconds: float  # how long the load lasts
    seed: int
    command: Sequence[str] = NODE_COMMAND  # runs each node; another one plants a bug
    settings: Mapping[str, Any] = field(default_factory=dict)  # more keys of each node's settings file
    secure: bool = False  # with TLS and access control


@dataclass(slots=True)
class FaultRun:
    """What became of one planned fault."""

    planned: PlannedFault
    outcome: Literal["due", "installed", "skipped", "indeterminate"] = "due"
    target: str = ""
    proof: str = ""
    note: str = ""
    began_ns: int | None = None
    healed_ns: int | None = None


@dataclass(slots=True)
class Run:
    """The complete outcome of a run, for the parts that judge and show it."""

    plan: RunPlan
    folder: Path
    faults: list[FaultRun]
    workloads: list[Workload]
    arena: Arena
    stretches: list[Stretch] = field(default_factory=list)
    load_ns: int = 0  # how long the load lasted
    aftermath: Aftermath = field(default_factory=Aftermath)
    events: Sequence[NodeEvent] = ()  # what happened inside the nodes
    age_ms: int = 0  # all records that are younger have to stay; 0: there is no retention by age alone
    losses: dict[str, list[float]] = field(default_factory=dict)  # seconds to the next write, where it was measured


Teller = Callable[[str], None]
"""Shows how a run is going."""
Drive = Callable[[Run, Deployment, Observer, Teller], Awaitable[None]]


async def execute(
    plan: RunPlan,
    folder: Path,
    ports: Callable[[int], list[int]],
    tell: Teller,
    *,
    drive: Drive | None = None,
    arena: Arena | None = None,
) -> Run:
    """Carries a run out.

    `drive` replaces the load and the faults by the clock, in an `arena` made for it.

    Raises errors that prevent the run: no Toxiproxy, a taken port, a node that does not start. Later failures of the
    cluster are recorded in the `Run`. Leaves no process behind.
    """
    needs = {need for each in plan.planned for need in NEMESES[each.nemesis].needs}
    given = _settings(plan.settings, needs)
    deployment = Deployment(
        folder / "nodes",
        ports,
        nodes=plan.nodes,
        spares=int("spare" in needs),
        has_shim="shim" in needs,
        settings=given,
        command=plan.command,
        secure=plan.secure,
    )
    with deployment:
        tell("starting")
        await asyncio.to_thread(deployment.start)
        arena = arena or Arena(seed=plan.seed, pace=plan.scenario.pace)
        arena.urls = deployment.dial
        urls = {node: deployment.cluster.url(node) for node in deployment.cluster.nodes}
        tracer = Tracer(urls)
        workloads = [make_workload(name, arena, tracer, deployment) for name in plan.scenario.workloads]
        run = Run(plan, folder, [FaultRun(each) for each in plan.planned], workloads, arena)
        run.age_ms = kept_ms(given)
        observer = Observer(arena, urls)
        events = NodeEvents(arena, {node: deployment.cluster.log_file(node) for node in urls})
        try:
            for each in workloads:
                await each.prepare()
            arena.began_ns = time.monotonic_ns()
            watching = [asyncio.create_task(each.run()) for each in (observer, tracer, events)]
            try:
                await (drive or load)(run, deployment, observer, tell)
                tell(progress_of(run, "healing", observer))
                await asyncio.to_thread(_restore, deployment, run)
                last = await _every_node_serves(run, deployment, bound_s(given))
                for each in workloads:
                    await each.finish(last)
            finally:
                for task in watching:
                    task.cancel()
                ended = await asyncio.gather(*watching, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error
            run.stretches, run.events = observer.stretches, events.seen
        finally:
            await asyncio.wait_for(arena.close(), CLOSE_S)
            await tracer.direct.close()
        tell(progress_of(run, "reading all logs", observer))
        found = await asyncio.to_thread(examine, deployment, tracer)
        found.problems[:0] = run.aftermath.problems
        run.aftermath = found
        return run


def _settings(asked: Mapping[str, Any], needs: set[Need]) -> dict[str, Any]:
    """The settings of every node: with a short log, small segments and many snapshots, if nemeses need it."""
    settings = {**SETTINGS, **(HOUSEKEEPING if needs & {"housekeeping", "ages"} else {}), **asked}
    if "housekeeping" in needs:
        settings.setdefault(RETENTION_BYTES, KEPT_SEGMENTS * settings["disk.segment_bytes"])
    elif "ages" in needs:
        settings = {CLOCK_SKEW: CLOCK_SKEW_MS, RETENTION_AGE: AGE_MS, **settings}
    return settings


def kept_ms(settings: Mapping[str, Any]) -> int:
    """The age below which no record may go, by these settings; 0: they keep none by age alone.

    A stamped time differs from a right clock by the allowed skew at most, and so does the time of the trim.
    """
    if settings.get(RETENTION_BYTES) or not settings.get(RETENTION_AGE):
        return 0
    return max(0, int(settings[RETENTION_AGE]) - 2 * int(settings.get(CLOCK_SKEW, CLOCK_SKEW_MS)))


async def load(run: Run, deployment: Deployment, observer: Observer, tell: Teller) -> None:
    """Load and faults side by side, for as long as the run is to last."""
    locks = {lane: asyncio.Lock() for lane in ("process", *(each.planned.lane for each in run.faults))}
    async with asyncio.TaskGroup() as group:
        for each in run.workloads:
            group.create_task(each.run())
        faults = [group.create_task(_fault(run, fault, deployment, locks)) for fault in run.faults]
        end = run.arena.began_ns + run.plan.seconds * 1e9
        while (now_ns := time.monotonic_ns()) < end or not all(task.done() for task in faults):
            tell(progress_of(run, "running", observer))
            await asyncio.sleep(min(TELL_EVERY_S, max(0.01, (end - now_ns) / 1e9)))
        run.load_ns = run.arena.now_ns()
        run.arena.stopping.set()


async def _fault(run: Run, fault: FaultRun, deployment: Deployment, locks: Mapping[str, asyncio.Lock]) -> None:
    planned, arena, nemesis = fault.planned, run.arena, NEMESES[fault.planned.nemesis]
    await asyncio.sleep(max(0.0, planned.at_s - arena.now_ns() / 1e9))
    async with locks[planned.lane]:
        if arena.now_ns() / 1e9 + planned.lasts_s > run.plan.seconds:
            fault.outcome, fault.note = "skipped", "those before it took so long that the run would be over"
            return
        here = Field(deployment, planned.number, random.Random(planned.draw))
        if (left := len(here.nodes)) < nemesis.nodes_min:  # members were removed meanwhile
            fault.outcome, fault.note = "skipped", f"it needs {nemesis.nodes_min} nodes, and the cluster has {left}"
            return
        fault.began_ns = arena.now_ns()
        try:
            async with locks["process"] if nemesis.needs_others_up else nullcontext():
                injected = await asyncio.to_thread(nemesis.inject, here)
        except FaultSkipped as why:
            fault.outcome, fault.note = "skipped", str(why)
            await heal_fault(fault, here.forget)
        except Exception as error:  # any error: half of the fault may be there
            fault.outcome, fault.note = "indeterminate", _said(error)
            await heal_fault(fault, here.forget)
        else:
            fault.outcome, fault.target, fault.proof = "installed", injected.target, injected.proof
            await asyncio.sleep(planned.lasts_s)
            await heal_fault(fault, injected.heal)
        fault.healed_ns = arena.now_ns()
        run.aftermath.problems += here.problems
        if fault.outcome == "indeterminate" and planned.lane == "process":
            await heal_fault(fault, lambda: _whole(deployment, is_heavy=nemesis.is_heavy))


async def heal_fault(fault: FaultRun, heal: Callable[[], str | None]) -> None:
    """Ends a fault; what goes wrong makes it indeterminate."""
    try:
        fault.note = "; ".join(part for part in (fault.note, await asyncio.to_thread(heal)) if part)
    except Exception as error:  # the end of the run removes the remaining parts
        fault.outcome = "indeterminate"
        fault.note = "; ".join(part for part in (fault.note, f"not healed: {_said(error)}") if part)


def _whole(deployment: Deployment, *, is_heavy: bool) -> None:
    """After half a fault: every node runs whose disk may be trusted, and the members are those of the beginning."""
    deployment.cluster.start(node for node in deployment.cluster.nodes if node not in deployment.disks.lost)
    if is_heavy:
        membership.settle(deployment)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _restore(deployment: Deployment, run: Run) -> None:
    """Nothing cut, all nodes up and ready; a node that does not come back is a finding, not an error."""
    try:
        deployment.heal()
        if deployment.shim is not None:
            deployment.shim.heal()
        for node in deployment.cluster.nodes:
            deployment.prepare(node)
        _whole(deployment, is_heavy=any(NEMESES[each.planned.nemesis].is_heavy for each in run.faults))
        deployment.cluster.restore(RESTORE_S)
    except ToxiproxyError:
        raise  # of the harness itself: there is no verdict
    except Exception as error:
        run.aftermath.problems.append(f"after the last fault the cluster did not come back: {error}")


async def _every_node_serves(run: Run, deployment: Deployment, within_s: float) -> int:
    """Asks all nodes at the same time. Returns the index of the last record that any client wrote."""
    cluster = deployment.cluster
    appends = next((each for each in run.workloads if isinstance(each, Appends)), None)
    async with AsyncExitStack() as stack:
        clients = {
            node: await stack.enter_async_context(Client(deployment.url(node), bound=True, deadline_s=ENDS_S))
            for node in cluster.nodes
        }
        pids = [os.getpid(), *filter(None, map(cluster.pid, cluster.nodes))]
        last, problems = await every_node_serves(clients, appends, within_s, lambda: waited_s(pids))
    run.aftermath.problems += problems
    return last


def progress_of(run: Run, phase: str, observer: Observer) -> str:
    """How it is going."""
    active = ", ".join(
        each.planned.nemesis for each in run.faults if each.outcome == "installed" and not each.healed_ns
    )
    operations = sum(len(each.recorder.history) for each in run.workloads) // 2
    begun = sum(each.began_ns is not None for each in run.faults)
    leader = "no leader" if observer.leader is None else "leader {} of term {}".format(*observer.leader)
    return (
        f"{phase} {run.arena.now_ns() / 1e9:.0f} s: {operations:,} operations, {begun} of {len(run.faults)} faults, "
        f"{leader}{active and f'; now {active}'}"
    )
