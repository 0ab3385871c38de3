"""A checker that is slow and plainly right: every order of the operations that real time allows, by brute force.

Written without the production models, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raftlog.chaos.judge.history import Operation

Step = Callable[[Any, Operation], Any]
"""The state after the operation, or `NO` where it cannot have been answered so."""

NO = object()


def is_linearizable(operations: Sequence[Operation], start: Any, step: Step) -> bool:
    """Whether some order explains every operation that ended ok; those of unknown outcome may be in it or not."""
    done = [each for each in operations if each.outcome == "ok"]
    left = [each for each in operations if each.outcome in ("ok", "info")]

    def search(state: Any, left: list[Operation], wanted: int) -> bool:
        if not wanted:
            return True
        for each in left:
            if any(other.returned is not None and other.returned < each.called for other in left if other is not each):
                continue  # that one had ended before this began, so it comes first
            after = step(state, each)
            if after is not NO:
                rest = [other for other in left if other is not each]
                if search(after, rest, wanted - (each.outcome == "ok")):
                    return True
        return False

    return search(start, left, len(done))


def cas_register(state: Any, each: Operation) -> Any:
    """read, write, cas."""
    if each.f == "read":
        return state if each.outcome == "info" or same(each.output, state) else NO
    if each.f == "write":
        return each.value
    before, after = each.value
    if each.outcome == "info":
        return after if same(state, before) else state
    if each.result is False:
        return NO if same(state, before) else state
    return after if same(state, before) else NO


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return type(one) is type(other) and bool(one == other)


def kv_append(state: Any, each: Operation) -> Any:
    """get, put, append."""
    if each.f == "get":
        return state if each.outcome == "info" or (each.output or "") == state else NO
    return each.value if each.f == "put" else state + each.value


def mutex(state: Any, each: Operation) -> Any:
    """acquire, release."""
    can = not state if each.f == "acquire" else state
    if each.outcome == "info":
        return each.f == "acquire" if can else state
    if each.result is False:
        return state if not can else NO
    return each.f == "acquire" if can else NO


def multi_register(state: Any, each: Operation) -> Any:
    """txn; the state is a tuple of sorted pairs."""
    values = dict(state)
    steps = each.output if each.outcome == "ok" else each.value
    for f, key, value in steps:
        if f == "write":
            values[key] = value
        elif each.outcome == "ok" and value is not None and values.get(key) != value:
            return NO
    return tuple(sorted(values.items()))


def growing_set(state: Any, each: Operation) -> Any:
    """add, read; the state is a frozenset."""
    if each.f == "add":
        return state | {each.value}
    return state if each.outcome == "info" or sorted(each.output) == sorted(state) else NO


def lists(state: Any, each: Operation) -> Any:
    """append, read, txn; the state is a tuple of (key, tuple of elements)."""
    values = dict(state)
    steps = [[each.f, each.key, each.output if each.f == "read" else each.value]]
    if each.f == "txn":
        steps = each.output if each.outcome == "ok" else each.value
    for f, key, value in steps:
        if f == "append":
            values[key] = (*values.get(key, ()), value)
        elif each.outcome == "ok" and list(values.get(key, ())) != value:
            return NO
    return tuple(sorted(values.items()))


def bank(state: Any, each: Operation) -> Any:
    """transfer, read; the state is a tuple of sorted pairs."""
    values = dict(state)
    if each.f == "read":
        return state if each.outcome == "info" or each.output == values else NO
    giver, taker, amount = each.value["from"], each.value["to"], each.value["amount"]
    if values[giver] < amount:
        return state if each.outcome == "info" or each.result is False else NO
    if each.result is False:
        return NO
    values[giver] -= amount
    values[taker] += amount
    return tuple(sorted(values.items()))
