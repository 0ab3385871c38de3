"""After a run: what the nodes tell of their logs is compared, also of a node that begins behind a snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from chaos.aftermath import Aftermath, compare, examine
from cluster.wire import Code, DigestAnswer, LogPage, LogRecord, Outcome, Problem
from tests.chaos.runs import appended

WHOLE = [appended(index, f"record:{index}") for index in range(1, 10)]


def compared(logs: dict[int, list[LogRecord]]) -> Aftermath:
    found = Aftermath(last_index=9)
    compare(found, logs)
    return found


def test_a_log_that_begins_behind_a_snapshot_is_compared_from_there() -> None:
    """A node that was mended by a snapshot tells what it has; the truth is the log of one that has it all."""
    found = compared({1: WHOLE[5:], 2: WHOLE, 3: []})
    assert found.problems == []
    assert found.begins == {1: 6, 2: 1, 3: 10}
    assert found.log is not None
    assert [index for index, _ in found.log.appended] == list(range(1, 10))


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ([*WHOLE[5:7], appended(8, "another"), WHOLE[8]], "node 2 and node 1 tell different records at index 8"),
        (WHOLE[5:8], "node 2 does not tell every index from 6 to 9: it ends at 8"),
        ([*WHOLE[5:7], WHOLE[8]], "node 2 does not tell every index from 6 to 9: index 8 is missing or there twice"),
    ],
)
def test_what_a_late_log_tells_must_be_right(log: list[LogRecord], said: str) -> None:
    """Another record, an end too early and a hole are findings, wherever the log begins."""
    assert compared({1: WHOLE, 2: log}).problems == [said]


def test_a_beginning_that_nobody_has_is_lost() -> None:
    """Some node must have every record: else what was acknowledged is gone."""
    (said,) = compared({1: WHOLE[2:], 2: WHOLE[5:]}).problems
    assert said == "no node tells the log from index 1 on: they begin at {1: 3, 2: 6}"


def test_a_node_is_asked_from_its_oldest_record_on(tmp_path: Any) -> None:
    """It answers 410 with that index; the digests of all logs are asked from where all have them. Before that it is
    waited until every disk has what may be read, and who cannot answer at once is asked again."""
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
            gone = Problem(Code.COMPACTED, "gone", 410, Outcome.NOT_APPLIED, False, "1-1", node, oldest=6)
            return 410, msgspec.json.encode(gone)
        page = LogPage("l", WHOLE[begin - 1 :], next=10, oldest=1, committed=9, last_user_index=9, index=9, term=1)
        return 200, msgspec.json.encode(page)

    status = SimpleNamespace(role="leader", term=1, last=9, committed=9, applied=9)
    cluster = SimpleNamespace(nodes=[1, 2], status=lambda node: status, ask=ask)
    deployment: Any = SimpleNamespace(cluster=cluster, folder=tmp_path)
    found = examine(deployment)
    assert found.problems == []
    assert found.begins == {1: 1, 2: 6}
    assert (missing, refusals) == ([], [])
    assert asked == [
        "1 /v1/log?from=1", "2 /v1/log?from=1", "2 /v1/log?from=6",
        "1 /v1/digest?index=9", "2 /v1/digest?index=9",
    ]  # fmt: skip
