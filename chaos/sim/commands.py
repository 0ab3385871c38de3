"""`raftlog sim`: run seeds of the simulator on all cores, replay one, shrink one, and add up what was run.

Exit codes are those of `raftlog chaos`: see Exit. docs/simulator.md tells how to read what is printed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import takewhile
from pathlib import Path
from random import SystemRandom
from types import FrameType
from typing import Annotated, Any, Final

import typer

from chaos.sim import report, results
from chaos.sim.coverage import SOMETIMES
from chaos.sim.machines import load_machine
from chaos.sim.progress import Display, speed_text
from chaos.sim.ranges import SEEDS_MAX, numbers, seed_range
from chaos.sim.runner import (
    SECONDS,
    Job,
    Result,
    cores,
    may_import_from_here,
    planted,
    run_job,
    run_jobs,
    settle_collector,
)
from chaos.sim.shrink import Shrinking, shrink
from chaos.sim.summary import Summary, medians_text
from chaos.sim.trace import Recorder
from chaos.sim.world import MACHINE

SEEDS: Final = "0:100"

FAILURES_MAX: Final = 3
"""A run ends after this many failed seeds: one bug fails many, and each leaves a report."""

SHRINK_S: Final = 120
"""How long shrinking may take: some hundred runs of a seed."""

REPORTS: Final = Path("runs/sim")


class Exit(IntEnum):
    """How the command ends."""

    OK = 0
    BROKEN = 1  # a property does not hold
    USAGE = 2
    TOO_LITTLE = 6  # nothing broke, but too little happened for that to mean anything
    INTERNAL = 8  # the simulator itself failed: nothing is known
    INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Put the command into the command line."""
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
    record: Annotated[
        bool | None,
        typer.Option(
            "--record/--no-record", help=f"Keep the run in {results.RESULTS}; from one simulated hour on unless given."
        ),
    ] = None,
    hours: Annotated[bool, typer.Option("--hours", help="Only add up the runs that were kept.")] = False,
) -> None:
    """Run whole clusters in one process, under a seeded clock, network, disks and faults, with everything checked.

    Exit codes: 0 every property held; 1 one is broken; 2 usage; 6 too little happened; 8 the simulator failed.
    """
    if not __debug__:
        raise typer.BadParameter("asserts are part of the checks: do not run Python with -O")
    if hours:
        raise typer.Exit(_guarded(_show_hours))
    may_import_from_here()
    wanted = _Wanted(
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
        record=record,
    )
    raise typer.Exit(_guarded(lambda: _sim(wanted)))


@dataclass(frozen=True, slots=True)
class _Wanted:
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
    record: bool | None

    def job(self, seed: int) -> Job:
        return Job(seed, self.seconds, self.skip, self.mutant, self.machine)

    @property
    def is_plain(self) -> bool:
        """Whether this is the project itself under test, whole."""
        return not self.mutant and not self.skip and self.machine == MACHINE and not self.is_replay


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
    from chaos.sim.mutants import MUTANTS

    if name == "list":
        for each, mutant in MUTANTS.items():
            waits = f" (waits for {mutant.waits_for})" if mutant.waits_for else ""
            typer.echo(f"{each:<40} {mutant.title}{waits}")
        raise typer.Exit
    if name not in MUTANTS:
        raise typer.BadParameter(f"there is no {name!r}: see --mutant list", param_hint="--mutant")
    if MUTANTS[name].waits_for:
        raise typer.BadParameter(f"{name} waits for {MUTANTS[name].waits_for}", param_hint="--mutant")
    return name


def _machine(name: str) -> str:
    load_machine(name)
    return name


def _guarded(act: Callable[[], Exit]) -> Exit:
    """What nobody expected is INTERNAL, never BROKEN: 1 must mean that raftlog is wrong."""
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
    """One line of the trace. Raises KeyboardInterrupt if nobody reads: an Exception would count as the seed's."""
    try:
        typer.echo(line)
    except BrokenPipeError as error:
        _nobody_reads()
        raise KeyboardInterrupt from error


