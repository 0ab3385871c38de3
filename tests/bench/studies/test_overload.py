"""Tests the verdict on an overload, from its measurements."""

import msgspec
import pytest

from bench.instruments.conditions import Conditions
from bench.instruments.machine import Disk
from bench.studies.overload import Answers, Phase, Result, counts, tell
from raftlog.cluster.runtime.metrics import Metrics

PEAK = Phase(64, 1_000.0, 0.0, {}, 5.0, 9.0)
LOAD = Phase(12_000, 900.0, 50.0, {}, 900.0, 2_000.0)
REFUSALS = Answers("POST /v1/log", {200: 9, 429: 70}, 60.0, 500.0)
STATUS = Answers("GET /v1/status", {200: 80}, 100.0, 400.0)
GOOD = Result(
    "now",
    Conditions(Disk("ext4", 1, 1.0, 1.0), 0.0),
    8_192,
    PEAK,
    LOAD,
    PEAK,
    0.9,
    0,
    (100.0, 110.0, 120.0),
    REFUSALS,
    [STATUS],
    [],
)


def test_a_node_that_keeps_its_rate_its_leader_and_its_memory_passes() -> None:
    """Nine tenths of the peak, no change of leader, memory flat, the rest refused soon, and operators answered."""
    assert GOOD.faults == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kept_share": 0.79}, "kept 79%"),
        ({"leader_changes": 1}, "1 changes"),
        ({"memory_mib": (100.0, 131.0, 131.0)}, "memory grew"),
        ({"overload": Phase(12_000, 900.0, 0.0, {}, 1.0, 1.0)}, "nothing was refused"),
        ({"overload": Phase(12_000, 900.0, 5.0, {"503": 1, "504": 2}, 1.0, 1.0)}, "3 answers"),
        ({"refusals": msgspec.structs.replace(REFUSALS, p50_ms=400.0)}, "refusals took 400 ms"),
        (
            {"operators": [msgspec.structs.replace(STATUS, statuses={0: 1, 200: 9})]},
            "GET /v1/status was refused or not",
        ),
        ({"operators": [msgspec.structs.replace(STATUS, statuses={429: 1})]}, "GET /v1/status was refused or not"),
        ({"operators": [msgspec.structs.replace(STATUS, max_ms=2_001.0)]}, "GET /v1/status took up to 2001 ms"),
    ],
)
def test_each_fault_is_named(change: dict[str, object], says: str) -> None:
    """A run that proves nothing, or that shows a node giving way, says why it fails."""
    (fault,) = msgspec.structs.replace(GOOD, **change).faults
    assert fault.startswith(says)


def test_an_overload_report_lists_its_measurements() -> None:
    """Three phases, the kept share of the rate, and each question with its answers and their times."""
    told = "\n".join(tell(GOOD))
    assert "overload   12,000 connections:      900 applied/s,      50 refused/s" in told
    assert "kept 90% of its peak (asked: 80%)" in told
    assert "POST /v1/log: 9 × 200, 70 × 429; p50 60 ms, at most 500 ms (times of those refused)" in told
    assert "GET /v1/status: 80 × 200; p50 100 ms, at most 400 ms" in told


def test_answers_are_counted_by_their_code() -> None:
    """Of the node's own counters only appends count as applied; answers neither applied nor busy are listed."""
    metrics = Metrics()
    metrics.http.answered += (
        [("/v1/log", 200, 0.0, 1)] * 5 + [("/v1/log", 429, 0.0, 1)] * 3 + [("/livez", 200, 0.0, 0)] * 9
    )
    metrics.count("raftlog_http_problems_total", "busy", 3)
    metrics.count("raftlog_http_problems_total", "no_leader", 2)
    seen = counts(metrics.text())
    assert (seen.applied, seen.refused, dict(seen.failed)) == (5, 3, {"no_leader": 2})
