"""The search, and the one-pass checkers, against brute force; and its limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from raftlog.chaos.judge.checkers import judge
from raftlog.chaos.judge.history import History
from raftlog.chaos.judge.linearizable import Limits, check
from raftlog.chaos.judge.models import MODELS
from raftlog.chaos.judge.verdicts import Verdict
from tests.chaos.judge import naive, small_histories
from tests.chaos.judge.naive import is_linearizable
from tests.chaos.judge.small_histories import history_of
from tests.support import fresh_seed

MODELS_AND_TWINS: list[tuple[str, Callable[[Random], Any], Any, Any, naive.Step]] = [
    ("cas-register", small_histories.Register, None, None, naive.cas_register),
    ("kv-append", small_histories.Text, None, "", naive.kv_append),
    ("mutex", small_histories.Lock, None, False, naive.mutex),
    ("multi-register", small_histories.Registers, None, (), naive.multi_register),
    ("set", small_histories.Elements, None, frozenset(), naive.growing_set),
    ("list-append", small_histories.Lists, None, (), naive.lists),
    ("bank", small_histories.Accounts, {"a": 2, "b": 2}, (("a", 2), ("b", 2)), naive.bank),
]
HISTORIES = 1_500
"""Small histories of each model; fixed seeds, and as many fresh ones of which the first is printed."""


@pytest.mark.parametrize("model", MODELS_AND_TWINS, ids=lambda row: row[0])
@pytest.mark.parametrize("first", [0, None], ids=["fixed", "fresh"])
def test_the_verdict_is_that_of_brute_force(model: Any, first: int | None) -> None:
    """On small histories, right and spoilt, the checker says what trying every order says; and both verdicts occur."""
    name, thing, init, start, step = model
    if first is None:
        first = fresh_seed("linearizable")
        print(f"first seed {first}")
    verdicts = {True: 0, False: 0}
    for seed in range(first, first + HISTORIES):
        random = Random(seed)
        history = history_of(thing(random), random, random.randint(1, 7), spoilt=random.randint(0, 3))
        operations = history.operations()
        wanted = is_linearizable(operations, start, step)
        report = judge(operations, name, init)
        assert (report.verdict is Verdict.VALID) == wanted, (seed, b"".join(history.lines()).decode(), report)
        assert report.verdict is not Verdict.UNKNOWN
        verdicts[wanted] += 1
    assert min(verdicts.values()) > HISTORIES // 60, verdicts


def test_the_first_impossible_operation_is_that_of_brute_force() -> None:
    """What ended before it can be put in order, and with it nothing can; the prefix is such an order."""
    found = 0
    for seed in range(1_500):
        random = Random(f"first {seed}")
        operations = history_of(small_histories.Register(random), random, 7, spoilt=2).operations()
        (report,) = check(operations, MODELS["cas-register"]).keys
        if report.verdict is Verdict.VALID:
            continue
        found += 1
        assert report.impossible is not None
        end = report.impossible.returned
        assert end is not None
        before = [each for each in operations if each.called < end and each.outcome != "fail"]
        cut = [each for each in before if each.returned is not None and each.returned < end]
        rest = [each for each in before if each not in cut and each is not report.impossible]
        assert is_linearizable([*cut, *map(_unknown, [*rest, report.impossible])], None, naive.cas_register)
        assert not is_linearizable([*cut, report.impossible, *map(_unknown, rest)], None, naive.cas_register)
        state: Any = None
        for each in report.prefix:
            state = naive.cas_register(state, each)
            assert state is not naive.NO
        assert {id(each) for each in cut if each.f != "read"} <= {id(each) for each in report.prefix}
    assert found > 100


def _unknown(operation: Any) -> Any:
    """The operation as if its completion had not come yet."""
    return replace(operation, outcome="info", returned=None)


def recorded(*rows: tuple[Any, ...]) -> History:
    """A history of (process, type, f, value[, result]) rows."""
    history = History()
    for process, kind, f, value, *result in rows:
        if kind == "invoke":
            history.invoke(process, f, None, value)
        else:
            history.complete(process, kind, value, result=result[0] if result else None)
    return history


def test_a_stale_read_is_named() -> None:
    """The oldest bug there is: a read that began after a write had ended does not see it."""
    history = recorded(
        (1, "invoke", "write", 1),
        (1, "ok", "write", 1),
        (2, "invoke", "write", 2),
        (2, "ok", "write", 2),
        (1, "invoke", "read", None),
        (1, "ok", "read", 1),
    )
    report = check(history.operations(), MODELS["register"])
    assert report.verdict is Verdict.INVALID
    (key,) = report.keys
    assert key.impossible is not None
    assert key.impossible.called == 5
    assert [each.value for each in key.prefix] == [1, 2]
    assert "lines 5 and 6" in report.problems[0]


def test_a_timeout_is_not_a_failure() -> None:
    """A write of unknown outcome may show later, or never; one that failed may not."""
    rows = [
        (1, "invoke", "write", 1),
        (1, "info", "write", None),
        (2, "invoke", "read", None),
        (2, "ok", "read", None),
        (2, "invoke", "read", None),
        (2, "ok", "read", 1),
    ]
    assert check(recorded(*rows).operations(), MODELS["register"]).verdict is Verdict.VALID
    rows[1] = (1, "fail", "write", None)
    assert check(recorded(*rows).operations(), MODELS["register"]).verdict is Verdict.INVALID


def test_an_unseen_value_can_be_what_a_failed_compare_saw() -> None:
    """An unread unknown write must not be left out when a cas saw another value than the one before."""
    history = recorded(
        (1, "invoke", "write", 7),
        (1, "info", "write", None),
        (2, "invoke", "cas", [None, 1]),
        (2, "ok", "cas", None, False),
    )
    assert check(history.operations(), MODELS["cas-register"]).verdict is Verdict.VALID


def hard() -> History:
    """Many equal texts appended at once, and a read of another: too many orders to try."""
    history = History()
    for f in ("append", "put"):
        for process in range(22):
            history.invoke(process, f, "hard", "ab"[process % 2])
        for process in range(22):
            history.complete(process, "ok")
        history.invoke("reader", "get", "hard")
        history.complete("reader", "ok", "abc")
    return history


def test_a_hard_key_does_not_hide_a_bad_one() -> None:
    """Keys take turns: the verdict comes from the easy bad key, although the hard one comes first."""
    history = hard()
    history.invoke(999, "put", "bad", "1")
    history.complete(999, "ok")
    history.invoke(999, "get", "bad")
    history.complete(999, "ok", "2")
    report = check(history.operations(), MODELS["kv-append"], limits=Limits(steps=3_000_000, states=300_000))
    assert report.verdict is Verdict.INVALID
    assert [(key.key, key.verdict) for key in report.keys] == [("hard", Verdict.UNKNOWN), ("bad", Verdict.INVALID)]


def test_a_key_that_is_given_up_does_not_stop_the_others() -> None:
    """At the limit of states the hardest key is forgotten, and a bad one that comes later is still found."""
    history = hard()
    random = Random(3)
    thing = small_histories.Text(random)
    for event in history_of(thing, random, 4_000, spoilt=0).events:
        if event.type == "invoke":
            history.invoke(f"p{event.process}", event.f, "long", event.value)
        else:
            history.complete(f"p{event.process}", event.type, event.value)
    history.invoke("end", "get", "long")
    history.complete("end", "ok", "never there")
    report = check(history.operations(), MODELS["kv-append"], limits=Limits(steps=3_000_000, states=20_000))
    assert [(key.key, key.verdict) for key in report.keys] == [("hard", Verdict.UNKNOWN), ("long", Verdict.INVALID)]


@pytest.mark.parametrize(
    ("limits", "why"),
    [(Limits(steps=20_000), "steps"), (Limits(states=5_000), "states"), (Limits(), "time")],
    ids=["steps", "states", "time"],
)
def test_the_search_gives_up_within_its_limits(limits: Limits, why: str) -> None:
    """Steps, states or time: the verdict is unknown, the report says which limit it was, and it ends at once."""
    asked = iter([False] * 3 + [True] * 1_000)
    report = check(
        hard().operations(),
        MODELS["kv-append"],
        limits=limits,
        is_over=(lambda: next(asked)) if why == "time" else None,
    )
    assert report.verdict is Verdict.UNKNOWN
    assert why in report.problems[0]
    steps = dict(report.counts)["steps"]
    assert steps <= {"steps": 20_000, "states": 1_000_000, "time": 4 * 64_000}[why]


def test_a_history_of_unknown_operations_is_valid() -> None:
    """A history of nothing but unknown operations is valid, and so is an empty one."""
    assert check([], MODELS["register"]).verdict is Verdict.VALID
    assert check(recorded((1, "invoke", "write", 1)).operations(), MODELS["register"]).verdict is Verdict.VALID


def test_thousands_of_small_histories_a_minute() -> None:
    """The size that a simulated world has: at least 5,000 a minute on a busy machine."""
    histories = []
    for seed in range(60):
        random = Random(seed)
        histories.append(history_of(small_histories.Register(random), random, 60, processes=5, spoilt=0))
    began = time.process_time()
    for history in histories:
        assert check(history.operations(), MODELS["cas-register"]).verdict is Verdict.VALID
    took_s = time.process_time() - began
    print(f"{60 * len(histories) / took_s:.0f} histories of 60 operations a minute")
    assert 60 * len(histories) / took_s > 5_000


def test_a_long_history_of_one_key() -> None:
    """6,000 operations on one key, four at a time: sets and memory grow with what overlaps, not with the length."""
    random = Random(5)
    thing = small_histories.Register(random)
    thing.is_unique = True
    history = history_of(thing, random, 6_000, processes=4, spoilt=0)
    began = time.process_time()
    report = check(history.operations(), MODELS["cas-register"], limits=Limits(states=500_000))
    assert report.verdict is Verdict.VALID
    assert time.process_time() - began < 20
