"""What each model makes of operations: which say nothing, which values are equal, which errors name their line."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.chaos.judge.checkers import judge
from raftlog.chaos.judge.history import BadHistory, History
from raftlog.chaos.judge.model import BadInit, freeze
from raftlog.chaos.judge.verdicts import Verdict

Row = tuple[Any, ...]
VALID, INVALID = Verdict.VALID, Verdict.INVALID


def verdict(model: str, rows: list[Row], init: Any = None) -> Verdict:
    """The verdict on operations (f, value, outcome, output[, result]) one after the other; key None."""
    history = History()
    for process, (f, asked, outcome, told, *result) in enumerate(rows):
        history.invoke(process, f, None, asked)
        if outcome is not None:
            history.complete(process, outcome, told, result=result[0] if result else None)
    return judge(history.operations(), model, init).verdict


CASES: list[tuple[str, Any, list[Row], Verdict]] = [
    # registers
    ("register", None, [("read", None, "ok", None), ("write", 1, "ok", 1), ("read", None, "ok", 1)], VALID),
    ("register", 5, [("read", None, "ok", 5)], VALID),
    ("register", None, [("read", None, "ok", 5)], INVALID),
    ("register", None, [("write", 1, "ok", 1), ("read", None, "ok", True)], INVALID),
    ("register", None, [("write", 1, "ok", 1), ("read", None, "ok", 1.0)], VALID),
    ("register", None, [("write", 1, "ok", 1), ("read", None, "ok", "1")], INVALID),
    ("register", None, [("write", {"a": [1]}, "ok", 1), ("read", None, "ok", {"a": [1]})], VALID),
    ("register", None, [("write", 1, "ok", 1), ("read", None, "ok", None)], INVALID),
    ("register", None, [("write", 1, "fail", None), ("read", None, "ok", None)], VALID),
    ("register", None, [("write", 1, "info", None), ("read", None, "ok", None), ("read", None, "ok", 1)], VALID),
    ("register", None, [("write", 1, None, None), ("read", None, "ok", 1), ("read", None, "ok", None)], INVALID),
    ("register", None, [("read", None, "fail", 77), ("read", None, "info", 78), ("read", None, None, None)], VALID),
    # compare and set
    ("cas-register", 0, [("cas", [0, 1], "ok", [0, 1], True), ("read", None, "ok", 0)], INVALID),
    ("cas-register", 0, [("cas", [2, 1], "ok", [2, 1], False), ("read", None, "ok", 0)], VALID),
    ("cas-register", 0, [("cas", [0, 1], "fail", None), ("read", None, "ok", 0)], VALID),
    ("cas-register", 0, [("cas", [0, 1], "fail", None), ("read", None, "ok", 1)], INVALID),
    ("cas-register", 0, [("cas", [0, 1], "info", None), ("read", None, "ok", 0), ("read", None, "ok", 1)], VALID),
    ("cas-register", 0, [("cas", [3, 1], "info", None), ("read", None, "ok", 1)], INVALID),
    # texts
    ("kv-append", None, [("get", None, "ok", ""), ("append", "a", "ok", "a"), ("get", None, "ok", "a")], VALID),
    ("kv-append", None, [("get", None, "ok", None)], VALID),
    (
        "kv-append",
        "z",
        [("append", "a", "ok", "a"), ("put", "p", "ok", "p"), ("append", "q", "ok", "q"), ("get", None, "ok", "pq")],
        VALID,
    ),
    (
        "kv-append",
        None,
        [("append", "beyond", "ok", "a"), ("append", "b", "ok", "b"), ("get", None, "ok", "beyond")],
        INVALID,
    ),
    # locks
    ("mutex", None, [("acquire", None, "ok", None), ("acquire", None, "fail", None)], VALID),
    (
        "mutex",
        None,
        [("acquire", None, "ok", None), ("release", None, "info", None), ("acquire", None, "ok", None)],
        VALID,
    ),
    ("mutex", True, [("release", None, "ok", None)], VALID),
    # several registers
    ("multi-register", {"x": 0}, [("txn", [["read", "x", None]], "ok", [["read", "x", 0]])], VALID),
    ("multi-register", {"x": 0}, [("txn", [["read", "x", None]], "ok", [["read", "x", None]])], VALID),
    ("multi-register", [[1, 0]], [("txn", [["read", 1, None]], "ok", [["read", 1, 0]])], VALID),
    (
        "multi-register",
        None,
        [
            ("txn", [["write", "x", 1], ["write", "y", 1]], "ok", None),
            ("txn", [["read", "x", 1], ["read", "y", 2]], "ok", None),
        ],
        INVALID,
    ),
    ("multi-register", None, [("txn", [["write", "x", 1], ["read", "x", 1]], "ok", None)], VALID),
    ("multi-register", None, [("txn", [["write", "x", 1]], "info", 0), ("txn", [["read", "x", 1]], "ok", None)], VALID),
    # sets
    ("set", None, [("add", 1, "ok", 1), ("add", 2, "info", None), ("read", None, "ok", [1])], VALID),
    ("set", None, [("add", 1, "ok", 1), ("read", None, "ok", [1, 1])], INVALID),
    ("set", None, [("read", None, "ok", [9])], INVALID),
    # banks
    (
        "bank",
        {"a": 5, "b": 0},
        [("transfer", {"from": "a", "to": "b", "amount": 5}, "ok", None), ("read", None, "ok", {"a": 0, "b": 5})],
        VALID,
    ),
    ("bank", {"a": 5, "b": 0}, [("transfer", {"from": "b", "to": "a", "amount": 5}, "ok", None)], INVALID),
    ("bank", {"a": 5, "b": 0}, [("transfer", {"from": "b", "to": "a", "amount": 5}, "ok", None, False)], VALID),
    ("bank", None, [("read", None, "ok", {"a": 5, "b": 0}), ("read", None, "ok", {"a": 4, "b": 0})], INVALID),
]


@pytest.mark.parametrize(("model", "init", "rows", "wanted"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)])
def test_sequential_histories_are_judged_by_each_models_rules(
    model: str, init: Any, rows: list[Row], wanted: Verdict
) -> None:
    """Start values, equal values, and outcomes; the rest of the rules brute force proves (test_linearizable.py)."""
    assert verdict(model, rows, init) is wanted


@pytest.mark.parametrize(
    ("model", "row", "why"),
    [
        ("register", ("cas", [1, 2], "ok", None), "line 1: register has no function 'cas'"),
        ("cas-register", ("cas", 1, "ok", None), "line 1: the value of cas"),
        ("cas-register", ("cas", [1, 2], "ok", None, 5), "line 2: the result"),
        ("kv-append", ("append", 1, "ok", None), "line 2: the value of append"),
        ("mutex", ("read", None, "ok", None), "mutex has no function"),
        ("multi-register", ("txn", [["swap", 1, 2]], "ok", None), "line 2: a step"),
        ("multi-register", ("read", None, "ok", None), "no function 'read'"),
        ("set", ("read", None, "ok", 5), "line 2: a read of a set is a list"),
        ("list-append", ("read", None, "ok", 5), "line 2"),
        ("list-append", ("txn", [["swap", 1, 2]], "ok", None), "line 2"),
        ("bank", ("transfer", {"from": 1}, "ok", None), "line 1: a transfer"),
        ("bank", ("read", None, "ok", [1]), "line 2: a read of a bank"),
        ("log", ("read", None, "ok", [[2, "b"], [1, "a"]]), "line 2"),
        ("log", ("get", None, "ok", None), "no function 'get'"),
    ],
)
def test_unknown_functions_of_a_model_are_named(model: str, row: Row, why: str) -> None:
    """Functions and values that a model has not are errors that name the line, never a verdict."""
    with pytest.raises(BadHistory, match=why):
        verdict(model, [row], {"a": 1} if model == "bank" else None)


@pytest.mark.parametrize(
    ("model", "init"), [("mutex", 5), ("kv-append", 5), ("multi-register", 5), ("bank", {"a": "b"}), ("set", [])]
)
def test_start_values_are_checked(model: str, init: Any) -> None:
    """A start value of another kind is refused by name."""
    with pytest.raises(BadInit):
        verdict(model, [("append", "x", "ok", "x")], init)


def test_a_set_verdict_names_lost_and_stale_elements() -> None:
    """Stale is what a later read has, lost what none has."""
    history = History()
    for element in (1, 2):
        history.invoke(element, "add", None, element)
        history.complete(element, "ok", element)
    for told in ([], [2]):
        history.invoke("r", "read")
        history.complete("r", "ok", told)
    problems = judge(history.operations(), "set").problems
    assert [problem.partition(":")[0] for problem in problems] == ["lost", "stale", "lost"]


def log_rows(*rows: tuple[str, Any, Any, int | None]) -> Any:
    """A log history of (f, value, output, index), one after the other."""
    history = History()
    for process, (f, asked, told, index) in enumerate(rows):
        history.invoke(process, f, None, asked)
        history.complete(process, "ok", told, index=index)
    return judge(history.operations(), "log")


def test_log_histories_get_their_verdicts() -> None:
    """Records at their indexes, each once, in the order of real time, and no read passes over one."""
    good = [
        ("append", "a", None, 3),
        ("append", ["b", "c"], None, 5),
        ("read", None, [[3, "a"], [4, "b"], [5, "c"]], 5),
    ]
    assert log_rows(*good).verdict is VALID
    for bad, why in (
        ([*good, ("append", "d", None, 4)], "index 4 holds two"),
        ([*good, ("append", "d", None, 2)], "not after"),
        ([*good, ("read", None, [[3, "a"], [5, "c"]], 5)], "passes over index 4"),
        ([*good, ("read", None, [[3, "a"], [4, "b"], [5, "c"], [6, "a"]], 6)], "duplicated"),
        ([*good, ("read", None, [[3, "a"]], 4)], "not after"),
        ([*good, ("read", None, [[9, "x"]], 9)], "no client appended"),
        ([("append", "n", None, None), *good], "lost"),
    ):
        report = log_rows(*bad)
        assert report.verdict is INVALID
        assert any(why in problem for problem in report.problems), (why, report.problems)


def test_a_list_names_the_cycle() -> None:
    """Write skew between two lists: each transaction read what the other had not yet appended to."""
    history = History()
    history.invoke(1, "txn", None, [["read", "x", None], ["append", "y", 1]])
    history.invoke(2, "txn", None, [["read", "y", None], ["append", "x", 2]])
    history.complete(1, "ok", [["read", "x", []], ["append", "y", 1]])
    history.complete(2, "ok", [["read", "y", []], ["append", "x", 2]])
    for key, element in (("x", 2), ("y", 1)):
        history.invoke(3, "read", key)
        history.complete(3, "ok", [element])
    report = judge(history.operations(), "list-append")
    assert report.verdict is INVALID
    assert report.problems[0].startswith("a cycle: process ")
    assert report.problems[0].count("without the element that was appended by") == 2


def test_json_values_are_equal_as_json() -> None:
    """1 is 1.0 and not true; objects have no order; a list is no text."""
    assert freeze(1) == freeze(1.0)
    assert freeze(1) != freeze(True)
    assert freeze(0) != freeze(False)
    assert freeze({"a": 1, "b": [2]}) == freeze({"b": [2], "a": 1})
    assert freeze(["a"]) != freeze("a")
    assert freeze([]) != freeze({})
    empty: list[Any] = [None, False, 0, "", [], {}]
    assert len({freeze(each) for each in empty}) == 6