def _sim(wanted: _Wanted) -> Exit:
    settle_collector()
    return _replay(wanted) if wanted.is_replay or wanted.trace else _run(wanted)


# -- one seed, or a few, in this process -------------------------------------------------------------------------


def _replay(wanted: _Wanted) -> Exit:
    summary = Summary(wanted.seconds)
    for seed in wanted.seeds:
        job = wanted.job(seed)
        with planted(wanted.mutant):
            result = run_job(job, Recorder(_show, events_max=1) if wanted.trace else None)
        summary.add(result)
        if result.broken is not None:
            return _failed(summary, wanted)
        typer.echo(f"seed {seed}: every property held, {result.took_s:.1f} s")
        for name, number in result.stats.items():
            typer.echo(f"  {name}: {number}")
        typer.echo(f"  trace digest: {result.digest}")
    if wanted.is_replay and wanted.reports != REPORTS:  # asked for
        written = report.write(wanted.job(wanted.seeds.start), wanted.reports)
        typer.echo(f"  trace: {written.trace}\n  diagram: {written.diagram}")
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
        is_over = self.minutes is not None and time.monotonic() - self.began >= self.minutes * 60
        return is_over or self.has_failed or self.is_interrupted

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt
        self.is_interrupted = True


def _most(wanted: _Wanted) -> int:
    """After how many failures a run ends; one finds a planted bug."""
    return 1 if wanted.mutant else FAILURES_MAX


def _run(wanted: _Wanted) -> Exit:
    summary = Summary(wanted.seconds, tuple(SOMETIMES))
    sources = results.sources_hash() if wanted.is_plain else ""
    stop = _Stop(wanted.minutes)
    end = len(wanted.seeds) if wanted.seeds.stop < SEEDS_MAX else None
    display = Display(end)
    todo: Iterator[Job] = (wanted.job(seed) for seed in takewhile(lambda _: not stop(), wanted.seeds))
    most = _most(wanted)
    before = signal.signal(signal.SIGINT, stop.interrupt)
    if end is None:
        display.say(f"seeds from {wanted.seeds.start} on")
    is_whole = True
    try:
        with display:
            for result in run_jobs(todo, wanted.jobs, mutant=wanted.mutant):
                summary.add(result)
                stop.has_failed = len(summary.failures) >= most
                display.update(summary)
                if result.broken is not None:
                    display.say(f"seed {result.job.seed}: {result.broken.property}; repeat: {result.job.command}")
    except KeyboardInterrupt:
        is_whole = False
    finally:
        signal.signal(signal.SIGINT, before)
    code = _tell(summary, wanted, display.elapsed_s)
    if is_whole:
        _record(summary, wanted, sources)
    if stop.is_interrupted:
        rest = range(wanted.seeds.start + summary.seeds, wanted.seeds.stop)
        typer.echo(f"interrupted; go on with --seeds {rest.start}:{rest.stop if end is not None else ''}")
        return Exit.INTERRUPTED if code is Exit.OK else code
    return code


def _tell(summary: Summary, wanted: _Wanted, elapsed_s: float) -> Exit:
    """The summary, and the reports of what failed."""
    code = _failed(summary, wanted) if summary.failures else Exit.OK
    held = summary.seeds - len(summary.failures)
    typer.echo(
        f"{summary.seeds} seeds of {summary.seconds} s, {len(summary.failures)} failed, in {elapsed_s:.1f} s: "
        + speed_text(summary, elapsed_s)
    )
    if wanted.mutant is not None:
        if summary.failures:
            typer.echo(f"mutant {wanted.mutant}: found, by the {_nth(summary.seeds_until_failure)} seed")
        else:
            typer.echo(f"mutant {wanted.mutant}: NOT found")
    if not held:
        return code
    typer.echo(f"medians per simulated minute: {medians_text(summary)}")
    if summary.states:
        never = summary.never_reached
        typer.echo(
            f"sometimes: {len(summary.states) - len(never)} of {len(summary.states)} states reached"
            + (f"; never: {', '.join(never)}" if never else "")
        )
    typer.echo(f"digest of all traces: {summary.digest}")
    if code is Exit.OK and wanted.is_plain and summary.too_little:
        typer.secho(f"too little happened: {'; '.join(summary.too_little)}", fg="red")
        return Exit.TOO_LITTLE
    return code


