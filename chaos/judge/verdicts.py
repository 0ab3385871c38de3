"""Defines the verdict of a checker: valid, invalid, or unknown within its limits, with the reason.

Unknown is an answer of its own: it is never taken for valid, and a checker that runs into a limit says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from raftlog.chaos.judge.history import Operation

EVERY_NODE_SERVES: Final = "every node serves"
"""The property of healed nodes that the simulator and runs on real processes demand."""

SERVES_TIMEOUTS: Final = 10
"""Longest election timeouts in which each node of a healed cluster takes a write and answers a linearizable read: one
election, which a split vote repeats, and the rest for a busy machine."""


class Verdict(StrEnum):
    """The three answers."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several parts: invalid if any is, else unknown if any is."""
    found = set(verdicts)
    for verdict in (Verdict.INVALID, Verdict.UNKNOWN):
        if verdict in found:
            return verdict
    return Verdict.VALID


@dataclass(frozen=True, slots=True)
class KeyReport:
    """What the search for one key came to.

    `prefix` is a longest order of operations that explains everything before `impossible`. `impossible` is the first
    operation (by its end) that no order explains. Both are empty for a valid key. For an unknown one they show how far
    the search came.
    """

    key: Any
    verdict: Verdict
    operations: int
    steps: int
    states: int
    prefix: tuple[Operation, ...] = ()
    impossible: Operation | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The answer about a history. `problems` are whole sentences, the worst first; `counts` are for people."""

    verdict: Verdict
    model: str
    operations: int
    problems: tuple[str, ...] = ()
    keys: tuple[KeyReport, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()


PROBLEMS_MAX = 20
"""Sentences kept in a report: a broken run repeats itself."""


def report_of(model: str, operations: int, problems: list[str], counts: Mapping[str, int]) -> Report:
    """The report of a checker that decides in one pass: invalid if it found any problem."""
    shown = problems[:PROBLEMS_MAX]
    if len(problems) > PROBLEMS_MAX:
        shown.append(f"... and {len(problems) - PROBLEMS_MAX} more problems")
    verdict = Verdict.INVALID if problems else Verdict.VALID
    return Report(verdict, model, operations, tuple(shown), counts=tuple(counts.items()))


def as_object(report: Report, took_s: float) -> dict[str, Any]:
    """The report as JSON has it; of the keys only those that are not valid."""
    return {
        "verdict": report.verdict.value,
        "model": report.model,
        "operations": report.operations,
        "seconds": round(took_s, 3),
        "problems": list(report.problems),
        "counts": dict(report.counts),
        "keys": [_key_object(key) for key in report.keys if key.verdict is not Verdict.VALID],
    }


def _key_object(report: KeyReport) -> dict[str, Any]:
    return {
        "key": report.key,
        "verdict": report.verdict.value,
        "operations": report.operations,
        "steps": report.steps,
        "states": report.states,
        "prefix": [_operation_object(operation) for operation in report.prefix],
        "impossible": _operation_object(report.impossible) if report.impossible else None,
    }


def _operation_object(operation: Operation) -> dict[str, Any]:
    return {
        "process": operation.process,
        "f": operation.f,
        "value": operation.value,
        "outcome": operation.outcome,
        "output": operation.output,
        "result": operation.result,
        "lines": [operation.called, operation.returned],
    }
