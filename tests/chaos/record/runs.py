"""Runs made by hand for the tests of what judges and shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.record.times import Stretch
from raftlog.chaos.runs.aftermath import Aftermath
from raftlog.chaos.runs.runner import FaultRun, Run, RunPlan
from raftlog.chaos.runs.scenarios import Scenario
from raftlog.chaos.runs.schedule import PlannedFault
from raftlog.chaos.workloads.log import Appends
from raftlog.chaos.workloads.register import Registers
from raftlog.chaos.workloads.workload import Arena, Recorder, Workload
from raftlog.cluster.api.records import LogRecord

SECOND = 1_000_000_000


def put(index: int, key: str, value: str) -> LogRecord:
    """A put that was applied."""
    return LogRecord(index, 1, 0, "commands", "put", key=key, value=value)


def appended(index: int, value: str, result: str = "applied") -> LogRecord:
    """An append."""
    return LogRecord(index, 1, 0, "commands", "append", result, value=value)


def made(folder: Path, records: Sequence[LogRecord], *, faults_min: int = 0) -> Run:
    """A run of one second with a register and a log, whose histories are still empty, and one fault."""
    arena = Arena(seed=1)
    workloads: list[Workload] = [Registers(arena, Recorder(arena)), Appends(arena, Recorder(arena))]
    scenario = Scenario(
        name="all",
        says="",
        nemeses=("kill-leader",),
        workloads=("register", "log"),
        faults_min=faults_min,
    )
    planned = PlannedFault(number=1, nemesis="kill-leader", lane="process", at_s=0.2, lasts_s=0.2, draw=5)
    fault = FaultRun(planned, "installed", "nodes [1]", "pid 1 gone", "", SECOND // 5, 2 * SECOND // 5)
    digest = {"index": 9, "revision": 3, "state": {"count": 1, "xor": "00"}, "log": None}
    return Run(
        RunPlan(scenario, [planned], nodes=3, seconds=1.0, seed=1),
        folder,
        [fault],
        workloads,
        arena,
        stretches=[Stretch(1, "leader", 1, 0, SECOND // 5), Stretch(2, "leader", 2, SECOND // 2, SECOND)],
        load_ns=SECOND,
        aftermath=Aftermath(log=LogTruth(records), last_index=9, digests={1: digest, 2: digest}),
    )


def busy(run: Run, count: int = 30) -> None:
    """That many appends at indexes 101 and on, which the log has too: enough for a verdict."""
    history = run.workloads[1].recorder.history
    assert run.aftermath.log is not None
    records = list(run.aftermath.log.records)
    for number in range(count):
        at_ns = (number + 1) * SECOND // (count + 2)
        history.invoke("log-9", "append", None, f"busy:{number}", time_ns=at_ns)
        history.complete("log-9", "ok", f"busy:{number}", index=101 + number, term=3, time_ns=at_ns + 1_000_000)
        records.append(appended(101 + number, f"busy:{number}"))
        run.arena.progress.append((at_ns, 3))
    run.aftermath.log = LogTruth(records)
    consumers = run.workloads[1]
    assert isinstance(consumers, Appends)
