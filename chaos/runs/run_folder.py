"""Writes the folder of a run: result.json, a history per workload, the schedule as text, the nodes' logs."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from raftlog.chaos.judge.verdicts import Verdict, as_object
from raftlog.chaos.runs.availability import quantile, standstill
from raftlog.chaos.runs.failover import summary
from raftlog.chaos.runs.judgement import Judgement, WorkloadJudgement
from raftlog.chaos.runs.runner import FaultRun, Run
from raftlog.chaos.runs.schedule import overlapping_max

RESULT: Final = "result.json"
LATEST: Final = "latest"
FORMAT: Final = 1


class BadFolder(ValueError):
    """A folder without a run in it, or with one that cannot be read; the message names the file."""


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


def history_file(folder: Path, workload: str) -> Path:
    """Where the history of a workload lies: `raftlog chaos check` judges it."""
    return folder / f"history-{workload}.jsonl"


def save(run: Run, judgement: Judgement, command: list[str]) -> dict[str, Any]:
    """Writes everything but the page; what result.json holds. The link `latest` beside the folder leads to it."""
    for each in run.workloads:
        each.recorder.history.write(history_file(run.folder, each.name))
    lines = "".join(f"{each.planned}\n" for each in run.faults)
    (run.folder / "schedule.txt").write_text(lines, encoding="utf-8")
    result = as_result(run, judgement, command)
    (run.folder / RESULT).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    point_latest(run.folder)
    return result


def point_latest(folder: Path) -> None:
    """The link `latest` beside the folder leads to it."""
    link = folder.parent / f".{LATEST}-{os.getpid()}.tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(folder.parent / LATEST)


def load(folder: Path) -> dict[str, Any]:
    """The result in that folder. Raises BadFolder."""
    path = folder / RESULT
    try:
        saved = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise BadFolder(f"{path}: {error.strerror or error}: is this the folder of a chaos run?") from error
    except msgspec.MsgspecError as error:
        raise BadFolder(f"{path}: {error}") from error
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise BadFolder(f"{path}: not a result of format {FORMAT}")
    return saved


def as_result(run: Run, judgement: Judgement, command: list[str]) -> dict[str, Any]:
    """Everything about a run but its operations, as JSON has it."""
    progress = sorted(at_ns for at_ns, _ in run.arena.progress)
    recoveries = [each.recovery_s for each in judgement.standstills.values() if each.recovery_s is not None]
    return {
        "format": FORMAT,
        "verdict": judgement.verdict.value,
        "missing": list(judgement.missing),
        "problems": list(judgement.problems),
        "scenario": run.scenario.name,
        "seed": run.seed,
        "nodes": run.nodes,
        "seconds": run.seconds,
        "load_s": round(run.load_ns / 1e9, 3),
        "command": shlex.join(command),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "operations": judgement.operations,
        "rate": round(judgement.rate, 1),
        "last_index": run.aftermath.last_index,
        "log_begins": {str(node): begin for node, begin in run.aftermath.begins.items()},
        "leaders": [{"term": term, "node": node} for term, node in judgement.leaders],
        "without_leader_s": round(judgement.without_leader_s, 3),
        "standstill_s": round(standstill(progress, 0, run.load_ns).longest_s, 3),
        "happened": dict(judgement.happened),
        "met": dict(judgement.met),
        "overlapping_max": overlapping_max(
            (each.began_ns, each.healed_ns)
            for each in run.faults
            if each.outcome == "installed" and each.began_ns is not None and each.healed_ns is not None
        ),
        "recovery_s": _quantiles(recoveries),
        "losses": {kind: [round(each, 4) for each in took] for kind, took in run.losses.items()},
        "failover": summary(run.losses),
        "workloads": [_workload(each) for each in judgement.workloads],
        "faults": [_fault(each, judgement) for each in run.faults],
        "stretches": [asdict(each) for each in run.stretches],
        "digests": {str(node): digests for node, digests in run.aftermath.digests.items()},
    }


def sentence(result: dict[str, Any]) -> str:
    """Sums a run up: the faults, the longest time without an acknowledged write, and whether one was lost."""
    times = Counter(each["nemesis"] for each in result["faults"] if each["outcome"] == "installed")
    broken = ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in times.items())
    still = result.get("standstill_s")
    pause = "" if still is None else f"; at the longest no write was acknowledged for {still:.1f} s"
    problems = [
        *result["problems"],
        *(text for each in result["workloads"] for text in [*each["log_problems"], *each["check"]["problems"]]),
    ]
    if result["verdict"] == Verdict.INVALID:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        kept = f"the cluster broke a promise: {problems[0] if problems else 'see the workloads'}{more}"
    elif any(each["verdict"] == Verdict.UNKNOWN for each in result["workloads"]):
        kept = "nothing acknowledged is known to be lost, but not every answer could be judged"
    else:
        kept = "nothing that was acknowledged was lost"
        kept += ", but too little happened for a verdict" if result["missing"] else ""
    return f"{f'broken: {broken}' if broken else 'nothing was broken'}{pause}; {kept}"


def _quantiles(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {name: round(quantile(values, share), 3) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def _workload(judged: WorkloadJudgement) -> dict[str, Any]:
    return {
        "name": judged.name,
        "verdict": judged.verdict.value,
        "log_problems": list(judged.problems),
        "counts": {f: dict(by) for f, by in judged.counts.items()},
        "settled": dict(judged.settled),
        "check": as_object(judged.report, judged.took_s),
    }


def _fault(fault: FaultRun, judgement: Judgement) -> dict[str, Any]:
    planned = fault.planned
    still = judgement.standstills.get(planned.number)
    return {
        "number": planned.number,
        "nemesis": planned.nemesis,
        "lane": planned.lane,
        "at_s": planned.at_s,
        "lasts_s": planned.lasts_s,
        "draw": planned.draw,
        "outcome": fault.outcome,
        "target": fault.target,
        "proof": fault.proof,
        "note": fault.note,
        "began_ns": fault.began_ns,
        "healed_ns": fault.healed_ns,
        "standstill_s": None if still is None else round(still.longest_s, 3),
        "recovery_s": None if still is None or still.recovery_s is None else round(still.recovery_s, 3),
    }
