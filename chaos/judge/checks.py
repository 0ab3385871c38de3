"""Checks in linear time by the log index in every answer: order in real time, replay, each record exactly once.

The checks need no search, so they judge any length of history. They also find faults that a search cannot: a write at
another index than its client was given, or a read of an old state that no client could have noticed. Each check returns
the faults as whole sentences. It compares with the log itself, or with the acknowledged writes alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.model import freeze

Changes = Mapping[Hashable, Sequence[tuple[int, Any]]]
"""Per key (index, value) of each change in order; a value of None is a delete."""

READS = ("read", "get", "stale")


def in_real_time(operations: Iterable[Operation], *, writes: Sequence[str], reads: Sequence[str] = ()) -> list[str]:
    """Checks that indexes follow real time, and that terms do not fall with the index.

    A write that began after another operation had ended has a higher index. A linearizable read has none lower.
    """
    problems: list[str] = []
    known = [each for each in operations if each.outcome == "ok" and each.index is not None]
    events = sorted(
        [(each.called, False, number) for number, each in enumerate(known) if each.f in writes or each.f in reads]
        + [(each.returned or 0, True, number) for number, each in enumerate(known)]
    )
    highest: Operation | None = None
    floors: dict[int, Operation] = {}
    for _, is_end, number in events:
        operation = known[number]
        assert operation.index is not None
        if not is_end:
            if highest is not None:
                floors[number] = highest
            continue
        floor = floors.pop(number, None)
        if floor is not None and floor.index is not None:
            if operation.index < floor.index or (operation.index == floor.index and _changes(operation, floor, writes)):
                problems.append(
                    f"index {operation.index} of {operation} is not after {floor.index} of {floor}, "
                    "which had ended before it began"
                )
        if highest is None or highest.index is None or operation.index > highest.index:
            highest = operation
    term, index = 0, 0
    for each in sorted((each for each in known if each.f in writes and each.term is not None), key=_index_of):
        assert each.term is not None
        assert each.index is not None
        if each.term < term:
            problems.append(f"{each} has index {each.index} and term {each.term}; index {index} has term {term}")
        term, index = each.term, each.index
    return problems


def _index_of(operation: Operation) -> int:
    return operation.index or 0


def _changes(operation: Operation, floor: Operation, writes: Sequence[str]) -> bool:
    """Whether an equal index is wrong: of two writes; one that saw that it could not (result false) is a read."""
    return operation.f in writes and operation.result is not False and floor.f in writes


def _is_write(operation: Operation) -> bool:
    return operation.f in ("write", "put", "delete") or (operation.f == "cas" and operation.result is not False)


def replay(operations: Sequence[Operation], changes: Changes) -> list[str]:
    """Every acknowledged write is the change at its index, and every read returns the newest change up to its own."""
    problems: list[str] = []
    indexes = {key: [index for index, _ in rows] for key, rows in changes.items()}
    for each in operations:
        if each.outcome != "ok" or each.index is None:
            continue
        key = freeze(each.key)
        rows = changes.get(key, ())
        place = bisect_right(indexes.get(key, []), each.index)
        newest: tuple[int, Any] = rows[place - 1] if place else (0, None)
        if each.f in READS:
            if newest[1] != each.output:
                problems.append(
                    f"{each} was answered as of index {each.index}; there the newest change, of index {newest[0]}, "
                    f"is {newest[1]!r}"
                )
        elif _is_write(each):
            is_void = each.f in ("write", "delete") and each.value is None  # deleting nothing changes nothing
            if newest != (each.index, _written(each)) and not (is_void and newest[1] is None):
                problems.append(
                    f"{each} was answered with index {each.index}; the newest change up to there is "
                    f"{newest[1]!r} of index {newest[0]}"
                )
    return problems


def _written(operation: Operation) -> Any:
    value = operation.value
    return value[1] if operation.f == "cas" and type(value) is list and len(value) == 2 else value


def exactly_once(operations: Iterable[Operation], places: Mapping[str, Sequence[int]]) -> list[str]:
    """Appends of unique records against the log: `places` are the indexes at which each record was carried out.

    An append's value is the list of its records, its index that of the last. Acknowledged records lie at their indexes
    and nowhere else. Failed records lie nowhere. Of an append of unknown outcome, all records lie there once, or none.
    The log has no record that no client sent.
    """
    problems: list[str] = []
    sent: set[str] = set()
    for each in operations:
        records: list[str] = each.value
        sent.update(records)
        found = [list(places.get(record, ())) for record in records]
        if each.outcome == "ok" and each.index is not None:
            first = each.index - len(records) + 1
            if found != [[first + number] for number in range(len(records))]:
                problems.append(f"{each} was answered with index {each.index}; its records lie at {found}")
        elif each.outcome == "fail":
            if any(found):
                problems.append(f"{each} failed, and its records lie at {found}")
        else:
            one = found[0] if found else []
            if len(one) > 1 or found != [[index + number for index in one] for number in range(len(records))]:
                problems.append(f"{each} was to happen at most once; its records lie at {found}")
    problems += [
        f"no client sent {record!r}, which lies at {where}" for record, where in places.items() if record not in sent
    ]
    return problems


def kept_by_age(writes: Iterable[Operation], trims: Iterable[tuple[int, int]], age_ms: int) -> list[str]:
    """Retention by age against the clock of the harness: no trim takes a record that is younger.

    `trims` are the indexes of trims, each with the oldest index that it left. A record was made after its client asked.
    A trim was made before a client was answered with a higher index. So no record is held to be younger than it was.
    """
    known = [each for each in writes if each.outcome == "ok" and each.index is not None]
    problems: list[str] = []
    for index, before in trims:
        ended = [each.returned_ns for each in known if (each.index or 0) > index and each.returned_ns is not None]
        made = [(each.called_ns, each) for each in known if (each.index or 0) < before and each.called_ns is not None]
        if not ended or not made:
            continue
        made_ns, youngest = max(made, key=lambda each: each[0])
        was_ms = (min(ended) - made_ns) // 1_000_000
        if was_ms < age_ms:
            problems.append(
                f"the trim at index {index} took all records before {before}; {youngest} was {was_ms} ms old at most, "
                f"and records of {age_ms} ms have to stay"
            )
    return problems
