"""Writes what a run of chaos left into its folder: a history per workload, the schedule as text, and the result."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raftlog.chaos.record.folder import history_file, result_of, workload_result, write_result
from raftlog.chaos.record.times import quantiles, standstill
from raftlog.chaos.runs.failover import summary
from raftlog.chaos.runs.judgement import Judgement
from raftlog.chaos.runs.runner import FaultRun, Run


def new_folder(parent: Path, scenario: str, nodes: int, seed: int) -> Path:
    """A new folder for one run. Raises OSError."""
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{scenario}-{nodes}-seed{seed}"
    folder = parent / name
    number = 1
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    folder.mkdir(parents=True)
    return folder


def save(run: Run, judgement: Judgement, command: list[str]) -> dict[str, Any]:
    """Writes everything but the page; what result.json holds."""
    for each in run.workloads:
        each.recorder.history.write(history_file(run.folder, each.name))
    lines = "".join(f"{each.planned}\n" for each in run.faults)
    (run.folder / "schedule.txt").write_text(lines, encoding="utf-8")
    progress = sorted(at_ns for at_ns, _ in run.arena.progress)
    recoveries = [each.recovery_s for each in judgement.standstills.values() if each.recovery_s is not None]
    result = result_of(
        judgement.verdict,
        shlex.join(command),
        seed=run.plan.seed,
        nodes=run.plan.nodes,
        load_ns=run.load_ns,
        faults=[_fault(each, judgement) for each in run.faults],
        stretches=run.stretches,
        workloads=[
            workload_result(each.name, each.report, each.counts, each.problems, each.settled, each.took_s)
            for each in judgement.workloads
        ],
        problems=judgement.problems,
        missing=judgement.missing,
        scenario=run.plan.scenario.name,
        seconds=run.plan.seconds,
        last_index=run.aftermath.last_index,
        log_begins=run.aftermath.begins,
        standstill_s=round(standstill(progress, 0, run.load_ns).longest_s, 3),
        happened=judgement.happened,
        met=judgement.met,
        recovery_s=quantiles(recoveries, 3) or None,
        losses={kind: [round(each, 4) for each in took] for kind, took in run.losses.items()},
        failover=summary(run.losses),
        digests=run.aftermath.digests,
    )
    return write_result(run.folder, result)


def _fault(fault: FaultRun, judgement: Judgement) -> dict[str, Any]:
    still = judgement.standstills.get(fault.planned.number)
    own = asdict(fault)
    return {
        **own.pop("planned"),
        **own,
        "standstill_s": None if still is None else round(still.longest_s, 3),
        "recovery_s": None if still is None or still.recovery_s is None else round(still.recovery_s, 3),
    }
