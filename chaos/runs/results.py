"""Records runs in docs/chaos_results.jsonl: one line each, so that runs add up over days and machines.

`raftlog chaos run --record` keeps its run, whatever the verdict: a record of only the valid runs would prove nothing.
Kills under a streaming query (tests/spark_export/source/test_stream_chaos.py) add up in the same way in
docs/spark_kills.jsonl.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
RESULTS: Final = "docs/chaos_results.jsonl"
KILLS: Final = "docs/spark_kills.jsonl"
_RECORDS: Final = (RESULTS, "docs/sim_results.jsonl", KILLS)


def commit_of(root: Path = ROOT) -> tuple[str, bool]:
    """The commit that is checked out, and whether only records differ from it. Raises NoCheckout."""
    from raftlog.chaos.sim.runs.results import checked_out  # here: it imports the simulator

    commit, changed = checked_out(root)
    return commit, all(path in _RECORDS for path in changed)


def line_of(result: Mapping[str, Any], *, commit: str, is_clean_tree: bool, now: datetime, load: float) -> str:
    """One run, from what its result.json holds, as a line of the record."""
    faults = result["faults"]
    installed: dict[str, int] = {}
    for each in faults:
        if each["outcome"] == "installed":
            installed[each["nemesis"]] = installed.get(each["nemesis"], 0) + 1
    told = {
        "command": result["command"],
        "seed": result["seed"],
        "nodes": result["nodes"],
        "seconds": result["seconds"],
        "verdict": result["verdict"],
        "why": [each.partition("\n")[0] for each in [*result["problems"], *result["missing"]][:3]],
        "operations": result["operations"],
        "planned": len(faults),
        "indeterminate": sum(each["outcome"] == "indeterminate" for each in faults),
        "installed": dict(sorted(installed.items())),
        "overlapping": result["overlapping_max"],
        "leaders": len(result["leaders"]),
        "happened": {kind: count for kind, count in result["happened"].items() if count},
    }
    return _line(told, commit=commit, is_clean_tree=is_clean_tree, now=now, load=load)


def _line(told: Mapping[str, Any], *, commit: str, is_clean_tree: bool, now: datetime, load: float) -> str:
    """The results of a run as a line, with its time and machine."""
    value = {
        "at": now.strftime("%Y-%m-%dT%H:%MZ"), **told, "load": round(load, 1), "commit": commit,
        "clean_tree": is_clean_tree,
    }  # fmt: skip
    return json.dumps(value, ensure_ascii=False) + "\n"


def keep(result: Mapping[str, Any], now: datetime, root: Path = ROOT) -> Path:
    """Appends a run to the record: the file. Raises NoCheckout, OSError."""
    commit, is_clean_tree = commit_of(root)
    line = line_of(result, commit=commit, is_clean_tree=is_clean_tree, now=now, load=os.getloadavg()[0])
    return _append(root / RESULTS, line)


def keep_kills(told: Mapping[str, Any], now: datetime, root: Path = ROOT) -> Path:
    """Appends the results of a run of kills under a streaming query to their file; returns the file.

    Raises NoCheckout, OSError.
    """
    commit, is_clean_tree = commit_of(root)
    line = _line(told, commit=commit, is_clean_tree=is_clean_tree, now=now, load=os.getloadavg()[0])
    return _append(root / KILLS, line)


def _append(path: Path, line: str) -> Path:
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
    return path
