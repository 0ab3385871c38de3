"""The record of runs in docs/sim_results.jsonl: one line each, so that simulated hours add up over days and machines.

Hours add up where the simulator executes the same sources: the hash over them (`sources`) says so, whatever the commit.
A run counts as clean if no seed failed and enough happened in it.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import xxhash

from raftlog.chaos.sim.runs.summary import Summary

ROOT: Final = Path(__file__).resolve().parent.parent.parent.parent
RESULTS: Final = "docs/sim_results.jsonl"

HOURS_MIN: Final = 1.0
"""A run of fewer simulated hours is not kept unless asked: the file is read by people."""

WORLD: Final = "raftlog.chaos.sim.seed.run"
"""The module that runs a seed. What it imports, and what that imports, decides what happens; the rest looks on."""

IMPORT: Final = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|.*)|import (.*))$", re.MULTILINE)
NAME: Final = re.compile(r"[\w.]+")
"""Imports as this project writes them: absolute. A parser would take half a second at each start."""


class NoCheckout(Exception):
    """There is no place to keep results: this is not a checkout of the repository."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What the record amounts to for one state of the sources."""

    sources: str
    commits: tuple[str, ...]
    runs: int
    seeds: int
    clean_hours: float
    failed_seeds: int
    newest: str


def executed_files(root: Path = ROOT, start: str = WORLD) -> list[Path]:
    """The files that decide what happens in a seed, sorted by path: all of ours that `start` leads to by imports."""
    found: dict[str, Path] = {}
    todo = [start]
    while todo:
        module = todo.pop()
        if module in found or (path := _file_of(root, module)) is None:
            continue
        found[module] = path
        todo += _imports(path)
        todo.append(module.rpartition(".")[0])  # the package's own __init__ runs first
    return sorted(found.values(), key=lambda path: path.relative_to(root).as_posix())


def _file_of(root: Path, module: str) -> Path | None:
    """Where that module is, if it is one of ours."""
    package, _, rest = module.partition(".")
    if package != "raftlog" or not rest:
        return None
    base = root.joinpath(*rest.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it; `from a import b` may be a and a.b."""
    for base, names, whole in IMPORT.findall(path.read_text(encoding="utf-8")):
        yield from (base, *(f"{base}.{name}" for name in NAME.findall(names))) if base else NAME.findall(whole)


def sources_hash(root: Path = ROOT) -> str:
    """16 hex digits over paths and contents of those files."""
    together = xxhash.xxh64()
    for path in executed_files(root):
        content = path.read_bytes()
        together.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        together.update(content)
    return together.hexdigest()


def commit_of(root: Path = ROOT) -> tuple[str, bool]:
    """The commit that is checked out, and whether nothing but the record itself differs from it. Raises NoCheckout."""
    commit, changed = checked_out(root, untracked="all")
    return commit, all(path == RESULTS for path in changed)


def checked_out(root: Path, untracked: str = "no") -> tuple[str, list[str]]:
    """The commit that is checked out, and the files that differ from it. Raises NoCheckout."""
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        changed = [
            line[3:] for line in _git(root, "status", "--porcelain", f"--untracked-files={untracked}").splitlines()
        ]
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoCheckout(f"{root} is no git checkout: there is nowhere to keep the run") from error
    return commit, changed


def _git(root: Path, *words: str) -> str:
    command = ["git", "-c", "safe.directory=*", "-C", str(root), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def line_of(summary: Summary, seeds: range, *, commit: str, is_clean_tree: bool, sources: str, now: datetime) -> str:
    """One run as a line of the record."""
    value: dict[str, Any] = {
        "at": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "seeds": f"{seeds.start}:{seeds.start + summary.seeds}",
        "seconds": summary.seconds,
        "hours": round(summary.hours, 3),
        "failed": [result.job.seed for result in summary.failures],
        "too_little": summary.too_little,
        "medians": summary.medians,
        "digest": summary.digest,
        "commit": commit,
        "clean_tree": is_clean_tree,
        "sources": sources,
        "python": platform.python_version(),
    }
    return json.dumps(value, separators=(", ", ": "))


def append(summary: Summary, seeds: range, sources: str, root: Path = ROOT) -> Path:
    """Put the run into the record; `sources` is the hash as the run began. Raises NoCheckout."""
    commit, is_clean_tree = commit_of(root)
    if sources != sources_hash(root):
        raise NoCheckout("the sources changed while the seeds ran")
    line = line_of(summary, seeds, commit=commit, is_clean_tree=is_clean_tree, sources=sources, now=datetime.now(UTC))
    path = root / RESULTS
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    return path


def read(root: Path = ROOT) -> list[dict[str, Any]]:
    """The record, oldest run first. Raises ValueError for a broken line."""
    path = root / RESULTS
    if not path.is_file():
        return []
    runs: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            runs.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return runs


def sums(runs: Iterable[dict[str, Any]]) -> list[Sums]:
    """Adds up the runs by the sources that were executed, newest first.

    A range of seeds that was run twice counts once: the second run proved nothing that the first had not.
    """
    by_sources: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        by_sources.setdefault(str(run["sources"]), []).append(run)
    told = [_sum(sources, found) for sources, found in by_sources.items()]
    return sorted(told, key=lambda each: each.newest, reverse=True)


def _sum(sources: str, runs: list[dict[str, Any]]) -> Sums:
    covered: dict[int, list[range]] = {}  # seconds -> ranges that were counted
    clean_ms = 0
    for run in runs:
        if run["failed"] or run["too_little"]:
            continue
        first, _, end = str(run["seeds"]).partition(":")
        wanted = range(int(first), int(end))
        counted = covered.setdefault(int(run["seconds"]), [])
        fresh = len(wanted) - _covered(wanted, counted)
        clean_ms += int(float(run["hours"]) * 3_600_000) * fresh // max(len(wanted), 1)
        counted.append(wanted)
    return Sums(
        sources=sources,
        commits=tuple(dict.fromkeys(str(run["commit"])[:10] for run in runs)),
        runs=len(runs),
        seeds=sum(int(str(run["seeds"]).partition(":")[2]) - int(str(run["seeds"]).partition(":")[0]) for run in runs),
        clean_hours=clean_ms / 3_600_000,
        failed_seeds=sum(len(run["failed"]) for run in runs),
        newest=max(str(run["at"]) for run in runs),
    )


def _covered(wanted: range, counted: list[range]) -> int:
    """How many of the wanted seeds lie in any of those ranges."""
    pieces = sorted(
        (max(wanted.start, each.start), min(wanted.stop, each.stop))
        for each in counted
        if each.start < wanted.stop and wanted.start < each.stop
    )
    total, at = 0, wanted.start
    for first, end in pieces:
        total += max(0, end - max(first, at))
        at = max(at, end)
    return total
