"""Tests the comparison of the nodes' logs after a run, also of a node that begins behind a snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftlog.chaos.runs.aftermath import Aftermath, _records, compare, examine
from raftlog.chaos.workloads.tracer import Tracer
from raftlog.cluster.api.errors import Code, Outcome, Problem
from raftlog.cluster.api.records import LogPageJson, LogRecord
from raftlog.cluster.api.status import DigestAnswer
from tests.chaos.record.runs import appended

WHOLE = [appended(index, f"record:{index}") for index in range(1, 10)]


def compared(logs: dict[int, list[LogRecord]], before: list[LogRecord] | None = None) -> Aftermath:
    """The findings where nodes return these logs, and answers during the run had `before` (all nine records)."""
    found, tracer = Aftermath(last_index=9), Tracer()
    tracer.know("node 9", WHOLE if before is None else before)
    compare(found, logs, tracer)
    found.problems += tracer.problems
    return found


def test_a_log_that_begins_behind_a_snapshot_is_compared_from_there() -> None:
    """A node that was repaired by a snapshot returns its part; the truth is the union of all answers."""
    found = compared({1: WHOLE[5:], 2: WHOLE, 3: []}, [])
    assert found.problems == []
    assert found.begins == {1: 6, 2: 1, 3: 10}
    assert found.log is not None
    assert [index for index, _ in found.log.appended] == list(range(1, 10))


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ([*WHOLE[5:7], appended(8, "another"), WHOLE[8]], "at an index where another answer gave"),
        (WHOLE[5:8], "node 2 does not have every index from 6 to 9: it ends at 8"),
        ([*WHOLE[5:7], WHOLE[8]], "node 2 does not have every index from 6 to 9: index 8 is missing or there twice"),
    ],
)
def test_records_of_a_late_log_must_equal_the_truth(log: list[LogRecord], said: str) -> None:
    """Another record, an end too early and a hole are findings, wherever the log begins."""
    (told,) = compared({1: WHOLE, 2: log}).problems
    assert said in told


def test_a_beginning_without_any_copy_is_a_loss() -> None:
    """Some node must have every untrimmed record: otherwise acknowledged records are gone."""
    (said,) = compared({1: WHOLE[2:], 2: WHOLE[5:]}).problems
    assert said == "no node has the log from index 1 on, up to which it was trimmed: they begin at {1: 3, 2: 6}"


def test_records_read_before_their_trim_count_as_known() -> None:
    """A trim in the log makes a later beginning right; a record in no answer before it was trimmed has no truth."""
    trim = LogRecord(9, 1, 0, "commands", "trim", argument=6)
    logs = {1: [*WHOLE[5:8], trim], 2: [*WHOLE[5:8], trim]}
    found = compared(logs, WHOLE[:8])
    assert (found.problems, found.untold) == ([], 0)
    assert found.log is not None
    assert found.log.trimmed_before == 6
    assert [index for index, _ in found.log.appended] == list(range(1, 9))
    found = compared(logs, [*WHOLE[:2], *WHOLE[3:8]])
    assert (found.problems, found.untold, found.log) == ([], 3, None)


def test_an_applied_record_that_is_gone_again_is_found() -> None:
    """A power cut took an applied entry, and another one has its index, or none has."""
    (said,) = compared({1: [*WHOLE[:8], appended(9, "another")]}).problems
    assert "node 1, after the run, gave" in said
    assert "'another'" in said
    (said,) = compared({1: WHOLE}, [*WHOLE, appended(10, "gone")]).problems
    assert said.startswith("the nodes hold nothing after index 9; an answer had given")


def gone(node: int, oldest: int) -> tuple[int, bytes]:
    """That node's answer to a read below its oldest record."""
    problem = Problem(Code.COMPACTED, "gone", 410, Outcome.NOT_APPLIED, False, "1-1", node, oldest=oldest)
    return 410, msgspec.json.encode(problem)


