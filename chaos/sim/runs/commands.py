"""Defines `raftlog sim`: run seeds on all cores, replay one, and shrink one.

Exit codes are those of `raftlog chaos`: see Exit. docs/simulator.md explains the output.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from random import SystemRandom
from types import FrameType
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from raftlog.chaos.record.page import PAGE
from raftlog.chaos.record.progress import Progress
from raftlog.chaos.sim.ground.machines import load_machine
from raftlog.chaos.sim.ground.trace import Recorder
from raftlog.chaos.sim.runs import ending, report
from raftlog.chaos.sim.runs.ending import REPORTS, Exit, SimRequest
from raftlog.chaos.sim.runs.ranges import SEEDS_MAX, numbers, seed_range
from raftlog.chaos.sim.runs.runner import (
    SECONDS,
    Job,
    cores,
    may_import_from_here,
    planted,
    run_job,
    run_jobs,
)
from raftlog.chaos.sim.runs.summary import Summary, speed_text
from raftlog.chaos.sim.world.coverage import SOMETIMES
from raftlog.chaos.sim.world.world import MACHINE

SEEDS: Final = "0:100"


def register(app: typer.Typer) -> None:
    app.command("sim")(sim)


def sim(
    seeds: Annotated[
        str | None, typer.Option(metavar="A:B", help=f"The seeds, B not included; A: has no end. {SEEDS} unless given.")
    ] = None,
    seconds: Annotated[int, typer.Option(min=1, help="Simulated seconds of trouble in each world.")] = SECONDS,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Stop after so many real minutes; without --seeds, fresh seeds.")
    ] = None,
    replay: Annotated[int | None, typer.Option(min=0, metavar="SEED", help="Run this seed alone, here.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print every event; one process.")] = False,
    shrinking: Annotated[bool, typer.Option("--shrink", help="Find which faults the first failure needs.")] = False,
    skip: Annotated[str, typer.Option(metavar="N,N-N", help="Faults to leave out, by number.")] = "",
    mutant: Annotated[str | None, typer.Option(metavar="NAME", help="Plant this bug first; `list` lists them.")] = None,
    machine: Annotated[
        str, typer.Option("--state-machine", metavar="MODULE:CLASS", help="Your own state machine.")
    ] = MACHINE,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; one per core unless given.")] = None,
    reports: Annotated[Path, typer.Option("--report", metavar="DIR", help="Where failures are written.")] = REPORTS,
) -> None:
    """Run whole clusters in one process, under a seeded clock, network, disks and faults, with everything checked.

    Exit codes: 0 every property held; 1 one is broken; 2 usage; 6 too little happened; 8 the simulator failed.
    """
    if not __debug__:
        raise typer.BadParameter("asserts are part of the checks: do not run Python with -O")
    may_import_from_here()
    wanted = SimRequest(
        seeds=_seeds(seeds, minutes, replay),
        seconds=seconds,
        minutes=minutes,
        is_replay=replay is not None,
        trace=trace,
        shrink=shrinking,
        skip=_checked("--skip", numbers, skip),
        mutant=_mutant(mutant),
        machine=_checked("--state-machine", _machine, machine),
        jobs=jobs or cores(),
        reports=reports,
    )
    raise typer.Exit(_guarded(lambda: _replay(wanted) if wanted.is_replay or wanted.trace else _run(wanted)))


def _seeds(text: str | None, minutes: float | None, replay: int | None) -> range:
    if replay is not None:
        return range(replay, replay + 1)
    if text is None and minutes is not None:
        first = SystemRandom().randrange(1 << 40)
        return range(first, SEEDS_MAX)
    wanted: range = _checked("--seeds", seed_range, text or SEEDS)
    if wanted.stop == SEEDS_MAX and minutes is None:
        raise typer.BadParameter("seeds without an end need --minutes", param_hint="--seeds")
    return wanted


def _checked(option: str, reader: Callable[[str], Any], text: str) -> Any:
    try:
        return reader(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _mutant(name: str | None) -> str | None:
    if name is None:
        return None
    from raftlog.chaos.sim.mutants import MUTANTS

    if name == "list":
        for each, mutant in MUTANTS.items():
            typer.echo(f"{each:<40} {mutant.title}")
        raise typer.Exit
    if name not in MUTANTS:
        raise typer.BadParameter(f"there is no {name!r}: see --mutant list", param_hint="--mutant")
    return name


def _machine(name: str) -> str:
    load_machine(name)
    return name


def _guarded(act: Callable[[], Exit]) -> Exit:
    """Turns an unexpected error into INTERNAL, never BROKEN: exit code 1 must mean that raftlog is wrong."""
    try:
        return act()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return _nobody_reads()
    except Exception:
        traceback.print_exc()
        return Exit.INTERNAL


def _nobody_reads() -> Exit:
    """The reader of standard output is gone (`| head`): no words, and none at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.INTERRUPTED