def _nth(number: int) -> str:
    """1st, 2nd, 3rd, 4th …"""
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _record(summary: Summary, wanted: _Wanted, sources: str) -> None:
    is_wanted = wanted.record if wanted.record is not None else summary.hours >= results.HOURS_MIN
    if not is_wanted or not summary.seeds:
        return
    if not wanted.is_plain:
        if wanted.record:
            typer.echo("not kept: only runs of raftlog itself, without mutants and skipped faults, add up")
        return
    try:
        path = results.append(summary, wanted.seeds, sources)
    except (results.NoCheckout, OSError) as error:
        typer.echo(f"not kept: {error}")
    else:
        typer.echo(f"kept in {path}")


def _show_hours() -> Exit:
    """The runs that were kept, added up: what was executed now first."""
    try:
        told = results.sums(results.read())
    except ValueError as error:
        typer.echo(str(error), err=True)
        return Exit.INTERNAL
    now = results.sources_hash()
    if not any(each.sources == now for each in told):
        typer.echo(f"sources {now} (as they are now): no run yet")
    for each in told:
        typer.echo(
            f"sources {each.sources}{' (as they are now)' if each.sources == now else ''}: "
            f"{each.clean_hours:.1f} clean simulated hours in {each.runs} runs of {each.seeds} seeds, "
            f"{each.failed_seeds} failed; newest {each.newest}, commits {', '.join(each.commits)}"
        )
    return Exit.OK


# -- failures ----------------------------------------------------------------------------------------------------


def _failed(summary: Summary, wanted: _Wanted) -> Exit:
    """Print each failure, write its report, and shrink the first if that is wanted."""
    for nth, result in enumerate(summary.failures[: _most(wanted)]):
        broken = result.broken
        assert broken is not None
        for line in report.short(result, broken):
            typer.secho(line, fg="red" if "BROKEN" in line else None)
        if broken.property in {"seed ends", "worker lives"}:  # running it here would hang, or end, this process
            continue
        written = report.write(result.job, wanted.reports)
        again = written.again
        typer.echo(f"  story: {written.story}\n  trace: {written.trace}\n  diagram: {written.diagram}")
        if again.broken is None or (again.broken.property, again.digest) != (broken.property, result.digest):
            typer.secho("  NOT REPEATED: the second run of this seed went another way", fg="red")
            return Exit.INTERNAL
        if nth == 0 and wanted.shrink:
            _shrink(result, wanted)
        elif nth == 0 and broken.faults:
            typer.echo(f"  which faults it needs: {result.job.command} --shrink")
    is_internal = all(result.broken is not None and result.broken.is_internal for result in summary.failures)
    return Exit.INTERNAL if is_internal else Exit.BROKEN


def _shrink(result: Result, wanted: _Wanted) -> None:
    ends = time.monotonic() + SHRINK_S
    display = Display(None)

    def show(found: Shrinking) -> None:
        if display.console.is_terminal:
            display.console.print(_shrunk_text(found), end="\r", markup=False)

    with planted(wanted.mutant):
        found = shrink(result, run_job, lambda: time.monotonic() < ends, show)
    typer.echo(f"  shrunk to {_shrunk_text(found)}" + (", out of time" if found.is_out_of_time else ""))
    for _, text in found.faults:
        typer.echo(f"    {text}")
    typer.echo(f"  repeat: {found.best.job.command}")
    if found.best is not result:
        written = report.write(found.best.job, wanted.reports)
        typer.echo(f"  trace: {written.trace}\n  diagram: {written.diagram}")


def _shrunk_text(found: Shrinking) -> str:
    first = found.first.broken
    of = len(first.faults) if first is not None else 0
    return f"{len(found.faults)} of {of} faults, {found.best.job.seconds} s, after {found.tries} runs"
