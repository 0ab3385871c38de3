"""The verdict on a run: what the log contradicts is invalid, and a run in which too little happened is unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.judge.verdicts import Verdict
from raftlog.chaos.nemesis.fault import Need
from raftlog.chaos.runs.judgement import judge_run
from raftlog.chaos.runs.node_events import NodeEvent
from raftlog.chaos.runs.result import save
from raftlog.chaos.runs.runner import AGE_MS, CLOCK_SKEW_MS, FaultRun, Run, _settings, kept_ms
from raftlog.chaos.runs.scenarios import TRIED_MIN
from raftlog.chaos.runs.schedule import PlannedFault
from raftlog.chaos.workloads.consumers import Consumer, Route
from raftlog.chaos.workloads.direct import DirectLog
from raftlog.chaos.workloads.log import Appends
from raftlog.chaos.workloads.workload import Recorder
from raftlog.cluster.api.records import ChangeJson, LogRecord
from tests.chaos.record.runs import SECOND, appended, busy, made, put


def test_a_record_that_retention_by_age_trims_too_young_is_a_finding(tmp_path: Path) -> None:
    """By the histories and the trims of the log, if the settings keep records by age alone."""
    run = made(tmp_path, [])
    busy(run)
    assert run.aftermath.log is not None
    run.aftermath.log = LogTruth([*run.aftermath.log.records, LogRecord(120, 1, 0, "commands", "trim", argument=110)])
    assert judge_run(run).problems == ()
    run.age_ms = 10_000
    (said,) = judge_run(run).problems
    assert said.startswith("the trim at index 120 took all records before 110")


@pytest.mark.parametrize(
    ("settings", "needs", "age_ms"),
    [
        ({}, {"ages"}, AGE_MS - 2 * CLOCK_SKEW_MS),
        ({"limits.clock_skew_ms": 1_000, "retention.age_ms": 5_000}, {"ages"}, 3_000),
        ({}, {"ages", "housekeeping"}, 0),  # records may go by the bytes that are kept
        ({}, set(), 0),
    ],
)
def test_runs_with_wrong_clocks_keep_records_by_their_age(
    settings: dict[str, Any], needs: set[Need], age_ms: int
) -> None:
    """The age below which no record may go: the setting, less what two clocks may differ."""
    assert kept_ms(_settings(settings, needs)) == age_ms


def write(run: Run, process: str, key: str, value: int, outcome: str, index: int | None = None) -> None:
    """One write of the register workload."""
    history = run.workloads[0].recorder.history
    history.invoke(process, "write", key, value)
    history.complete(process, outcome, value if outcome == "ok" else None, index=index, term=1)  # type: ignore[arg-type]


def test_enough_and_nothing_wrong_is_valid(tmp_path: Path) -> None:
    """Acknowledged writes are at their indexes; leaders, rate and recovery are counted."""
    run = made(tmp_path, [put(5, "r/0/1", "7")], faults_min=1)
    busy(run)
    write(run, "register-1", "r/0/1", 7, "ok", 5)
    told = judge_run(run)
    assert told.verdict is Verdict.VALID, told
    assert told.standstills[1].longest_s < 0.1
    result = save(run, told, [])
    assert result["leaders"] == [{"term": 1, "node": 1}, {"term": 2, "node": 2}]
    assert (result["operations"], result["without_leader_s"]) == (31, 0.3)


def test_a_lost_write_is_invalid_however_short_the_run(tmp_path: Path) -> None:
    """One acknowledged write that the log does not have."""
    run = made(tmp_path, [])
    write(run, "register-1", "r/0/1", 7, "ok", 5)
    told = judge_run(run)
    assert told.verdict is Verdict.INVALID
    assert "answered with index 5; its records lie at [[]]" in told.workloads[0].problems[0]


@pytest.mark.parametrize("outcome", ["fail", "info"])
def test_a_write_that_is_in_the_log_twice_or_was_refused(tmp_path: Path, outcome: str) -> None:
    """A refused write that is in the log, and one of unknown outcome that is there twice."""
    records = [put(5, "r/0/1", "7")] + ([put(6, "r/0/1", "7")] if outcome == "info" else [])
    run = made(tmp_path, records)
    write(run, "register-1", "r/0/1", 7, outcome)
    told = judge_run(run)
    assert told.verdict is Verdict.INVALID
    assert told.workloads[0].problems


def test_unknown_writes_are_settled_by_the_log(tmp_path: Path) -> None:
    """One is there and one is not: a read of the one that is not is invalid, though the history alone allows it."""
    run = made(tmp_path, [put(5, "r/0/1", "7")])
    busy(run)
    write(run, "register-1", "r/0/1", 7, "info")
    write(run, "register-2", "r/0/1", 8, "info")
    told = judge_run(run)
    assert told.verdict is Verdict.VALID
    assert told.workloads[0].settled == {"applied": 1, "not applied": 1}
    history = run.workloads[0].recorder.history
    history.invoke("register-3", "read", "r/0/1")
    history.complete("register-3", "ok", 8)
    told = judge_run(run)
    assert told.workloads[0].report.verdict is Verdict.INVALID


def test_a_transaction_that_was_refused_changes_nothing(tmp_path: Path) -> None:
    """A compare-and-set that answered false and whose value is in the log."""
    row = LogRecord(6, 1, 0, "commands", "txn", changes=[ChangeJson(False, 1, 1, 1, key="r/0/1", value="9")])
    run = made(tmp_path, [put(5, "r/0/1", "7"), row])
    write(run, "register-1", "r/0/1", 7, "ok", 5)
    history = run.workloads[0].recorder.history
    history.invoke("register-2", "cas", "r/0/1", [8, 9])
    history.complete("register-2", "ok", [8, 9], result=False, index=6)
    assert judge_run(run).verdict is Verdict.INVALID


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([(5, "a"), (6, "b")], None),
        ([(5, "a")], "never given is (6, 'b')"),
        ([(6, "b"), (5, "a")], "was given (5, 'a') after (6, 'b')"),
        ([(5, "a"), (6, "b"), (7, "c")], "which is not in the log"),
        ([(5, "a"), (5, "a"), (6, "b")], "after (5, 'a')"),
    ],
)
async def test_consumers_read_everything_once_in_order(
    tmp_path: Path, rows: list[tuple[int, str]], why: str | None
) -> None:
    """A record left out, out of order, invented, doubled; a repetition in the log is not a record."""
    run = made(tmp_path, [])
    log = LogTruth([appended(5, "a"), appended(6, "b"), appended(8, "a", "repeated")])
    workload = run.workloads[1]
    assert isinstance(workload, Appends)
    workload.consumers.append(Consumer("consumer-0", Route([], Random(1)), rows=rows))
    problems = workload.judge(log)
    assert (not problems) if why is None else (why in problems[0])


def test_too_little_is_unknown(tmp_path: Path) -> None:
    """Few operations, no fault, a leader that was to change and did not: nothing wrong was seen, and that is no
    verdict."""
    run = made(tmp_path, [], faults_min=2)
    write(run, "register-1", "r/0/1", 7, "fail")
    told = judge_run(run)
    assert told.verdict is Verdict.UNKNOWN
    assert len(told.missing) == 2
    busy(run)
    run.plan = made(tmp_path, []).plan
    run.stretches = run.stretches[:1]
    told = judge_run(run)
    assert told.verdict is Verdict.UNKNOWN
    assert "no leader was seen to change" in told.missing[0]


def test_an_operation_that_is_never_carried_out_is_no_verdict(tmp_path: Path) -> None:
    """Every write of a workload fails, as at a route that does not exist, while another workload is busy. Guard:
    `_never_done`."""
    run = made(tmp_path, [])
    busy(run)
    for number in range(TRIED_MIN):
        write(run, "register-1", "r/0/1", number, "fail")
    told = judge_run(run)
    assert told.verdict is Verdict.UNKNOWN
    assert told.missing == (f"none of {TRIED_MIN} operations write of register was carried out",)


def test_indeterminate_faults_do_not_count(tmp_path: Path) -> None:
    """An indeterminate fault does not count."""
    run = made(tmp_path, [], faults_min=1)
    busy(run)
    run.faults[0].outcome = "indeterminate"
    told = judge_run(run)
    assert told.verdict is Verdict.UNKNOWN
    assert told.missing == ("0 faults took effect, fewer than 1",)


def planned(run: Run, *names: str) -> None:
    """These took effect too."""
    for number, name in enumerate(names, start=2):
        each = PlannedFault(number=number, nemesis=name, lane="process", at_s=0.5, lasts_s=0.1, draw=5)
        run.faults.append(FaultRun(each, "installed", "", "", "", SECOND // 2, SECOND // 2))


def inside(run: Run, *kinds: str) -> None:
    """These happened inside node 1 while one direct request was under way there, all but the first while none was."""
    run.events = [NodeEvent(1, kind, SECOND // 2) for kind in kinds]
    direct = DirectLog(run.arena, Recorder(run.arena))
    direct.recorder.history.invoke("direct-read-1.0", "read", time_ns=SECOND // 3)
    direct.recorder.history.complete("direct-read-1.0", "ok", [], time_ns=SECOND, node=1)
    run.workloads.append(direct)


def test_a_run_without_installs_trims_and_backfills_is_unknown(tmp_path: Path) -> None:
    """Each must have happened inside the nodes, and requests must have met installs, trims, elections and starts; all
    nodes must have lost power together. A run of less than a minute is asked for none of them, but for its power cut.
    """
    run = made(tmp_path, [])
    busy(run)
    assert judge_run(run).verdict is Verdict.VALID
    planned(run, "left-behind", "power-cut-slow")
    run.faults[2].outcome = "skipped"
    assert judge_run(run).missing == ("all nodes never lost power together",)
    run.plan = replace(run.plan, seconds=60.0)
    inside(run, "trims", "leaders elected", "starts")
    told = judge_run(run)
    assert told.verdict is Verdict.UNKNOWN
    assert told.missing == (
        "0 snapshots installed, fewer than 1",
        "0 segments backfilled, fewer than 1",
        "all nodes never lost power together",
        "no request was under way at any of 0 snapshots installed",
    )
    run.faults[2].outcome = "installed"
    run.workloads.pop()
    inside(run, "trims", "leaders elected", "starts", "snapshots installed", "segments backfilled")
    told = judge_run(run)
    assert (told.verdict, told.missing) == (Verdict.VALID, ())
    assert told.met == {"snapshots installed": 1, "trims": 1, "leaders elected": 1, "starts": 1}
    run.workloads.pop()
    told = judge_run(run)
    assert told.verdict is Verdict.UNKNOWN
    assert "no request was under way at any of 1 trims" in told.missing


def test_a_minute_needs_its_own_installs(tmp_path: Path) -> None:
    """Of two minutes, one install is too few; records that were trimmed before they were read leave no verdict."""
    run = made(tmp_path, [])
    busy(run)
    planned(run, "left-behind")
    inside(run, "trims", "leaders elected", "starts", "snapshots installed", "segments backfilled")
    run.plan, run.aftermath.untold = replace(run.plan, seconds=120), 7
    missing = judge_run(run).missing
    assert "1 snapshots installed, fewer than 2" in missing
    assert "the log was trimmed before index 7 was read" in missing


def test_nodes_that_differ_are_invalid(tmp_path: Path) -> None:
    """Findings after the run count with any histories."""
    run = made(tmp_path, [])
    busy(run)
    run.aftermath.problems.append("node 2 and node 1 have different records at index 5")
    assert judge_run(run).verdict is Verdict.INVALID