def _show(line: str) -> None:
    """Prints a line of the trace. Raises KeyboardInterrupt if its reader is gone: an Exception would count as the
    seed's."""
    try:
        typer.echo(line)
    except BrokenPipeError as error:
        _nobody_reads()
        raise KeyboardInterrupt from error


# -- one seed, or a few, in this process -------------------------------------------------------------------------


def _replay(wanted: SimRequest) -> Exit:
    summary = Summary(wanted.seconds)
    for seed in wanted.seeds:
        job = wanted.job(seed)
        with planted(wanted.mutant):
            result = run_job(job, Recorder(_show) if wanted.trace else None)
        summary.add(result)
        if result.broken is not None:
            return ending.failed(summary, wanted)
        typer.echo(f"seed {seed}: every property held, {result.took_s:.1f} s")
        for name, number in result.stats.items():
            typer.echo(f"  {name}: {number}")
        typer.echo(f"  trace digest: {result.digest}")
    if wanted.is_replay and wanted.reports != REPORTS:  # asked for
        folder, _ = report.write(wanted.job(wanted.seeds.start), wanted.reports)
        typer.echo(f"  trace: {folder / 'trace.txt'}\n  page: {folder / PAGE}")
    return Exit.OK


# -- many seeds, on all cores ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stop:
    """Why no more seeds are begun. The first Ctrl-C lets those under way end, the second does not."""

    minutes: float | None
    began: float = field(default_factory=lambda: time.monotonic())
    has_failed: bool = False
    is_interrupted: bool = False

    def __call__(self) -> bool:
        is_over = self.minutes is not None and self.elapsed_s >= self.minutes * 60
        return is_over or self.has_failed or self.is_interrupted

    @property
    def elapsed_s(self) -> float:
        return max(time.monotonic() - self.began, 1e-3)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt
        self.is_interrupted = True
        print("raftlog: waiting for the seeds that run; Ctrl-C again ends them at once", file=sys.stderr)


def _run(wanted: SimRequest) -> Exit:
    summary = Summary(wanted.seconds, tuple(SOMETIMES))
    stop = _Stop(wanted.minutes)
    end = len(wanted.seeds) if wanted.seeds.stop < SEEDS_MAX else None
    progress = Progress(Console(stderr=True, highlight=False, soft_wrap=True))
    of = "" if end is None else f" of {end}"
    todo: Iterator[Job] = (wanted.job(seed) for seed in takewhile(lambda _: not stop(), wanted.seeds))
    most = wanted.failures_max
    before = signal.signal(signal.SIGINT, stop.interrupt)
    if end is None:
        progress.say(f"seeds from {wanted.seeds.start} on")
    try:
        with progress:
            for result in run_jobs(todo, wanted.jobs, mutant=wanted.mutant):
                summary.add(result)
                stop.has_failed = len(summary.failures) >= most
                failed = f", {len(summary.failures)} FAILED" if summary.failures else ""
                progress.update(f"{summary.seeds}{of} seeds, {speed_text(summary, stop.elapsed_s)}{failed}")
                if result.broken is not None:
                    progress.say(f"seed {result.job.seed}: {result.broken.property}; repeat: {result.job.command}")
    except KeyboardInterrupt:
        pass  # the second Ctrl-C: the seeds that ended are summed up
    finally:
        signal.signal(signal.SIGINT, before)
    code = ending.tell(summary, wanted, stop.elapsed_s)
    if stop.is_interrupted:
        rest = range(wanted.seeds.start + summary.seeds, wanted.seeds.stop)
        typer.echo(f"interrupted; go on with --seeds {rest.start}:{rest.stop if end is not None else ''}")
        return Exit.INTERRUPTED if code is Exit.OK else code
    return code
