"""Decides whether lists that only grow are strictly serializable: their dependencies must form no cycle.

`append` (one element to a key's list) and `read` (the whole list) stand alone or as the steps of a `txn`, [["append",
key, element], ["read", key, list], ...]. Elements are unique per key. A read shows the order of all its elements. So
all dependencies between transactions follow (Kingsbury and Alvaro, "Elle", 2020). They are the order of appends, reads
after the appends that they saw, appends after reads that did not see them, and real time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

from raftlog.chaos.judge.history import BadHistory, Operation
from raftlog.chaos.judge.model import freeze, text_of, unknown_function, where
from raftlog.chaos.judge.verdicts import Report, report_of

FUNCTIONS = ("append", "read", "txn")
_APPEND = ("append",)
_READ = ("read", "r")


@dataclass(slots=True)
class _Key:
    """One list: the writer of each element, in order of the calls, and its reads from outside, longest last."""

    key: Any
    writers: dict[Hashable, int] = field(default_factory=dict)  # element -> operation
    failed: dict[Hashable, Operation] = field(default_factory=dict)
    reads: list[tuple[int, list[Any]]] = field(default_factory=list)
    order: list[Hashable] = field(default_factory=list)  # of everything that was read


def check_list_append(operations: Sequence[Operation]) -> Report:
    """The verdict. Raises BadHistory."""
    keys: dict[Hashable, _Key] = {}
    problems: list[str] = []
    for number, operation in enumerate(operations):
        _take(number, operation, keys, problems)
    edges: list[dict[int, str]] = [{} for _ in operations]
    alive = {number for number, operation in enumerate(operations) if operation.outcome == "ok"}
    problems += filter(None, (_ordered(each, operations) for each in keys.values()))
    if not problems:
        alive.update(each.writers[element] for each in keys.values() for element in each.order)  # read, so it happened
        for each in keys.values():
            _depend(each, operations, edges, alive, problems)
    if not problems:
        problems += _cycle(operations, edges, alive)
    counts = {"keys": len(keys), "dependencies": sum(map(len, edges))}
    return report_of("list-append", len(operations), problems, counts)


def _steps(operation: Operation) -> list[list[Any]]:
    """The operation as a transaction. Of one that did not end `ok` only the appends count."""
    if operation.f == "append":
        return [["append", operation.key, operation.value]]
    if operation.f == "read":
        return [["read", operation.key, operation.output]] if operation.outcome == "ok" else []
    if operation.f != "txn":
        raise unknown_function("list-append", FUNCTIONS, operation)
    is_ok = operation.outcome == "ok"
    steps = operation.output if is_ok and operation.output is not None else operation.value
    known = (*_APPEND, *_READ)
    if type(steps) is not list or any(
        type(step) is not list or len(step) != 3 or step[0] not in known for step in steps
    ):
        raise BadHistory(f'{where(operation)}: txn is a list of ["append" or "read", key, value], not {text_of(steps)}')
    return steps if is_ok else [step for step in steps if step[0] in _APPEND]


def _take(number: int, operation: Operation, keys: dict[Hashable, _Key], problems: list[str]) -> None:
    own: dict[Hashable, list[Any]] = {}  # the elements appended so far, per key
    for f, key, value in _steps(operation):
        name = freeze(key)
        found = keys.setdefault(name, _Key(key))
        if f in _APPEND:
            element = freeze(value)
            if element in found.writers or element in found.failed:
                raise BadHistory(
                    f"line {operation.called}: {text_of(value)} is appended to {text_of(key)} a second time"
                )
            if operation.outcome == "fail":
                found.failed[element] = operation
            else:
                found.writers[element] = number
                own.setdefault(name, []).append(value)
            continue
        seen = [] if value is None else value
        if type(seen) is not list:
            raise BadHistory(f"{where(operation)}: a read of a list is a list, not {text_of(seen)}")
        mine = own.get(name, [])
        if mine and seen[-len(mine) :] != mine:
            problems.append(f"{operation} does not read what it has appended itself: {text_of(mine)}")
        found.reads.append((number, seen[: len(seen) - len(mine)]))


def _ordered(key: _Key, operations: Sequence[Operation]) -> str | None:
    """Finds the writers of the elements that were read, in order; returns the fault of the list, if it has one."""
    name = text_of(key.key)
    longest: list[Any] = max((seen for _, seen in key.reads), key=len, default=[])
    order = key.order = [freeze(element) for element in longest]
    if len(set(order)) != len(order):
        return f"list {name}: an element is in it twice: {text_of(longest)}"
    for number, seen in key.reads:
        if [freeze(element) for element in seen] != order[: len(seen)]:
            return f"list {name}: {operations[number]} is no beginning of {text_of(longest)}"
    for element, shown in zip(order, longest, strict=True):
        if element in key.failed:
            return f"list {name}: {key.failed[element]} failed, and {text_of(shown)} was read"
        if element not in key.writers:
            return f"list {name}: no client appended {text_of(shown)}, which was read"
    if (torn := _torn(key)) is not None:
        return f"list {name}: a read saw half of {operations[torn]}"
    return None


def _depend(
    key: _Key, operations: Sequence[Operation], edges: list[dict[int, str]], alive: set[int], problems: list[str]
) -> None:
    """Adds the dependencies from the reads of one key. Elements that were appended but not read come after all that
    were read.
    """
    name = text_of(key.key)
    writers = [key.writers[element] for element in key.order]
    for before, after in pairwise(writers):
        if before != after:
            edges[before].setdefault(after, f"appended to {name} before")
    read = set(key.order)
    unseen = [number for element, number in key.writers.items() if element not in read and number in alive]
    if writers:
        for number in unseen:
            if number != writers[-1]:
                edges[writers[-1]].setdefault(number, f"appended to {name} before")
    for number, seen in key.reads:
        length = len(seen)
        if length and writers[length - 1] != number:
            edges[writers[length - 1]].setdefault(number, f"appended to {name} the element that was read by")
            if length < len(writers) and writers[length] == writers[length - 1]:
                problems.append(f"list {name}: {operations[number]} saw half of {operations[writers[length]]}")
        for later in writers[length : length + 1] if length < len(writers) else unseen:
            if later != number:
                edges[number].setdefault(later, f"read {name} without the element that was appended by")


def _torn(key: _Key) -> int | None:
    """A transaction of several appends of which some were read, and not all of them together and in order."""
    runs: dict[int, list[Hashable]] = {}
    for element, number in key.writers.items():
        runs.setdefault(number, []).append(element)
    order = key.order
    place = {element: position for position, element in enumerate(order)}
    for number, run in runs.items():
        if len(run) > 1 and any(element in place for element in run):
            first = place.get(run[0], -1)
            if first < 0 or order[first : first + len(run)] != run:
                return number
    return None


def _cycle(operations: Sequence[Operation], edges: list[dict[int, str]], alive: set[int]) -> list[str]:
    """A cycle of dependencies as a sentence, if there is one. Real time is a chain of moments: an end leads to its
    moment, a moment to the next, and to what begins after it."""
    graph: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(operations)), ()))
    for before, each in enumerate(edges):
        for after in each:
            if after in alive:
                graph.add(after, before)
    events = sorted(
        [(operations[number].called, number, False) for number in alive]
        + [(operations[number].returned or 0, number, True) for number in alive if operations[number].outcome == "ok"]
    )
    first = moment = len(operations) - 1
    for _, number, is_end in events:
        if is_end:
            graph.add(moment + 1, number, *([moment] if moment > first else []))
            moment += 1
        elif moment > first:
            graph.add(number, moment)
    try:
        graph.prepare()
    except CycleError as error:
        return [_in_words(error.args[1][:-1], len(operations), operations, edges)]
    return []


def _in_words(cycle: list[int], count: int, operations: Sequence[Operation], edges: list[dict[int, str]]) -> str:
    while cycle[0] >= count:  # begin with an operation
        cycle = cycle[1:] + cycle[:1]
    parts: list[str] = []
    last = cycle[0]
    through_time = False
    for number in [*cycle[1:], cycle[0]]:
        if number >= count:
            through_time = True
            continue
        why = "ended before the call of" if through_time else edges[last].get(number, "came before")
        parts.append(f"{operations[last]} {why}")
        last, through_time = number, False
    return "a cycle: " + " ".join(parts) + " the first again"
