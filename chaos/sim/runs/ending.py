"""Ends one `raftlog sim`, as it was asked for: prints the result, and writes the reports of what failed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

import typer
from rich.console import Console

from raftlog.chaos.record.page import PAGE
from raftlog.chaos.record.progress import Progress
from raftlog.chaos.sim.runs import report
from raftlog.chaos.sim.runs.runner import Job, Result, planted, run_job
from raftlog.chaos.sim.runs.shrink import ShrinkState, shrink
from raftlog.chaos.sim.runs.summary import Summary, medians_text, rarest, speed_text
from raftlog.chaos.sim.world.world import MACHINE

SHRINK_S: Final = 120
"""How long shrinking may take: some hundred runs of a seed."""

FAILURES_MAX: Final = 3
"""A run ends after this many failed seeds: one bug fails many, and each leaves a report."""

REPORTS: Final = Path("runs/sim")
"""The folder for reports of failed seeds, unless `--report` names another one."""


class Exit(IntEnum):
    """How the command ends."""

    OK = 0
    BROKEN = 1  # a property does not hold
    USAGE = 2
    TOO_LITTLE = 6  # nothing broke, but too little happened for that to mean anything
    INTERNAL = 8  # the simulator itself failed: nothing is known
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class SimRequest:
    """The command line, checked."""

    seeds: range
    seconds: int
    minutes: float | None
    is_replay: bool
    trace: bool
    shrink: bool
    skip: frozenset[int]
    mutant: str | None
    machine: str
    jobs: int
    reports: Path

    def job(self, seed: int) -> Job:
        return Job(seed, self.seconds, self.skip, self.mutant, self.machine)

    @property
    def is_plain(self) -> bool:
        """Whether this is the project itself under test, whole."""
        return not self.mutant and not self.skip and self.machine == MACHINE and not self.is_replay

    @property
    def failures_max(self) -> int:
        """After how many failures the run ends; one finds a planted bug."""
        return 1 if self.mutant else FAILURES_MAX


def tell(summary: Summary, wanted: SimRequest, elapsed_s: float) -> Exit:
    """The summary, and the reports of what failed."""
    code = failed(summary, wanted) if summary.failures else Exit.OK
    held = summary.seeds - len(summary.failures)
    typer.echo(
        f"{summary.seeds} seeds of {summary.seconds} s, {len(summary.failures)} failed, in {elapsed_s:.1f} s: "
        + speed_text(summary, elapsed_s)
    )
    if wanted.mutant is not None:
        if summary.failures:
            typer.echo(f"mutant {wanted.mutant}: found, after {summary.seeds_until_failure} seeds")
        else:
            typer.echo(f"mutant {wanted.mutant}: NOT found")
    if not held:
        return code
    typer.echo(f"medians per simulated minute: {medians_text(summary)}")
    if summary.states:
        never = summary.never_reached
        typer.echo(
            f"sometimes: {len(summary.states) - len(never)} of {len(summary.states)} states reached"
            + (f"; rarest, with their seeds: {rarest(summary)}" if summary.reached else "")
            + (f"; never: {', '.join(never)}" if never else "")
        )
    typer.echo(f"digest of all traces: {summary.digest}")
    if code is Exit.OK and wanted.is_plain and summary.too_little:
        typer.secho(f"too little happened: {'; '.join(summary.too_little)}", fg="red")
        return Exit.TOO_LITTLE
    return code


# -- failures ----------------------------------------------------------------------------------------------------


def failed(summary: Summary, wanted: SimRequest) -> Exit:
    """Print each failure, write its report, and shrink the first if that is wanted."""
    for nth, result in enumerate(summary.failures[: wanted.failures_max]):
        broken = result.broken
        assert broken is not None
        for line in report.short(result, broken):
            typer.secho(line, fg="red" if "BROKEN" in line else None)
        if broken.property in {"seed ends", "worker lives"}:  # running it here would hang, or end, this process
            continue
        folder, again = report.write(result.job, wanted.reports)
        typer.echo(f"  story: {folder / 'failure.txt'}\n  trace: {folder / 'trace.txt'}\n  page: {folder / PAGE}")
        if again.broken is None or (again.broken.property, again.digest) != (broken.property, result.digest):
            typer.secho("  NOT REPEATED: the second run of this seed went another way", fg="red")
            return Exit.INTERNAL
        if nth == 0 and wanted.shrink:
            _shrink(result, wanted)
        elif nth == 0 and broken.faults:
            typer.echo(f"  which faults it needs: {result.job.command} --shrink")
    is_internal = all(result.broken is not None and result.broken.is_internal for result in summary.failures)
    return Exit.INTERNAL if is_internal else Exit.BROKEN


def _shrink(result: Result, wanted: SimRequest) -> None:
    ends = time.monotonic() + SHRINK_S
    with Progress(Console(stderr=True)) as progress, planted(wanted.mutant):
        found = shrink(
            result, run_job, lambda: time.monotonic() < ends, lambda found: progress.update(_shrunk_text(found))
        )
    typer.echo(f"  shrunk to {_shrunk_text(found)}" + (", out of time" if found.is_out_of_time else ""))
    for _, text in found.faults:
        typer.echo(f"    {text}")
    typer.echo(f"  repeat: {found.best.job.command}")
    if found.best is not result:
        folder, _ = report.write(found.best.job, wanted.reports)
        typer.echo(f"  trace: {folder / 'trace.txt'}\n  page: {folder / PAGE}")


def _shrunk_text(found: ShrinkState) -> str:
    first = found.first.broken
    of = len(first.faults) if first is not None else 0
    return f"{len(found.faults)} of {of} faults, {found.best.job.seconds} s, after {found.tries} runs"
