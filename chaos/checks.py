"""Linear checks by the log index in every answer: order in real time, replay, and each record exactly once.

They need no search, so they judge any length of history; and they see what a search cannot: a write that was put at
another index than its client was told, or a read of an old state that no client could have noticed. Each returns what
is wrong as whole sentences. What they compare with comes from the log itself, or from the acknowledged writes alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from chaos.history import Operation
from chaos.model import freeze

Changes = Mapping[Hashable, Sequence[tuple[int, Any]]]
"""Per key (index, value) of each change in order; a value of None is a delete."""

READS = ("read", "get", "stale")


def in_real_time(operations: Iterable[Operation], *, writes: Sequence[str], reads: Sequence[str] = ()) -> list[str]:
    """What began after another had ended has a higher index (a write), or none lower (a linearizable read); and terms
    do not fall with the index."""
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
                problems.append(f"index {operation.index} of {operation} is not after {floor.index} of {floor}, "
                                "which had ended before it began")  # fmt: skip
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


def acknowledged_changes(operations: Iterable[Operation]) -> dict[Hashable, list[tuple[int, Any]]]:
    """The changes that the acknowledged writes tell of, where the log itself cannot be asked."""
    changes: dict[Hashable, list[tuple[int, Any]]] = {}
    for each in sorted((each for each in operations if _is_write(each) and each.outcome == "ok"), key=_index_of):
        value = each.value[1] if each.f == "cas" else each.value
        changes.setdefault(freeze(each.key), []).append((_index_of(each), value))
    return changes


def _is_write(operation: Operation) -> bool:
    return operation.f in ("write", "put", "delete") or (operation.f == "cas" and operation.result is not False)


def replay(operations: Sequence[Operation], changes: Changes, *, is_complete: bool = True) -> list[str]:
    """Every acknowledged write is the change at its index, and every read tells the newest change up to its own.

    Without the log (`is_complete` False) a read may also tell a write whose outcome nobody knows.
    """
    problems: list[str] = []
    indexes = {key: [index for index, _ in rows] for key, rows in changes.items()}
    unknown = {(freeze(each.key), freeze(_written(each))) for each in operations if each.outcome == "info"}
    for each in operations:
        if each.outcome != "ok" or each.index is None:
            continue
        key = freeze(each.key)
        rows = changes.get(key, ())
        place = bisect_right(indexes.get(key, []), each.index)
        newest: tuple[int, Any] = rows[place - 1] if place else (0, None)
        if each.f in READS:
            if newest[1] != each.output and (is_complete or (key, freeze(each.output)) not in unknown):
                problems.append(
                    f"{each} was answered as of index {each.index}; there the newest change, of index {newest[0]}, "
                    f"is {newest[1]!r}"
                )  # fmt: skip
        elif _is_write(each):
            is_void = each.f in ("write", "delete") and each.value is None  # deleting nothing changes nothing
            if newest != (each.index, _written(each)) and not (is_void and newest[1] is None):
                problems.append(f"{each} was told index {each.index}; the newest change up to there is {newest[1]!r} "
                                f"of index {newest[0]}")  # fmt: skip
    return problems


def _written(operation: Operation) -> Any:
    value = operation.value
    return value[1] if operation.f == "cas" and type(value) is list and len(value) == 2 else value


def exactly_once(operations: Iterable[Operation], places: Mapping[str, Sequence[int]]) -> list[str]:
    """Appends of unique records against the log: `places` are the indexes at which each record was carried out.

    An append's value is the list of its records, its index that of the last; acknowledged ones lie at their indexes
    and nowhere else, failed ones nowhere, of unknown outcome all once or none; and nothing lies there that nobody sent.
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
                problems.append(f"{each} was told index {each.index}; its records lie at {found}")
        elif each.outcome == "fail":
            if any(found):
                problems.append(f"{each} failed, and its records lie at {found}")
        else:
            one = found[0] if found else []
            if len(one) > 1 or found != [[index + number for index in one] for number in range(len(records))]:
                problems.append(f"{each} was to happen at most once; its records lie at {found}")
    problems += [
        f"nobody sent {record!r}, which lies at {where}" for record, where in places.items() if record not in sent
    ]
    return problems