def test_a_node_is_asked_from_its_oldest_record_on(tmp_path: Any) -> None:
    """It answers 410 with that index; the digests of all logs are asked from where all have them. First every disk must
    have all readable records; a node that cannot answer at once is asked again.
    """
    asked: list[str] = []
    missing, refusals = [7.0, 0.0], [503]

    def ask(node: int, target: str, _timeout: float) -> tuple[int, bytes]:
        if target == "/metrics":
            left = missing.pop(0) if node == 2 and missing else 0.0
            return 200, b"# HELP x\nraftlog_backfill_missing %.1f\nraftlog_term 1.0\n" % left
        if refusals and target.startswith("/v1/log"):
            return refusals.pop(), b"{}"
        asked.append(f"{node} {target.split('&')[0]}")
        if target.startswith("/v1/digest"):
            return 200, msgspec.json.encode(DigestAnswer("l", 9, 1, 0, None, 1))
        begin = int(target.partition("from=")[2].partition("&")[0])
        if node == 2 and begin < 6:
            return gone(node, 6)
        page = LogPageJson("l", WHOLE[begin - 1 :], next=10, oldest=1, committed=9, last_user_index=9, index=9, term=1)
        return 200, msgspec.json.encode(page)

    status = SimpleNamespace(role="leader", term=1, last=9, committed=9, applied=9, oldest=1)
    cluster = SimpleNamespace(nodes=[1, 2], status=lambda node: status, ask=ask)
    deployment: Any = SimpleNamespace(cluster=cluster, folder=tmp_path)
    found = examine(deployment, Tracer())
    assert found.problems == []
    assert found.begins == {1: 1, 2: 6}
    assert (missing, refusals) == ([], [])
    assert asked == [
        "1 /v1/log?from=1",
        "2 /v1/log?from=1",
        "2 /v1/log?from=6",
        "1 /v1/digest?index=9",
        "2 /v1/digest?index=9",
    ]


def test_a_trim_while_the_logs_are_read_is_no_loss(tmp_path: Any) -> None:
    """Retention trims on after the load: when the nodes are asked for index 9 and all before, the records up to index 5
    are gone. The trim is index 10, so the logs are read again up to it."""
    log = list(WHOLE)
    trim = LogRecord(10, 1, 0, "commands", "trim", argument=6)

    def oldest() -> int:
        return 1 if log == WHOLE else 6

    def ask(node: int, target: str, _timeout: float) -> tuple[int, bytes]:
        if target == "/metrics":
            return 200, b"raftlog_backfill_missing 0.0\n"
        if target.startswith("/v1/digest"):
            return 200, msgspec.json.encode(DigestAnswer("l", 10, 1, 0, None, 1))
        if log == WHOLE:
            log.append(trim)
        begin, to = (int(target.partition(f"{word}=")[2].partition("&")[0]) for word in ("from", "to"))
        if begin < oldest():
            return gone(node, oldest())
        page = LogPageJson(
            "l", log[begin - 1 : to - 1], next=to, oldest=oldest(), committed=9, last_user_index=9, index=9, term=1
        )
        return 200, msgspec.json.encode(page)

    def status(_node: int) -> SimpleNamespace:
        last = len(log)
        return SimpleNamespace(role="leader", term=1, last=last, committed=last, applied=last, oldest=oldest())

    cluster = SimpleNamespace(nodes=[1, 2], status=status, ask=ask)
    deployment: Any = SimpleNamespace(cluster=cluster, folder=tmp_path)
    tracer = Tracer()
    tracer.know("node 9", WHOLE)
    found = examine(deployment, tracer)
    assert (found.problems, found.last_index, found.untold) == ([], 10, 0)
    assert found.begins == {1: 6, 2: 6}
    assert found.log is not None
    assert [index for index, _ in found.log.appended] == list(range(1, 10))


@pytest.mark.parametrize("oldest", range(1, 11))
def test_a_log_that_is_trimmed_between_two_pages_has_no_hole(oldest: int) -> None:
    """For each oldest index, and a trim before each of the pages: the records are consecutive up to the end."""
    asked = trimmed_after = 0

    def ask(node: int, target: str, _timeout: float) -> tuple[int, bytes]:
        nonlocal asked
        asked += 1
        begin = int(target.partition("from=")[2].partition("&")[0])
        if asked > trimmed_after and begin < oldest:
            return gone(node, oldest)
        records = WHOLE[begin - 1 : begin + 1]
        end = begin + len(records)
        told = LogPageJson("l", records, next=end, oldest=1, committed=9, last_user_index=9, index=9, term=1)
        return 200, msgspec.json.encode(told)

    deployment: Any = SimpleNamespace(cluster=SimpleNamespace(ask=ask))
    for pages in range(6):
        asked, trimmed_after = 0, pages
        found = [record.index for record in _records(deployment, 1, 9)]
        assert found == list(range(found[0] if found else 10, 10)), pages
        assert not found or found[0] in (1, oldest)
