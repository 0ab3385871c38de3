"""Writes the folder of a failed seed: the failure in words, every event as text, the history of the clients, the page.

The seed is run once more for it, this time with a Recorder; that it fails the same way again is checked and said.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten, wrap
from typing import Any, Final

from raftlog.chaos.judge.history import History, decode_lines
from raftlog.chaos.judge.linearizable import check
from raftlog.chaos.judge.models import MODELS
from raftlog.chaos.judge.verdicts import Verdict
from raftlog.chaos.record.folder import KEYS, by_outcome, history_file, result_of, workload_result, write_result
from raftlog.chaos.record.page import write_page
from raftlog.chaos.sim.ground.trace import Recorder
from raftlog.chaos.sim.runs.runner import Job, Result, SeedFailure, planted, run_job

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
    (`trace.txt`), what clients were answered about keys (`history.jsonl`), and the page. Returns the folder, and what
    came out.

    Raises OSError.
    """
    folder = folder_of(job, parent)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "trace.txt").open("w", encoding="utf-8") as file:
        recorder = Recorder(lambda line: print(line, file=file))
        with planted(job.mutant):
            again = run_job(job, recorder)
        if (broken := again.broken) is not None:
            print(f"{broken.at_us / 1e6:11.6f}  BROKEN  {broken.property}: {broken.detail}", file=file)
    (folder / "failure.txt").write_text("\n".join(story(again)) + "\n", encoding="utf-8")
    history_file(folder, KEYS).write_bytes(b"" if broken is None else broken.history)
    write_result(folder, _result(again, recorder))
    write_page(folder)
    return folder, again


def _result(result: Result, recorder: Recorder) -> dict[str, Any]:
    """The run as result.json has it."""
    job, broken = result.job, result.broken or SeedFailure("", "", 1_000 * result.stats.get("simulated ms", 0))
    nodes = sorted({each.node for each in recorder.stretches})
    for node in nodes:
        recorder.end(broken.at_us, node)
    wrong = [f"{broken.property}: {shorten(broken.detail, DETAIL_MAX, placeholder=' …')}"] if result.broken else []
    operations = History(decode_lines(broken.history.splitlines())).operations()
    report = check(operations, MODELS["cas-register"])
    return result_of(
        Verdict.VALID if not wrong else Verdict.UNKNOWN if broken.is_internal else Verdict.INVALID,
        job.command,
        seed=job.seed,
        nodes=len(nodes),
        load_ns=1_000 * broken.at_us,
        faults=[
            {
                "number": each.number,
                "nemesis": each.kind,
                "lane": "faults",
                "outcome": "installed",
                "target": f"nodes {list(each.nodes)}" if each.nodes else "all",
                "nodes": each.nodes,
                "proof": each.detail,
                "began_ns": 1_000 * each.now_us,
                "healed_ns": 1_000 * min(each.now_us + each.lasts_us, broken.at_us),
            }
            for each in recorder.faults
        ],
        stretches=recorder.stretches,
        workloads=[workload_result(KEYS, report, by_outcome(operations))],
        problems=wrong,
        scenario="the simulator",
        seconds=job.seconds,
        broken_us=broken.at_us if wrong else None,
        lists=_lists(broken),
        events=list(recorder.events),
    )


def story(result: Result) -> list[str]:
    """The run in words, all of it."""
    job, broken = result.job, result.broken
    lines = [f"seed {job.seed}, {job.seconds} simulated seconds of trouble", f"repeat: {job.command}", ""]
    if broken is None:
        return [*lines, "every property held", *(f"  {name}: {number}" for name, number in result.stats.items())]
    lines += [f"broken: {broken.property}", f"at {broken.at_us / 1e6:.6f} s", broken.detail, ""]
    faults = {f"faults, {len(broken.faults)} of them": [text for _, text in broken.faults]}
    for title, texts in (faults | _lists(broken)).items():
        lines += [f"{title}:", *(f"  {text}" for text in texts), ""]
    return lines


def _lists(broken: SeedFailure) -> dict[str, Sequence[str]]:
    """What else is known about the failure, by its heading."""
    where = broken.traceback.splitlines()
    return {"this world": broken.world, "what disks hold (the fault atlas)": broken.atlas, "where": where}


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ") or ["  "]


def short(result: Result, broken: SeedFailure) -> list[str]:
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
