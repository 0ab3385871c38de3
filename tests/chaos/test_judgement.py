"""The verdict on a run: what the log contradicts is invalid, and a run in which too little happened is unknown."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from chaos.consumers import Consumer, Route
from chaos.judgement import judge_run
from chaos.log_truth import LogTruth
from chaos.runner import Run
from chaos.verdicts import Verdict
from chaos.workload_log import Appends
from cluster.wire import ChangeJson, LogRecord
from tests.chaos.runs import appended, busy, made, put


def write(run: Run, process: str, key: str, value: int, outcome: str, index: int | None = None) -> None:
    """One write of the register workload."""
    history = run.workloads[0].recorder.history
    history.invoke(process, "write", key, value)
    history.complete(process, outcome, value if outcome == "ok" else None, index=index, term=1)  # type: ignore[arg-type]


def test_enough_and_nothing_wrong_is_valid(tmp_path: Path) -> None:
    """Acknowledged writes are where they were told; leaders, rate and recovery are counted."""
    run = made(tmp_path, [put(5, "r/0/1", "7")], faults_min=1)
    busy(run)
    write(run, "register-1", "r/0/1", 7, "ok", 5)
    told = judge_run(run)
    assert told.verdict is Verdict.VALID, told
    assert told.leaders == ((1, 1), (2, 2))
    assert told.operations == 31
    assert told.standstills[1].longest_s < 0.1
    assert told.without_leader_s == pytest.approx(0.3)


def test_a_lost_write_is_invalid_however_short_the_run(tmp_path: Path) -> None:
    """One acknowledged write that the log does not have."""
    run = made(tmp_path, [])
    write(run, "register-1", "r/0/1", 7, "ok", 5)
    told = judge_run(run)
    assert told.verdict is Verdict.INVALID
    assert "told index 5; its records lie at [[]]" in told.workloads[0].problems[0]


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
    run.scenario = made(tmp_path, []).scenario
    run.stretches = run.stretches[:1]
    told = judge_run(run)
    assert told.verdict is Verdict.UNKNOWN
    assert "no leader was seen to change" in told.missing[0]


def test_faults_that_nobody_is_sure_of_are_no_faults(tmp_path: Path) -> None:
    """An indeterminate fault does not count."""
    run = made(tmp_path, [], faults_min=1)
    busy(run)
    run.faults[0].outcome = "indeterminate"
    told = judge_run(run)
    assert told.verdict is Verdict.UNKNOWN
    assert told.missing == ("0 faults took effect, fewer than 1",)


def test_nodes_that_differ_are_invalid(tmp_path: Path) -> None:
    """What was found after the run counts whatever the histories say."""
    run = made(tmp_path, [])
    busy(run)
    run.aftermath.problems.append("node 2 and node 1 tell different records at index 5")
    assert judge_run(run).verdict is Verdict.INVALID
