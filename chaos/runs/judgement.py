"""Judges a run: histories settled by the log, nodes compared, and whether enough happened for a verdict.

Invalid beats everything: one lost write is a finding in however short a run. Valid needs that enough happened, else
the answer is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from raftlog.chaos.judge.checkers import judge
from raftlog.chaos.judge.checks import exactly_once, kept_by_age, replay
from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.linearizable import Limits
from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.judge.verdicts import PROBLEMS_MAX, Report, Verdict, worst
from raftlog.chaos.nemesis import NEMESES
from raftlog.chaos.record.folder import by_outcome
from raftlog.chaos.record.times import Standstill, leaders_of, standstill
from raftlog.chaos.runs.node_events import counts_of, met_of
from raftlog.chaos.runs.runner import FaultRun, Run
from raftlog.chaos.runs.scenarios import (
    DIRECT_WORKLOADS,
    INSTALLED_SHARE_MIN,
    LONG_S,
    POWER_CUTS,
    RATE_MIN,
    TRIED_MIN,
    needs_of,
)
from raftlog.chaos.workloads.workload import Workload

CHECK_S: Final = 60.0
"""For each workload, after which its verdict is unknown."""


HAPPEN_EVERY_MINUTE: Final = ("snapshots installed", "trims", "segments backfilled")


@dataclass(frozen=True, slots=True)
class WorkloadJudgement:
    """One workload: the checker's report, what the log says against it, and how its operations ended."""

    name: str
    report: Report
    problems: tuple[str, ...]
    counts: Mapping[str, Mapping[str, int]]  # function -> outcome -> number
    settled: Mapping[str, int]  # unknown writes: how many were applied, how many not
    took_s: float
    operations: tuple[Operation, ...] = field(repr=False)

    @property
    def verdict(self) -> Verdict:
        """Of checker and log together."""
        return Verdict.INVALID if self.problems else self.report.verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer about a run. `missing` says what did not happen that should have for a verdict."""

    verdict: Verdict
    workloads: tuple[WorkloadJudgement, ...]
    problems: tuple[str, ...]
    missing: tuple[str, ...]
    standstills: Mapping[int, Standstill]  # by number of fault
    happened: Mapping[str, int] = field(default_factory=dict)  # inside the nodes, by kind
    met: Mapping[str, int] = field(default_factory=dict)  # of these, how many a direct request was under way at


def judge_run(run: Run) -> Judgement:
    """Judges everything that the run left. Raises BadHistory when the harness recorded nonsense."""
    workloads = tuple(_judged(each, run.aftermath.log) for each in run.workloads)
    carried_out = sum(by.get("ok", 0) for each in workloads for by in each.counts.values())
    rate = carried_out / max(run.load_ns / 1e9, 1e-9)
    leaders = leaders_of(run.stretches)
    direct = [each for workload in workloads if workload.name in DIRECT_WORKLOADS for each in workload.operations]
    happened, met = counts_of(run.events), met_of(run.events, direct)
    missing = (
        *_missing(run, rate, leaders),
        *_never_done(workloads),
        *_inside(run, happened, met),
    )
    verdict = worst([each.verdict for each in workloads])
    problems = (*run.aftermath.problems, *_two_leaders(leaders), *_trimmed_young(run, workloads))
    if problems:
        verdict = Verdict.INVALID
    if verdict is Verdict.VALID and missing:
        verdict = Verdict.UNKNOWN
    progress = sorted(at_ns for at_ns, _ in run.arena.progress)
    return Judgement(
        verdict,
        workloads,
        problems,
        missing,
        {
            each.planned.number: standstill(progress, each.began_ns, each.healed_ns)
            for each in run.faults
            if each.outcome == "installed" and each.began_ns is not None and each.healed_ns is not None
        },
        happened,
        met,
    )


def _two_leaders(leaders: Sequence[tuple[int, int]]) -> list[str]:
    """Terms of which more than one node said that it leads."""
    by_term: dict[int, list[int]] = {}
    for term, node in leaders:
        by_term.setdefault(term, []).append(node)
    return [f"nodes {nodes} all said that they lead term {term}" for term, nodes in by_term.items() if len(nodes) > 1]


def _trimmed_young(run: Run, workloads: Sequence[WorkloadJudgement]) -> list[str]:
    """Trims that took records which retention by age has to keep."""
    if run.aftermath.log is None or not run.age_ms:
        return []
    pairs = zip(run.workloads, workloads, strict=True)
    writes = [each for workload, judged in pairs for each in judged.operations if workload.marks(each)]
    return kept_by_age(writes, run.aftermath.log.trims, run.age_ms)[:PROBLEMS_MAX]


def _judged(workload: Workload, log: LogTruth | None) -> WorkloadJudgement:
    began = time.monotonic()
    operations = workload.recorder.history.operations()
    problems: list[str] = []
    judged: Sequence[Operation] = operations
    settled = {"applied": 0, "not applied": 0}
    if log is not None:
        places = workload.places(log)
        judged, settled = settle(operations, workload, places)
        problems += exactly_once(_by_marks(operations, workload), places)
        changes = workload.changes(log)
        if changes is not None:
            problems += replay(operations, changes)
        problems += workload.judge(log)
    end = began + CHECK_S
    report = judge(
        judged, workload.model, workload.init, limits=Limits(steps=1 << 62), is_over=lambda: time.monotonic() >= end
    )
    return WorkloadJudgement(
        workload.name,
        report,
        tuple(problems[:PROBLEMS_MAX]),
        by_outcome(operations),
        settled,
        time.monotonic() - began,
        tuple(operations),
    )


def settle(
    operations: Sequence[Operation], workload: Workload, places: Mapping[str, Sequence[int]]
) -> tuple[list[Operation], dict[str, int]]:
    """Settles the operations of unknown outcome by the log: one without its mark did not happen.

    One with its mark happened at some time after its call, which is what `info` says of it already.
    """
    settled = {"applied": 0, "not applied": 0}
    judged: list[Operation] = []
    for each in operations:
        marks = workload.marks(each)
        if each.outcome == "info" and marks:
            is_there = any(mark in places for mark in marks)
            settled["applied" if is_there else "not applied"] += 1
            if not is_there:
                each = replace(each, outcome="fail")
        judged.append(each)
    return judged, settled


def _by_marks(operations: Sequence[Operation], workload: Workload) -> list[Operation]:
    """The writes as appends of their marks; a write that the state machine refused must not lie in the log."""
    found: list[Operation] = []
    for each in operations:
        marks = workload.marks(each)
        if marks:
            is_refused = each.outcome == "ok" and each.result is False
            # marks of one transaction share its index; only those of a batch of appends follow each other
            found.append(replace(each, value=list(marks), outcome="fail" if is_refused else each.outcome))
    return found


def _missing(run: Run, rate: float, leaders: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    missing: list[str] = []
    if rate < RATE_MIN:
        missing.append(f"{rate:.1f} operations a second were carried out, fewer than {RATE_MIN:g}")
    due = [each for each in run.faults if each.outcome != "skipped"]
    installed = [each for each in due if each.outcome == "installed"]
    if len(installed) < run.plan.scenario.faults_min:
        missing.append(f"{len(installed)} faults took effect, fewer than {run.plan.scenario.faults_min}")
    elif due and len(installed) < INSTALLED_SHARE_MIN * len(due):
        missing.append(f"only {len(installed)} of {len(due)} faults took effect for certain")
    if any(_moves_leader(each) for each in installed) and len(leaders) < 2:
        missing.append("no leader was seen to change, although faults were meant to change it")
    return tuple(missing)


def _never_done(workloads: Sequence[WorkloadJudgement]) -> list[str]:
    """Operations that were tried again and again and never carried out: the harness itself may ask for nonsense."""
    return [
        f"none of {sum(by.values())} operations {f} of {each.name} was carried out"
        for each in workloads
        for f, by in each.counts.items()
        if sum(by.values()) >= TRIED_MIN and not by.get("ok")
    ]


def _inside(run: Run, happened: Mapping[str, int], met: Mapping[str, int]) -> list[str]:
    """What did not happen inside the nodes, although the schedule had it, or met no request."""
    asked = needs_of(run.plan.scenario, [each.planned for each in run.faults], run.plan.seconds)
    missing = [
        f"{happened[kind]} {kind}, fewer than {asked.events}"
        for kind in HAPPEN_EVERY_MINUTE
        if happened[kind] < asked.events
    ]
    cuts = [each for each in run.faults if each.outcome == "installed" and each.planned.nemesis in POWER_CUTS]
    if asked.power_cut and not cuts:
        missing.append("all nodes never lost power together")
    if asked.events:
        missing += [f"no request was under way at any of {happened[kind]} {kind}" for kind in met if not met[kind]]
    if run.age_ms and run.plan.seconds >= LONG_S and not happened["trims"]:
        missing.append(f"retention by age trimmed nothing in {run.plan.seconds:g} s")
    if run.aftermath.untold:
        missing.append(f"the log was trimmed before index {run.aftermath.untold} was read")
    return missing


def _moves_leader(fault: FaultRun) -> bool:
    return NEMESES[fault.planned.nemesis].moves_leader
