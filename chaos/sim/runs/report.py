"""Writes the folder of a failed seed: the failure in words, every event as text, and the history of the clients.

The seed is run once more for it, this time with a Recorder; that it fails the same way again is checked and said.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten, wrap
from typing import Final

from raftlog.chaos.sim.ground.trace import Recorder
from raftlog.chaos.sim.runs.runner import Broken, Job, Result, planted, run_job

FAULTS_SHOWN: Final = 12
"""How many of the newest faults are printed to the terminal; the folder has them all."""

DETAIL_MAX: Final = 600
"""Most characters of the evidence that are shown: effects and histories are long."""

WIDTH: Final = 120


def folder_of(job: Job, parent: Path) -> Path:
    name = f"seed-{job.seed}"
    if job.mutant is not None:
        name += f"-{job.mutant}"
    if job.skip:
        name += f"-without-{len(job.skip)}"
    return parent / name


def write(job: Job, parent: Path) -> tuple[Path, Result]:
    """Runs that job once more, and writes its report below `parent`: the failure in words (`failure.txt`), every event
    (`trace.txt`), and what clients were answered about keys (`history.jsonl`). Returns the folder, and what came out.

    Raises OSError.
    """
    folder = folder_of(job, parent)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "trace.txt").open("w", encoding="utf-8") as file:
        with planted(job.mutant):
            again = run_job(job, Recorder(lambda line: print(line, file=file)))
        if (broken := again.broken) is not None:
            print(f"{broken.at_us / 1e6:11.6f}  BROKEN  {broken.property}: {broken.detail}", file=file)
            (folder / "history.jsonl").write_bytes(broken.history)
    (folder / "failure.txt").write_text("\n".join(story(again)) + "\n", encoding="utf-8")
    return folder, again


def story(result: Result) -> list[str]:
    """The run in words, all of it."""
    job, broken = result.job, result.broken
    lines = [f"seed {job.seed}, {job.seconds} simulated seconds of trouble", f"repeat: {job.command}", ""]
    if broken is None:
        return [*lines, "every property held", *(f"  {name}: {number}" for name, number in result.stats.items())]
    lines += [f"broken: {broken.property}", f"at {broken.at_us / 1e6:.6f} s", broken.detail, ""]
    if broken.world:
        lines += ["this world:", *(f"  {line}" for line in broken.world), ""]
    if broken.atlas:
        lines += ["what disks hold (the fault atlas):", *(f"  {line}" for line in broken.atlas), ""]
    lines += [f"faults, {len(broken.faults)} of them:", *(f"  {text}" for _, text in broken.faults), ""]
    return [*lines, "where:", broken.traceback]


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ") or ["  "]


def short(result: Result, broken: Broken) -> list[str]:
    """The failure as it is printed: what broke, in which world, the newest faults, the atlas, and how to repeat it."""
    job = result.job
    lines = [
        f"seed {job.seed}: BROKEN: {broken.property} (at {broken.at_us / 1e6:.6f} s of {job.seconds} s)",
        *_wrapped(shorten(broken.detail, DETAIL_MAX, placeholder=" …")),
    ]
    if broken.world:
        lines += _wrapped("world: " + "; ".join(broken.world))
    faults = broken.faults[-FAULTS_SHOWN:]
    if faults:
        of = f", the last {len(faults)} of {len(broken.faults)}" if len(faults) < len(broken.faults) else ""
        lines += [f"  faults{of}:", *(f"    {text}" for _, text in faults)]
    if broken.atlas:
        lines += ["  what disks hold (the fault atlas):", *(f"    {line}" for line in broken.atlas)]
    if broken.is_internal:
        lines += ["  the simulator itself stumbled:", *(f"    {line}" for line in broken.traceback.splitlines())]
    return [*lines, f"  repeat: {job.command}"]
