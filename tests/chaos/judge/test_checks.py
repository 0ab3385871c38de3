"""The linear checks by the log index in every answer."""

from __future__ import annotations

from typing import Any

from raftlog.chaos.judge.checks import Changes, exactly_once, in_real_time, kept_by_age, replay
from raftlog.chaos.judge.history import History, Operation

WRITES = ("write", "cas", "append")
READS = ("read",)


def one_after_the_other(*rows: tuple[Any, ...]) -> list[Operation]:
    """Operations (f, value, outcome, output, index[, term[, result]]) of key k, each begun after the one before
    ended.
    """
    history = History()
    for process, (f, asked, outcome, told, index, *more) in enumerate(rows):
        history.invoke(process, f, "k", asked)
        term, result = (*more, None, None)[:2]
        history.complete(process, outcome, told, result=result, index=index, term=term)
    return history.operations()


def at_once(*rows: tuple[Any, ...]) -> list[Operation]:
    """The same, all at the same time."""
    history = History()
    for process, (f, asked, *_) in enumerate(rows):
        history.invoke(process, f, "k", asked)
    for process, (_, _, outcome, told, index, *_) in enumerate(rows):
        history.complete(process, outcome, told, index=index)
    return history.operations()


def test_indexes_follow_real_time() -> None:
    """A later write has a higher index, a later read none lower; what overlaps may be either way."""
    write, read = ("write", 1, "ok", 1, 5), ("read", None, "ok", 1, 5)
    assert (
        in_real_time(one_after_the_other(write, read, read, ("write", 2, "ok", 2, 6)), writes=WRITES, reads=READS) == []
    )
    for second in (("write", 2, "ok", 2, 5), ("write", 2, "ok", 2, 4), ("read", None, "ok", 1, 4)):
        assert len(in_real_time(one_after_the_other(write, second), writes=WRITES, reads=READS)) == 1
        assert in_real_time(at_once(write, second), writes=WRITES, reads=READS) == []
    stale = ("stale", None, "ok", 1, 4)
    assert in_real_time(one_after_the_other(write, stale), writes=WRITES, reads=READS) == []


def test_an_index_in_a_read_makes_older_answers_stale() -> None:
    """A read after a stale read of index 9 cannot be older: even a stale read shows a committed index."""
    rows = one_after_the_other(("stale", None, "ok", 1, 9), ("read", None, "ok", 1, 8))
    assert len(in_real_time(rows, writes=WRITES, reads=READS)) == 1


def test_terms_rise_with_the_index() -> None:
    """A higher index of an older term was never one log."""
    good = one_after_the_other(("write", 1, "ok", 1, 5, 2), ("write", 2, "ok", 2, 6, 2), ("write", 3, "ok", 3, 7, 3))
    assert in_real_time(good, writes=WRITES) == []
    bad = one_after_the_other(("write", 1, "ok", 1, 5, 3), ("write", 2, "ok", 2, 6, 2))
    assert len(in_real_time(bad, writes=WRITES)) == 1


def test_answers_are_those_of_their_index() -> None:
    """A write is the change at its index, a read returns the newest change up to its own."""
    changes: Changes = {"k": [(3, "a"), (5, "b"), (8, None)]}
    good = one_after_the_other(
        ("read", None, "ok", None, 2),
        ("write", "a", "ok", "a", 3),
        ("stale", None, "ok", "a", 4),
        ("cas", ["a", "b"], "ok", None, 5, 1, True),
        ("cas", ["a", "c"], "ok", None, 6, 1, False),
        ("write", None, "ok", None, 8),
        ("read", None, "ok", None, 9),
        ("write", None, "ok", None, 10),
        ("write", "z", "info", None, None),
        ("write", "y", "fail", None, None),
    )
    assert replay(good, changes) == []
    for bad in (
        ("read", None, "ok", "a", 2),
        ("read", None, "ok", "a", 5),
        ("read", None, "ok", "b", 8),
        ("write", "a", "ok", "a", 5),
        ("write", "a", "ok", "a", 4),
        ("cas", ["b", "x"], "ok", None, 5, 1, True),
        ("write", None, "ok", None, 5),
    ):
        assert len(replay(one_after_the_other(bad), changes)) == 1, bad


def test_appends_are_exactly_once() -> None:
    """Acknowledged at their index and nowhere else, failed nowhere, unknown at most once and whole, no record without a
    sender.
    """
    ok = one_after_the_other(("append", ["a", "b"], "ok", None, 6))
    assert exactly_once(ok, {"a": [5], "b": [6]}) == []
    for places in ({}, {"a": [5]}, {"a": [5, 9], "b": [6, 10]}, {"a": [6], "b": [7]}, {"a": [5], "b": [7]}):
        assert len(exactly_once(ok, places)) == 1, places
    failed = one_after_the_other(("append", ["a"], "fail", None, None))
    assert exactly_once(failed, {}) == []
    assert len(exactly_once(failed, {"a": [5]})) == 1
    unknown = one_after_the_other(("append", ["a", "b"], "info", None, None))
    assert exactly_once(unknown, {}) == exactly_once(unknown, {"a": [5], "b": [6]}) == []
    for places in ({"a": [5]}, {"b": [5]}, {"a": [5, 7], "b": [6, 8]}):
        assert len(exactly_once(unknown, places)) == 1, places
    assert len(exactly_once([], {"x": [5]})) == 1


def test_a_trim_takes_no_record_that_is_younger_than_retention_keeps() -> None:
    """By the clock of the harness: from the call of the youngest record that went to the first answer behind the trim.
    Where no write was answered behind it, nothing is known of its time."""
    history = History()
    for process, (called_s, index) in enumerate([(1, 5), (2, 6), (30, 8)]):
        history.invoke(process, "append", None, f"record:{index}", time_ns=called_s * 10**9)
        history.complete(process, "ok", None, index=index, time_ns=(called_s + 1) * 10**9)
    writes = history.operations()
    assert kept_by_age(writes, [(7, 6)], 30_000) == []
    assert kept_by_age(writes, [(7, 7)], 29_000) == []
    assert kept_by_age(writes, [(9, 9)], 60_000) == []
    (said,) = kept_by_age(writes, [(7, 7)], 29_001)
    assert said.startswith("the trim at index 7 took all records before 7; process 1: append")
    assert "was 29000 ms old at most, and records of 29001 ms have to stay" in said
