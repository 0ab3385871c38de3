"""Reads and writes the folder of a run, of chaos or of the simulator: result.json, and the link to the latest folder.

Its histories lie beside it, and `raftlog.chaos.record.page` makes its page of both.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.verdicts import Report, Verdict, as_object
from raftlog.chaos.record.times import Stretch, leaders_of, overlapping_max, without_leader_s

RESULT: Final = "result.json"
LATEST: Final = "latest"
FORMAT: Final = 1
KEYS: Final = "keys"
"""The one history of the simulator's clients."""

NOTHING: Final[dict[str, Any]] = {"happened": {}, "met": {}, "recovery_s": None, "failover": [], "losses": {}}
"""What a run of the simulator does not measure."""


class BadFolder(ValueError):
    """A folder without a run in it, or with one that cannot be read; the message names the file."""


def history_file(folder: Path, workload: str) -> Path:
    """Where the history of a workload lies: `raftlog chaos check` judges it."""
    return folder / ("history.jsonl" if workload == KEYS else f"history-{workload}.jsonl")


def by_outcome(operations: Iterable[Operation]) -> dict[str, Counter[str]]:
    """Function -> outcome -> number."""
    counts: dict[str, Counter[str]] = {}
    for each in operations:
        counts.setdefault(each.f, Counter())[each.outcome] += 1
    return counts


def workload_result(
    name: str,
    report: Report,
    counts: Mapping[str, Mapping[str, int]],
    problems: Sequence[str] = (),
    settled: Mapping[str, int] | None = None,
    took_s: float = 0.0,
) -> dict[str, Any]:
    """One history as a result has it. `problems` and `settled` (unknown writes) are what the log says of it."""
    return {
        "name": name,
        "verdict": (Verdict.INVALID if problems else report.verdict).value,
        "log_problems": list(problems),
        "counts": counts,
        "settled": settled or {"applied": 0, "not applied": 0},
        "check": as_object(report, took_s),
    }


def result_of(
    verdict: Verdict,
    command: str,
    *,
    seed: int,
    nodes: int,
    load_ns: int,
    faults: Sequence[Mapping[str, Any]],
    stretches: Sequence[Stretch],
    workloads: Sequence[Mapping[str, Any]],
    problems: Sequence[str],
    missing: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """Everything about a run but its operations, as JSON has it. `more` is what only one kind of run has."""
    ended = Counter[str]()
    for each in workloads:
        for by in each["counts"].values():
            ended.update(by)
    return {
        "format": FORMAT,
        "verdict": verdict.value,
        "command": command,
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "nodes": nodes,
        "load_s": round(load_ns / 1e9, 6),
        "operations": ended.total(),
        "rate": round(ended["ok"] / max(load_ns / 1e9, 1e-9), 1),
        "leaders": [{"term": term, "node": node} for term, node in leaders_of(stretches)],
        "without_leader_s": round(without_leader_s(stretches, load_ns), 3),
        "overlapping_max": overlapping_max(
            (each["began_ns"], each["healed_ns"])
            for each in faults
            if each["outcome"] == "installed" and None not in (each["began_ns"], each["healed_ns"])
        ),
        "problems": problems,
        "missing": missing,
        "faults": faults,
        "stretches": [asdict(each) for each in stretches],
        "workloads": workloads,
        **NOTHING,
        **more,
    }


def write_result(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Writes result.json, and returns what it holds. The link `latest` beside the folder leads to it."""
    data = msgspec.json.encode(result)
    (folder / RESULT).write_bytes(msgspec.json.format(data, indent=1))
    link = folder.parent / f".{LATEST}-{os.getpid()}.tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(folder.parent / LATEST)
    saved: dict[str, Any] = msgspec.json.decode(data)
    return saved


def load(folder: Path) -> dict[str, Any]:
    """The result in that folder. Raises BadFolder."""
    path = folder / RESULT
    try:
        saved = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise BadFolder(f"{path}: {error.strerror or error}: is this the folder of a run?") from error
    except msgspec.MsgspecError as error:
        raise BadFolder(f"{path}: {error}") from error
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise BadFolder(f"{path}: not a result of format {FORMAT}")
    return saved


def sentence(result: Mapping[str, Any]) -> str:
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
    elif problems or any(each["verdict"] == Verdict.UNKNOWN for each in result["workloads"]):
        kept = "nothing acknowledged is known to be lost, but not every answer could be judged"
    else:
        kept = "nothing that was acknowledged was lost"
        kept += ", but too little happened for a verdict" if result["missing"] else ""
    return f"{f'broken: {broken}' if broken else 'nothing was broken'}{pause}; {kept}"
