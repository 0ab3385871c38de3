"""Decides in one pass whether a set that only grows is linearizable: nothing lost, nothing stale, nothing twice.

`add` puts one unique element in; `read` returns all of them as a list. The reads must form a chain of growing sets.
Then an order exists exactly if every element and every read fits real time (see `_of_read`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

from raftlog.chaos.judge.history import BadHistory, Operation
from raftlog.chaos.judge.model import each_key, freeze, text_of, where
from raftlog.chaos.judge.verdicts import Report


def check_set(operations: Sequence[Operation]) -> Report:
    """The verdict about every key's set. Raises BadHistory."""
    return each_key("set", ("add", "read"), "elements", _check_key, operations)


def _check_key(operations: Sequence[Operation], problems: list[str], counts: Counter[str]) -> None:
    adds: dict[Hashable, Operation] = {}
    reads: list[tuple[Operation, dict[Hashable, Any]]] = []
    for each in operations:
        if each.f == "add":
            element = freeze(each.value)
            if element in adds:
                raise BadHistory(
                    f"line {each.called}: {text_of(each.value)} is added a second time; elements are unique"
                )
            adds[element] = each
        elif each.outcome == "ok":
            if type(each.output) is not list:
                raise BadHistory(f"{where(each)}: a read of a set is a list, not {text_of(each.output)}")
            seen = {freeze(element): element for element in each.output}
            if len(seen) != len(each.output):
                twice = next(element for element in each.output if each.output.count(element) > 1)
                problems.append(f"duplicated: {text_of(twice)} is in {each} more than once")
            reads.append((each, seen))
    counts["elements"] += len(adds)
    counts["reads"] += len(reads)
    settled = [(each.returned or 0, element) for element, each in adds.items() if each.outcome == "ok"]
    settled.sort(key=itemgetter(0))
    ended = [returned for returned, _ in settled]
    everywhere = {element for _, seen in reads for element in seen}
    for each, seen in reads:
        _of_read(each, seen, adds, ended, settled, everywhere, problems)
    _chain(reads, problems)


def _of_read(
    read: Operation,
    seen: dict[Hashable, Any],
    adds: dict[Hashable, Operation],
    ended: list[int],
    settled: list[tuple[int, Hashable]],
    everywhere: set[Hashable],
    problems: list[str],
) -> None:
    """Checks one read against real time. A read has only elements whose add began before the read ended.

    It has every element whose add ended before the read began. It also has every element whose add ended before the add
    of one of its elements began.
    """
    assert read.returned is not None
    horizon, has = read.called, 0
    for element, shown in seen.items():
        add = adds.get(element)
        if add is None:
            problems.append(f"no client added {text_of(shown)}, which is in {read}")
        elif add.outcome == "fail":
            problems.append(f"{add} failed, and its element is in {read}")
        elif add.called > read.returned:
            problems.append(f"{read} has an element that was added only after it: {add}")
        else:
            horizon = max(horizon, add.called)
    place = bisect_left(ended, horizon)
    for element in seen:
        add = adds.get(element)
        if add is not None and add.outcome == "ok" and (add.returned or 0) < horizon:
            has += 1
    if has < place:
        for _, element in settled[:place]:
            if element not in seen:
                kind = "stale" if element in everywhere else "lost"
                before = "it" if (adds[element].returned or 0) < read.called else "what it has"
                problems.append(f"{kind}: {adds[element]} had ended before {before} began, and is not in {read}")


def _chain(reads: Sequence[tuple[Operation, dict[Hashable, Any]]], problems: list[str]) -> None:
    """Of two reads one has all that the other has; and none less than one that had ended before it began."""
    by_size = sorted(reads, key=lambda pair: len(pair[1]))
    for (smaller, few), (larger, many) in pairwise(by_size):
        missing = next((shown for element, shown in few.items() if element not in many), None)
        if missing is not None:
            problems.append(
                f"{smaller} and {larger} fit in no order: only the first has {text_of(missing)}, and the "
                "second is not smaller"
            )
    events = sorted(
        [(read.called, 0, number) for number, (read, _) in enumerate(reads)]
        + [(read.returned or 0, 1, number) for number, (read, _) in enumerate(reads)]
    )
    most: tuple[int, int] = (0, -1)
    for _, is_end, number in events:
        size = len(reads[number][1])
        if is_end:
            most = max(most, (size, number))
        elif most[0] > size:
            problems.append(
                f"stale: {reads[number][0]} has {size} elements, and {reads[most[1]][0]}, which had ended "
                f"before it began, {most[0]}"
            )
